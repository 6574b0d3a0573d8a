//! Writes that homes have acknowledged and not synced: when they are lost, and when they are not.

use forebay_backing::SetAttr;

use super::*;

/// `f` is A's, by a claim of revision 10, and B has written to it there and closed it without a sync.
fn owed(mounts: usize) -> (Bed, FileKey) {
    let bed = Bed::new(mounts);
    let (a, b) = (&bed.mounts[0], &bed.mounts[1]);
    a.vfs.release(a.create("f"));
    let key = a.key("f");
    lock(&bed.net.claimed).insert(key, 10);
    lock(&bed.net.kept).insert("a".into(), 1);
    writes(b, "old");
    assert!(is_owed(b, key));
    (bed, key)
}

fn writes(mount: &Mount, text: &str) {
    let handle = mount.opened("f");
    mount.write(handle, 0, text).expect("its home answers");
    mount.vfs.release(handle);
}

fn is_owed(mount: &Mount, key: FileKey) -> bool {
    mount.vfs.members.unsynced.open(key).pending.is_unsynced()
}

/// Whether the next sync gets the error of a loss.
fn is_told(mount: &Mount) -> bool {
    let handle = mount.opened("f");
    let told = mount.vfs.fsync(handle);
    let again = mount.vfs.fsync(handle);
    assert!(again.is_ok(), "it is told once: {again:?}");
    mount.vfs.release(handle);
    assert!(told.as_ref().err().is_none_or(|error| error.errno() == libc::EIO), "{told:?}");
    told.is_err()
}

/// A's daemon is killed and begins anew: its tier is as it was, and so is its place.
fn is_killed(bed: &Bed) {
    lock(&bed.net.epochs).insert("a".into(), 2);
}

/// A's machine loses power.
fn loses_power(bed: &Bed) {
    lock(&bed.net.kept).remove("a");
    lock(&bed.net.epochs).insert("a".into(), 2);
}

/// Others had its place, and A has begun anew; its machine has lost nothing.
fn loses_its_place(bed: &Bed) {
    lock(&bed.net.epochs).insert("a".into(), 3);
    lock(&bed.net.kept).insert("a".into(), 3);
}

// S-2 S-25
#[test]
fn what_a_killed_home_has_brought_home_is_not_lost() {
    let (bed, key) = owed(2);
    is_killed(&bed);
    let b = &bed.mounts[1];
    b.vfs.forget_file(key, &bed.net.ended(20));
    assert!(!is_owed(b, key) && !is_told(b));
}

// S-2 S-25
#[test]
fn what_a_killed_home_has_in_its_tier_is_owed_under_whichever_claim() {
    for claimed in [10, 12] {
        let (bed, key) = owed(2);
        is_killed(&bed);
        lock(&bed.net.claimed).insert(key, claimed);
        let b = &bed.mounts[1];
        writes(b, "new");
        assert!(is_owed(b, key) && !is_told(b));
    }
}

/// Another member took A's place, brought home the synced bytes, and gave the file back; A has claimed it anew. B
/// hears of that when it has written at A again.
#[test]
fn what_was_owed_under_a_claim_that_went_with_its_homes_place_is_lost() {
    for is_given_late in [false, true] {
        let (bed, key) = owed(2);
        loses_its_place(&bed);
        lock(&bed.net.claimed).insert(key, 40);
        let b = &bed.mounts[1];
        writes(b, "new");
        if is_given_late {
            b.vfs.forget_file(key, &bed.net.ended(30));
        }
        assert!(is_owed(b, key));
        assert!(is_told(b), "the first write is lost");
        assert!(!is_owed(b, key), "the second is not");
    }
}

/// The member that took A's place had no copy of the file, or others of A's files were given up: the claim stands.
#[test]
fn what_was_owed_under_a_claim_that_stands_is_not_lost_with_its_homes_place() {
    let (bed, _) = owed(2);
    loses_its_place(&bed);
    let b = &bed.mounts[1];
    writes(b, "new");
    assert!(!is_told(b));
}

/// A has given the file back at 20, and C has claimed it since. B's member has heard of both, its mount has not.
fn goes_to_c() -> (Bed, FileKey) {
    let (bed, key) = owed(3);
    let a = &bed.mounts[0];
    let known = a.vfs.engine.files.find(key).expect("it is A's");
    a.vfs.engine.drain.flush_file(&known).expect("the store works");
    lock(&bed.net.homes).insert(key, "c".into());
    lock(&bed.net.claimed).insert(key, 25);
    lock(&bed.net.ends).insert(key, bed.net.ended(20));
    bed.net.revision.store(25, SeqCst);
    (bed, key)
}

