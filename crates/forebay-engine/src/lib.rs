//! The engine: everything between the names a program opens and the bytes of the backing store.
//!
//! Every cached file has a *shadow file* in the fast tier with the same bytes at the same offsets,
//! and a record of which of its ranges are clean, dirty or absent. The [`Engine`] serves reads and
//! writes from shadow files, fills them from the backing store, flushes what is dirty, evicts what
//! is clean, and finds everything again after a crash. It knows nothing of FUSE, of protocols or
//! of the command line.
//!
//! What decides is pure: [`state`](crate::state), `ranges`, `policy`, `evict`. What acts is thin.
//!
//! The order of locks is in docs/ARCHITECTURE.md ("Locks, in order"), and nowhere else.

mod admit;
mod ahead;
mod around;
mod asker;
mod attach;
mod check;
mod config;
mod copy;
mod debts;
mod due;
mod engine;
mod evict;
pub mod failpoint;
mod file;
mod fill;
mod flight;
mod flush;
pub mod folder;
mod glance;
mod govern;
pub mod governor;
mod handle;
mod health;
mod heat;
mod home_room;
mod index;
mod io;
pub mod journal;
mod leaving;
mod log;
pub mod media;
mod names;
mod operate;
mod order;
pub mod paths;
mod policy;
mod pool;
mod portion;
mod prefetch;
mod pulse;
mod ranges;
mod reaper;
mod recover;
mod report;
mod resolve;
pub mod rules;
mod salvage;
mod served;
mod shadows;
mod space;
mod stamps;
pub mod state;
mod status;
mod streams;
mod table;
mod tier;
mod unseen;
mod valve;
pub mod way;
mod witness;

pub use around::{Admit, Lane, Quota};
pub use asker::{Asker, on_behalf_of};
pub use attach::Attachment;
pub use check::{CheckReport, check};
pub use config::{Config, Eviction, Marks, Tunables, Watermark, WritePolicy};
pub use engine::Engine;
pub use file::File;
pub use glance::Glance;
pub use health::Health;
pub use io::Allocate;
pub use names::{Facts, Named};
pub use operate::KeepDirty;
pub use order::{Hold, Order};
pub use policy::PASSTHROUGH_WRITE_TIER_MIN;
pub use pool::{Pool, run_anywhere};
pub use ranges::{Ranges, Run, State};
pub use recover::RecoveryReport;
pub use report::{
    AgeBucket, BusyFile, Failure, FileInfo, Progress, Report, Requests, RuleUse, Stats, Status,
};
pub use resolve::Keep;
pub use salvage::{Salvaged, salvage};
pub use tier::{Tier, TierOwner};
