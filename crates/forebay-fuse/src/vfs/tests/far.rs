//! Files that another mount serves.

use std::sync::Condvar;
use std::sync::atomic::AtomicBool;

use forebay_backing::{RenameMode, SetAttr};
use forebay_cluster::words::{By, NameChange};

use super::*;

/// Something that happens at one moment, and is waited for.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *lock(&self.0) = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let waited =
            self.1.wait_timeout_while(lock(&self.0), Duration::from_secs(20), |open| !*open);
        assert!(*waited.expect("no panic inside").0, "the gate stays shut");
    }
}

/// `f` is a file of A with these bytes; returns the handles of A and B.
fn shared(bed: &Bed, text: &str) -> (u64, u64) {
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let near = a.create("f");
    a.write(near, 0, text).expect("it is A's");
    let far = b.opened("f");
    assert_eq!(b.read(far), text);
    (near, far)
}

/// A write that was given up while it waited at the home does not come over what is acknowledged later.
#[test]
fn a_write_that_was_given_up_changes_nothing_once_another_is_acknowledged() {
    let bed = Bed::new(2);
    let (near, far) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let (came, goes_on) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let (comes, waits) = (came.clone(), goes_on.clone());
    let mut is_first = true;
    *lock(&a.kernel.drops_pages) = Some(Box::new(move |_, _| {
        if std::mem::take(&mut is_first) {
            comes.open();
            waits.pass();
        }
    }));
    assert!(b.write(far, 0, "FIRST").expect_err("its home is slow").kind() == Kind::TimedOut);
    came.pass();
    // The first write waits in the kernel, not under the file's lock: the fence alone keeps the second one off.
    let again = b.write(far, 0, "later");
    assert!(again.is_err(), "nothing is acknowledged while the first may come to pass: {again:?}");
    goes_on.open();
    eventually("the home is there again", || b.write(far, 0, "later").is_ok());
    assert!(bed.net.count(|q| matches!(q, Question::Fence { .. })) >= 2);
    assert_eq!(b.read(far), "laterext");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(a.read(near), "laterext");
}

/// A change that is still on its way when it is given up is refused when it comes.
#[test]
fn a_change_that_comes_after_it_was_given_up_is_refused() {
    let bed = Bed::new(2);
    let (_, far) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    bed.net.fated(|_, question| match question {
        Question::Write { offset: 0, .. } => Fate::Lost,
        _ => Fate::Answered,
    });
    assert!(b.write(far, 0, "FIRST").is_err());
    let late = lock(&bed.net.asked).last().cloned().expect("it was asked");
    b.write(far, 4, "text").expect("it is fenced off");
    let answer = a.vfs.answer(("b", 1), late, b"FIRST", &mut Vec::new());
    assert!(matches!(answer, Answer::Refused(Refusal::Errno(libc::ETIMEDOUT, _))), "{answer:?}");
    assert_eq!(b.read(far), "old text");
}

/// A broken connection is no reason to fail: the question that was under way is void before it is asked again.
#[test]
fn a_write_whose_connection_broke_is_made_again_behind_a_fence() {
    let bed = Bed::new(2);
    let (near, far) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let is_broken = AtomicBool::new(false);
    bed.net.fated(move |_, question| match question {
        Question::Write { .. } if !is_broken.swap(true, SeqCst) => Fate::Broken,
        _ => Fate::Answered,
    });
    b.write(far, 0, "new").expect("it is made again");
    assert_eq!(bed.net.count(|q| matches!(q, Question::Fence { .. })), 1);
    assert_eq!(a.read(near), "new text");
}

/// A truncation at open is a change, too: one that comes late does not cut what is written afterwards.
#[test]
fn a_truncation_that_was_given_up_cuts_nothing_that_is_written_later() {
    let bed = Bed::new(2);
    let (near, _) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    bed.net.fated(|_, question| match question {
        Question::Resize { .. } => Fate::Lost,
        _ => Fate::Answered,
    });
    assert!(b.open("f", libc::O_RDWR | libc::O_TRUNC).is_err(), "its home does not answer");
    let is_resize = |q: &&Question| matches!(q, Question::Resize { .. });
    let late = lock(&bed.net.asked).iter().rfind(is_resize).cloned().expect("it was asked");
    *lock(&bed.net.fates) = None;
    let far = b.opened("f");
    b.write(far, 0, "written later").expect("it is fenced off");
    let answer = a.vfs.answer(("b", 1), late, b"", &mut Vec::new());
    assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
    assert_eq!(a.read(near), "written later");
    let far = b.open("f", libc::O_RDWR | libc::O_TRUNC).expect("it answers").handle;
    assert_eq!((b.read(far), a.read(near)), (String::new(), String::new()));
}

