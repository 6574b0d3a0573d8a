//! Files a run leaves beside its output: the stonewall status, and details per rank.

use std::io::Write;
use std::path::Path;

use super::measure::Measured;
use super::params::Params;
use crate::{Error, Result};

/// The number that [`store_iterations`] left; a usage error names the option that gave the path.
pub fn stored_iterations(option: &str, path: &Path) -> Result<u64> {
    let wrong = |why: &str| Error::usage(format!("{option} {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
    text.trim().parse().map_err(|_| wrong("it holds no number"))
}

pub fn store_iterations(path: &Path, iterations: u64) -> Result<()> {
    std::fs::write(path, format!("{iterations}\n"))
        .map_err(|error| Error::io("write", path, &error))
}

const RANK_HEAD: &str =
    "access,rank,runtime-with-openclose,runtime,throughput-withopenclose,throughput\n";

/// Appends one line per rank, in IOR's form, if asked for.
pub fn rank_details(params: &Params, measured: &Measured) -> Result<()> {
    let Some(path) = &params.rank_csv else { return Ok(()) };
    let failed = |error| Error::io("write", path, &error);
    let fresh = !path.exists();
    let mut file = std::fs::File::options().create(true).append(true).open(path).map_err(failed)?;
    let mut text = if fresh { RANK_HEAD.to_owned() } else { String::new() };
    for (number, rank) in measured.ranks.iter().enumerate() {
        let rate = |seconds: f64| rank.bytes as f64 / seconds.max(1e-9);
        text += &format!(
            "{},{number},{:.10e},{:.10e},{:.10e},{:.10e}\n",
            measured.name(),
            rank.total,
            rank.transfer,
            rate(rank.total),
            rate(rank.transfer)
        );
    }
    file.write_all(text.as_bytes()).map_err(failed)
}
