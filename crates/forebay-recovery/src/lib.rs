//! What is found in a tier: recovery at a start, and tools for a tier on which no engine runs.

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