/// A requester that keeps the thread, and with it the file's lock, for as long as the gate is shut.
struct Busy(Arc<Gate>, Gate);

impl forebay_engine::Requester for Busy {
    fn is_gone(&self) -> bool {
        self.1.open();
        self.0.pass();
        false
    }
}

/// A home that is at work on a file is waited for: the store does not know its size.
#[test]
fn the_size_of_a_busy_file_is_never_taken_from_the_store() {
    let bed = Bed::new(2);
    let (_, far) = shared(&bed, "eleven here");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let goes_on = Arc::new(Gate::default());
    let busy = Arc::new(Busy(goes_on.clone(), Gate::default()));
    let (engine, key) = (a.vfs.engine.clone(), a.key("f"));
    let works = std::thread::spawn({
        let busy = busy.clone();
        move || {
            let file = engine.files.find(key).expect("it is open");
            forebay_engine::on_behalf_of(busy, || engine.io.write(&file, 0, b"E"))
        }
    });
    busy.1.pass();
    let entry = b.lookup("f");
    assert!(entry.as_ref().is_err_and(|e| e.kind() == Kind::TimedOut), "a size of {entry:?}");
    goes_on.open();
    works.join().expect("no panic").expect("room");
    eventually("it is there again", || b.lookup("f").is_ok_and(|entry| entry.attr.size == 11));
    assert_eq!(b.read(far), "Eleven here");
}

fn guests(mount: &Mount) -> usize {
    mount.vfs.members.guests.lock().len()
}

/// A handle left after an error is closed at its home, however late the home hears of it: it would keep the claim.
#[test]
fn a_handle_that_was_left_is_closed_at_its_home() {
    let bed = Bed::new(2);
    let (near, far) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    a.vfs.release(near);
    let key = a.key("f");
    let is_cut = Arc::new(AtomicBool::new(false));
    let cut = is_cut.clone();
    bed.net.fated(move |_, question| match question {
        Question::Write { .. } => Fate::Broken,
        Question::Close { .. } | Question::Fence { .. } if cut.load(SeqCst) => Fate::Lost,
        _ => Fate::Answered,
    });
    is_cut.store(true, SeqCst);
    assert!(b.write(far, 0, "NEW").is_err(), "the connection broke");
    b.vfs.release(far);
    eventually("it is to be closed", || b.vfs.has_left_handles());
    assert!(bed.net.is_held(key) && guests(a) == 1);
    is_cut.store(false, SeqCst);
    eventually("it is closed", || {
        b.vfs.close_left();
        guests(a) == 0
    });
    assert!(!bed.net.is_held(key), "the claim can go");
}

/// The end of an earlier claim is heard of late, after the file was opened and written at its present home.
// S-25
#[test]
fn what_is_given_back_is_no_later_homes() {
    let bed = Bed::new(2);
    let near = bed.mounts[0].create("f");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    a.write(near, 0, "old text").expect("it is A's");
    let key = a.key("f");
    lock(&bed.net.claimed).insert(key, 5);
    lock(&bed.net.deaf).insert("b".into());
    let far = eventually_far(b);
    b.write(far, 0, "new").expect("its home answers");
    let remembers = || {
        let account = b.vfs.members.unsynced.open(key);
        (b.vfs.home_of(key), account.pending.is_unsynced())
    };
    let at_home = (Some("a".to_string()), true);
    assert_eq!(remembers(), at_home);
    b.vfs.forget_file(key, &bed.net.ended(5));
    assert_eq!(remembers(), at_home, "it was claimed later than that");
    b.vfs.forget_file(key, &bed.net.ended(6));
    assert_eq!(remembers(), (None, false));
}

