//! Files that were taken over by a member that then dies, fails, or hears late that their home is
//! back.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::BackingStore;
use forebay_engine::{CopiesAt, Engine, Progress};

use crate::copied::{Pair, on_store, pair, read};
use crate::copies::{HOME, Way, partner_on, take_over};
use crate::media::{CrashMedia, Fault};
use crate::start::{abandon, within};

/// A member that keeps copies of the files that the keeper of the pair takes over.
pub struct Third {
    pub engine: Arc<Engine>,
    pub way: Arc<Way>,
}

pub fn third(pair: &Pair) -> Third {
    let engine = partner_on(&CrashMedia::default(), pair.store.clone(), "boot-r").unwrap();
    let way = Way::to(&[&engine]);
    pair.keeper.files.begin_copies(way.clone(), CopiesAt::Sync);
    way.fill_up(&pair.keeper, "r").unwrap();
    Third { engine, way }
}

impl Drop for Third {
    fn drop(&mut self) {
        self.way.cut();
        abandon(self.engine.clone());
    }
}

fn flush(engine: &Arc<Engine>) {
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{:?}", report.failures);
}

fn write_late(pair: &Pair, bytes: &[u8]) {
    let access = forebay_backing::Access::ReadWrite;
    let (late, _) = pair.store.open_seen(Path::new("f"), access).unwrap();
    late.write_at(bytes, 0).unwrap();
}

/// Bytes that a taker has flushed may not last at the store: they outlive the taker, too.
// S-25
#[test]
fn what_a_taker_has_flushed_is_copied_until_the_former_home_has_stopped() {
    let pair = pair();
    let file = pair.make("f", &[1; 9000]);
    pair.home.io.sync(&file).unwrap();
    pair.way.cut();
    let third = third(&pair);
    take_over(&pair.keeper).unwrap();
    flush(&pair.keeper);
    assert_eq!(on_store(&pair.store, "f"), [1; 9000]);
    third.way.cut();
    write_late(&pair, &[7; 9000]);
    assert_eq!(take_over(&third.engine).unwrap(), (1, 9000));
    assert_eq!(read(&third.engine, "f"), [1; 9000], "whatever the old home has written");
    third.engine.ops.settle_taken(file.key).unwrap();
    assert_eq!(on_store(&pair.store, "f"), [1; 9000]);
}

/// Once the former home has stopped, the copies are of no use any more.
#[test]
fn a_settled_taken_file_is_forgotten_by_the_partners() {
    let pair = pair();
    let file = pair.make("f", &[1; 9000]);
    pair.home.io.sync(&file).unwrap();
    pair.way.cut();
    let third = third(&pair);
    take_over(&pair.keeper).unwrap();
    flush(&pair.keeper);
    pair.keeper.ops.settle_taken(file.key).unwrap();
    assert_eq!(third.engine.copies.list(HOME), []);
    assert!(pair.keeper.files.is_at_rest(file.key));
}

/// Whatever fails while a copy becomes this member's file, its bytes are there when the adoption is repeated.
// S-25
#[test]
fn an_adoption_that_fails_half_way_loses_nothing_when_it_is_repeated() {
    let (mut failed, mut given) = (0, 0);
    for n in 1.. {
        let pair = pair();
        let file = pair.make("f", &[1; 9000]);
        pair.home.io.sync(&file).unwrap();
        pair.way.cut();
        pair.media.set_fault(Some(Fault { n, count: 1, errno: libc::ENOSPC }));
        let first = pair.keeper.ops.adopt(HOME, file.key);
        let was_given = pair.media.faults_given();
        pair.media.set_fault(None);
        if was_given == 0 {
            first.unwrap();
            break;
        }
        (failed, given) = (failed + u64::from(first.is_err()), given + was_given);
        pair.keeper.ops.adopt(HOME, file.key).unwrap();
        pair.keeper.ops.adopt(HOME, file.key).expect("once more it changes nothing");
        assert_eq!(pair.kept(), [], "fault {n}");
        let image = CrashMedia::on(pair.media.snapshot().process_crash_image());
        let again = partner_on(&image, pair.store.clone(), "boot-p").unwrap();
        for keeper in [&again, &pair.keeper] {
            keeper.ops.hold_taken(file.key, &[]).unwrap();
            assert_eq!(read(keeper, "f"), [1; 9000], "fault {n}");
        }
        abandon(again);
    }
    assert!(failed > 2, "{failed} adoptions failed, of {given} faults");
}

