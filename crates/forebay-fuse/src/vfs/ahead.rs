//! Readahead in far files: bytes that a sequential reader will ask for next are fetched from the file's home.
//!
//! Bytes are fetched only while no program has the file open for writing. A writer that opens it later comes after
//! the reader: the reader may go on with the bytes that it has (S25), and with fetched bytes for a second. A write
//! by a program of this mount *stirs* the file: bytes that were fetched before are not used any more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forebay_backing::{FileKey, Result};
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use forebay_cluster::words::{Answer, Question};
use forebay_engine::Pool;
use forebay_engine::time::Time;

/// The number of bytes that are fetched at once.
const PIECE: usize = 1 << 20;

/// The most pieces that are fetched, or wait to be read, for one handle.
const DEPTH: usize = 2;

/// The most such pieces for all handles of a mount.
const PIECES: usize = 64;

/// Buffers that are kept for the next pieces.
const SPARE: usize = 8;

/// A reader that has read this often in order will probably go on.
const RUNS: u32 = 2;

/// How long fetched bytes are believed.
const BELIEVED: Duration = Duration::from_secs(1);

/// Counters of writes; files share them.
const STIRS: usize = 64;

/// The state that all handles of a mount share.
pub struct Fetching {
    pub pool: Pool,
    pieces: Arc<AtomicUsize>,
    spare: Arc<Spare>,
    stirs: [AtomicU64; STIRS],
}

impl Default for Fetching {
    fn default() -> Fetching {
        Fetching {
            pool: Pool::new("fb-ahead", PIECES, Time::default()),
            pieces: Arc::default(),
            spare: Arc::default(),
            stirs: [const { AtomicU64::new(0) }; STIRS],
        }
    }
}

impl Fetching {
    fn stirs_of(&self, key: FileKey) -> &AtomicU64 {
        &self.stirs[key.ino as usize % STIRS]
    }

    /// A counter of this mount's writes to the file.
    pub fn stirred(&self, key: FileKey) -> u64 {
        self.stirs_of(key).load(SeqCst)
    }

    pub fn stir(&self, key: FileKey) {
        self.stirs_of(key).fetch_add(1, SeqCst);
    }

    /// To be held while this mount writes to the file: bytes that are fetched meanwhile are not used, nor are
    /// those that were fetched before.
    pub fn stirring(&self, key: FileKey) -> Stirs<'_> {
        self.stir(key);
        Stirs(self, key)
    }

    /// A buffer for bytes that come from a home.
    pub fn buffer(&self) -> Fetched {
        let bytes = self.spare.0.lock().pop().unwrap_or_default();
        Fetched { bytes, spare: self.spare.clone() }
    }

    fn room(&self) -> Option<Room> {
        if self.pieces.fetch_add(1, SeqCst) < PIECES {
            return Some(Room(self.pieces.clone()));
        }
        self.pieces.fetch_sub(1, SeqCst);
        None
    }
}

/// Buffers for the next pieces.
struct Spare(Mutex<Vec<Vec<u8>>>);

impl Default for Spare {
    fn default() -> Spare {
        Spare(Mutex::new(Rank::Spare, Vec::new()))
    }
}

impl Spare {
    fn give_back(&self, buffer: Vec<u8>) {
        let mut spare = self.0.lock();
        if spare.len() < SPARE && buffer.capacity() > 0 {
            spare.push(buffer);
        }
    }
}

/// Bytes that came from a home. Their buffer is used again once nobody needs them.
pub struct Fetched {
    pub bytes: Vec<u8>,
    spare: Arc<Spare>,
}

impl Fetched {
    /// The bytes, at most the first `most` of them.
    pub fn into_part(self, most: usize) -> Part {
        let len = self.bytes.len().min(most);
        Part { of: Arc::new(self), from: 0, len }
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        self.spare.give_back(std::mem::take(&mut self.bytes));
    }
}

/// A part of the bytes that came from a home, in the buffer that they came to.
pub struct Part {
    of: Arc<Fetched>,
    from: usize,
    len: usize,
}

impl Part {
    pub fn bytes(&self) -> &[u8] {
        &self.of.bytes[self.from..self.from + self.len]
    }
}

