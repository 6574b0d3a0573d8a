//! Bytes that partners are sent before anybody syncs: what becomes of them, whatever happens in between.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_engine::{Config, Engine, OpenFile};

use crate::copied::{Pair, pair_with, read};
use crate::copies::{HOME, Message, partner_on, take_over};
use crate::media::CrashMedia;
use crate::start::{abandon, within};

const STEP: u64 = 64 << 10;

/// One that is sent ahead in pieces of [`STEP`].
fn pair() -> Pair {
    pair_with(Config { ahead_from: STEP, ..Config::default() })
}

impl Pair {
    /// Writes so many steps of a file from an offset, and waits until all of it was sent.
    fn write_ahead(&self, file: &OpenFile, from: u64, steps: u64, byte: u8) -> Vec<Message> {
        let mut sent = Vec::new();
        for step in 0..steps {
            self.way.take_counts();
            let block = vec![byte; STEP as usize];
            self.home.io.write(file, from + step * STEP, &block).unwrap();
            let mut bytes = 0;
            within("it is sent ahead", || {
                bytes += self.way.take_counts().2;
                bytes >= STEP
            });
            sent.append(&mut self.way.sent.lock().unwrap());
        }
        sent
    }

    /// The keeper dies and is back at once, with what its kernel had.
    fn keeper_again(&self) -> Arc<Engine> {
        let media = CrashMedia::on(self.media.snapshot().process_crash_image());
        let again = partner_on(&media, self.store.clone(), "boot-p").unwrap();
        *self.way.partners.lock().unwrap() = vec![again.clone()];
        again
    }
}

/// What was sent ahead counts for nothing before a sync, which sends only what is left.
#[test]
fn a_sync_sends_what_was_not_sent_ahead() {
    let pair = pair();
    let file = pair.make("f", &[]);
    pair.write_ahead(&file, 0, 10, 1);
    assert_eq!(pair.kept(), [], "nobody has synced");
    assert!(pair.home.outbox.behind().behind.is_empty(), "nor is anything owed");
    pair.home.io.write(&file, 10 * STEP, &[2; 100]).unwrap();
    // Written anew, it is sent anew.
    pair.home.io.write(&file, 3 * STEP, &[3; 100]).unwrap();
    pair.way.take_counts();
    pair.home.io.sync(&file).unwrap();
    let (_, _, bytes) = pair.way.take_counts();
    assert!((200..STEP).contains(&bytes), "{bytes}");
    assert_eq!(pair.kept(), [("f".into(), 10 * STEP + 100)]);
    pair.write_ahead(&file, 5 * STEP, 2, 4);
    assert_eq!(pair.home.outbox.behind().behind[0].bytes, 2 * STEP, "partners do not count it");
    pair.home.io.sync(&file).unwrap();
    assert_eq!(pair.home.outbox.behind().copied_files, 1);
    pair.way.cut();
    take_over(&pair.keeper).unwrap();
    assert!(read(&pair.keeper, "f") == read(&pair.home, "f"));
}

/// Who takes over before the sync has the file as it was synced last; where it was overwritten since, either.
#[test]
fn a_home_that_dies_before_the_sync_leaves_what_was_synced() {
    let pair = pair();
    let file = pair.make("f", &[1; 3 * STEP as usize]);
    pair.home.io.sync(&file).unwrap();
    let fresh = pair.make("g", &[]);
    pair.write_ahead(&fresh, 0, 3, 7);
    pair.write_ahead(&file, STEP, 4, 2);
    pair.way.cut();
    assert_eq!(take_over(&pair.keeper).unwrap().0, 1, "of the other one nothing was synced");
    let seen = read(&pair.keeper, "f");
    assert_eq!(seen.len() as u64, 3 * STEP);
    assert!(seen[..STEP as usize].iter().all(|byte| *byte == 1));
    assert!(seen.iter().all(|byte| [1, 2].contains(byte)));
    assert_eq!(read(&pair.keeper, "g"), [0u8; 0]);
}