// S-25
#[test]
fn nothing_is_lost_by_a_write_at_the_next_home_before_the_end_of_the_former_is_told() {
    let (bed, key) = goes_to_c();
    let b = &bed.mounts[1];
    writes(b, "new");
    b.vfs.forget_file(key, &bed.net.ended(20));
    assert!(is_owed(b, key), "by C");
    assert!(!is_told(b));
}

// S-25
#[test]
fn nothing_is_lost_by_a_cut_at_the_next_home_before_the_end_of_the_former_is_told() {
    let (bed, key) = goes_to_c();
    let b = &bed.mounts[1];
    cuts(b);
    b.vfs.forget_file(key, &bed.net.ended(20));
    assert!(is_owed(b, key), "by C");
    assert!(!is_told(b));
}

// S-25
#[test]
fn nothing_is_lost_by_a_sync_at_the_next_home_before_the_end_of_the_former_is_told() {
    let (bed, key) = goes_to_c();
    let b = &bed.mounts[1];
    assert!(!is_told(b) && !is_owed(b, key));
    let (bed, key) = goes_to_c();
    let b = &bed.mounts[1];
    let closes = b.opened("f");
    b.vfs.flush(closes).expect("nothing is lost");
    b.vfs.release(closes);
    assert!(!is_told(b) && !is_owed(b, key));
}

fn cuts(mount: &Mount) {
    let (who, set) = (Origin::default(), SetAttr::default());
    let id = mount.lookup("f").expect("it is there").id;
    mount.vfs.setattr(id, who, &set, Some((1, None))).expect("its home answers");
}

/// A is back: copies of its files that this mount had adopted are of no use any more. This gives no claim back.
#[test]
fn what_is_owed_stays_so_when_a_file_is_disowned() {
    let (bed, key) = owed(2);
    let b = &bed.mounts[1];
    b.vfs.disown(key).expect("the tier works");
    assert!(is_owed(b, key));
    loses_power(&bed);
    assert!(is_told(b), "a sync says nothing of what is lost");
}

/// B hears that an earlier claim was given back, once A has cut the file for B.
#[test]
fn what_is_owed_for_a_cut_stays_so_when_an_earlier_claim_was_given_back() {
    let (bed, key) = owed(2);
    let b = &bed.mounts[1];
    assert!(!is_told(b), "it is synced");
    bed.net.revision.store(12, SeqCst);
    cuts(b);
    b.vfs.forget_file(key, &bed.net.ended(9));
    assert!(is_owed(b, key));
    loses_power(&bed);
    assert!(is_told(b), "a sync says nothing of what is lost");
}

/// A gave the file back at 20, and claimed it anew to cut it for B, which hears of that later.
#[test]
fn what_is_owed_for_a_cut_is_owed_by_the_claim_under_which_it_was_made() {
    let (bed, key) = owed(2);
    let b = &bed.mounts[1];
    assert!(!is_told(b), "it is synced");
    bed.net.revision.store(12, SeqCst);
    lock(&bed.net.claimed).insert(key, 30);
    cuts(b);
    b.vfs.forget_file(key, &bed.net.ended(20));
    assert!(is_owed(b, key));
    loses_power(&bed);
    assert!(is_told(b), "a sync says nothing of what is lost");
}

/// A gives the file back while B opens it there, at revision 20: then B knows of no home.
#[test]
fn a_home_that_gives_the_file_back_while_it_is_opened_is_believed_no_longer() {
    let (bed, key) = owed(2);
    let b = &bed.mounts[1];
    lock(&bed.net.deaf).insert("b".into());
    assert!(b.open("f", libc::O_RDONLY).is_err(), "its home is found by that");
    let net = Arc::downgrade(&bed.net);
    *lock(&bed.net.vouched) = Some(Arc::new(move || {
        let net = net.upgrade().expect("it is there");
        lock(&net.homes).remove(&key);
        lock(&net.claimed).insert(key, 21); // As far as A has heard by now.
    }));
    let opened = b.open("f", libc::O_RDONLY).expect("A served it").handle;
    assert_eq!(b.vfs.home_of(key).as_deref(), Some("a"));
    b.vfs.forget_file(key, &bed.net.ended(20));
    assert_eq!(b.vfs.home_of(key), None);
    b.vfs.release(opened);
}

