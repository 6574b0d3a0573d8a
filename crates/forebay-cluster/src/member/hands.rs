//! The threads that carry out what the core decides.

use forebay_threads::pool::Pool;
use forebay_threads::time::Time;

/// Work that waits for the registry, for other members, or for the own mount. No kind of work waits behind
/// another; threads that wait cost memory and no processor.
pub struct Hands {
    pub registry: Pool,
    /// Asks other members.
    pub peers: Pool,
    /// Flushes, and whatever else the own mount is told.
    pub mount: Pool,
    pub copies: Pool,
    /// Suspends or stops the own mount.
    pub fence: Pool,
}

impl Default for Hands {
    fn default() -> Hands {
        let pool = |name, max| Pool::new(name, max, Time::default());
        Hands {
            registry: pool("fb-commit", 256),
            peers: pool("fb-peers", 256),
            mount: pool("fb-mount", 32),
            copies: pool("fb-partners", 32),
            fence: pool("fb-fence", 4),
        }
    }
}

impl Hands {
    fn all(&self) -> [&Pool; 5] {
        [&self.registry, &self.peers, &self.mount, &self.copies, &self.fence]
    }

    /// Makes threads for work that was left when the machine refused them.
    pub fn tend(&self) {
        self.all().into_iter().for_each(Pool::tend);
    }

    /// Work that was left is still done; no more is taken.
    pub fn close(&self) {
        self.all().into_iter().for_each(Pool::close);
    }
}
