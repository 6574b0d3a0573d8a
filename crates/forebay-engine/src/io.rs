//! What programs ask of bytes.

use std::sync::Arc;

use crate::drain::Drain;
use crate::files::Files;
use crate::files::names::Names;
use crate::home::Home;
use crate::io::unsynced::Around;
use crate::pool::Pool;
use crate::room::Room;

mod around;
mod data;
pub mod fill;
pub mod handle;
mod open;
pub mod sync;
pub mod unsynced;

pub struct Io {
    pub(crate) home: Arc<Home>,
    pub(crate) files: Arc<Files>,
    pub(crate) names: Arc<Names>,
    pub(crate) room: Arc<Room>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) around: Around,
    pub(crate) fills: Pool,
}

/// Why a request goes around the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Policy,
    Rule,
    /// The quota of a rule is used up, by bytes that cannot go.
    Quota,
    Stream,
    /// The tier is detached.
    Detached,
    /// The tier is full of bytes that cannot go.
    Full,
}

/// What `fallocate` is asked for.
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
    /// To at least so many bytes: what was written meanwhile beyond them stays.
    Grow,
}

impl Resize {
    pub(crate) fn is_needed(self, old: u64, size: u64) -> bool {
        self == Resize::To || size > old
    }
}