/// Opens `f` at a mount that hears of no claim.
fn eventually_far(b: &Mount) -> u64 {
    let mut opened = None;
    eventually("its home is found", || {
        opened = b.open("f", libc::O_RDWR).ok();
        opened.is_some()
    });
    opened.expect("just so").handle
}

/// Several threads open the file of one handle anew at once: one new handle is used, and the others are closed.
#[test]
fn of_handles_that_were_opened_at_once_one_stays() {
    let bed = Bed::new(2);
    let (_, far) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    // The home has begun anew: it knows no handle.
    let forgotten = std::mem::take(&mut *a.vfs.members.guests.lock());
    drop(forgotten);
    let opens = Arc::new(AtomicU64::new(0));
    let (counts, all) = (opens.clone(), Arc::new(std::sync::Barrier::new(4)));
    bed.net.fated(move |_, question| {
        if matches!(question, Question::Open { .. }) {
            counts.fetch_add(1, SeqCst);
            all.wait();
        }
        Fate::Answered
    });
    assert!(b.vfs.fsync(far).is_err(), "the handle is of before");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(b.read(far), "old text"));
        }
    });
    assert_eq!(opens.load(SeqCst), 4, "they met");
    eventually("only one stays", || {
        b.vfs.close_left();
        guests(a) == 1
    });
}

/// The end of a member's earlier life does not close the handles of its next one.
#[test]
fn a_member_that_began_anew_keeps_what_it_has_opened_since() {
    let bed = Bed::new(2);
    let (_, far) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    lock(&bed.net.epochs).insert("b".into(), 2);
    let new = b.opened("f");
    assert_eq!(guests(a), 2);
    a.vfs.member_ended("b");
    assert_eq!(guests(a), 1);
    assert_eq!(b.read(new), "old text");
    assert!(b.vfs.fsync(far).is_err(), "that was of the earlier one");
}

/// A program here has the file mapped and changes other bytes of the page while B's write is made: the page that
/// the kernel writes then has old bytes in the place of B's.
#[test]
fn a_mapped_page_does_not_come_over_what_another_mount_writes() {
    let bed = Bed::new(2);
    let (near, far) = shared(&bed, "old text, old page");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let (vfs, times) = (Arc::downgrade(&a.vfs), Arc::new(AtomicU64::new(0)));
    let told = times.clone();
    *lock(&a.kernel.drops_pages) = Some(Box::new(move |offset, _| {
        // The page was read before the write, and is brought home after it.
        if told.fetch_add(1, SeqCst) == 1 {
            assert_eq!(offset, 0);
            let manner = Manner { is_cached: true, ..Manner::default() };
            let vfs = vfs.upgrade().expect("it is mounted");
            vfs.write(near, 0, b"old text, NEW page", manner).expect("room");
        }
    }));
    b.write(far, 0, "FAR").expect("its home answers");
    assert_eq!(a.read(near), "FAR text, NEW page");
    assert_eq!(times.load(SeqCst), 2, "the page came, and the write was not made again");
}

/// The last page of the file is mapped here, with zeros behind the end. The kernel hears of the new end before it
/// drops that page.
#[test]
fn a_mapped_page_does_not_come_over_what_another_mount_appends() {
    let bed = Bed::new(2);
    let (near, _) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let appends = b.open("f", libc::O_RDWR | libc::O_APPEND).expect("A serves it").handle;
    let (vfs, mut times) = (Arc::downgrade(&a.vfs), 0);
    *lock(&a.kernel.drops_pages) = Some(Box::new(move |_, _| {
        times += 1;
        if times < 3 {
            let manner = Manner { is_cached: true, ..Manner::default() };
            let vfs = vfs.upgrade().expect("it is mounted");
            vfs.write(near, 0, b"OLD text\0\0\0\0\0\0", manner).expect("room");
        }
    }));
    b.write(appends, 0, ", more").expect("its home answers");
    assert_eq!(a.read(near), "OLD text, more");
}

