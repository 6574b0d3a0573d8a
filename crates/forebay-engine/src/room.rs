//! Room in the tier: admission of files, and eviction.

use std::sync::Arc;
use std::time::Instant;

use forebay_backing::Result;

use crate::core::rules::Active;
use crate::files::Files;
use forebay_base::lock::{Mutex, Rank, RwLock};

mod admit;
mod ahead;
mod detached;
pub mod held;
pub mod passed;
mod ready;
mod sluice;
pub mod space;

pub struct Room {
    files: Arc<Files>,
    rules: Rules,
    /// Held by the thread that evicts. It does not hold the evictor's own lock, for which threads
    /// that report new bytes wait.
    evicting: Mutex<()>,
    /// The last eviction, if it freed nothing.
    in_vain: Mutex<Option<InVain>>,
}

/// An eviction that freed nothing.
#[derive(Clone, Copy)]
struct InVain {
    /// The number of batches that had landed by then.
    landed: u64,
    at: Instant,
}

impl Room {
    pub(crate) fn new(files: Arc<Files>) -> Room {
        Room {
            files,
            rules: Rules(RwLock::new(Rank::Room, List::default())),
            evicting: Mutex::new(Rank::Eviction, ()),
            in_vain: Mutex::new(Rank::Room, None),
        }
    }
}

type List = Arc<Vec<Arc<Active>>>;

struct Rules(RwLock<List>);

impl Rules {
    fn list(&self) -> List {
        self.0.read().clone()
    }

    fn change<T>(&self, act: impl FnOnce(&mut Vec<Arc<Active>>) -> Result<T>) -> Result<T> {
        let mut list = self.0.write();
        let mut changed = list.to_vec();
        let done = act(&mut changed)?;
        *list = Arc::new(changed);
        Ok(done)
    }
}