/// A gives the file back while B opens it there to write, and claims it anew for that.
#[test]
fn a_writer_is_told_of_the_claim_that_is_held_for_it() {
    let (bed, key) = owed(2);
    let b = &bed.mounts[1];
    assert!(!is_told(b), "it is synced");
    let net = Arc::downgrade(&bed.net);
    *lock(&bed.net.vouched) = Some(Arc::new(move || {
        let net = net.upgrade().expect("it is there");
        lock(&net.claimed).insert(key, 30);
    }));
    writes(b, "new");
    b.vfs.forget_file(key, &bed.net.ended(20));
    assert!(is_owed(b, key), "it was written under the later claim");
}

/// A gave the file back, which was heard, and lost its place before the mount was told.
// S-25
#[test]
fn what_a_home_gave_back_is_not_lost_with_the_place_that_it_lost_since() {
    for is_told_first in [true, false] {
        let (bed, key) = goes_to_c();
        loses_its_place(&bed);
        let b = &bed.mounts[1];
        let ends = lock(&bed.net.ends)[&key].clone();
        match is_told_first {
            true => b.vfs.forget_file(key, &ends),
            false => writes(b, "new"),
        }
        assert!(!is_told(b) && !is_owed(b, key));
    }
}

/// A gave the file back and lost its place, and had the file and gave it back again, before the mount was told of either.
// S-25
#[test]
fn of_two_ends_that_are_told_at_once_each_counts_for_what_was_acknowledged_before_it() {
    for is_kept in [true, false] {
        let (bed, key) = owed(2);
        let mut ends = match is_kept {
            true => bed.net.ended(20),
            false => Ends::default(),
        };
        loses_its_place(&bed);
        ends.extend(&bed.net.ended(30));
        let b = &bed.mounts[1];
        b.vfs.forget_file(key, &ends);
        assert_eq!(is_told(b), !is_kept);
    }
}

fn appends(mount: &Mount) {
    let handle = mount.open("f", libc::O_WRONLY | libc::O_APPEND).expect("it is there").handle;
    mount.write(handle, 0, "more").expect("its home answers");
    mount.vfs.release(handle);
}

fn brings_a_page(mount: &Mount) {
    let (handle, manner) = (mount.opened("f"), Manner { is_cached: true, ..Manner::default() });
    mount.vfs.write(handle, 0, b"PAGE", manner).expect("its home answers");
    mount.vfs.release(handle);
}

fn allocates(mount: &Mount) {
    let handle = mount.opened("f");
    mount.vfs.fallocate(handle, 0, 100, 0).expect("its home answers");
    mount.vfs.release(handle);
}

fn empties(mount: &Mount) {
    let opened = mount.open("f", libc::O_WRONLY | libc::O_TRUNC).expect("its home answers");
    mount.vfs.release(opened.handle);
}

/// All that a home owes for.
const CHANGES: [fn(&Mount); 6] =
    [cuts, |b| writes(b, "new"), appends, brings_a_page, allocates, empties];

fn is_change(question: &Question) -> bool {
    matches!(
        question,
        Question::Name { .. }
            | Question::Write { .. }
            | Question::Append { .. }
            | Question::Overwrite { .. }
            | Question::Allocate { .. }
            | Question::Resize { .. }
    )
}

/// A's claim ends while its answer is on its way, by `ends`, and B is told of that first. Whether a sync says that something
/// is lost then.
fn is_lost_on_its_way(change: fn(&Mount), ends: fn(&Bed)) -> bool {
    let (bed, key) = owed(2);
    let b = &bed.mounts[1];
    assert!(!is_told(b), "it is synced");
    let (changed, told) = (Arc::new(AtomicBool::new(false)), Arc::downgrade(&b.vfs));
    let (bed, is_over) = (Arc::new(bed), changed.clone());
    let here = Arc::downgrade(&bed);
    *lock(&bed.net.answered) = Some(Arc::new(move |question| {
        if is_change(question) && !is_over.swap(true, SeqCst) {
            let bed = here.upgrade().expect("it is there");
            ends(&bed);
            told.upgrade().expect("it is mounted").forget_file(key, &bed.net.ended(20));
        }
    }));
    let b = &bed.mounts[1];
    change(b);
    *lock(&bed.net.answered) = None;
    assert!(changed.load(SeqCst), "the home was asked");
    assert!(!is_owed(b, key), "nobody would pay it");
    is_told(b)
}

