//! Jobs of a scheduler: the plan of each, and how it becomes instances and transfers.
//!
//! A hook of the scheduler asks for the next step and is told whether it is done, and if not, what it
//! waits for. Each step writes what is wanted and may be repeated, so hooks, scheduler and daemons may
//! die at any time.
//!
//! - J1: what is decided at setup is stored, and no later step reads the script.
//! - J2: nothing is removed that was to be staged out and is not home, but in a hurry, and then it is
//!   kept (T3).
//! - J3: a run of a job has instances of its own; what an earlier run left is not touched by it.
//! - J4: a scheduler that does not answer ends no job.

mod log;
mod order;
mod phases;
mod reaper;
mod record;
mod release;
mod spool;

pub use log::Log;
pub use order::Eyes;
pub use phases::{Answer, Hurry, Jobs, NewJob, choose_pool};
pub use reaper::{Reaper, Scheduler, refresh_spool, tidy};
pub use record::{Ended, Job, Phase, Places, Released};
pub(crate) use release::is_elsewhere;
pub use release::{Patience, release};
pub use spool::{POOLS_FILE, Spool, variables_file};
