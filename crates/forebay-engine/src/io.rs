//! Requests of programs for bytes.

use std::sync::Arc;

use crate::copies::Outbox;
use crate::drain::{Drain, Ground};
use crate::files::Files;
use crate::files::fetch::{Landed, Spares};
use crate::files::names::Names;
use crate::home::Home;
use crate::io::unsynced::Around;
use crate::pool::Pool;
use crate::room::Room;

mod around;
mod data;
pub mod fill;
pub mod near;
mod open;
pub mod sync;
pub mod unsynced;

pub use data::Cached;

pub struct Io {
    home: Arc<Home>,
    files: Arc<Files>,
    names: Arc<Names>,
    room: Arc<Room>,
    outbox: Arc<Outbox>,
    drain: Arc<Drain>,
    around: Around,
    fills: Pool,
    spares: Arc<Spares>,
    landed: Landed,
}

impl Io {
    pub(crate) fn new(
        ground: Ground,
        room: Arc<Room>,
        outbox: Arc<Outbox>,
        drain: Arc<Drain>,
        fills: Pool,
    ) -> Io {
        let Ground { home, files, names, .. } = ground;
        let (around, spares, landed) = (Around::default(), Arc::default(), Landed::default());
        Io { home, files, names, room, outbox, drain, around, fills, spares, landed }
    }

    /// Sets how many fetches run at once.
    pub(crate) fn set_depth(&self, depth: usize) {
        self.fills.set_max(depth);
    }
}

/// Why a request goes around the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Policy,
    Rule,
    /// The quota of a rule is used up by bytes that cannot be evicted.
    Quota,
    Stream,
    /// The tier is detached.
    Detached,
    /// The tier is full of bytes that cannot be evicted.
    Full,
}

/// The operations of `fallocate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve space; grow the file if the range ends beyond it.
    Extend,
    /// Reserve space, leave the size.
    KeepSize,
    /// Make the range read as zeros, leave the size.
    Zero,
}

/// How a size is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resize {
    To,
    /// To at least this size: bytes beyond it that were written meanwhile stay.
    Grow,
}

impl Resize {
    pub(crate) fn is_needed(self, old: u64, size: u64) -> bool {
        self == Resize::To || size > old
    }
}
