//! What is found in a tier: recovery at a start, and what looks at a tier that no engine runs on.

pub mod check;
pub mod contents;
pub mod manifest;
mod names;
mod recovery;
pub mod report;
pub mod salvage;
mod scrub;

use forebay_core as core;
use forebay_threads::time;
use forebay_tier as tier;
