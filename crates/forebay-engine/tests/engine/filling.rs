//! The fill of a partner with everything that was acknowledged, and what may happen meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_backing::{RenameMode, SetAttr};
use forebay_engine::{CopiesAt, Engine, Teller, Told};

use crate::copied::{Pair, home_on, pair, read};
use crate::copies::{Act, HOME, Message, Way, partner_on, take_over};
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, beside, named, patient, simulated, time, within};
use crate::store::MemStore;

/// Starts one more partner, which is filled next.
fn second(pair: &Pair) -> Arc<Engine> {
    let second = partner_on(&CrashMedia::default(), pair.store.clone(), "boot-q").unwrap();
    *pair.way.comes.lock().unwrap() = Some(second.clone());
    second
}

/// A round to a partner that is being filled counts for that partner alone: the sync that made the
/// file durable tells the others.
// S-25
#[test]
fn what_a_fill_brings_one_partner_does_not_count_as_told_to_all() {
    let pair = pair();
    // The file is durable here, and about to be told.
    pair.way.wants.store(false, Relaxed);
    let file = pair.make("f", &[1; 5000]);
    pair.home.io.sync(&file).unwrap();
    pair.way.wants.store(true, Relaxed);
    assert_eq!(pair.kept(), []);
    let second = second(&pair);
    pair.way.fill_up(&pair.home, "q").unwrap();
    pair.home.io.sync(&file).unwrap();
    assert_eq!(pair.kept(), [("f".into(), 5000)], "it is acknowledged");
    assert_eq!(second.copies.list(HOME).len(), 1);
    abandon(second);
}

/// Kills the keeper's process and starts it again after each message.
fn restart_after_each(pair: &Pair) -> Arc<std::sync::Mutex<Vec<Arc<Engine>>>> {
    let (mut media, store, way) = (pair.media.clone(), pair.store.clone(), pair.way.clone());
    let lives: Arc<std::sync::Mutex<Vec<Arc<Engine>>>> = Arc::default();
    let out = lives.clone();
    *pair.way.after.lock().unwrap() = Some(Act::new(move || {
        media = CrashMedia::on(media.snapshot().process_crash_image());
        let again = partner_on(&media, store.clone(), "boot-p").unwrap();
        way.restarted(&again);
        out.lock().unwrap().push(again);
    }));
    lives
}

/// A partner that was killed between two pieces of a round lacks the first ones, and does not take
/// the rest for the whole.
// S-25
#[test]
fn a_partner_that_restarts_between_the_pieces_of_a_round_does_not_take_the_rest() {
    let pair = pair();
    let file = pair.make("f", &[1; 3 << 20]);
    pair.home.io.sync(&file).unwrap();
    pair.home.io.write(&file, 3 << 20, &[2; 3 << 20]).unwrap();
    let lives = restart_after_each(&pair);
    let synced = pair.home.io.sync(&file);
    *pair.way.after.lock().unwrap() = None;
    let lives = std::mem::take(&mut *lives.lock().unwrap());
    assert!(!lives.is_empty(), "it was killed in between");
    assert!(synced.unwrap_err().is(libc::ESTALE), "it is to be struck off");
    let last = lives.last().unwrap();
    take_over(last).unwrap();
    assert_eq!(read(last, "f"), vec![1; 3 << 20], "what was acknowledged before");
    lives.into_iter().for_each(abandon);
}

/// The same for a partner that is being filled: it does not count as filled.
// S-25
#[test]
fn a_partner_that_restarts_during_its_fill_is_not_filled() {
    let pair = pair();
    let file = pair.make("f", &[1; 3 << 20]);
    pair.home.io.sync(&file).unwrap();
    let lives = restart_after_each(&pair);
    pair.way.announce(&pair.keeper).unwrap();
    let filled = pair.home.outbox.fill_partner("p", &|| false);
    *pair.way.after.lock().unwrap() = None;
    let lives = std::mem::take(&mut *lives.lock().unwrap());
    assert!(!lives.is_empty(), "it was killed in between");
    assert!(filled.unwrap_err().is(libc::ESTALE));
    assert!(!lives.last().unwrap().copies.is_whole(HOME));
    lives.into_iter().for_each(abandon);
}

