//! Programs that have an older version of a file open, which they read past the daemon.

use forebay_engine::media::MediaFile;

use super::passed::Passes;
use super::*;
use crate::vfs::How;

const OLD: &str = "old bytes";
/// Enough that the tier keeps digests of a file.
const LARGE: usize = 1 << 20;
const NEW: &str = "new bytes, and more";

/// A mount on which a program reads `f` past the daemon; another member has rewritten the file since.
struct Older {
    bed: Bed,
    reader: u64,
    id: u64,
}

impl Older {
    fn new() -> Older {
        let mut bed = Bed::new(0);
        let at = bed.root.join("backing/f");
        std::fs::write(&at, OLD).expect("it is writable");
        let vfs = Arc::new(Bed::vfs(&bed.root, "a", Passthrough::Always));
        vfs.set_registrar(Arc::new(Passes));
        vfs.set_cluster(Box::new(Played { net: bed.net.clone(), name: "a".into() }));
        bed.mounts.push(Mount { vfs, kernel: Arc::default() });
        let a = &bed.mounts[0];
        let first = a.open("f", libc::O_RDONLY).expect("it is there").handle;
        assert_eq!(a.read(first), OLD);
        a.vfs.release(first);
        let id = a.lookup("f").expect("it is there").id;
        let opened = a.vfs.open(id, libc::O_RDONLY.into(), Origin::default()).expect("it is there");
        assert!(matches!(opened.how, How::Passthrough(_)), "{opened:?}");
        std::fs::write(&at, NEW).expect("it is writable");
        Older { reader: opened.handle, id, bed }
    }

    fn a(&self) -> &Mount {
        &self.bed.mounts[0]
    }

    /// Opens the file as the kernel does: by the node that it has, and after ESTALE by the name.
    fn opened(&self, flags: i32) -> u64 {
        let again = self.a().vfs.open(self.id, flags.into(), Origin::default());
        assert!(again.expect_err("its bytes are old").is(libc::ESTALE));
        let found = self.a().lookup("f").expect("it is there");
        assert_ne!(found.id, self.id, "a node of its own");
        assert_eq!(found.attr.size, NEW.len() as u64);
        self.a().vfs.open(found.id, flags.into(), Origin::default()).expect("it is there").handle
    }

    /// Runs with the shadow that the older program has open.
    fn with_shadow<T>(&self, run: impl FnOnce(&dyn MediaFile) -> T) -> T {
        let key = self.a().key("f");
        let open = self.a().vfs.open.lock();
        run(open.get(&key).expect("it is open").past[0].shadow())
    }

    /// The bytes that the older reader has in its shadow.
    fn kept(&self) -> Vec<u8> {
        let mut bytes = vec![0; OLD.len()];
        let read = self.with_shadow(|shadow| shadow.read_at(&mut bytes, 0).expect("it is there"));
        assert_eq!(read, OLD.len());
        bytes
    }
}

// S-25
#[test]
fn an_open_reads_the_newest_bytes_beside_a_program_that_reads_old_ones_past_the_daemon() {
    let older = Older::new();
    let handle = older.opened(libc::O_RDONLY);
    assert_eq!(older.a().read(handle), NEW);
    assert_eq!(older.kept(), OLD.as_bytes());
    older.a().vfs.release(handle);
    older.a().vfs.release(older.reader);
    let opened = older.a().open("f", libc::O_RDONLY).expect("it is there");
    assert_eq!(older.a().lookup("f").expect("it is there").id, older.id, "nobody has old bytes");
    assert_eq!(older.a().read(opened.handle), NEW);
}

// S-25
#[test]
fn a_write_goes_to_the_newest_bytes_beside_a_program_that_reads_old_ones_past_the_daemon() {
    let older = Older::new();
    let handle = older.opened(libc::O_RDWR);
    older.a().write(handle, 0, "NEW").expect("its home is here");
    older.a().vfs.release(handle);
    older.a().vfs.release(older.reader);
    let report = older.a().vfs.engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{report:?}");
    let stored = std::fs::read_to_string(older.bed.root.join("backing/f")).expect("text");
    assert_eq!(stored, NEW.replacen("new", "NEW", 1));
}

// S-25
#[test]
fn a_cut_by_name_is_of_the_newest_bytes_whoever_reads_old_ones() {
    let older = Older::new();
    let cut = |id| {
        let vfs = &older.a().vfs;
        vfs.setattr(id, Origin::default(), &Default::default(), Some((7, None)))
    };
    assert!(cut(older.id).expect_err("its bytes are old").is(libc::ESTALE));
    let found = older.a().lookup("f").expect("it is there");
    cut(found.id).expect("its home is here");
    let handle = older.a().vfs.open(found.id, libc::O_RDONLY.into(), Origin::default());
    assert_eq!(older.a().read(handle.expect("it is there").handle), NEW[..7]);
}

/// A program that may write a file past the daemon keeps the file's record, although others have changed the file on the
/// store: what it writes is a conflict, and not lost.
// S-2 S-8
#[test]
fn a_file_that_is_written_past_the_daemon_gives_way_to_no_newer_bytes() {
    let older = Older::new();
    let (a, engine) = (older.a(), older.a().vfs.engine.clone());
    let at = older.bed.root.join("backing/g");
    std::fs::write(&at, vec![1; LARGE]).expect("it is writable");
    let first = a.open("g", libc::O_RDONLY).expect("it is there").handle;
    let mut all = vec![0; LARGE];
    a.vfs.read(first, 0, &mut all).expect("it can be read");
    a.vfs.release(first);
    eventually("it is in the tier", || engine.ops.status().clean_bytes >= LARGE as u64);
    let writer = a.opened("g");
    let key = a.key("g");
    let before = engine.files.find(key).expect("it is open");
    assert!(before.lock().state.is_unseen(), "the kernel writes past the daemon");
    std::fs::write(at, NEW).expect("it is writable");
    a.vfs.release(a.open("g", libc::O_RDONLY).expect("it is served").handle);
    a.vfs.open.lock()[&key].past[0].shadow().write_at(b"ours", 0).expect("room");
    a.vfs.release(writer);
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(Arc::ptr_eq(&engine.files.find(key).expect("it has its key"), &before));
    assert_eq!(report.failures.len(), 1, "a conflict: {report:?}");
    assert!(engine.ops.status().dirty_bytes > 0);
}
