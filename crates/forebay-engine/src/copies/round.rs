//! One round: the new bytes of a file go to partners in pieces, and the last piece has the file's attributes.
//!
//! Several pieces are under way at once, and may arrive in any order: partners count the bytes that
//! they have got. The last piece is sent when all others have their answers.
//!
//! Bytes are read while programs go on: writes meanwhile are noted, and go with the next round. A
//! truncate meanwhile voids the round: bytes that were read may be zeros that no program wrote.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use serde::Serialize;

use crate::copies::telling::Telling;
use crate::core::clock::{Look, What};
use crate::core::copied::{Taken, Then, Untold, Words};
use crate::core::spans::{keep_first, sum};
use crate::files::Files;
use crate::files::file::{File, Inner};
use crate::files::live::Meanwhile;
use crate::files::partners::Partners;
use crate::files::work::AtWork;
use crate::pool::Pool;
use crate::tier::media::{MediaFile, torn};
use forebay_base::lock::{self, Mutex, MutexGuard, Rank};

/// Bytes of one message, and the number of stretches that they may come from.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

const PIECE_STRETCHES: usize = 1024;

/// Runs that one message names: some 50 KiB.
const PIECE_RUNS: usize = 4096;

/// Pieces under way at once.
const UNDER_WAY: usize = 3;

/// The time that a sync waits for a round at most, plus a second for each `LEAST_RATE` bytes:
/// each message may take as long as a partner's patience.
const ROUND_PATIENCE: Duration = Duration::from_secs(4);

const LEAST_RATE: u64 = 8 << 20;

/// The partners that are told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To<'a> {
    All,
    /// A partner that is being filled; the round brings at most `most` bytes of the file.
    One {
        partner: &'a str,
        most: u64,
    },
}

/// The parts that a round needs, and its recipients.
#[derive(Clone, Copy)]
pub(super) struct Post<'a> {
    pub files: &'a Files,
    pub partners: &'a Arc<dyn Partners>,
    /// Threads for messages that are sent beside other work.
    pub threads: &'a Pool,
    pub session: u64,
    pub to: To<'a>,
}

/// A round that has begun: no other round of the file begins until it has ended.
pub(super) struct Round<'a> {
    post: Post<'a>,
    file: &'a Arc<File>,
    shadow: Arc<dyn MediaFile>,
    sending: Sending<'a>,
    work: AtWork<'a>,
    seen: Look,
    number: u64,
    after: u64,
    /// The partners that are told: those that had joined before the first piece.
    joined: u64,
    began: Instant,
    /// Bytes that are sent, or in the next piece.
    brought: u64,
    unsent: Vec<(u64, u64)>,
    /// The runs to name.
    runs: Vec<(u64, u64)>,
    /// The number of bytes in `runs` that are named.
    named: u64,
    whole: bool,
    then: Then,
    took: Took<'a>,
    spare: Arc<Spare>,
}

/// The changes that the round has taken from the file, to be given back if it fails.
enum Took<'a> {
    OfAll(Taken),
    /// Ranges from the fill of one partner. The other partners have them.
    OfFill(&'a str, Vec<(u64, u64)>),
}

/// The right to tell partners of a file, which no other thread has meanwhile. If a bug ends it, nobody
/// knows which bytes each partner has: all are sent again.
pub(super) struct Sending<'a> {
    files: &'a Files,
    file: &'a Arc<File>,
}

impl<'a> Sending<'a> {
    /// Takes the right for a file that was marked as sending under its lock. The lock is not held any more.
    pub fn of(files: &'a Files, file: &'a Arc<File>) -> Sending<'a> {
        Sending { files, file }
    }

    /// Gives the right back, and returns the file's lock.
    pub fn end(self) -> MutexGuard<'a, Inner> {
        let mut inner = self.file.lock();
        self.give_back(&mut inner);
        std::mem::forget(self);
        inner
    }

    fn give_back<'i>(&self, inner: &'i mut Inner) -> Option<&'i mut Untold> {
        self.file.changed().notify_all();
        let copied = inner.live().copied_mut()?;
        copied.sending = false;
        Some(copied)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let mut inner = self.file.lock();
        if let Some(copied) = self.give_back(&mut inner) {
            copied.note_written(0, u64::MAX);
            copied.note_anew();
        }
        self.files.retire(self.file, inner);
    }
}

/// The content of one message.
#[derive(Default)]
struct Piece {
    data: Vec<(u64, u64)>,
    zeros: Vec<(u64, u64)>,
    runs: Vec<(u64, u64)>,
    bytes: Vec<u8>,
}

/// Buffers for the next pieces.
struct Spare(Mutex<Vec<Vec<u8>>>);

/// The bytes of a piece under way. Their buffer is used again once the piece has its answer.
struct Load(Vec<u8>, Arc<Spare>);

impl Drop for Load {
    fn drop(&mut self) {
        self.0.clear();
        self.1.0.lock().push(std::mem::take(&mut self.0));
    }
}

/// The pieces under way, the oldest first, each with the count of bytes up to it. However a round
/// ends, none of its pieces is under way afterwards.
#[derive(Default)]
struct UnderWay(VecDeque<(Telling, u64)>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(telling, _)| telling.give_up());
    }
}