/// A home that restarts goes on with the partners that have everything it had acknowledged: they are
/// told of names before a rename is answered, and messages of its previous process come too late.
// S-25
#[test]
fn a_home_that_begins_anew_goes_on_with_its_partners() {
    let (store, media, theirs) = (MemStore::new(), CrashMedia::default(), CrashMedia::default());
    let keeper = partner_on(&theirs, store.clone(), "boot-p").unwrap();
    let (home, _) = home_on(&store, &media, patient());
    let way = Way::to(&[&keeper]);
    home.files.begin_copies(way.clone(), CopiesAt::Sync);
    way.fill_up(&home, "p").unwrap();
    for (name, byte) in [("f", 1), ("g", 2)] {
        let (file, _) = home.verbs.create(Path::new(name), &NEW).unwrap();
        home.io.write(&file, 0, &[byte; 9000]).unwrap();
        home.io.sync(&file).unwrap();
    }
    way.cut();
    let late = way.sent.lock().unwrap().pop().unwrap();
    abandon(home);
    let disk = media.snapshot().process_crash_image();
    let (home, _) = home_on(&store, &CrashMedia::on(disk), patient());
    home.files.begin_copies(way.clone(), CopiesAt::Sync);
    home.outbox.begin_anew();
    way.follow();
    let attr = home.verbs.stat(Path::new("f")).unwrap();
    let from = named(Path::new("f"), &attr);
    home.verbs.rename(from, Path::new("h"), None, RenameMode::Replace).unwrap();
    let kept = |keeper: &Engine| -> Vec<_> {
        assert!(keeper.copies.is_whole(HOME));
        keeper.copies.list(HOME).iter().map(|copy| copy.path.display().to_string()).collect()
    };
    assert_eq!(kept(&keeper), ["h", "g"], "before the rename was answered");
    let file = home.io.open(Path::new("g"), None).unwrap();
    home.io.write(&file, 4000, &[3; 100]).unwrap();
    home.io.sync(&file).unwrap();
    let before = Teller { home: HOME, epoch: 1, fill: 1 };
    let (words, bytes) = (&late.words, &late.bytes);
    let refused = keeper.copies.keep(before, Told::Owes, 1, late.file, words, bytes);
    assert!(refused.unwrap_err().is(libc::ESTALE), "it is over");
    way.cut();
    let now = ["g", "h"].map(|name| read(&home, name));
    abandon(home);
    let again = CrashMedia::on(theirs.snapshot().process_crash_image());
    let again = partner_on(&again, store.clone(), "boot-p").unwrap();
    for keeper in [again, keeper] {
        assert_eq!(kept(&keeper), ["h", "g"]);
        assert_eq!(take_over(&keeper).unwrap().0, 2);
        assert_eq!(["g", "h"].map(|name| read(&keeper, name)), now);
        abandon(keeper);
    }
}

/// A partner that is being filled leaves messages to the fill that build upon bytes it lacks; but
/// if bytes are missing that it has been told, it refuses.
// S-25
#[test]
fn what_is_told_beside_a_fill_is_left_to_it_only_where_the_fill_brings_it() {
    let pair = pair();
    let file = pair.make("f", &[1; 2 << 20]);
    pair.home.io.sync(&file).unwrap();
    let whole = std::mem::take(&mut *pair.way.sent.lock().unwrap());
    pair.home.io.write(&file, 2 << 20, &[2; 2 << 20]).unwrap();
    pair.home.io.sync(&file).unwrap();
    let grown = std::mem::take(&mut *pair.way.sent.lock().unwrap());
    assert!(whole.len() > 2 && grown.len() > 2, "in pieces");
    let second = partner_on(&CrashMedia::default(), pair.store.clone(), "boot-q").unwrap();
    let by = Teller { home: HOME, epoch: 1, fill: 9 };
    let told = |told, message: &Message| {
        let Message { file, words, bytes } = message;
        second.copies.keep(by, told, 1, *file, words, bytes)
    };
    second.copies.announce(by).unwrap();
    told(Told::Beside, &grown[0]).expect("it comes with the fill");
    assert!(told(Told::Owes, &grown[0]).unwrap_err().is(libc::ESTALE));
    second.copies.mark(by, &pair.way.marks.lock().unwrap()[0]).unwrap();
    grown.iter().for_each(|it| told(Told::Beside, it).expect("it comes with the fill"));
    assert!(told(Told::Owes, &grown[0]).unwrap_err().is(libc::ESTALE));
    assert_eq!(second.copies.list(HOME), []);
    // Its process was killed after the first piece.
    let last = whole[1..].iter().map(|it| told(Told::Beside, it)).next_back().unwrap();
    assert!(last.unwrap_err().is(libc::ESTALE), "nobody brings the first piece");
    whole.iter().for_each(|it| told(Told::Beside, it).expect("here it is"));
    let last = grown[1..].iter().map(|it| told(Told::Beside, it)).next_back().unwrap();
    assert!(last.unwrap_err().is(libc::ESTALE), "nor here");
    grown.iter().for_each(|it| told(Told::Beside, it).expect("here it is"));
    assert_eq!(second.copies.list(HOME)[0].bytes, 4 << 20);
    abandon(second);
}

