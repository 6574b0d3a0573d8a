//! Bytes that partners get before a program syncs them, whatever happens in between.

use std::path::Path;

use forebay_backing::RenameMode;
use forebay_engine::{Config, CopiesAt, OpenFile};

use crate::copied::{Pair, home_with, pair_with, read};
use crate::copies::{Act, Way, partner_on, take_over};
use crate::media::CrashMedia;
use crate::rng::Rng;
use crate::start::{NEW, abandon, named, patient, within};
use crate::store::MemStore;

const STEP: u64 = 64 << 10;

fn config() -> Config {
    Config { ahead_from: STEP, ..Config::default() }
}

/// A pair whose files go ahead once [`STEP`] bytes are new.
fn pair() -> Pair {
    pair_with(&CrashMedia::default(), config())
}

fn write(pair: &Pair, file: &OpenFile, from: u64, steps: u64, byte: u8) {
    for step in 0..steps {
        let block = vec![byte; STEP as usize];
        pair.home.io.write(file, from + step * STEP, &block).unwrap();
    }
}

/// Writes `steps` steps of a file from an offset; partners have each before the next, if it is new there.
fn write_ahead(pair: &Pair, file: &OpenFile, from: u64, steps: u64, byte: u8) {
    for step in 0..steps {
        write(pair, file, from + step * STEP, 1, byte);
        within("partners have all of it", || {
            let kept: u64 = pair.kept().iter().map(|(_, bytes)| bytes).sum();
            kept == pair.home.ops.status().dirty_bytes
        });
    }
}

/// A sync sends only bytes that are left, and again bytes that were written again.
#[test]
fn a_sync_sends_what_was_not_sent_ahead() {
    let pair = pair();
    let file = pair.make("f", &[]);
    write_ahead(&pair, &file, 0, 10, 1);
    within("all of it is there", || pair.kept() == [("f".into(), 10 * STEP)]);
    pair.way.take_counts();
    pair.home.io.write(&file, 10 * STEP, &[2; 100]).unwrap();
    pair.home.io.write(&file, 3 * STEP, &[3; 100]).unwrap();
    pair.home.io.sync(&file).unwrap();
    assert_eq!(pair.way.take_counts().2, 200);
    pair.way.cut();
    take_over(&pair.keeper).unwrap();
    assert!(read(&pair.keeper, "f") == read(&pair.home, "f"));
}

/// Fewer bytes than a step, and bytes that partners would not take, are sent by the sync.
#[test]
fn little_is_not_sent_ahead_nor_is_what_nobody_takes() {
    let pair = pair();
    pair.way.take_counts();
    let file = pair.make("f", &[1; STEP as usize - 1]);
    let (late, _) = pair.home.verbs.create(Path::new("g"), &NEW).unwrap();
    pair.way.cut();
    write(&pair, &late, 0, 4, 2);
    assert_eq!(pair.way.take_counts(), (0, 0, 0));
    pair.home.io.sync(&late).unwrap_err();
    drop(file);
}

/// A partner that loses its power, or dies, keeps the bytes that it has acknowledged.
#[test]
fn what_went_ahead_counts_once_a_partner_has_it_durably() {
    for loses_power in [false, true] {
        let pair = pair();
        let file = pair.make("f", &[1; STEP as usize / 2]);
        pair.home.io.sync(&file).unwrap();
        write_ahead(&pair, &file, STEP, 3, 2);
        let disk = pair.media.snapshot();
        let disk = match loses_power {
            true => disk.crash_images(&mut Rng::new(3), 0).remove(0),
            false => disk.process_crash_image(),
        };
        let again = partner_on(&CrashMedia::on(disk), pair.store.clone(), "boot-p").unwrap();
        pair.way.restarted(&again);
        pair.home.io.write(&file, 4 * STEP, &[3; 10]).unwrap();
        pair.way.take_counts();
        pair.home.io.sync(&file).unwrap();
        assert_eq!(pair.way.take_counts().2, 10);
        pair.way.cut();
        take_over(&again).unwrap();
        assert!(read(&again, "f") == read(&pair.home, "f"), "{loses_power}");
        abandon(again);
    }
}