/// The result of a round.
pub(super) enum Ended {
    /// All partners have the file; this many bytes were sent.
    Well(u64),
    /// The partner that is being filled has a part of the file; this many bytes were sent.
    Part(u64),
    /// The file was truncated meanwhile.
    Cut,
}

impl Piece {
    fn is_full(&self) -> bool {
        self.data.len() + self.zeros.len() >= PIECE_STRETCHES
            || self.bytes.len() as u64 >= PIECE_BYTES
    }
}

impl<'a> Round<'a> {
    /// Begins a round under the file's lock, which it ends. `None` if there is nothing to tell.
    pub fn begin(
        post: Post<'a>,
        file: &'a Arc<File>,
        mut inner: MutexGuard<'_, Inner>,
    ) -> Result<Option<Round<'a>>> {
        let shadow = post.files.shadow(file, &mut inner)?;
        let (size, mtime, unseen) = (inner.size(), inner.mtime(), inner.state.is_unseen());
        let moved_at = inner.state.paths.moved_at();
        if !inner.is_copied() {
            inner.live().begin_copies(Untold::none());
        }
        let copied = inner.live().copied_mut().expect("begun above");
        if unseen {
            copied.note_written(0, u64::MAX);
            copied.note_anew();
        }
        if post.to == To::All && !copied.owes(moved_at) {
            return Ok(None);
        }
        let unsent = match post.to {
            To::All => copied.unsent(size),
            To::One { partner, .. } => copied.left_of(partner, size),
        };
        copied.sending = true;
        let (after, also) = (copied.number, copied.also.clone());
        let owed = |&(start, end): &(u64, u64)| inner.state.owed_of(start, end);
        let mut unsent: Vec<_> = unsent.iter().flat_map(owed).collect();
        let copied = inner.live().copied_mut().expect("as above");
        let (took, whole, rest) = match post.to {
            To::All => {
                let (taken, whole) = copied.begin(moved_at);
                (Took::OfAll(taken), whole, None)
            }
            To::One { partner, most } => {
                let rest = keep_first(&mut unsent, most);
                copied.fills(partner, rest.unwrap_or(u64::MAX));
                (Took::OfFill(partner, unsent.clone()), true, rest)
            }
        };
        let (then, runs) = match whole {
            true => {
                let mut portrait = inner.state.portrait(size, mtime);
                portrait.paths.extend(also.map(|also| also.into_os_string().into_vec()));
                let ranges = std::mem::take(&mut portrait.ranges);
                let runs = ranges.iter().map(|run| (run.start, run.end)).collect();
                match rest {
                    None => (Then::Whole(Box::new(portrait)), runs),
                    Some(_) => (Then::Part(Box::new(portrait)), Vec::new()),
                }
            }
            false => (Then::Grown { size, mtime }, Vec::new()),
        };
        if post.to == To::All {
            inner.live().take_fresh();
        }
        let number = post.files.copying().next_number();
        let seen = inner.look();
        let work = post.files.work_on(file, inner, Meanwhile::Refused);
        let sending = Sending::of(post.files, file);
        let (began, brought, named) = (post.files.time().now(), 0, 0);
        let spare = Arc::new(Spare(Mutex::new(Rank::Partners, Vec::new())));
        Ok(Some(Round {
            post,
            file,
            shadow,
            sending,
            work,
            seen,
            number,
            after,
            joined: 0,
            began,
            brought,
            unsent,
            runs,
            named,
            whole,
            then,
            took,
            spare,
        }))
    }

    /// Sends the round, and ends it.
    pub fn run(mut self) -> Result<Ended> {
        let sent = self.send();
        let Round { post, file, sending, work, number, took, .. } = self;
        let mut inner = sending.end();
        work.end(&mut inner);
        let copied = inner.live().copied_mut().expect("nobody ends it but who began it");
        let went_well = matches!(sent, Ok(Ended::Well(_) | Ended::Part(_)));
        match took {
            Took::OfAll(_) if went_well => copied.ended(number),
            Took::OfAll(taken) => copied.failed(taken),
            Took::OfFill(..) if went_well => {}
            Took::OfFill(partner, stretches) => copied.fills_again(partner, &stretches),
        }
        post.files.retire(file, inner);
        sent
    }

    fn send(&mut self) -> Result<Ended> {
        let (mut piece, mut sent) = (Piece::default(), 0);
        let mut under_way = UnderWay::default();
        // Looked up once a stretch: each lookup may go through all pages up to the next hole.
        let mut data = None;
        self.joined = self.post.partners.joined();
        for (start, end) in std::mem::take(&mut self.unsent) {
            let mut at = start;
            while at < end {
                if data.is_none_or(|(_, end)| end <= at) {
                    data = self.post.files.note_tier(self.shadow.next_data(at))?;
                }
                let (from, to) =
                    data.map_or((end, end), |(a, b)| (a.clamp(at, end), b.clamp(at, end)));
                if from > at {
                    piece.zeros.push((at, from));
                }
                at = from;
                let len = (to - from).min(PIECE_BYTES - piece.bytes.len() as u64);
                if len > 0 && !self.read(&mut piece, from, len)? {
                    return Ok(Ended::Cut);
                }
                at += len;
                if piece.is_full() {
                    sent += piece.bytes.len() as u64;
                    if !self.send_off(&mut under_way, std::mem::take(&mut piece))? {
                        return Ok(Ended::Cut);
                    }
                    piece.bytes = self.spare.0.lock().pop().unwrap_or_default();
                }
            }
        }
        sent += piece.bytes.len() as u64;
        let runs = std::mem::take(&mut self.runs);
        let mut parts = runs.chunks(PIECE_RUNS);
        let last = parts.next_back().unwrap_or_default();
        for part in parts {
            piece.runs = part.to_vec();
            if !self.send_off(&mut under_way, std::mem::take(&mut piece))? {
                return Ok(Ended::Cut);
            }
        }
        while self.wait_for_one(&mut under_way)? {}
        piece.runs = last.to_vec();
        let then = std::mem::replace(&mut self.then, Then::More { whole: false });
        let is_part = matches!(then, Then::Part(_));
        Ok(match self.hand_over(piece, then)? {
            true if is_part => Ended::Part(sent),
            true => Ended::Well(sent),
            false => Ended::Cut,
        })
    }

    /// Reads bytes into a piece; `false` if the file was truncated meanwhile.
    fn read(&self, piece: &mut Piece, at: u64, len: u64) -> Result<bool> {
        let read = self.shadow.read_onto(&mut piece.bytes, len as usize, at);
        let n = self.post.files.note_tier(read)?;
        if (n as u64) < len {
            return if self.is_cut() { Ok(false) } else { self.post.files.note_tier(Err(torn())) };
        }
        piece.data.push((at, at + len));
        Ok(true)
    }

    fn is_cut(&self) -> bool {
        self.file.lock().changed(self.seen, What::Size)
    }

    /// Sends a piece that is not the last one, once few enough are under way. `false` if the file
    /// was truncated before that.
    fn send_off(&mut self, under_way: &mut UnderWay, piece: Piece) -> Result<bool> {
        if under_way.0.len() == UNDER_WAY {
            self.wait_for_one(under_way)?;
        }
        if self.is_cut() {
            return Ok(false);
        }
        let tell = self.telling(piece, Then::More { whole: self.whole });
        let telling = Telling::begin(self.post.threads, self.post.files.time(), tell);
        under_way.0.push_back((telling, self.brought));
        Ok(true)
    }

    /// Waits for the oldest piece; `false` if none is under way.
    fn wait_for_one(&self, under_way: &mut UnderWay) -> Result<bool> {
        let Some((telling, brought)) = under_way.0.pop_front() else { return Ok(false) };
        telling.end()?;
        self.check_pace(brought, true)?;
        Ok(true)
    }

    /// Sends the last piece; `false` if the file was truncated before that.
    fn hand_over(&mut self, piece: Piece, then: Then) -> Result<bool> {
        if self.is_cut() {
            return Ok(false);
        }
        self.telling(piece, then)()?;
        self.check_pace(self.brought, false)?;
        Ok(true)
    }

    /// Returns the call that sends a piece.
    fn telling(
        &mut self,
        piece: Piece,
        then: Then,
    ) -> impl FnOnce() -> Result<()> + Send + 'static {
        self.brought += sum(piece.data.iter().chain(&piece.zeros));
        self.named += sum(&piece.runs);
        let words = encoded(&Words {
            session: self.post.session,
            number: self.number,
            after: self.after,
            brought: self.brought,
            data: Cow::Owned(piece.data),
            zeros: Cow::Owned(piece.zeros),
            runs: Cow::Owned(piece.runs),
            named: self.named,
            then,
        });
        let load = Load(piece.bytes, self.spare.clone());
        let (partners, key, joined) = (self.post.partners.clone(), self.file.key, self.joined);
        let one = match self.post.to {
            To::All => None,
            To::One { partner, .. } => Some(partner.to_string()),
        };
        move || {
            // Partners may take as long as the store.
            lock::calls_the_store();
            match &one {
                None => partners.keep(key, joined, &words, &load.0),
                Some(partner) => partners.fill(partner, key, &words, &load.0),
            }
        }
    }

    /// Checks that partners have taken `brought` bytes of the round fast enough.
    fn check_pace(&self, brought: u64, goes_on: bool) -> Result<()> {
        let allowed = Duration::from_secs_f64(brought as f64 / LEAST_RATE as f64);
        let took = self.post.files.time().since(self.began);
        if took <= ROUND_PATIENCE + allowed {
            return Ok(());
        }
        match self.post.to {
            To::All if goes_on => self.post.partners.leave_slowest(),
            To::All => Ok(()),
            // A sync of the file waits for this round, and for the next.
            To::One { partner, .. } => {
                let what = format!("{partner} takes too long to be filled");
                Err(Error::new(Kind::TimedOut, what))
            }
        }
    }
}

pub(super) fn encoded(words: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(words).expect("plain data")
}