/// However many messages a sync takes, and however long each may take, it ends: a slow partner is struck off.
#[test]
fn a_sync_of_a_large_file_does_not_wait_for_a_slow_partner_for_ever() {
    let _simulated = simulated();
    for (pause, is_slow) in [(10, false), (3000, true)] {
        let pair = pair();
        let file = pair.make("f", &[1; 3 << 20]);
        // Any thread may send the message.
        let time = time();
        let slow = move || time.sleep(Duration::from_millis(pause));
        *pair.way.after.lock().unwrap() = Some(Act::new(slow));
        pair.home.io.sync(&file).unwrap();
        // The number depends on which of the messages under way comes first.
        let hurried = pair.way.hurried.load(Relaxed);
        assert_eq!(hurried > 0, is_slow, "{hurried}, of three messages of {pause} ms");
        let filled = pair.way.fill_up(&pair.home, "p");
        *pair.way.after.lock().unwrap() = None;
        assert_eq!(filled.is_ok(), !is_slow, "whoever syncs waits for a fill of that file, too");
    }
}

/// Messages of an older fill, and repeated ones, change nothing that a newer fill has brought.
// S-25
#[test]
fn late_words_of_a_fill_touch_nothing_of_a_newer_one() {
    let pair = pair();
    let file = pair.make("f", &[1; 9000]);
    pair.home.io.sync(&file).unwrap();
    let copies = &pair.keeper.copies;
    let by = |fill| Teller { home: HOME, epoch: 1, fill };
    let is_late = |said: forebay_backing::Result<()>| said.unwrap_err().is(libc::ESTALE);
    // Two fills are announced; no message of the first one has come.
    pair.way.announce(&pair.keeper).unwrap();
    pair.way.fill_up(&pair.home, "p").unwrap();
    let (begin, end) = {
        let marks = pair.way.marks.lock().unwrap();
        (marks[marks.len() - 2].clone(), marks[marks.len() - 1].clone())
    };
    let late = pair.way.sent.lock().unwrap().pop().unwrap();
    for fill in [1, 2] {
        assert!(is_late(copies.announce(by(fill))));
        assert!(is_late(copies.mark(by(fill), &begin)));
        assert!(is_late(copies.mark(by(fill), &end)));
        for told in [Told::Owes, Told::Beside] {
            assert!(is_late(copies.keep(by(fill), told, 1, late.file, &late.words, &late.bytes)));
        }
    }
    assert!(is_late(copies.announce(by(3))), "it is in force");
    copies.mark(by(3), &begin).expect("it has begun");
    assert_eq!(pair.kept(), [("f".into(), 9000)]);
    assert!(copies.is_whole(HOME));
    let image = CrashMedia::on(pair.media.snapshot().process_crash_image());
    let again = partner_on(&image, pair.store.clone(), "boot-p").unwrap();
    assert_eq!(take_over(&again).unwrap(), (1, 9000));
    abandon(again);
}