// S-25
#[test]
fn what_is_noted_after_its_claim_was_given_back_is_owed_by_nobody() {
    for change in CHANGES {
        assert!(!is_lost_on_its_way(change, |_| {}));
    }
}

// S-25
#[test]
fn what_is_noted_after_its_claim_went_with_its_homes_place_is_lost() {
    for change in CHANGES {
        assert!(is_lost_on_its_way(change, loses_its_place));
    }
}

/// The claim of the new file is not there yet when B opens it at A. A loses its place, and keeps the file under that claim.
// S-25
#[test]
fn what_is_owed_for_a_new_file_is_owed_under_the_claim_that_it_gets() {
    for change in CHANGES {
        let bed = Bed::new(2);
        let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
        a.vfs.release(a.create("f"));
        let key = a.key("f");
        lock(&bed.net.kept).insert("a".into(), 1);
        lock(&bed.net.comes).insert(key, 10);
        change(b);
        assert!(is_owed(b, key));
        lock(&bed.net.claimed).insert(key, 10);
        loses_its_place(&bed);
        writes(b, "new");
        assert!(!is_told(b), "the claim is the same");
    }
}

/// Of two answers the one that comes last may be the older.
#[test]
fn a_former_home_does_not_replace_a_later_one() {
    let (bed, key) = owed(2);
    let b = &bed.mounts[1];
    lock(&bed.net.deaf).insert("b".into());
    b.vfs.heard(key, Some(("c", Revision(25))));
    b.vfs.heard(key, Some(("a", Revision(10))));
    assert_eq!(b.vfs.home_of(key).as_deref(), Some("c"));
    b.vfs.forget_file(key, &bed.net.ended(20));
    assert_eq!(b.vfs.home_of(key).as_deref(), Some("c"));
    b.vfs.heard(key, Some(("a", Revision(40))));
    assert_eq!(b.vfs.home_of(key).as_deref(), Some("a"));
}

/// A write is given up and its asker answered, right after it was made: the set-id bits go all the same.
#[test]
fn a_write_that_was_given_up_once_it_was_made_leaves_no_privilege() {
    use std::os::unix::fs::MetadataExt;
    let (bed, _) = owed(2);
    let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
    let id = a.lookup("f").expect("it is A's").id;
    let set = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
    a.vfs.setattr(id, Origin::default(), &set, None).expect("it is A's");
    let mode = || std::fs::metadata(bed.root.join("backing/f")).expect("it is there").mode();
    assert_eq!(mode() & 0o7777, 0o4755);
    let (vfs, mut times) = (Arc::downgrade(&a.vfs), 0);
    *lock(&a.kernel.drops_pages) = Some(Box::new(move |_, _| {
        times += 1;
        if times == 2 {
            vfs.upgrade().expect("it is mounted").expire_guests(Duration::ZERO);
            let asker = forebay_engine::requester::now().expect("a member asks");
            assert!(asker.is_gone(), "it was given up");
        }
    }));
    let handle = b.opened("f");
    b.write(handle, 0, "new").expect("it was made");
    assert_eq!(mode() & 0o7777, 0o755);
    b.vfs.release(handle);
}

/// B has the file open to read since nobody had claimed it. A is its home by now, and has what another program of B
/// writes: a sync by the reader is one at A.
// S-25
#[test]
fn a_sync_by_an_older_reader_is_made_at_the_files_home() {
    let bed = Bed::new(2);
    let (a, b) = (&bed.mounts[0], &bed.mounts[1]);
    std::fs::write(bed.root.join("backing/f"), "old").expect("it is writable");
    let reader = b.open("f", libc::O_RDONLY).expect("it is there").handle;
    a.vfs.release(a.opened("f"));
    let key = a.key("f");
    let writer = b.opened("f");
    b.write(writer, 0, "new").expect("its home answers");
    assert!(is_owed(b, key));
    let syncs = |q: &Question| matches!(q, Question::Sync { .. });
    b.vfs.fsync(reader).expect("nothing is lost");
    assert_eq!((bed.net.count(syncs), is_owed(b, key)), (1, false));
    b.vfs.fsync(writer).expect("nothing is lost");
    b.vfs.release(reader);
    b.vfs.release(writer);
}
