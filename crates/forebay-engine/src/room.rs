//! Room in the tier: who may come in, who has to go.

use std::sync::Arc;
use std::time::Instant;

use forebay_backing::Result;

use crate::core::rules::Active;
use crate::files::Files;
use forebay_base::lock::{Mutex, Rank, RwLock};

mod admit;
mod ahead;
mod detached;
pub mod passed;
mod ready;
mod sluice;
pub mod space;

pub struct Room {
    files: Arc<Files>,
    rules: Rules,
    /// Held by who evicts. The evictor's own lock is not: who announces what comes in waits for that.
    evicting: Mutex<()>,
    /// The last eviction, if it freed nothing.
    in_vain: Mutex<Option<InVain>>,
}

/// An eviction that freed nothing.
#[derive(Clone, Copy)]
struct InVain {
    /// Batches that had landed by then.
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