/// A program of A sees a change that B has asked for, before the change ends, and writes over it. Then the kernel
/// writes an older page, with `page` in it. The change is not made again over what was written since.
fn is_written_over(
    change: impl FnOnce(&Mount),
    (at, over): (u64, &'static str),
    page: &'static str,
    then: &str,
) {
    let bed = Bed::new(2);
    let (near, _) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let (vfs, first) = (Arc::downgrade(&a.vfs), std::sync::Once::new());
    *lock(&a.kernel.drops_pages) = Some(Box::new(move |_, _| {
        let vfs = vfs.upgrade().expect("it is mounted");
        let mut buf = [0; 64];
        let read = vfs.read(near, 0, &mut buf).expect("it can be read");
        if read.bytes(&buf) == b"old text" {
            return; // Before the change.
        }
        first.call_once(|| {
            vfs.write(near, at, over.as_bytes(), Manner::default()).expect("room");
        });
        let manner = Manner { is_cached: true, ..Manner::default() };
        vfs.write(near, 0, page.as_bytes(), manner).expect("room");
    }));
    change(b);
    *lock(&a.kernel.drops_pages) = None;
    assert_eq!(a.read(near), then);
}

#[test]
fn what_is_written_over_an_append_from_elsewhere_stays() {
    let append = |b: &Mount| {
        let appends = b.open("f", libc::O_RDWR | libc::O_APPEND).expect("A serves it").handle;
        b.write(appends, 0, ", more").expect("pages that come are no error");
    };
    let page = "OLD text\0\0done";
    is_written_over(append, (10, "done"), page, "OLD text, done");
}

#[test]
fn what_is_written_over_a_write_from_elsewhere_stays() {
    let write = |b: &Mount| b.write(b.opened("f"), 0, "FAR").expect("pages that come are no error");
    is_written_over(write, (1, "HO"), "oHO TEXT", "FHO TEXT");
}

#[test]
fn what_is_written_behind_a_cut_from_elsewhere_stays() {
    let cut = |b: &Mount| {
        let (who, set, far) = (Origin::default(), SetAttr::default(), b.opened("f"));
        let id = b.lookup("f").expect("it is there").id;
        b.vfs.setattr(id, who, &set, Some((3, Some(far)))).expect("pages that come are no error");
    };
    is_written_over(cut, (3, "er than before"), "OLDer than before", "OLDer than before");
}

/// A store through a mapping is newer than a change that the program has seen before it.
#[test]
fn a_page_that_was_read_after_a_change_from_elsewhere_comes_whole() {
    let bed = Bed::new(2);
    let (near, far) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let (vfs, mut times) = (Arc::downgrade(&a.vfs), 0);
    *lock(&a.kernel.drops_pages) = Some(Box::new(move |_, _| {
        times += 1;
        if times == 2 {
            let vfs = vfs.upgrade().expect("it is mounted");
            let mut page = [0; 8];
            let came = vfs.read_by(Reader::Cache, near, 0, &mut page).expect("it is in the tier");
            assert_eq!(came.bytes(&page), b"FAR text");
            let manner = Manner { is_cached: true, ..Manner::default() };
            vfs.write(near, 0, b"FaR text", manner).expect("room");
        }
    }));
    b.write(far, 0, "FAR").expect("its home answers");
    assert_eq!(a.read(near), "FaR text");
}

/// A reservation changes no byte: bytes that a program has stored there through a mapping are kept.
#[test]
fn a_page_that_comes_beside_a_reservation_from_elsewhere_comes_whole() {
    let bed = Bed::new(2);
    let (near, far) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let (vfs, mut times) = (Arc::downgrade(&a.vfs), 0);
    *lock(&a.kernel.drops_pages) = Some(Box::new(move |_, _| {
        times += 1;
        if times == 2 {
            let manner = Manner { is_cached: true, ..Manner::default() };
            let vfs = vfs.upgrade().expect("it is mounted");
            vfs.write(near, 0, b"NEW text\0\0", manner).expect("room");
        }
    }));
    b.vfs.fallocate(far, 0, 10, 0).expect("its home answers");
    assert_eq!(a.read(near), "NEW text\0\0");
}

/// The page that a program here has changed lies behind the end that B gives the file: the file stays short.
#[test]
fn a_mapped_page_does_not_undo_what_another_mount_cuts_off() {
    let bed = Bed::new(2);
    let (near, far) = shared(&bed, "old text, old page");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let (vfs, times) = (Arc::downgrade(&a.vfs), Arc::new(AtomicU64::new(0)));
    let told = times.clone();
    *lock(&a.kernel.drops_pages) = Some(Box::new(move |offset, len| {
        assert!(offset == 3 && len > 1 << 40, "what lies behind the new end");
        if told.fetch_add(1, SeqCst) == 1 {
            let manner = Manner { is_cached: true, ..Manner::default() };
            let vfs = vfs.upgrade().expect("it is mounted");
            vfs.write(near, 0, b"OLD text, NEW page", manner).expect("room");
        }
    }));
    let (who, set) = (Origin::default(), SetAttr::default());
    let id = b.lookup("f").expect("it is there").id;
    b.vfs.setattr(id, who, &set, Some((3, Some(far)))).expect("its home answers");
    assert_eq!(a.read(near), "OLD");
    assert_eq!(times.load(SeqCst), 2, "the page came, and the file was not cut again");
}

/// B's kernel brings a page home that a program there has changed through a mapping. Zeros in it behind the file's
/// former end are not of the file, and bytes behind the file's present end do not make it longer.
#[test]
fn a_page_from_elsewhere_brings_what_was_stored_and_no_more() {
    let bed = Bed::new(2);
    let (near, far) = shared(&bed, "old text");
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let mut page = vec![0; 4096];
    let came = b.vfs.read_by(Reader::Cache, far, 0, &mut page).expect("A serves it");
    let came = came.bytes(&page).to_vec();
    page.fill(0);
    page[..came.len()].copy_from_slice(&came);
    a.write(near, 8, ", appended").expect("room");
    // A read by a program there does not change the page that the kernel has.
    assert_eq!(b.read(far), "old text, appended");
    page[0] = b'O';
    let manner = Manner { is_cached: true, ..Manner::default() };
    b.vfs.write(far, 0, &page, manner).expect("A takes it");
    assert_eq!(a.read(near), "Old text, appended");
    page[10] = b'A';
    b.vfs.write(far, 0, &page, manner).expect("A takes it");
    assert_eq!(a.read(near), "Old text, Appended");
    let id = a.lookup("f").expect("it is there").id;
    a.vfs.setattr(id, Origin::default(), &SetAttr::default(), Some((3, None))).expect("it is A's");
    b.vfs.write(far, 0, &page, manner).expect("A takes it");
    assert_eq!(a.read(near), "Old");
}

/// A page has its place also if the kernel brings it with a descriptor that appends.
#[test]
fn pages_are_not_appended() {
    let bed = Bed::new(2);
    let (near, _) = shared(&bed, "old text");
    for (mount, text) in bed.mounts.iter().zip(["OLD text", "NEW text"]) {
        let appends = mount.open("f", libc::O_RDWR | libc::O_APPEND).expect("it is there").handle;
        let manner = Manner { is_cached: true, ..Manner::default() };
        mount.vfs.write(appends, 0, text.as_bytes(), manner).expect("it has its place");
        assert_eq!(bed.mounts[0].read(near), text);
    }
}

/// Bytes that were fetched ahead for a reader are old once programs here write to the file at this mount.
#[test]
fn what_was_fetched_ahead_does_not_outlive_the_home_it_came_from() {
    let bed = Bed::new(2);
    let text = "a line\n".repeat(3000);
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let near = a.create("f");
    a.write(near, 0, &text).expect("room");
    a.vfs.release(near);
    let far = b.open("f", libc::O_RDONLY).expect("A serves it").handle;
    let read = |at: usize| {
        let mut buf = [0; 700];
        let read = b.vfs.read(far, at as u64 * 700, &mut buf).expect("it is served");
        String::from_utf8_lossy(read.bytes(&buf)).into_owned()
    };
    for at in 0..6 {
        assert_eq!(read(at).len(), 700);
    }
    let is_ahead = |q: &Question| matches!(q, Question::Read { len, .. } if *len > 4096);
    eventually("it is fetched ahead", || bed.net.count(is_ahead) > 0);
    assert_eq!(read(6).len(), 700);
    // A brings the file home and gives it back; a program of B opens it anew, and writes.
    let known = a.vfs.engine.files.find(a.key("f")).expect("it is A's");
    a.vfs.engine.drain.flush_file(&known).expect("the store works");
    lock(&bed.net.homes).remove(&a.key("f"));
    b.vfs.forget_file(b.key("f"), &bed.net.ended(u64::MAX));
    let written = b.opened("f");
    b.write(written, 0, &"A LINE\n".repeat(3000)).expect("it is B's now");
    assert_eq!(read(7), "A LINE\n".repeat(100));
}

/// A file of A that B has open for reading; A has brought it home since, and given it back.
fn given_back(bed: &Bed) -> u64 {
    let [a, b, _] = &bed.mounts[..] else { panic!("three mounts") };
    let near = a.create("f");
    a.write(near, 0, "old text").expect("it is A's");
    let far = b.open("f", libc::O_RDONLY).expect("A serves it").handle;
    assert_eq!(b.read(far), "old text");
    a.vfs.release(near);
    let known = a.vfs.engine.files.find(a.key("f")).expect("it is A's");
    a.vfs.engine.drain.flush_file(&known).expect("the store works");
    lock(&bed.net.homes).clear();
    far
}

/// C claims the file and writes. A program that opens it at B after that sees the bytes, and so does a later read
/// of a page there through any descriptor: the kernel has one page for all.
fn a_page_is_no_older_than_an_open(bed: &Bed, far: u64) {
    let [_, b, c] = &bed.mounts[..] else { panic!("three mounts") };
    c.write(c.opened("f"), 0, "NEW").expect("it is C's");
    let mut since = None;
    eventually("it is opened where it is served", || {
        since = b.open("f", libc::O_RDONLY).ok();
        since.is_some()
    });
    assert_eq!(b.read(since.expect("just opened").handle), "NEW text");
    let mut page = [0; 8];
    let came = b.vfs.read_by(Reader::Cache, far, 0, &mut page).expect("it is served");
    assert_eq!(came.bytes(&page), b"NEW text");
}

/// A does not hear of C's claim, and B only by opening the file.
#[test]
fn a_handle_at_a_former_home_moves_to_the_home_of_the_newest_open() {
    let bed = Bed::new(3);
    let far = given_back(&bed);
    lock(&bed.net.deaf).extend(["a".into(), "b".into()]);
    a_page_is_no_older_than_an_open(&bed, far);
    assert_eq!(guests(&bed.mounts[2]), 2);
    eventually("the former home knows", || guests(&bed.mounts[0]) == 0);
}

/// The handle has come to B because no member had claimed the file.
#[test]
fn a_handle_that_came_here_moves_to_the_home_of_the_newest_open() {
    for is_deaf in [false, true] {
        let bed = Bed::new(3);
        let far = given_back(&bed);
        let [a, b, _] = &bed.mounts[..] else { panic!("three mounts") };
        let forgotten = std::mem::take(&mut *a.vfs.members.guests.lock());
        drop(forgotten);
        assert!(b.vfs.fsync(far).is_err(), "A has begun anew");
        assert_eq!(b.read(far), "old text", "served at B");
        lock(&bed.net.deaf).extend(is_deaf.then(|| "b".into()));
        a_page_is_no_older_than_an_open(&bed, far);
    }
}

/// One thread writes at what it takes for the end, another appends. Where both meet, the append comes behind the
/// acknowledged write, and never over it; a write may come over an append that it did not see.
#[test]
fn an_append_never_comes_over_what_was_written_behind_the_end() {
    const LEN: usize = 64;
    let bed = Bed::new(1);
    let [a] = &bed.mounts[..] else { panic!("one mount") };
    let near = a.create("f");
    let (engine, key) = (&a.vfs.engine, a.key("f"));
    let file = engine.files.find(key).expect("it is open");
    let (mut written, mut after_others) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let appends = scope.spawn(|| {
            let (mut last, mut behind) = (0, 0);
            for _ in 0..4000 {
                let admission = forebay_engine::Admission::default();
                let end = engine.io.append_in(&admission, &file, &[b'a'; LEN]).expect("room");
                assert!(end >= last + LEN as u64, "it ends behind the one before");
                behind += usize::from(end > last + LEN as u64);
                last = end;
            }
            behind
        });
        while !appends.is_finished() {
            let offset = engine.verbs.facts(&file).size;
            engine.io.write(&file, offset, &[b'w'; LEN]).expect("room");
            written.push(offset);
        }
        after_others = appends.join().expect("no append fails");
    });
    assert!(after_others > 0, "they met");
    let mut bytes = [0; LEN];
    for offset in written {
        a.vfs.read(near, offset, &mut bytes).expect("it is in the tier");
        assert_eq!(bytes, [b'w'; LEN], "what was acknowledged at {offset}");
    }
}

