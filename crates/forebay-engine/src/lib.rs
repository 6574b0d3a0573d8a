//! The engine: everything between the names a program opens and the bytes of the backing store.
//!
//! Every cached file has a *shadow file* in the fast tier with the same bytes at the same offsets,
//! and a record of which of its ranges are clean, dirty or absent. The [`Engine`] serves reads and
//! writes from shadow files, fills them from the backing store, flushes what is dirty, evicts what
//! is clean, and finds everything again after a crash. It knows nothing of FUSE, of protocols or
//! of the command line.
//!
//! Decisions are pure and lie in `forebay-core`. The code that acts is thin, in parts that own their state,
//! one part to a room; docs/ARCHITECTURE.md ("The rooms of the engine") lists the rooms from the bottom up.
//!
//! The order of locks is in [`forebay_base::lock::Rank`] alone.

#[cfg(test)]
mod bed;
mod copies;
mod drain;
mod engine;
mod io;
mod ops;
mod room;
mod verbs;

use forebay_core as core;
use forebay_files as files;
use forebay_home as home;
use forebay_recovery as recovery;
use forebay_threads::pool;
pub use forebay_threads::{failpoint, requester, time};
use forebay_tier as tier;

pub use copies::{Behind, BehindFile, Copies, CopyInfo, Outbox, Teller, Told};
pub use drain::Drain;
pub use drain::holds::Hold;
pub use drain::order::Order;
pub use drain::suspend::Suspension;
pub use engine::Engine;
pub use forebay_core::config::{
    Attachment, Config, Eviction, KeepDirty, Marks, Tunables, USED_HIGH_MAX, Watermark, WritePolicy,
};
pub use forebay_core::near::{Naming, Near, Neighbours, Owned};
pub use forebay_core::ranges::{Ranges, Run, State};
pub use forebay_core::report::{
    AgeBucket, BusyFile, Failure, FileInfo, Gauges, PERISHABLE, Progress, Report, Stats, Status,
};
pub use forebay_core::rules::{Admission, Admit, Quota, RuleUse};
pub use forebay_core::served::Requests;
pub use forebay_core::{governor, journal, paths, rules, state, taken};
pub use forebay_files::Files;
pub use forebay_files::fetch::Came;
pub use forebay_files::file::File;
pub use forebay_files::glance::Glance;
pub use forebay_files::live::Asked;
pub use forebay_files::names::{Named, Names};
pub use forebay_files::open::OpenFile;
pub use forebay_files::partners::{CopiesAt, Partners};
pub use forebay_home::health::Health;
pub use forebay_recovery::check::{CheckReport, check, check_data};
pub use forebay_recovery::contents::Contents;
pub use forebay_recovery::manifest::{Unflushed, manifest, manifest_on};
pub use forebay_recovery::report::RecoveryReport;
pub use forebay_recovery::salvage::{Salvaged, salvage, salvage_on};
pub use forebay_tier::dir::{Made, Tier, TierOwner};
pub use forebay_tier::media;
pub use io::{Allocate, Cached, Io};
pub use ops::Ops;
pub use ops::as_taken::Fingerprint;
pub use ops::resolve::{Held, Keep, Placing};
pub use ops::taken::SupersededFile;
pub use pool::{Pool, run_anywhere};
pub use requester::{Requester, on_behalf_of};
pub use room::Room;
pub use room::held::{Stage, WriterHold, WriterHolds};
pub use room::passed::{Passed, Past};
pub use verbs::Verbs;
pub use verbs::attrs::{DatedAttr, Facts};
