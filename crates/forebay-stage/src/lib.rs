//! One transfer: a file, a directory or a list of both is copied from one place to another, with the
//! rights of this process.
//!
//! - T1: a file under its final name is whole, and was durable before it got the name.
//! - T2: nothing is read or made outside the two roots, even if names are replaced by links meanwhile.
//! - T3: a source that changes while it is copied is not published.
//! - T4: files that the report counts as done are durable; the others are counted as well, and named up
//!   to a bound.
//! - T5: a transfer that was killed goes on from there: published files are not copied again, and of a
//!   large file only synced pieces count.
//!
//! The order of the steps is in [`transfer`], the moving of bytes in `bytes`, the way of one file in
//! `file`, the process around it all in [`worker`]. Lock order: queue, then nothing; no lock is held over
//! a system call but the journal's, over one append or sync, and that of `sync`, over its one call.

mod attributes;
mod beneath;
mod bytes;
mod clean;
mod directories;
mod early;
mod file;
mod journal;
mod large;
mod links;
pub mod list;
mod pace;
mod place;
mod progress;
mod publish;
mod queue;
mod report;
mod spec;
mod special;
mod sync;
mod text;
pub mod transfer;
mod walk;
pub mod worker;

pub use clean::clean;
pub use progress::{Control, Phase, Progress};
pub use report::{Failure, Left, Outcome, Reason, Report};
pub use spec::{Existing, Options, Overwrite, Place, Preserve, Spec, What};
pub use text::Text;
pub use transfer::run;
