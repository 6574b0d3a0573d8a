//! One round: what is new of a file goes to partners in pieces, and ends with what the file is.
//!
//! Several pieces are on their way at once, and may come in any order: partners count what they have got. The last
//! one begins when all others have their answers.
//!
//! Bytes are read while programs go on: what is written meanwhile is noted, and goes with the next round.
//! A file that is cut meanwhile is another thing: what was read may be zeros that nobody wrote, and the
//! round counts for nothing.

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
use crate::files::Files;
use crate::files::file::{File, Inner};
use crate::files::live::Meanwhile;
use crate::files::partners::Partners;
use crate::files::work::AtWork;
use crate::pool::Pool;
use crate::tier::media::{MediaFile, torn};
use forebay_base::lock::{self, Mutex, MutexGuard, Rank};

/// Bytes that go with one message, and stretches that they may be from.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

const PIECE_STRETCHES: usize = 1024;

/// Runs that one message names: some 50 KiB.
const PIECE_RUNS: usize = 4096;

/// Pieces on their way at once.
const UNDER_WAY: usize = 3;

/// Whoever syncs a file waits for a round at most so long, and a second for each so many bytes: each of its messages may
/// take as long as a partner's patience.
const ROUND_PATIENCE: Duration = Duration::from_secs(4);

const LEAST_RATE: u64 = 8 << 20;

/// Who is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To<'a> {
    All,
    /// One that is being filled, of whose file the round brings so many bytes at most.
    One {
        partner: &'a str,
        most: u64,
    },
}

/// Who tells whom.
#[derive(Clone, Copy)]
pub(super) struct Post<'a> {
    pub files: &'a Files,
    pub partners: &'a Arc<dyn Partners>,
    /// For what is told beside.
    pub threads: &'a Pool,
    pub session: u64,
    pub to: To<'a>,
}

/// A round that has begun: no other one of the file begins until it has ended.
pub(super) struct Round<'a> {
    post: Post<'a>,
    file: &'a Arc<File>,
    shadow: Arc<dyn MediaFile>,
    sending: Sending<'a>,
    work: AtWork<'a>,
    seen: Look,
    number: u64,
    after: u64,
    /// Who is told: those who had joined before its first piece.
    joined: u64,
    began: Instant,
    /// Bytes that are sent, or in the piece that is next.
    brought: u64,
    unsent: Vec<(u64, u64)>,
    /// What it has to name, and bytes of that which are named.
    runs: Vec<(u64, u64)>,
    named: u64,
    whole: bool,
    then: Then,
    took: Took<'a>,
    spare: Arc<Spare>,
}

/// What it took with it, to be given back if it fails.
enum Took<'a> {
    OfAll(Taken),
    /// Of what is left for the fill of one partner. The others know it.
    OfFill(&'a str, Vec<(u64, u64)>),
}

/// Nobody else tells of the file while it lasts. If a bug ends it nobody knows who has what: all is told again.
pub(super) struct Sending<'a> {
    files: &'a Files,
    file: &'a Arc<File>,
}

impl<'a> Sending<'a> {
    /// Of a file that was marked so under its lock, which is not held any more.
    pub fn of(files: &'a Files, file: &'a Arc<File>) -> Sending<'a> {
        Sending { files, file }
    }

    /// Gives back the file's lock.
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

/// What goes with one message.
#[derive(Default)]
struct Piece {
    data: Vec<(u64, u64)>,
    zeros: Vec<(u64, u64)>,
    runs: Vec<(u64, u64)>,
    bytes: Vec<u8>,
}

/// Buffers for the next pieces.
struct Spare(Mutex<Vec<Vec<u8>>>);

/// The bytes of a piece on its way. Their buffer is used again once it has its answer.
struct Load(Vec<u8>, Arc<Spare>);

impl Drop for Load {
    fn drop(&mut self) {
        self.0.clear();
        self.1.0.lock().push(std::mem::take(&mut self.0));
    }
}

/// Pieces on their way, the oldest first, each with what was brought with it. However a round ends, none of its
/// pieces is left then.
#[derive(Default)]
struct UnderWay(VecDeque<(Telling, u64)>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(telling, _)| telling.give_up());
    }
}

/// What became of a round.
pub(super) enum Ended {
    /// All have it; so many bytes were sent.
    Well(u64),
    /// The same of a part of what a fill brings.
    Part(u64),
    /// The file was cut meanwhile.
    Cut,
}

impl Piece {
    fn is_full(&self) -> bool {
        self.data.len() + self.zeros.len() >= PIECE_STRETCHES
            || self.bytes.len() as u64 >= PIECE_BYTES
    }
}

impl<'a> Round<'a> {
    /// Begins one under the file's lock, which ends with it. `None` if there is nothing to tell.
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

    /// Sends it, and ends it.
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
        // Asked once a stretch: each time all pages up to the next hole may be looked at.
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

    /// `false` if the file was cut meanwhile.
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

    /// Sends a piece that is not the last one, once few enough are on their way. `false` if the file was cut before
    /// that.
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

    /// Waits for the oldest piece, if there is one.
    fn wait_for_one(&self, under_way: &mut UnderWay) -> Result<bool> {
        let Some((telling, brought)) = under_way.0.pop_front() else { return Ok(false) };
        telling.end()?;
        self.check_pace(brought, true)?;
        Ok(true)
    }

    /// Sends the last piece. `false` if the file was cut before that.
    fn hand_over(&mut self, piece: Piece, then: Then) -> Result<bool> {
        if self.is_cut() {
            return Ok(false);
        }
        self.telling(piece, then)()?;
        self.check_pace(self.brought, false)?;
        Ok(true)
    }

    /// What tells of a piece when it is called.
    fn telling(
        &mut self,
        piece: Piece,
        then: Then,
    ) -> impl FnOnce() -> Result<()> + Send + 'static {
        self.brought += bytes_of(piece.data.iter().chain(&piece.zeros));
        self.named += bytes_of(&piece.runs);
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
            // They may take as long.
            lock::calls_the_store();
            match &one {
                None => partners.keep(key, joined, &words, &load.0),
                Some(partner) => partners.fill(partner, key, &words, &load.0),
            }
        }
    }

    /// Whether partners have taken so many bytes of the round fast enough.
    fn check_pace(&self, brought: u64, goes_on: bool) -> Result<()> {
        let allowed = Duration::from_secs_f64(brought as f64 / LEAST_RATE as f64);
        let took = self.post.files.time().since(self.began);
        if took <= ROUND_PATIENCE + allowed {
            return Ok(());
        }
        match self.post.to {
            To::All if goes_on => self.post.partners.leave_slowest(),
            To::All => Ok(()),
            // Whoever syncs the file meanwhile waits for this round, and for the next.
            To::One { partner, .. } => {
                let what = format!("{partner} takes too long to be filled");
                Err(Error::new(Kind::TimedOut, what))
            }
        }
    }
}

/// Keeps so many bytes of them. Returns where the rest begins, if there is any.
fn keep_first(stretches: &mut Vec<(u64, u64)>, most: u64) -> Option<u64> {
    let mut room = most;
    for n in 0..stretches.len() {
        let (start, end) = stretches[n];
        if end - start > room {
            stretches[n].1 = start + room;
            stretches.truncate(n + 1);
            return Some(start + room);
        }
        room -= end - start;
    }
    None
}

fn bytes_of<'a>(stretches: impl IntoIterator<Item = &'a (u64, u64)>) -> u64 {
    stretches.into_iter().map(|(start, end)| end - start).sum()
}

pub(super) fn encoded(words: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(words).expect("plain data")
}