/// The kernel looks a name up once more for a program that got ESTALE. The open that follows does not give ESTALE
/// again, though another mount wants to write the file just then.
#[test]
fn another_look_after_estale_finds_the_file_where_it_is_opened() {
    let bed = Bed::new(2);
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let store = bed.root.join("backing");
    let again = Origin { pid: 7, ..Origin::default() };
    for is_told in [false, true] {
        std::fs::write(store.join("f"), "old").expect("it is writable");
        let before = b.lookup("f").expect("it is there").id;
        std::fs::write(store.join("new"), "new").expect("it is writable");
        std::fs::rename(store.join("new"), store.join("f")).expect("it is writable");
        if is_told {
            assert!(b.vfs.getattr(before).is_err_and(|error| error.is(libc::ESTALE)));
            b.vfs.told(again.pid);
        }
        let Ok(Looked::There(found)) = b.vfs.lookup(ROOT, OsStr::new("f"), again) else {
            panic!("it is there");
        };
        let writer = a.open("f", libc::O_WRONLY).expect("here or there").handle;
        a.write(writer, 0, "NEW").expect("somebody takes it");
        let opened = b.vfs.open(found.id, libc::O_RDONLY.into(), again);
        assert_eq!(opened.is_ok(), is_told, "nobody else's file stays where it was found");
        if let Ok(opened) = opened {
            assert_eq!(b.read(opened.handle), "NEW");
        }
        a.vfs.release(writer);
        lock(&bed.net.homes).clear();
    }
}