/// A file that was adopted once, without word that its home had returned, does not stand in for
/// bytes that the home has acknowledged since.
// S-25
#[test]
fn a_newer_copy_takes_the_place_of_what_was_adopted_before() {
    for is_held in [false, true] {
        let pair = pair();
        let file = pair.make("f", &[1; 9000]);
        pair.home.io.sync(&file).unwrap();
        pair.keeper.ops.adopt(HOME, file.key).unwrap();
        if is_held {
            pair.keeper.ops.hold_taken(file.key, &[]).unwrap();
            flush(&pair.keeper);
        }
        pair.way.fill_up(&pair.home, "p").unwrap();
        pair.home.io.write(&file, 1000, &[2; 9000]).unwrap();
        pair.home.io.sync(&file).unwrap();
        let now = read(&pair.home, "f");
        pair.way.cut();
        assert_eq!(take_over(&pair.keeper).unwrap().0, 1);
        assert_eq!(read(&pair.keeper, "f"), now, "held: {is_held}");
        assert_eq!(pair.keeper.ops.list(Path::new("")).unwrap().len(), 1);
    }
}

/// A member that finds at a start that another one has taken over its held file has nothing of the
/// file any more.
#[test]
fn a_held_file_that_is_anothers_is_let_go_of_whether_it_is_dirty_or_not() {
    for len in [0, 9000] {
        let pair = pair();
        let file = pair.make("f", &[1; 9001]);
        pair.flush();
        pair.home.io.set_len(&file, len).unwrap();
        pair.home.io.sync(&file).unwrap();
        pair.way.cut();
        take_over(&pair.keeper).unwrap();
        flush(&pair.keeper);
        let image = CrashMedia::on(pair.media.snapshot().process_crash_image());
        let again = partner_on(&image, pair.store.clone(), "boot-p").unwrap();
        let known: Vec<_> = again.files.unsettled().iter().map(|it| it.0).collect();
        assert_eq!(known, [file.key], "it is held");
        again.ops.supersede(file.key).unwrap();
        write_late(&pair, &[7; 9000]);
        assert_eq!(read(&again, "f"), [7; 9000], "it is as any file");
        assert!(again.files.is_at_rest(file.key));
        assert!(again.files.unsettled().is_empty());
        abandon(again);
    }
}

/// An adopted file that is its home's again at a start is dropped: no program here has written it.
#[test]
fn an_adopted_file_that_is_its_homes_again_leaves_nothing_aside() {
    let pair = pair();
    let file = pair.make("f", &[1; 9000]);
    pair.home.io.sync(&file).unwrap();
    pair.keeper.ops.adopt(HOME, file.key).unwrap();
    pair.keeper.ops.supersede(file.key).unwrap();
    assert!(pair.keeper.ops.superseded().is_empty());
    assert!(pair.keeper.ops.list(Path::new("")).unwrap().is_empty());
}

/// A disowned file goes, whatever has become of its name, and from the partners of the member that
/// had adopted it.
#[test]
fn what_is_disowned_goes_without_asking_the_store() {
    for is_held in [false, true] {
        let pair = pair();
        let file = pair.make("f", &[1; 9000]);
        pair.home.io.sync(&file).unwrap();
        pair.way.cut();
        let third = third(&pair);
        pair.keeper.ops.adopt(HOME, file.key).unwrap();
        if is_held {
            pair.keeper.ops.hold_taken(file.key, &[]).unwrap();
        }
        assert_eq!(third.engine.copies.list(HOME).len(), 1);
        pair.store.unlink(Path::new("f")).unwrap();
        pair.keeper.ops.disown(file.key).unwrap();
        assert!(pair.keeper.ops.list(Path::new("")).unwrap().is_empty());
        assert!(pair.keeper.files.is_at_rest(file.key));
        within("partners forget it", || third.engine.copies.list(HOME).is_empty());
        within("nothing is left", || pair.keeper.ops.status().used_bytes == 0);
    }
}
