//! One transfer: a file, a directory or a list of both is copied from one place to another, with the
//! rights of the process this runs in.
//!
//! - T1: a file under its final name is whole, and was durable before it got the name.
//! - T2: nothing is read or made outside the two roots, whatever is exchanged for a link meanwhile.
//! - T3: a source that changes while it is copied is not published.
//! - T4: what the report calls done is durable; what is not done is counted there, and named up to a
//!   bound.
//! - T5: a transfer that was killed goes on where it was: what is published is not copied again, and
//!   of a large file only pieces that were synced are believed.
//!
//! The order of things is in [`transfer`], the bytes in `bytes`, one file's way in `file`, the
//! process around it all in [`worker`]. Lock order: queue, then nothing; no lock is held over a
//! system call but the journal's, over one append or sync, and that of `sync`, over its one call.

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