pub struct Stirs<'a>(&'a Fetching, FileKey);

impl Drop for Stirs<'_> {
    fn drop(&mut self) {
        self.0.stir(self.1);
    }
}

/// The permission for one piece.
struct Room(Arc<AtomicUsize>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// The readahead of one handle.
#[derive(Clone, Default)]
pub struct Ahead(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    came: Condvar,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared { state: Mutex::new(Rank::Ahead, State::default()), came: Condvar::new() }
    }
}

#[derive(Default)]
struct State {
    /// The offset at which a sequential reader goes on, and how often it has gone on.
    next: u64,
    runs: u32,
    /// Whether no program had the file open for writing, by the home's last word.
    is_quiet: bool,
    pieces: VecDeque<Piece>,
    last: u64,
}

struct Piece {
    number: u64,
    offset: u64,
    since: Instant,
    stirred: u64,
    bytes: Bytes,
    _room: Room,
}

enum Bytes {
    Asked,
    Here(Arc<Fetched>),
    /// The bytes could not be fetched, or the file is open for writing.
    Nothing,
}

/// A piece that is to be fetched.
pub struct Wanted {
    offset: u64,
    number: u64,
}

impl Ahead {
    #[track_caller]
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Drops all pieces.
    pub fn forget(&self) {
        self.state().pieces.clear();
    }

    /// The fetched bytes from `offset` on: at most `most`, and no more than one piece has. `None` if there are
    /// none. Waits for a piece that is under way.
    pub fn take(&self, offset: u64, most: usize, stirred: u64) -> Option<Part> {
        let mut state = self.state();
        loop {
            let piece = state.pieces.front()?;
            let left = BELIEVED.saturating_sub(piece.since.elapsed());
            if piece.stirred != stirred || left.is_zero() || offset < piece.offset {
                break;
            }
            let from = (offset - piece.offset) as usize;
            if from >= PIECE {
                state.pieces.pop_front();
                continue;
            }
            match &piece.bytes {
                Bytes::Asked => {
                    state = self.0.came.wait_timeout(state, left).0;
                }
                Bytes::Here(of) if from < of.bytes.len() => {
                    let len = most.min(of.bytes.len() - from);
                    return Some(Part { of: of.clone(), from, len });
                }
                // The file ended there when the piece was fetched.
                Bytes::Here(_) | Bytes::Nothing => break,
            }
        }
        state.pieces.clear();
        None
    }

    /// The pieces to fetch after a read of `len` bytes. `quiet`: whether the home knew of no writer, if it was
    /// asked.
    pub fn plan(
        &self,
        all: &Fetching,
        (offset, len): (u64, usize),
        quiet: Option<bool>,
        stirred: u64,
    ) -> Vec<Wanted> {
        let mut state = self.state();
        state.runs = if offset == state.next { state.runs.saturating_add(1) } else { 0 };
        state.next = offset + len as u64;
        state.is_quiet = quiet.unwrap_or(state.is_quiet);
        if state.runs < RUNS || !state.is_quiet || len == 0 {
            if state.runs == 0 || !state.is_quiet {
                state.pieces.clear();
            }
            return Vec::new();
        }
        let mut wanted = Vec::new();
        while state.pieces.len() < DEPTH {
            let offset = match state.pieces.back() {
                Some(Piece { bytes: Bytes::Nothing, .. }) => break,
                Some(Piece { bytes: Bytes::Here(of), .. }) if of.bytes.len() < PIECE => break,
                Some(piece) => piece.offset + PIECE as u64,
                None => state.next,
            };
            let Some(room) = all.room() else { break };
            state.last += 1;
            let number = state.last;
            let (since, bytes) = (Instant::now(), Bytes::Asked);
            state.pieces.push_back(Piece { number, offset, since, stirred, bytes, _room: room });
            wanted.push(Wanted { offset, number });
        }
        wanted
    }

