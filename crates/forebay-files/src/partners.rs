//! The partners, which are members that keep copies of dirty files here, as the engine sees them:
//! whom to tell, and whether to tell at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_backing::{FileKey, Result};

use crate::file::File;
use forebay_base::lock::{Mutex, Rank, RwLock};

/// The carrier of the engine's messages to the partners. The messages are the engine's own; at the
/// other end `Copies` of the same version takes them.
pub trait Partners: Send + Sync {
    /// Sends a message about a file to all partners, and returns once each has it durably, or has
    /// been struck off durably. `joined` is the answer of [`Partners::joined`] when the round
    /// began: a partner that has joined since gets none of it. `bytes` are at most 1 MiB.
    ///
    /// # Errors
    ///
    /// If a partner cannot be struck off: then nothing may be acknowledged.
    fn keep(&self, file: FileKey, joined: u64, words: &[u8], bytes: &[u8]) -> Result<()>;

    /// Checks that as many partners as are wanted have all that was sent. Asked only before a
    /// program is told that its bytes are safe: a flush goes on with however few partners.
    ///
    /// # Errors
    ///
    /// If they have not, and fewer are not enough.
    fn has_enough(&self) -> Result<()>;

    /// Returns how many partners have joined so far, which means that their fill has begun. A partner
    /// that joins in the middle of a round lacks its first pieces, and gets the file with the fill.
    fn joined(&self) -> u64;

    /// As [`Partners::keep`], for a message that makes partners forget a file. It needs no claim: the
    /// claim may be another member's by now.
    ///
    /// # Errors
    ///
    /// As [`Partners::keep`].
    fn forget(&self, file: FileKey, words: &[u8]) -> Result<()>;

    /// Called when a round of one file takes too long, though each answer comes in time: strikes
    /// the slowest partner off, durably, unless none is slow.
    ///
    /// # Errors
    ///
    /// As [`Partners::keep`].
    fn leave_slowest(&self) -> Result<()>;

    /// Sends a message about a file to one partner, which is being filled.
    fn fill(&self, partner: &str, file: FileKey, words: &[u8], bytes: &[u8]) -> Result<()>;

    /// Sends one partner a message about all files of this home: a fill begins, or has ended. It
    /// goes to `Copies::mark`. A partner has joined from its answer to the first such message on,
    /// before this returns: [`Partners::keep`] sends to it, too; not sooner, as the partner would
    /// not know what the messages build upon.
    fn mark(&self, partner: &str, words: &[u8]) -> Result<()>;

    /// Whether a message about the file would be taken now, without a wait before.
    fn takes(&self, file: FileKey) -> bool;

    /// Whether a partner is to have copies now, or is being filled. Asked at each sync: cheap.
    fn wants(&self) -> bool;
}

/// When partners have the bytes that a program wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopiesAt {
    /// When its sync returns.
    #[default]
    Sync,
    /// When the write returns.
    Write,
}

/// The copies of this member's files at partners.
pub struct Copying {
    /// Whether partners are known: the only look on a mount without any.
    on: AtomicBool,
    at_write: AtomicBool,
    partners: RwLock<Option<Arc<dyn Partners>>>,
    /// The number of the last message.
    last: AtomicU64,
    /// Files that partners may have copies of, and need not keep any more.
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

    /// Whether copies may exist. Without partners this is one look.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Returns when partners are to have written bytes; `None` without partners.
    #[inline]
    pub fn at(&self) -> Option<CopiesAt> {
        match self.is_on() {
            true if self.at_write.load(Relaxed) => Some(CopiesAt::Write),
            true => Some(CopiesAt::Sync),
            false => None,
        }
    }

    /// Returns the partners, if they are to have dirty bytes now.
    #[inline]
    pub fn wanted(&self) -> Option<Arc<dyn Partners>> {
        if !self.is_on() {
            return None;
        }
        self.partners().filter(|partners| partners.wants())
    }

    /// Whether partners are to have dirty bytes now.
    pub fn is_wanted(&self) -> bool {
        self.wanted().is_some()
    }

    /// Returns the partners, wanted or not.
    pub fn partners(&self) -> Option<Arc<dyn Partners>> {
        self.partners.read().clone()
    }

    /// Returns the number of the next message; no number comes twice while the engine runs.
    pub fn next_number(&self) -> u64 {
        self.last.fetch_add(1, Relaxed) + 1
    }

    /// Notes that partners may forget this file.
    pub fn is_over(&self, file: Arc<File>) {
        self.over.lock().push(file);
    }

    /// Whether partners may forget any file.
    pub fn has_over(&self) -> bool {
        self.is_on() && !self.over.lock().is_empty()
    }

    /// Takes the list of files that partners may forget.
    pub fn take_over(&self) -> Vec<Arc<File>> {
        std::mem::take(&mut *self.over.lock())
    }
}