/// A descriptor of a file that its home has unlinked, or replaced, gives the file's attributes as long as it is open,
/// whether or not the home keeps the claim.
#[test]
fn a_file_open_at_another_home_keeps_its_attributes_without_its_name() {
    for is_replaced in [false, true] {
        let bed = Bed::new(2);
        let (near, far) = shared(&bed, "ten bytes.");
        let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
        let found = b.lookup("f").expect("A serves it");
        let (id, number, name) = (found.id, found.attr.key.ino, OsStr::new("f"));
        a.vfs.release(near);
        match is_replaced {
            false => a.vfs.unlink(ROOT, name).expect("it is A's"),
            true => {
                a.vfs.release(a.create("new"));
                let from = (ROOT, OsStr::new("new"));
                a.vfs.rename(from, (ROOT, name), RenameMode::Replace).expect("both are A's");
            }
        }
        let is_as_opened = |what: &str| {
            let attr = b.vfs.getattr(id).expect(what);
            assert_eq!((b.vfs.shown(&attr), attr.size, attr.nlink), (number, 10, 0), "{what}");
            assert_eq!(b.read(far), "ten bytes.", "{what}");
        };
        is_as_opened("A has the claim");
        lock(&bed.net.homes).clear();
        is_as_opened("nobody has the claim");
        b.vfs.release(far);
        assert!(b.vfs.getattr(id).is_err(), "nobody has it open");
    }
}