/// A partner that restarts in the middle of a round ahead has half of it: no caller is told that it has all.
#[test]
fn a_partner_that_lost_some_of_what_went_ahead_acknowledges_nothing() {
    let pair = pair();
    let file = pair.make("f", &[1; 100]);
    pair.home.io.sync(&file).unwrap();
    let (media, store, way) = (pair.media.clone(), pair.store.clone(), pair.way.clone());
    let mut left = 1;
    *pair.way.after.lock().unwrap() = Some(Act::new(move || {
        if left > 0 {
            left -= 1;
            let disk = media.snapshot().process_crash_image();
            way.restarted(&partner_on(&CrashMedia::on(disk), store.clone(), "boot-p").unwrap());
        }
    }));
    // In several pieces: the round that brings them first is refused.
    pair.way.sent.lock().unwrap().clear();
    pair.home.io.write(&file, 0, &[2; 3 << 20]).unwrap();
    within("it goes ahead", || pair.way.sent.lock().unwrap().len() > 1);
    let owed = || pair.home.outbox.behind().behind.iter().map(|it| it.bytes).sum::<u64>();
    within("it is refused", || owed() == 3 << 20);
    // The sync begins another round, with all of them.
    pair.home.io.sync(&file).unwrap();
    let again = pair.way.partners.lock().unwrap()[0].clone();
    pair.way.cut();
    take_over(&again).unwrap();
    assert!(read(&again, "f") == read(&pair.home, "f"));
    abandon(again);
}

/// Bytes of a file that went ahead, and were then cut off, do not come back, whether the file grows
/// again or not.
#[test]
fn what_is_cut_after_it_went_ahead_is_not_there() {
    for (synced, grows) in [(false, false), (false, true), (true, false), (true, true)] {
        let pair = pair();
        let file = pair.make("f", &[9; 2 * STEP as usize]);
        if synced {
            pair.home.io.sync(&file).unwrap();
        }
        write_ahead(&pair, &file, STEP, 6, 1);
        pair.home.io.set_len(&file, 2 * STEP + 100).unwrap();
        if grows {
            pair.home.io.set_len(&file, 5 * STEP).unwrap();
            pair.home.io.write(&file, 4 * STEP, &[2; 10]).unwrap();
        }
        pair.home.io.sync(&file).unwrap();
        pair.way.cut();
        take_over(&pair.keeper).unwrap();
        assert!(read(&pair.keeper, "f") == read(&pair.home, "f"), "{synced} {grows}");
    }
}

/// A home whose process dies before a file was synced goes on with the copies that its partners
/// have of it: they are told of its names.
// S-25
#[test]
fn what_went_ahead_of_a_home_that_begins_anew_is_told_of_still() {
    let (store, media) = (MemStore::new(), CrashMedia::default());
    let keeper = partner_on(&CrashMedia::default(), store.clone(), "boot-p").unwrap();
    let (home, hook) = home_with(&store, &media, patient(), config());
    let way = Way::to(&[&keeper]);
    home.files.begin_copies(way.clone(), CopiesAt::Sync);
    way.fill_up(&home, "p").unwrap();
    let pair = Pair { store, hook, home, media: CrashMedia::default(), keeper, way };
    let file = pair.make("f", &[1; 100]);
    write_ahead(&pair, &file, 0, 1, 1);
    within("it is there", || pair.kept() == [("f".into(), STEP)]);
    drop(file);
    pair.way.cut();
    let disk = CrashMedia::on(media.snapshot().process_crash_image());
    let (again, _) = home_with(&pair.store, &disk, patient(), config());
    again.files.begin_copies(pair.way.clone(), CopiesAt::Sync);
    again.outbox.begin_anew();
    pair.way.follow();
    let attr = again.verbs.stat(Path::new("f")).unwrap();
    let from = named(Path::new("f"), &attr);
    again.verbs.rename(from, Path::new("g"), None, RenameMode::Replace).unwrap();
    assert_eq!(pair.kept(), [("g".into(), STEP)]);
    pair.way.cut();
    abandon(again);
}
