//! The way of a file's bytes: past the daemon (passthrough), or through the daemon.
//!
//! One inode cannot be in passthrough and in cached mode at the same time: the kernel answers EIO
//! (measured; see `docs/decisions/passthrough.md`). So each open is planned here, from the mode of
//! the inode's other descriptors. The code is pure: it does no I/O and has no state.

/// The way that the open descriptors of an inode read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Idle,
    /// Through the daemon and the kernel's page cache.
    Cached,
    /// Past the daemon.
    Passthrough,
}

/// The access that an open wants, and the state of the file.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    pub write: bool,
    /// Created or truncated by this open: everything in the file will be dirty.
    pub fresh: bool,
    pub complete: bool,
    pub wholly_dirty: bool,
    /// Writes past the daemon can be found by comparing contents.
    pub ready: bool,
}

/// The kinds of passthrough that the mount permits.
#[derive(Debug, Clone, Copy)]
pub struct Permit {
    pub read: bool,
    pub write: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    Cached,
    PassRead,
    /// The whole file may be dirty until it was closed and compared.
    PassWrite,
}

impl Wish {
    /// Whether the daemon need not see the writes.
    fn untracked(self) -> bool {
        self.fresh || self.wholly_dirty || self.ready
    }
}

pub fn plan(mode: Mode, wish: Wish, permit: Permit) -> Plan {
    match (mode, wish.write) {
        (Mode::Cached, _) => Plan::Cached,
        // A file in passthrough is complete and pinned; the daemon sees no writer beside its readers.
        (Mode::Passthrough, false) => Plan::PassRead,
        (Mode::Passthrough, true) => Plan::PassWrite,
        (Mode::Idle, false) if wish.complete && permit.read => Plan::PassRead,
        // Untracked writes do no harm where the whole file is dirty anyway, or is compared in the end.
        (Mode::Idle, true) if wish.untracked() && permit.write => Plan::PassWrite,
        (Mode::Idle, _) => Plan::Cached,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No sequence of opens ever mixes passthrough and cached descriptors on one inode, and no
    /// incomplete file is ever passed through for reading.
    #[test]
    fn modes_never_mix() {
        let bools = [false, true];
        for mode in [Mode::Idle, Mode::Cached, Mode::Passthrough] {
            for bits in 0..128 {
                let bit = |n: u32| bools[(bits >> n & 1) as usize];
                let wish = Wish {
                    write: bit(0),
                    fresh: bit(1),
                    complete: bit(2),
                    wholly_dirty: bit(3),
                    ready: bit(4),
                };
                let permit = Permit { read: bit(5), write: bit(6) };
                let plan = plan(mode, wish, permit);
                match mode {
                    Mode::Cached => assert_eq!(plan, Plan::Cached),
                    Mode::Passthrough => assert_ne!(plan, Plan::Cached),
                    Mode::Idle => {
                        assert!(plan != Plan::PassRead || (wish.complete && permit.read));
                        assert!(plan != Plan::PassWrite || permit.write);
                    }
                }
                assert_eq!(plan == Plan::PassWrite, plan != Plan::Cached && wish.write);
            }
        }
    }
}
