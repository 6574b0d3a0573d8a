//! A home that comes back after it was taken over, and finds which of its bytes are old: those that were taken.

use std::sync::Arc;

use forebay_backing::FileKey;
use forebay_engine::taken::{Former, Piece, Pieces};
use forebay_engine::{Config, Engine, OpenFile};

use crate::content::shadow_in;
use crate::copied::{Pair, home_on, on_store, pair_with, read};
use crate::copies::{HOME, partner_on};
use crate::media::CrashMedia;
use crate::rng::Rng;
use crate::start::{abandon, patient};
use crate::taken::third;

const BLOCK: u64 = 16 << 10;

const LEN: u64 = 3 * BLOCK + 100;

fn home(epoch: u64) -> Former {
    Former { member: HOME.into(), epoch }
}

/// Takes over a file from the first life of its home.
fn takes(keeper: &Engine, key: FileKey) {
    keeper.ops.adopt(HOME, key).unwrap();
    keeper.ops.hold_taken(key, &[home(1)]).unwrap();
}

/// The home's next process on its tier as it is, which finds that the file was taken over.
fn comes_back(pair: &Pair, tier: &CrashMedia, key: FileKey) -> Arc<Engine> {
    let image = CrashMedia::on(tier.snapshot().process_crash_image());
    let (back, _) = home_on(&pair.store, &image, patient());
    back.ops.supersede(key).unwrap();
    back
}

/// Compares the file of a home that is back with what `keeper` took over from the home's life `epoch`. Returns
/// whether the file was dropped.
fn is_old(back: &Engine, keeper: &Engine, key: FileKey, epoch: u64) -> bool {
    let ask = |offset| {
        let mut out = Vec::new();
        let print = keeper.ops.as_taken(key, &home(epoch), offset, &mut out).unwrap();
        print.map(|print| (print, Piece::all_of(&out)))
    };
    let Some((print, first)) = ask(0) else { return false };
    let mut more = |offset| Ok(ask(offset).unwrap().1);
    let is_old = back.ops.compare_as_taken(key, print, &mut Pieces::new(first, &mut more)).unwrap();
    assert_eq!(back.ops.superseded().is_empty(), is_old);
    is_old
}

/// What a home does with a file after its last sync, which its partner does not hear of.
type Later = fn(&Pair, &OpenFile);

fn nothing(_: &Pair, _: &OpenFile) {}

fn write(pair: &Pair, file: &OpenFile, at: u64, byte: u8) {
    pair.home.io.write(file, at, &[byte; 10]).unwrap();
}

fn cut(pair: &Pair, file: &OpenFile, size: u64) {
    pair.home.io.set_len(file, size).unwrap();
}

/// A pair, the tier of its home, and its keeper as it was after a sync of a file of the home: it has taken the file
/// over, and changed it altogether.
struct Taken {
    pair: Pair,
    tier: CrashMedia,
    media: CrashMedia,
    keeper: Arc<Engine>,
    key: FileKey,
}

fn taken_over(later: Later) -> Taken {
    let tier = CrashMedia::default();
    let pair = pair_with(&tier, Config::default());
    let file = pair.make("f", &[1; LEN as usize]);
    pair.home.io.sync(&file).unwrap();
    let media = CrashMedia::on(pair.media.snapshot().process_crash_image());
    later(&pair, &file);
    pair.way.cut();
    let keeper = partner_on(&media, pair.store.clone(), "boot-p").unwrap();
    takes(&keeper, file.key);
    assert_eq!(read(&keeper, "f"), [1; LEN as usize]);
    let at_keeper = keeper.io.open("f".as_ref(), None).unwrap();
    keeper.io.write(&at_keeper, 0, &[2; LEN as usize + 5]).unwrap();
    Taken { key: file.key, pair, tier, media, keeper }
}

impl Drop for Taken {
    fn drop(&mut self) {
        abandon(self.keeper.clone());
    }
}

/// Bytes that the home wrote after its last sync, whatever they are, stay with it; and so do all if one does.
// S-25
#[test]
fn only_what_was_taken_over_is_old() {
    let cases: [(&str, bool, Later); 8] = [
        ("as it was taken", true, nothing),
        ("the same bytes once more", true, |pair, file| write(pair, file, BLOCK - 5, 1)),
        ("a byte of the first piece", false, |pair, file| write(pair, file, 0, 3)),
        ("a byte of the last piece", false, |pair, file| write(pair, file, LEN - 10, 3)),
        ("bytes behind the end", false, |pair, file| write(pair, file, LEN, 1)),
        ("a cut", false, |pair, file| cut(pair, file, LEN - 1)),
        ("a longer file", false, |pair, file| cut(pair, file, LEN + 1)),
        ("a cut, and the old length", false, |pair, file| {
            cut(pair, file, LEN - 1);
            cut(pair, file, LEN);
        }),
    ];
    for (what, want, later) in cases {
        let Taken { pair, tier, keeper, key, .. } = &taken_over(later);
        let back = comes_back(pair, tier, *key);
        assert_eq!(is_old(&back, keeper, *key, 1), want, "{what}");
        abandon(back);
    }
}

