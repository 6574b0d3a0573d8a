//! Members who keep copies of what is dirty here, as the engine sees them: whom to tell, and whether
//! anybody is to be told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_backing::{FileKey, Result};

use crate::file::File;
use forebay_base::lock::{Mutex, Rank, RwLock};

/// Who carries the engine's words to the partners. Words are the engine's own; what `Copies` of the
/// same version is handed at the other end.
pub trait Partners: Send + Sync {
    /// Hands words about a file to all who keep copies, and returns once each has them durably, or has
    /// been struck off durably. `joined` is what [`Partners::joined`] said when their round began: who has joined since
    /// gets none of it. `bytes` are at most 1 MiB.
    ///
    /// # Errors
    ///
    /// If nobody can be struck off: then nothing may be acknowledged.
    fn keep(&self, file: FileKey, joined: u64, words: &[u8], bytes: &[u8]) -> Result<()>;

    /// Whether as many as are wanted have all that was handed over. Asked before a program hears that it is safe, and
    /// by nobody else: with however few partners, what is dirty goes home.
    ///
    /// # Errors
    ///
    /// If they are not, and that is not enough.
    fn has_enough(&self) -> Result<()>;

    /// How many have joined so far: whose fill has begun. Who does in the middle of a round lacks its first pieces, and
    /// gets the file with the fill.
    fn joined(&self) -> u64;

    /// The same with words by which a file is forgotten. They need no claim: it may be another's by now.
    ///
    /// # Errors
    ///
    /// As [`Partners::keep`].
    fn forget(&self, file: FileKey, words: &[u8]) -> Result<()>;

    /// What is told of one file takes too long, though each answer comes in time: strikes off, durably, who takes
    /// the longest, unless nobody is slow.
    ///
    /// # Errors
    ///
    /// As [`Partners::keep`].
    fn leave_slowest(&self) -> Result<()>;

    /// Hands words about a file to one partner, who is being filled.
    fn fill(&self, partner: &str, file: FileKey, words: &[u8], bytes: &[u8]) -> Result<()>;

    /// Words about all files of this home, to one partner: a fill begins, or has ended. They go to
    /// `Copies::mark`. From when the partner has answered the first of them, and
    /// before this returns, it has joined: [`Partners::keep`] hands words to it, too; not sooner, as it would not know
    /// what they build upon.
    fn mark(&self, partner: &str, words: &[u8]) -> Result<()>;

    /// Whether somebody would take words about the file now, with nothing to wait for before.
    fn takes(&self, file: FileKey) -> bool;

    /// Whether anybody is to have copies now, or is being filled. Asked at each sync: cheap.
    fn wants(&self) -> bool;
}

/// When partners have what a program wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopiesAt {
    /// When its sync returns.
    #[default]
    Sync,
    /// When the write returns.
    Write,
}

/// Copies that partners keep of files here.
pub struct Copying {
    /// Partners are known: one look for who has none.
    on: AtomicBool,
    at_write: AtomicBool,
    partners: RwLock<Option<Arc<dyn Partners>>>,
    /// The number of the last words.
    last: AtomicU64,
    /// Files that partners may have copies of, and need not any more.
    over: Mutex<Vec<Arc<File>>>,
}

impl Default for Copying {
    fn default() -> Copying {
        Copying {
            on: AtomicBool::new(false),
            at_write: AtomicBool::new(false),
            partners: RwLock::new(Rank::Partners, None),
            last: AtomicU64::new(0),
            over: Mutex::new(Rank::Partners, Vec::new()),
        }
    }
}

impl Copying {
    pub(crate) fn begin(&self, partners: Arc<dyn Partners>, at: CopiesAt) {
        *self.partners.write() = Some(partners);
        self.at_write.store(at == CopiesAt::Write, Relaxed);
        self.on.store(true, Relaxed);
    }

    /// Whether there may be copies. Without partners this is one look.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// When partners are to have what is written; `None` without any.
    #[inline]
    pub fn at(&self) -> Option<CopiesAt> {
        match self.is_on() {
            true if self.at_write.load(Relaxed) => Some(CopiesAt::Write),
            true => Some(CopiesAt::Sync),
            false => None,
        }
    }

    /// The partners, if they are to have what is dirty now.
    #[inline]
    pub fn wanted(&self) -> Option<Arc<dyn Partners>> {
        if !self.is_on() {
            return None;
        }
        self.partners().filter(|partners| partners.wants())
    }

    /// Whether partners are to have what is dirty now.
    pub fn is_wanted(&self) -> bool {
        self.wanted().is_some()
    }

    /// The partners, wanted or not.
    pub fn partners(&self) -> Option<Arc<dyn Partners>> {
        self.partners.read().clone()
    }

    /// A number for the next words; never the same again while the engine runs.
    pub fn next_number(&self) -> u64 {
        self.last.fetch_add(1, Relaxed) + 1
    }

    /// Partners may forget this file.
    pub fn is_over(&self, file: Arc<File>) {
        self.over.lock().push(file);
    }

    /// Whether partners may forget any.
    pub fn has_over(&self) -> bool {
        self.is_on() && !self.over.lock().is_empty()
    }

    /// Files that partners may forget: none is left here.
    pub fn take_over(&self) -> Vec<Arc<File>> {
        std::mem::take(&mut *self.over.lock())
    }
}
