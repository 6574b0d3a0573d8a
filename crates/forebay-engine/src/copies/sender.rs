//! Sends bytes of a file to partners, in pieces, some of which are under way at once.
//!
//! They are read while programs go on: what is written meanwhile is noted, and goes with the next round. A file
//! that is cut meanwhile is another thing: what was read may be zeros that nobody wrote, and is not sent.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use forebay_backing::Result;
use serde::Serialize;

use crate::core::clock::{Look, What};
use crate::core::copied::{Then, Words};
use crate::core::ranges::{Ranges, State};
use crate::files::Files;
use crate::files::file::{File, Inner};
use crate::files::partners::{Partners, UnderWay};
use crate::files::work::AtWork;
use crate::lock;
use crate::tier::media::{MediaFile, torn};

/// Bytes that go with one message, and stretches that they may be from.
const PIECE_BYTES: u64 = 1 << 20;

const PIECE_STRETCHES: usize = 1024;

/// So many pieces are under way at once: one is sent while partners take another.
const WINDOW: usize = 2;

/// Who is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To<'a> {
    All,
    One(&'a str),
}

/// Who tells whom.
#[derive(Clone)]
pub(super) struct Post<'a> {
    pub files: &'a Files,
    pub partners: Arc<dyn Partners>,
    pub session: u64,
    pub to: To<'a>,
}

/// Bytes of one round on their way.
pub(super) struct Sender<'a> {
    pub post: Post<'a>,
    pub file: &'a Arc<File>,
    pub shadow: Arc<dyn MediaFile>,
    pub work: Option<AtWork<'a>>,
    pub number: u64,
    pub step: u32,
    /// The round that this one builds upon.
    pub after: u64,
    /// It tells all of the state.
    pub whole: bool,
    /// When the first of its bytes were read.
    pub since: Look,
    /// What it has brought so far.
    pub brought: Ranges,
    under_way: VecDeque<Box<dyn UnderWay>>,
    spare: Vec<Vec<u8>>,
}

/// What goes with one message.
#[derive(Default)]
pub(super) struct Piece {
    data: Vec<(u64, u64)>,
    zeros: Vec<(u64, u64)>,
    /// The first `len` of them count.
    bytes: Vec<u8>,
    len: usize,
}

/// What became of sending.
pub(super) enum Sent {
    /// All is on its way but for the rest, which is less than a piece.
    All(Piece),
    /// Somebody waits to tell partners more: what was not sent by then was not.
    Stopped,
    /// The file was cut meanwhile.
    Cut,
}

/// Who stops for somebody else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Yields {
    ToRounds,
    No,
}

impl Piece {
    fn is_full(&self, enough: u64) -> bool {
        self.data.len() + self.zeros.len() >= PIECE_STRETCHES || self.len as u64 >= enough
    }

    /// Room for so many bytes more.
    fn more(&mut self, len: u64) -> &mut [u8] {
        let begin = self.len;
        self.len += len as usize;
        if self.bytes.len() < self.len {
            self.bytes.resize(self.len, 0);
        }
        &mut self.bytes[begin..self.len]
    }
}