/// Files `d1/x` and `d2/f` with these homes and bytes, and the nodes of the two directories at A.
fn apart(bed: &Bed, homes: (usize, usize)) -> (u64, u64) {
    let at = bed.root.join("backing");
    for (dir, name, home) in [("d1", "x", homes.0), ("d2", "f", homes.1)] {
        std::fs::create_dir(at.join(dir)).expect("it is writable");
        std::fs::write(at.join(dir).join(name), name).expect("it is writable");
        let mount = &bed.mounts[home];
        let home = ["a", "b", "c"][home].to_string();
        lock(&bed.net.homes).insert(mount.key(&format!("{dir}/{name}")), home);
    }
    let dir = |name: &str| bed.mounts[0].lookup(name).expect("it is there").id;
    (dir("d1"), dir("d2"))
}

fn opened_in(mount: &Mount, dir: u64, name: &str) -> u64 {
    let id = mount.lookup_in(dir, name).expect("it is there").id;
    mount.vfs.open(id, libc::O_RDWR.into(), Origin::default()).expect("it can be opened").handle
}

fn renames(mount: &Mount, (from, to): (u64, u64)) -> Result<()> {
    let (from, to) = ((from, OsStr::new("x")), (to, OsStr::new("f")));
    mount.vfs.rename(from, to, RenameMode::Replace)
}