    fn put(&self, wanted: &Wanted, bytes: Option<Fetched>) {
        let mut state = self.state();
        let mut pieces = state.pieces.iter_mut();
        // A piece that is missing here is not wanted any more.
        if let Some(piece) = pieces.find(|piece| piece.number == wanted.number) {
            piece.bytes = bytes.map_or(Bytes::Nothing, |bytes| Bytes::Here(Arc::new(bytes)));
            drop(state);
            self.0.came.notify_all();
        }
    }
}

/// A piece that is about to be fetched. If it is dropped before, readers stop waiting for it.
pub struct Asking {
    ahead: Ahead,
    wanted: Wanted,
    bytes: Option<Fetched>,
}

impl Asking {
    pub fn new(ahead: &Ahead, wanted: Wanted) -> Asking {
        Asking { ahead: ahead.clone(), wanted, bytes: None }
    }

    /// Asks `home` for the wanted bytes of the handle; `home` puts them into the buffer.
    pub fn ask(
        mut self,
        all: &Fetching,
        handle: u64,
        home: impl FnOnce(&Question, &mut Vec<u8>) -> Result<Answer>,
    ) {
        let (offset, len) = (self.wanted.offset, PIECE as u32);
        let mut out = all.buffer();
        // Any other answer is left to the reader that comes there: it asks itself.
        if let Ok(Answer::QuietBytes) =
            home(&Question::Read { handle, offset, len }, &mut out.bytes)
        {
            self.bytes = Some(out);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.ahead.put(&self.wanted, self.bytes.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FileKey = FileKey { ino: 7, generation: 1 };
    const LEN: usize = 5 * PIECE / 2;

    /// A home with one file, which counts the reads of it.
    struct Home {
        bytes: Vec<u8>,
        is_quiet: bool,
        asked: AtomicUsize,
    }

    impl Home {
        fn answer(&self, question: &Question, out: &mut Vec<u8>) -> Result<Answer> {
            let Question::Read { offset, len, .. } = question else { unreachable!("only reads") };
            self.asked.fetch_add(1, SeqCst);
            let from = self.bytes.len().min(*offset as usize);
            let to = self.bytes.len().min(from + *len as usize);
            out.clear();
            out.extend_from_slice(&self.bytes[from..to]);
            Ok(if self.is_quiet { Answer::QuietBytes } else { Answer::Bytes })
        }
    }

    struct Reader {
        home: Home,
        all: Fetching,
        ahead: Ahead,
        /// Bytes that were fetched before the reader asked, and the number of parts they came in.
        had: usize,
        parts: usize,
    }

    impl Reader {
        fn new(is_quiet: bool) -> Reader {
            let bytes = (0..LEN).map(|at| (at / 1000) as u8).collect();
            let home = Home { bytes, is_quiet, asked: AtomicUsize::new(0) };
            Reader { home, all: Fetching::default(), ahead: Ahead::default(), had: 0, parts: 0 }
        }

        /// Reads as a mount does, but has fetched the wanted pieces when it returns.
        fn read(&mut self, offset: usize, len: usize) -> Vec<u8> {
            let stirred = self.all.stirred(KEY);
            let mut buf = Vec::new();
            let take = |at: usize, most| self.ahead.take(at as u64, most, stirred);
            while let Some(part) = take(offset + buf.len(), len - buf.len()) {
                buf.extend_from_slice(part.bytes());
                self.parts += 1;
                if buf.len() == len {
                    break;
                }
            }
            self.had += buf.len();
            let mut quiet = None;
            if buf.len() < len {
                let at = self.home.bytes.len().min(offset + buf.len());
                let more = &self.home.bytes[at..self.home.bytes.len().min(offset + len)];
                buf.extend_from_slice(more);
                quiet = Some(self.home.is_quiet);
            }
            for wanted in self.ahead.plan(&self.all, (offset as u64, buf.len()), quiet, stirred) {
                let asking = Asking::new(&self.ahead, wanted);
                asking.ask(&self.all, 1, |question, out| self.home.answer(question, out));
            }
            buf
        }

        fn reads_all(&mut self, step: usize) {
            let mut offset = 0;
            loop {
                let found = self.read(offset, step);
                let end = LEN.min(offset + step);
                assert_eq!(found, self.home.bytes[offset.min(LEN)..end.max(offset.min(LEN))]);
                if found.is_empty() {
                    return;
                }
                offset += found.len();
            }
        }

        fn asked(&self) -> usize {
            self.home.asked.load(SeqCst)
        }
    }

    #[test]
    fn most_bytes_are_there_before_a_reader_in_order_asks() {
        for step in [100_000, 128 << 10, PIECE] {
            let mut reader = Reader::new(true);
            reader.reads_all(step);
            // The first reads show that the reader goes in order.
            assert!(reader.had >= LEN.saturating_sub(3 * step), "{step}: {}", reader.had);
        }
    }

    /// Otherwise a read of one megabyte would have to be copied together.
    #[test]
    fn a_read_within_a_piece_is_one_part_of_it() {
        for step in [128 << 10, PIECE] {
            let mut reader = Reader::new(true);
            reader.reads_all(step);
            assert_eq!(reader.parts, reader.had.div_ceil(step), "{step}");
        }
    }

    #[test]
    fn a_buffer_is_used_again_once_nobody_needs_it() {
        let all = Fetching::default();
        let spare = || all.spare.0.lock().len();
        let mut first = all.buffer();
        first.bytes.extend_from_slice(&[1; 100]);
        let of = Arc::new(first);
        let parts = [0, 50].map(|from| Part { of: of.clone(), from, len: 50 });
        drop(of);
        for part in parts {
            assert_eq!((spare(), part.bytes()), (0, &[1; 50][..]));
        }
        assert_eq!(spare(), 1);
    }

    #[test]
    fn nothing_is_fetched_for_a_reader_that_jumps() {
        let mut reader = Reader::new(true);
        for offset in [0, 5, 1, 8, 3, 12, 9].map(|at| at * 100_000) {
            reader.read(offset, 4096);
        }
        assert_eq!((reader.asked(), reader.had), (0, 0));
    }

    #[test]
    fn nothing_is_fetched_of_a_file_that_somebody_writes() {
        let mut reader = Reader::new(false);
        reader.reads_all(100_000);
        assert_eq!((reader.asked(), reader.had), (0, 0));
    }

    #[test]
    fn what_is_written_here_or_too_old_is_read_anew() {
        let mut reader = Reader::new(true);
        for kind in ["written", "old"] {
            (0..4).for_each(|n| drop(reader.read(n * 1000, 1000)));
            assert!(reader.ahead.state().pieces.len() == DEPTH, "{kind}: something was fetched");
            reader.home.bytes[4000..5000].fill(b'n');
            match kind {
                "written" => drop(reader.all.stirring(KEY)),
                _ => {
                    for piece in &mut reader.ahead.state().pieces {
                        piece.since -= BELIEVED;
                    }
                }
            }
            assert_eq!(reader.read(4000, 1000), [b'n'; 1000], "{kind}");
            reader.home.bytes[4000..5000].fill(b'o');
            reader.read(0, 1000);
        }
    }

    #[test]
    fn what_was_not_fetched_after_all_is_waited_for_by_nobody() {
        let reader = Reader::new(true);
        let (all, ahead) = (&reader.all, &reader.ahead);
        for at in 0..3 {
            let wanted = ahead.plan(all, (at * 10, 10), Some(true), 0);
            wanted.into_iter().for_each(|wanted| drop(Asking::new(ahead, wanted)));
        }
        assert!(!ahead.state().pieces.is_empty(), "something was to be fetched");
        let began = Instant::now();
        assert!(ahead.take(30, 10, 0).is_none());
        assert!(began.elapsed() < BELIEVED / 2);
    }

    #[test]
    fn all_handles_together_keep_a_bounded_number_of_pieces() {
        let all = Fetching::default();
        let handles: Vec<Ahead> = (0..PIECES).map(|_| Ahead::default()).collect();
        let mut planned = 0;
        for ahead in &handles {
            for at in 0..4 {
                let wanted = ahead.plan(&all, (at * 10, 10), Some(true), 0);
                planned += wanted.len();
            }
        }
        assert_eq!(planned, PIECES);
        drop(handles);
        assert_eq!(all.pieces.load(SeqCst), 0, "what is taken is given back");
    }
}
