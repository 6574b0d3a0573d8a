//! One round: what is new of a file goes to partners, and ends with what the file is.
//!
//! Before it begins much of it may have been sent ahead ([`Pass`]), while programs were writing the file still.

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use forebay_backing::Result;

use crate::copies::sender::{Post, Sender, Sent, To, Yields};
use crate::core::clock::What;
use crate::core::copied::{Ahead, Begun, Taken, Then, Untold};
use crate::core::ranges::{Ranges, State};
use crate::files::file::{File, Inner, Meanwhile};
use crate::lock::MutexGuard;

/// What was sent ahead for so many words is sent again: a partner that has forgotten as many files since takes no
/// older words.
const AHEAD_ROUNDS: u64 = 10_000;

/// A round that has begun: no other one of the file begins until it has ended, which it does when it is dropped at
/// the latest.
pub(super) struct Round<'a> {
    sender: Sender<'a>,
    unsent: Vec<(u64, u64)>,
    then: Option<Then>,
    has_ended: bool,
    /// `None`: it is for one partner, of what the others know.
    taken: Option<Taken>,
}

/// What became of a round.
pub(super) enum Ended {
    /// All have it; so many bytes are in it.
    Well(u64),
    /// The file was cut meanwhile.
    Cut,
}

fn fresh() -> Box<Untold> {
    Box::new(Untold::none())
}

/// Sees to it that what was sent ahead is all there and dirty, and is given up if not (K3).
fn settle_ahead(inner: &mut Inner, since: impl Fn(u64) -> u64) {
    let Some(ahead) = inner.copied().and_then(Untold::ahead) else { return };
    let is_dirty = || {
        let dirty =
            |start, end| inner.state.dirty_of(start, end).iter().map(|(a, b)| b - a).sum::<u64>();
        ahead.sent.iter().all(|run| dirty(run.start, run.end) == run.bytes())
    };
    let stands = since(ahead.number) < AHEAD_ROUNDS
        && !inner.state.is_unseen()
        && !inner.changed(ahead.since, What::Size)
        && is_dirty();
    if !stands && let Some(copied) = &mut inner.live().copied {
        copied.drop_ahead();
    }
}

impl<'a> Round<'a> {
    /// Begins one under the file's lock, which ends with it. `None` if there is nothing to tell.
    pub fn begin(
        post: Post<'a>,
        file: &'a Arc<File>,
        mut inner: MutexGuard<'_, Inner>,
    ) -> Result<Option<Round<'a>>> {
        let files = post.files;
        let shadow = files.shadow(file, &mut inner)?;
        let (size, mtime, unseen) = (inner.size(), inner.mtime(), inner.state.is_unseen());
        let moved_at = inner.state.paths.moved_at();
        let now = inner.clock.look();
        settle_ahead(&mut inner, |number| files.copying().since(number));
        let copied = inner.live().copied.get_or_insert_with(fresh);
        if unseen {
            copied.note_written(0, u64::MAX);
            copied.note_anew();
        }
        let one = post.to != To::All;
        if one {
            // It is told under a number of its own.
            copied.drop_ahead();
        }
        if !one && !copied.owes(moved_at) {
            return Ok(None);
        }
        let unsent = if one { vec![(0, size)] } else { copied.unsent(size) };
        let (taken, whole, ahead) = match one {
            true => (None, true, None),
            false => {
                let Begun { taken, whole, ahead } = copied.begin(moved_at);
                (Some(taken), whole, ahead)
            }
        };
        copied.begin_telling();
        let (after, also) = (copied.number, copied.also.clone());
        let dirty = |&(start, end): &(u64, u64)| inner.state.dirty_of(start, end);
        let unsent = unsent.iter().flat_map(dirty).collect();
        let then = match whole {
            true => {
                let mut portrait = inner.state.portrait(size, mtime);
                portrait.paths.extend(also.map(|also| also.into_os_string().into_vec()));
                Then::Whole(Box::new(portrait))
            }
            false => Then::Grown { size, mtime },
        };
        let ahead = ahead.unwrap_or_else(|| Ahead::begin(files.copying().next_number(), now));
        let Ahead { number, step, since, sent } = ahead;
        let work = files.work_on(file, inner, Meanwhile::Refused);
        let sender = Sender::new(
            post,
            (file, shadow, work),
            (number, step + 1, after, whole),
            (since, sent),
        );
        Ok(Some(Round { sender, unsent, then: Some(then), has_ended: false, taken }))
    }

    /// Sends all of it, and the words that it ends with; what partners say of these is heard by
    /// [`Round::end`]. `false` if the file was cut meanwhile.
    pub fn send(&mut self) -> Result<bool> {
        let unsent = std::mem::take(&mut self.unsent);
        let (sent, then) = (self.sender.send(&unsent, u64::MAX, Yields::No), self.then.take());
        let is_sent = match (sent?, then) {
            (Sent::All(rest), Some(then)) => self.sender.conclude(rest, then)?,
            _ => false,
        };
        self.sender.has_read();
        Ok(is_sent)
    }

    /// Ends what was sent, or not.
    pub fn end(mut self, sent: Result<bool>) -> Result<Ended> {
        let sent = sent.and_then(|sent| self.sender.land(0).map(|()| sent));
        self.has_ended = true;
        self.settle(matches!(sent, Ok(true)));
        let bytes = self.sender.brought.bytes(|_| true);
        Ok(if sent? { Ended::Well(bytes) } else { Ended::Cut })
    }

    pub fn run(mut self) -> Result<Ended> {
        let sent = self.send();
        self.end(sent)
    }

    fn settle(&mut self, well: bool) {
        let Sender { post, file, number, .. } = &self.sender;
        let (files, file, number) = (post.files, *file, *number);
        let mut inner = file.lock();
        self.sender.has_read_in(&mut inner);
        let copied = inner.live().copied.as_mut().expect("nobody ends it but who began it");
        match self.taken.take() {
            Some(_) if well => copied.ended(number),
            Some(taken) => copied.failed(taken),
            None => copied.end_telling(),
        }
        file.changed.notify_all();
        files.retire(file, inner);
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.settle(false);
        }
    }
}

