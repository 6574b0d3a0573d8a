//! Flags that make a good backing store slow or bad, for trials, benchmarks and tests.

use std::path::PathBuf;

use clap::Args;
use forebay_backing::{Error, Result};

use crate::daemon::{Pace, Trial};

const HEADING: &str = "For trials and benchmarks";

#[derive(Debug, Clone, Default, Args)]
pub struct TrialArgs {
    /// Slow the backing store down to this bandwidth and latency, such as 100MB,5ms. With ,seek
    /// behind it is a disk with one head, whose seeks take that long; seek=SIZE says how large it
    /// is (8 GiB).
    #[arg(long, value_name = "BANDWIDTH,LATENCY[,seek[=SIZE]]", help_heading = HEADING)]
    throttle: Option<Pace>,

    /// Break the backing store by the rules in this file; for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    fault: Option<PathBuf>,
}

impl TrialArgs {
    /// The flags, with absolute paths: the daemon changes its directory.
    pub fn trial(&self) -> Result<Trial> {
        let fault = self.fault.as_deref().map(std::path::absolute).transpose();
        let fault = fault.map_err(|e| Error::io(e, "--fault"))?;
        Ok(Trial { throttle: self.throttle, fault })
    }
}