/// B has to wait before it renames a file of its own for A, over a file of `home`. A has told its program that the
/// rename failed: bytes that the program writes then stay.
fn goes_on_after_a_rename_in_doubt(home: usize) {
    let bed = Bed::new(3);
    let dirs = apart(&bed, (1, home));
    let a = &bed.mounts[0];
    let handle = opened_in(a, dirs.1, "f");
    let (came, goes_on) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let (comes, waits) = (came.clone(), goes_on.clone());
    *lock(&bed.net.makes) = Some(Arc::new(move |by| {
        if by == "b" {
            comes.open();
            waits.pass();
        }
    }));
    assert!(renames(a, dirs).expect_err("B is slow").kind() == Kind::TimedOut);
    came.pass();
    a.write(handle, 0, "written since").expect("nobody replaces it any more");
    a.vfs.fsync(handle).expect("its home answers");
    goes_on.open();
    let is_replace =
        |q: &Question| matches!(q, Question::Name { change: NameChange::Replace { .. }, .. });
    eventually("B goes on", || bed.net.count(is_replace) > 0);
    std::thread::sleep(Duration::from_millis(200));
    let at = bed.root.join("backing");
    assert!(at.join("d1/x").exists(), "it has its name still");
    let anew = opened_in(a, dirs.1, "f");
    assert_eq!(a.read(anew), "written since");
    renames(a, dirs).expect("a later one is another");
    assert!(!at.join("d1/x").exists());
}

#[test]
fn a_rename_in_doubt_does_not_replace_what_is_written_here_since() {
    goes_on_after_a_rename_in_doubt(0);
}

#[test]
fn a_rename_in_doubt_does_not_replace_what_is_written_at_a_third_home_since() {
    goes_on_after_a_rename_in_doubt(2);
}

/// B has asked C to replace C's file, and C's lease has run out since: C may make the rename as soon as it wakes.
#[test]
fn no_fence_is_confirmed_while_one_at_a_sleeping_home_has_to_stand() {
    let bed = Bed::new(3);
    let dirs = apart(&bed, (1, 2));
    let [a, _, c] = &bed.mounts[..] else { panic!("three mounts") };
    let handle = opened_in(a, dirs.0, "x");
    bed.net.fated(|home, _| if home == "c" { Fate::Lost } else { Fate::Answered });
    lock(&bed.net.asleep).insert("c".into());
    assert!(renames(a, dirs).is_err(), "C sleeps");
    let is_replace =
        |q: &&Question| matches!(q, Question::Name { change: NameChange::Replace { .. }, .. });
    let late = lock(&bed.net.asked).iter().find(is_replace).cloned().expect("B has asked");
    assert!(a.write(handle, 0, "later").is_err(), "x may be renamed yet");
    *lock(&bed.net.fates) = None;
    a.write(handle, 0, "later").expect("C has heard of the fence");
    let answer = c.vfs.answer(("b", 1), late, b"", &mut Vec::new());
    assert!(matches!(answer, Answer::Refused(Refusal::Errno(libc::ETIMEDOUT, _))), "{answer:?}");
}

/// The member that asked for it has begun anew, and gone on as if it had failed. Its new life has no fences yet.
#[test]
fn a_rename_for_an_ended_life_is_refused() {
    let bed = Bed::new(2);
    apart(&bed, (1, 0));
    let a = &bed.mounts[0];
    let replace = |epoch| {
        let by = Some(By { member: "a".into(), epoch, number: 5 });
        let (from, to) = ("d1/x".into(), "d2/f".into());
        let (file, over) = (a.key("d1/x"), a.key("d2/f"));
        let change = NameChange::Replace { file, from, to, over, by };
        a.vfs.answer(("b", 1), Question::Name { number: 1, change }, b"", &mut Vec::new())
    };
    lock(&bed.net.epochs).insert("a".into(), 2);
    let answer = replace(1);
    assert!(matches!(answer, Answer::Refused(Refusal::Errno(libc::ETIMEDOUT, _))), "{answer:?}");
    assert!(matches!(replace(2), Answer::Changed { attrs: None, .. }));
}