impl<'a> Sender<'a> {
    pub fn new(
        post: Post<'a>,
        (file, shadow, work): (&'a Arc<File>, Arc<dyn MediaFile>, AtWork<'a>),
        (number, step, after, whole): (u64, u32, u64, bool),
        (since, brought): (Look, Ranges),
    ) -> Sender<'a> {
        let (under_way, spare, work) = (VecDeque::new(), Vec::new(), Some(work));
        Sender {
            post,
            file,
            shadow,
            work,
            number,
            step,
            after,
            whole,
            since,
            brought,
            under_way,
            spare,
        }
    }

    /// Sends stretches, in pieces of `enough` bytes each, at most 1 MiB.
    pub fn send(&mut self, stretches: &[(u64, u64)], enough: u64, yields: Yields) -> Result<Sent> {
        let enough = enough.clamp(1, PIECE_BYTES);
        let mut piece = self.piece();
        for &(start, end) in stretches {
            let mut at = start;
            while at < end {
                let data = self.post.files.note_tier(self.shadow.next_data(at))?;
                let (from, to) =
                    data.map_or((end, end), |(a, b)| (a.clamp(at, end), b.clamp(at, end)));
                if from > at {
                    piece.zeros.push((at, from));
                }
                at = from;
                let len = (to - from).min(enough.saturating_sub(piece.len as u64));
                if len > 0 && !self.read(&mut piece, from, len)? {
                    return Ok(Sent::Cut);
                }
                at += len;
                if !piece.is_full(enough) {
                    continue;
                }
                if yields == Yields::ToRounds && self.is_awaited() {
                    return Ok(Sent::Stopped);
                }
                let more = Then::More { whole: self.whole };
                if !self.hand_over(piece, more)? {
                    return Ok(Sent::Cut);
                }
                piece = self.piece();
            }
        }
        Ok(Sent::All(piece))
    }

    fn piece(&mut self) -> Piece {
        Piece { bytes: self.spare.pop().unwrap_or_default(), ..Piece::default() }
    }

    /// `false` if the file was cut meanwhile.
    fn read(&self, piece: &mut Piece, at: u64, len: u64) -> Result<bool> {
        let n = self.post.files.note_tier(self.shadow.read_at(piece.more(len), at))?;
        if (n as u64) < len {
            return if self.is_cut() { Ok(false) } else { self.post.files.note_tier(Err(torn())) };
        }
        piece.data.push((at, at + len));
        Ok(true)
    }

    fn is_cut(&self) -> bool {
        self.file.lock().changed(self.since, What::Size)
    }

    fn is_awaited(&self) -> bool {
        let inner = self.file.lock();
        inner.copied().is_some_and(|copied| copied.awaited > 0)
    }

    /// `false` if the file was cut before that.
    fn hand_over(&mut self, mut piece: Piece, then: Then) -> Result<bool> {
        if self.is_cut() {
            return Ok(false);
        }
        for &(start, end) in piece.data.iter().chain(&piece.zeros) {
            self.brought.set(start, end, State::Dirty);
        }
        let words = Words {
            session: self.post.session,
            number: self.number,
            after: self.after,
            data: Cow::Owned(piece.data),
            zeros: Cow::Owned(piece.zeros),
            then,
            step: self.step,
            brought: self.brought.bytes(|_| true),
        };
        let (key, words) = (self.file.key, encoded(&words));
        piece.bytes.truncate(piece.len);
        // They may take as long.
        lock::calls_the_store();
        match self.post.to {
            To::All => {
                self.land(WINDOW - 1)?;
                self.under_way.push_back(self.post.partners.begin(key, words, piece.bytes));
            }
            To::One(partner) => {
                self.post.partners.fill(partner, key, &words, &piece.bytes)?;
                self.spare.push(piece.bytes);
            }
        }
        Ok(true)
    }

    /// Hands over the words that the round ends with, once partners have all that it has brought before. `false` if
    /// the file was cut before that.
    pub fn conclude(&mut self, rest: Piece, then: Then) -> Result<bool> {
        self.land(0)?;
        self.hand_over(rest, then)
    }

    /// Waits until no more than `left` messages are under way.
    pub fn land(&mut self, left: usize) -> Result<()> {
        while self.under_way.len() > left
            && let Some(first) = self.under_way.pop_front()
        {
            let (bytes, landed) = first.end();
            self.spare.push(bytes);
            landed?;
        }
        Ok(())
    }

    /// The shadow is read no more.
    pub fn has_read(&mut self) {
        drop(self.work.take());
    }

    /// The same under the file's lock.
    pub fn has_read_in(&mut self, inner: &mut Inner) {
        if let Some(work) = self.work.take() {
            work.end(inner);
        }
    }
}

pub(super) fn encoded(words: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(words).expect("plain data")
}