/// However scattered the dirty bytes of a file are, each message about it is short: one too long to
/// be sent would cost all partners.
// S-25
#[test]
fn a_file_of_many_stretches_is_told_in_short_words() {
    const STRETCHES: u64 = 40_000;
    let pair = pair();
    let file = pair.make("f", &[1; 16 * STRETCHES as usize]);
    pair.flush();
    for n in 0..STRETCHES {
        pair.home.io.write(&file, n * 16, &[2; 8]).unwrap();
    }
    pair.home.io.sync(&file).unwrap();
    assert_eq!(pair.kept(), [("f".into(), 8 * STRETCHES)]);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let attr = pair.home.verbs.stat(Path::new("f")).unwrap();
    let second = second(&pair);
    pair.way.fill_up(&pair.home, "q").unwrap();
    pair.home.verbs.set_attr(named(Path::new("f"), &attr), &set).unwrap();
    pair.home.io.set_len(&file, 16 * STRETCHES - 8).unwrap();
    let ours = read(&pair.home, "f");
    pair.way.cut();
    for keeper in [&pair.keeper, &second] {
        assert_eq!(take_over(keeper).unwrap(), (1, 8 * STRETCHES));
        assert!(read(keeper, "f") == ours);
    }
    abandon(second);
}

/// A sync of a file that a partner is being filled with waits for a part of the fill. Changes
/// meanwhile are there at the end, also where the fill had passed already.
// S-25
#[test]
fn a_sync_of_a_file_waits_for_a_part_of_its_fill() {
    let pair = pair();
    let file = pair.make("f", &[1; 4 << 20]);
    pair.home.io.sync(&file).unwrap();
    let second = second(&pair);
    let (home, way) = (pair.home.clone(), pair.way.clone());
    let filled = beside(move || way.fill_up(&home, "q"));
    let brought = || second.copies.list(HOME).first().map_or(0, |copy| copy.bytes);
    within("it is sent", || brought() > 0);
    pair.home.io.write(&file, 100, &[2; 5000]).unwrap();
    pair.home.io.sync(&file).unwrap();
    assert!(brought() < 3 << 20, "a part: {}", brought());
    // A write that is not told before the fill ends, and a cut, which all partners are told.
    pair.home.io.write(&file, 200, &[3; 5000]).unwrap();
    pair.home.io.set_len(&file, 3 << 20).unwrap();
    pair.home.io.write(&file, 0, &[4; 50]).unwrap();
    assert!(!filled.is_finished() && !second.copies.is_whole(HOME));
    filled.join().unwrap();
    assert!(second.copies.is_whole(HOME));
    assert_eq!(brought(), 3 << 20);
    pair.home.io.sync(&file).unwrap();
    pair.way.cut();
    take_over(&second).unwrap();
    assert!(read(&second, "f") == read(&pair.home, "f"));
    abandon(second);
}

/// A partner whose fill begins in the middle of a round is told nothing of the round, since it
/// lacks the first pieces: the fill waits for the round, and brings the file.
// S-25
#[test]
fn a_round_goes_to_those_whom_it_began_with() {
    let pair = pair();
    let file = pair.make("f", &[1; 3 << 20]);
    let second = second(&pair);
    let fill = Arc::new(std::sync::Mutex::new(None));
    let (home, way, out) = (pair.home.clone(), pair.way.clone(), fill.clone());
    *pair.way.after.lock().unwrap() = Some(Act::new(move || {
        let mut fill = out.lock().unwrap();
        if fill.is_none() {
            let (home, theirs) = (home.clone(), way.clone());
            *fill = Some(beside(move || theirs.fill_up(&home, "q")));
            within("it is told with the others", || !way.filling.lock().unwrap().is_empty());
        }
    }));
    pair.home.io.sync(&file).expect("no partner refuses a message that it never got");
    *pair.way.after.lock().unwrap() = None;
    fill.lock().unwrap().take().expect("it was filled meanwhile").join().unwrap();
    assert!(second.copies.is_whole(HOME));
    pair.way.cut();
    assert_eq!(take_over(&second).unwrap(), (1, 3 << 20));
    abandon(second);
}