/// Bytes that are sent ahead of a round.
pub(super) struct Pass<'a> {
    sender: Sender<'a>,
    stretches: Vec<(u64, u64)>,
    has_ended: bool,
}

impl<'a> Pass<'a> {
    /// Begins one under the file's lock, which ends with it, if at least so many bytes are unsent.
    pub fn begin(
        post: Post<'a>,
        file: &'a Arc<File>,
        mut inner: MutexGuard<'_, Inner>,
        least: u64,
    ) -> Result<Option<Pass<'a>>> {
        let files = post.files;
        let (size, moved_at) = (inner.size(), inner.state.paths.moved_at());
        if inner.state.is_unseen() {
            return Ok(None);
        }
        settle_ahead(&mut inner, |number| files.copying().since(number));
        let unsent = match inner.copied() {
            Some(copied) if copied.is_busy() || copied.awaited > 0 => return Ok(None),
            Some(copied) => copied.unsent(size),
            None => vec![(0, size)],
        };
        let dirty = |&(start, end): &(u64, u64)| inner.state.dirty_of(start, end);
        let stretches: Vec<(u64, u64)> = unsent.iter().flat_map(dirty).collect();
        if stretches.iter().map(|(start, end)| end - start).sum::<u64>() < least {
            return Ok(None);
        }
        let shadow = files.shadow(file, &mut inner)?;
        let now = inner.clock.look();
        let copied = inner.live().copied.get_or_insert_with(fresh);
        let (after, whole) = (copied.number, copied.tells_all(moved_at));
        let fresh = || Ahead::begin(files.copying().next_number(), now);
        let Ahead { number, step, since, .. } = *copied.begin_ahead(&stretches, fresh);
        let work = files.work_on(file, inner, Meanwhile::Refused);
        let sender = Sender::new(
            post,
            (file, shadow, work),
            (number, step, after, whole),
            (since, Ranges::None),
        );
        Ok(Some(Pass { sender, stretches, has_ended: false }))
    }

    /// Sends pieces of so many bytes until nothing is left that fills one, or somebody waits for its end. Returns
    /// whether another one may follow.
    pub fn run(mut self, enough: u64) -> Result<bool> {
        let sent = self.sender.send(&self.stretches, enough, Yields::ToRounds);
        let sent = sent.and_then(|sent| self.sender.land(0).map(|()| sent));
        self.has_ended = true;
        self.settle(matches!(sent, Ok(Sent::All(_) | Sent::Stopped)));
        Ok(matches!(sent?, Sent::All(_)))
    }

    fn settle(&mut self, well: bool) {
        let Sender { post, file, brought, .. } = &self.sender;
        let (files, file) = (post.files, *file);
        let mut left = Ranges::None;
        for &(start, end) in &self.stretches {
            left.set(start, end, State::Dirty);
        }
        brought.iter().for_each(|run| left.clear(run.start, run.end));
        let mut inner = file.lock();
        self.sender.has_read_in(&mut inner);
        let copied = inner.live().copied.as_mut().expect("nobody ends it but who began it");
        copied.end_ahead(&left);
        if !well {
            copied.drop_ahead();
        }
        file.changed.notify_all();
        files.retire(file, inner);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.settle(false);
        }
    }
}
