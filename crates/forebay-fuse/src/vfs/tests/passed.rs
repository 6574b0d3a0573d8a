//! Files that the kernel passes through: it is played.

use std::os::fd::BorrowedFd;

use forebay_backing::{SetAttr, SetTime, Timestamp};

use super::*;
use crate::vfs::Registrar;

struct Passes;

impl Registrar for Passes {
    fn register(&self, _: BorrowedFd<'_>) -> std::io::Result<u32> {
        Ok(1)
    }

    fn release(&self, _: u32) {}
}

/// A file is given set-user-id while somebody has it open past us.
#[test]
fn set_user_id_is_lost_by_what_is_written_after_it_was_given() {
    for writes in [true, false] {
        let mut bed = Bed::new(0);
        let vfs = Bed::vfs(&bed.root, "a", Passthrough::Always);
        vfs.set_registrar(Arc::new(Passes));
        let mount = Mount { vfs: Arc::new(vfs), kernel: Arc::default() };
        let handle = mount.create("f");
        let (key, vfs) = (mount.key("f"), &mount.vfs);
        let id = mount.lookup("f").expect("it is there").id;
        let write = |text: &[u8]| {
            let open = vfs.open.lock();
            let past = &open.get(&key).expect("it is open").past;
            past[0].shadow().write_at(text, 0).expect("room");
        };
        write(b"before");
        let mode = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
        vfs.setattr(id, Origin::default(), &mode, None).expect("ours");
        if writes {
            write(b"after");
        }
        let time = SetTime::At(Timestamp { sec: 1_000_000, nsec: 0 });
        let time = SetAttr { mtime: Some(time), ..SetAttr::default() };
        vfs.setattr(id, Origin::default(), &time, None).expect("ours");
        vfs.release(handle);
        let mode = vfs.engine.names.ask(|b| b.stat(Path::new("f"))).expect("it is there").mode;
        assert_eq!(mode & 0o4000 == 0, writes, "{mode:o}");
        bed.mounts.push(mount);
    }
}
