//! Files that the kernel passes through; the kernel is played.

use std::os::fd::BorrowedFd;

use forebay_backing::{RenameMode, SetAttr, SetTime, Timestamp};

use super::slow::{Gate, SlowMedia};
use super::*;
use crate::vfs::{How, Registrar};

pub struct Passes;

impl Registrar for Passes {
    fn register(&self, _: BorrowedFd<'_>) -> std::io::Result<u32> {
        Ok(1)
    }

    fn release(&self, _: u32) {}
}

/// A file is given set-user-id while a program has it open past the daemon.
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

/// Runs `does` in a thread of its own, and fails if it takes 10 s.
fn answered<T: Send + 'static>(what: &str, does: impl FnOnce() -> T + Send + 'static) -> T {
    let (tells, told) = channel();
    std::thread::spawn(move || {
        let _ = tells.send(does());
    });
    told.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|_| panic!("{what} waits"))
}

/// The tier takes long to make a file durable, to be written past the daemon. Users of other files do not wait.
// S-10
#[test]
fn a_file_that_is_made_ready_keeps_nobody_waiting_but_those_who_open_it() {
    const MIB: usize = 1 << 20;
    let mut bed = Bed::new(0);
    let tier = bed.root.join("a");
    std::fs::create_dir_all(&tier).expect("the directory is writable");
    let gate = Arc::new(Gate::default());
    let media = DirMedia::open(&tier).expect("it is there");
    let media = Arc::new(SlowMedia { media, gate: gate.clone() });
    let vfs = Bed::vfs_on(&bed.root, media, Passthrough::Always);
    vfs.set_registrar(Arc::new(Passes));
    let mount = Mount { vfs: Arc::new(vfs), kernel: Arc::default() };
    let backing = bed.root.join("backing");
    std::fs::create_dir(backing.join("dir")).expect("the directory is writable");
    std::fs::write(backing.join("other"), b"other").expect("the directory is writable");
    std::fs::write(backing.join("f"), vec![1; 2 * MIB]).expect("the directory is writable");
    let reader = mount.open("f", libc::O_RDONLY).expect("it is there").handle;
    let mut buf = vec![0; MIB];
    for at in 0..2 {
        mount.vfs.read(reader, (at * MIB) as u64, &mut buf).expect("it can be read");
    }
    mount.vfs.release(reader);
    let ids = ["f", "dir", "other"].map(|name| mount.lookup(name).expect("it is there").id);
    let engine = mount.vfs.engine.clone();
    let complete = || engine.ops.status().clean_bytes == 2 * MIB as u64;
    eventually("it was read", complete);
    gate.close();
    let opens = || {
        let (vfs, id) = (mount.vfs.clone(), ids[0]);
        std::thread::spawn(move || vfs.open(id, libc::O_RDWR.into(), Origin::default()))
    };
    let first = opens();
    eventually("the first makes it ready", || gate.came() == 1);
    let second = opens();
    std::thread::sleep(Duration::from_millis(200));
    let vfs = mount.vfs.clone();
    let renamed = answered("a rename of a directory", move || {
        let at = |name| (ROOT, OsStr::new(name));
        vfs.rename(at("dir"), at("moved"), RenameMode::Replace)
    });
    renamed.expect("there is such a directory");
    let (vfs, other) = (mount.vfs.clone(), ids[2]);
    let opened = answered("an open of another file", move || {
        vfs.open(other, libc::O_RDWR.into(), Origin::default())
    });
    mount.vfs.release(opened.expect("it is there").handle);
    let beside = Mount { vfs: mount.vfs.clone(), kernel: Arc::default() };
    let made = answered("a file that is made", move || beside.create("new"));
    mount.vfs.release(made);
    assert_eq!(gate.came(), 1, "one makes it ready");
    assert!(!first.is_finished() && !second.is_finished(), "they wait for the tier");
    gate.open();
    for opened in [first, second] {
        let opened = opened.join().expect("no panic inside").expect("it is there");
        assert!(matches!(opened.how, How::Passthrough(_)), "{opened:?}");
        mount.vfs.release(opened.handle);
    }
    bed.mounts.push(mount);
}