/// The home had flushed the file, and changed some of it: other bytes than the changed ones are not compared.
#[test]
fn what_the_home_has_flushed_is_not_asked_for() {
    for (also, want) in [(None, true), (Some(2 * BLOCK), false), (Some(95), false)] {
        let tier = CrashMedia::default();
        let pair = pair_with(&tier, Config::default());
        let file = pair.make("f", &[1; LEN as usize]);
        pair.home.io.sync(&file).unwrap();
        pair.flush();
        write(&pair, &file, 100, 4);
        pair.home.io.sync(&file).unwrap();
        pair.way.cut();
        also.into_iter().for_each(|at| write(&pair, &file, at, 4));
        takes(&pair.keeper, file.key);
        let back = comes_back(&pair, &tier, file.key);
        assert_eq!(is_old(&back, &pair.keeper, file.key, 1), want, "{also:?}");
        abandon(back);
    }
}

/// Nothing is old by what was taken from another life of the home, and nothing once the home has compared.
#[test]
fn what_was_taken_from_one_life_says_nothing_of_another() {
    let Taken { pair, tier, keeper, key, .. } = &taken_over(nothing);
    let back = comes_back(pair, tier, *key);
    assert!(!is_old(&back, keeper, *key, 2));
    keeper.ops.forget_as_taken(&|home| home.epoch > 1);
    let other = comes_back(pair, tier, *key);
    assert!(is_old(&other, keeper, *key, 1), "it is kept");
    keeper.ops.forget_as_taken(&|home| home.epoch == 1);
    assert!(!is_old(&back, keeper, *key, 1), "it is not known any more");
    [back, other].into_iter().for_each(abandon);
}

/// The taker may die, too. After a loss of power it may know nothing, and says nothing that is not so.
#[test]
fn a_taker_that_restarts_knows_what_it_took() {
    for (later, want) in [(nothing as Later, true), (|pair, file| write(pair, file, 5, 3), false)] {
        let Taken { pair, tier, media, key, .. } = &taken_over(later);
        let disk = media.snapshot();
        let mut rng = Rng::new(7);
        let images = disk.crash_images(&mut rng, 5).into_iter().map(|image| ("boot-p2", image));
        for (boot, image) in [("boot-p", disk.process_crash_image())].into_iter().chain(images) {
            let keeper = partner_on(&CrashMedia::on(image), pair.store.clone(), boot).unwrap();
            let back = comes_back(pair, tier, *key);
            let found = is_old(&back, &keeper, *key, 1);
            assert!(found == want || (!found && boot == "boot-p2"), "{boot}: {found}");
            [back, keeper].into_iter().for_each(abandon);
        }
    }
}

/// A taker that has lost what it took says nothing of it any more: the home may have the last good bytes.
#[test]
fn a_taker_that_has_lost_what_it_took_does_not_call_it_old() {
    let Taken { pair, tier, media, key, .. } = &taken_over(nothing);
    for keeps in [true, false] {
        let image = CrashMedia::on(media.snapshot().process_crash_image());
        if !keeps {
            shadow_in(&image).set_len(0).unwrap();
        }
        let keeper = partner_on(&image, pair.store.clone(), "boot-p").unwrap();
        let back = comes_back(pair, tier, *key);
        assert_eq!(is_old(&back, &keeper, *key, 1), keeps);
        [back, keeper].into_iter().for_each(abandon);
    }
}

/// Two take-overs, one after the other: the second taker has the first home's bytes as far as the first one left
/// them.
#[test]
fn a_second_taker_knows_of_the_first_home() {
    for changed in [false, true] {
        let tier = CrashMedia::default();
        let pair = pair_with(&tier, Config::default());
        let file = pair.make("f", &[1; LEN as usize]);
        pair.home.io.sync(&file).unwrap();
        pair.way.cut();
        let third = third(&pair);
        takes(&pair.keeper, file.key);
        if changed {
            let at_keeper = pair.keeper.io.open("f".as_ref(), None).unwrap();
            pair.keeper.io.write(&at_keeper, 0, &[2; 10]).unwrap();
            pair.keeper.io.sync(&at_keeper).unwrap();
        }
        third.way.cut();
        third.engine.ops.adopt(HOME, file.key).unwrap();
        let keeper = Former { member: "p".into(), epoch: 1 };
        third.engine.ops.hold_taken(file.key, &[home(1), keeper]).unwrap();
        let back = comes_back(&pair, &tier, file.key);
        assert_eq!(is_old(&back, &third.engine, file.key, 1), !changed);
        if changed {
            assert!(is_old(&back, &pair.keeper, file.key, 1), "the first taker is back");
        }
        assert_eq!(on_store(&pair.store, "f"), [0; 0], "nothing was flushed");
        abandon(back);
    }
}