/// What was sent of a file that is cut then does not come back, if it grows again or not.
#[test]
fn what_is_cut_after_it_was_sent_ahead_is_not_there() {
    for (synced, grows) in [(false, false), (false, true), (true, false), (true, true)] {
        let pair = pair();
        let file = pair.make("f", &[9; 2 * STEP as usize]);
        if synced {
            pair.home.io.sync(&file).unwrap();
        }
        pair.write_ahead(&file, STEP, 6, 1);
        pair.home.io.set_len(&file, 2 * STEP + 100).unwrap();
        assert_eq!(pair.kept().len(), usize::from(synced), "a cut tells what was synced alone");
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

/// A partner that has begun anew does not know what it was sent before, and does not say that it has it.
#[test]
fn a_partner_that_began_anew_acknowledges_no_round_that_it_has_half_of() {
    for synced in [false, true] {
        let pair = pair();
        let file = pair.make("f", &[1; STEP as usize]);
        if synced {
            pair.home.io.sync(&file).unwrap();
        }
        pair.write_ahead(&file, STEP, 3, 2);
        let again = pair.keeper_again();
        pair.home.io.write(&file, 4 * STEP, &[3; 10]).unwrap();
        let refused = pair.home.io.sync(&file).unwrap_err();
        assert!(refused.is(libc::ESTALE), "{refused}");
        pair.home.outbox.fill_partner("p", &|| false).unwrap();
        pair.home.io.sync(&file).unwrap();
        pair.way.cut();
        take_over(&again).unwrap();
        assert!(read(&again, "f") == read(&pair.home, "f"));
        abandon(again);
    }
}

/// Nor does one count under a claim what it was sent under another.
#[test]
fn what_was_sent_ahead_counts_under_its_own_claim_alone() {
    let pair = pair();
    let file = pair.make("f", &[]);
    pair.write_ahead(&file, 0, 3, 1);
    pair.way.claim.store(2, Relaxed);
    let refused = pair.home.io.sync(&file).unwrap_err();
    assert!(refused.is(libc::ESTALE), "{refused}");
    assert_eq!(pair.kept(), []);
    pair.home.io.sync(&file).unwrap();
    let list = pair.keeper.copies.list(HOME);
    assert_eq!((list[0].number, list[0].bytes), (2, 3 * STEP));
}

/// Bytes that were sent ahead and come once more, late, do not land on newer ones of the same round; nor does the
/// end of a round that comes twice harm.
#[test]
fn what_was_sent_ahead_and_comes_late_changes_nothing() {
    let pair = pair();
    let file = pair.make("f", &[]);
    let early = pair.write_ahead(&file, 0, 3, 1);
    pair.write_ahead(&file, 0, 2, 2);
    let again = |message: &Message| {
        pair.keeper.copies.keep(HOME, 1, message.file, &message.words, &message.bytes)
    };
    let refused = early.iter().filter(|message| again(message).is_err()).count();
    assert!(refused >= 3, "{refused} of {}", early.len());
    pair.home.io.sync(&file).unwrap();
    let end = pair.way.sent.lock().unwrap().pop().unwrap();
    again(&end).unwrap();
    early.iter().for_each(|message| assert!(again(message).is_err()));
    pair.way.cut();
    take_over(&pair.keeper).unwrap();
    assert!(read(&pair.keeper, "f") == read(&pair.home, "f"));
}

/// A partner that is filled while bytes are sent ahead has all of the file when it is synced.
#[test]
fn a_partner_that_comes_while_bytes_are_sent_ahead_has_all() {
    for synced in [false, true] {
        let pair = pair();
        let file = pair.make("f", &[1; STEP as usize]);
        if synced {
            pair.home.io.sync(&file).unwrap();
        }
        pair.write_ahead(&file, STEP, 3, 2);
        let second = partner_on(&CrashMedia::default(), pair.store.clone(), "boot-q").unwrap();
        *pair.way.comes.lock().unwrap() = Some(second.clone());
        pair.home.outbox.fill_partner("q", &|| false).unwrap();
        assert_eq!(second.copies.list(HOME).len(), usize::from(synced));
        pair.home.io.sync(&file).unwrap();
        pair.way.cut();
        take_over(&second).unwrap();
        assert!(read(&second, "f") == read(&pair.home, "f"));
        abandon(second);
    }
}

/// Of a file that no partner was told of, those that were there before know when one that is filled does: who
/// syncs it then is told no lie.
#[test]
fn what_a_new_partner_is_filled_with_the_others_have_too() {
    let pair = pair();
    let file = pair.make("f", &[1; 1000]);
    pair.way.cut();
    pair.home.io.sync(&file).unwrap_err();
    pair.way.mend();
    let second = partner_on(&CrashMedia::default(), pair.store.clone(), "boot-q").unwrap();
    *pair.way.comes.lock().unwrap() = Some(second.clone());
    pair.home.outbox.fill_partner("q", &|| false).unwrap();
    pair.home.io.sync(&file).unwrap();
    assert_eq!(pair.kept(), [("f".into(), 1000)]);
    assert_eq!(second.copies.list(HOME).len(), 1);
    abandon(second);
}
