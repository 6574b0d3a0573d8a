//! fio as the load: arrivals at a fixed rate in a Poisson process, skewed by Zipf's law.
//!
//! Every operation's latency is taken from fio's logs, none is averaged away. fio's clock of an
//! operation starts when it is issued: a client that was kept waiting issues its next operations
//! late, so delayed operations show in the throughput, not in the latency.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::guard::Serving;

/// One kind of work, done by `clients` at once.
pub struct Work<'a> {
    pub name: &'a str,
    pub file: PathBuf,
    pub how: How,
    pub clients: usize,
    /// Operations per second of all clients together; `None` for as fast as they can.
    pub rate: Option<f64>,
    pub block: u64,
    /// The range in the file, and the delay after the start.
    pub from: u64,
    pub len: u64,
    pub after_secs: u64,
    pub secs: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Some blocks often, most blocks seldom.
    WriteSkewed,
    ReadSkewed,
    /// Each block once.
    WriteEach,
    ReadEach,
}

/// One completed operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub at_ms: u64,
    pub nanos: u64,
    pub bytes: u64,
}

/// Runs all works; returns the operations of each.
pub fn run(scratch: &Path, seed: u64, works: &[Work]) -> Result<Vec<Vec<Op>>> {
    fs::create_dir_all(scratch)?;
    let job = scratch.join("job.fio");
    fs::write(&job, job_file(scratch, seed, works))?;
    let log = scratch.join("fio.log");
    let output = File::create(&log)?;
    let mut child = Command::new("fio")
        .arg(&job)
        .current_dir(scratch)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()
        .context("cannot start fio (apt-get install fio)")?;
    // The watchdog ends fio when the time is up.
    let _watched =
        Serving::new(&Path::new("command").join(child.id().to_string()), child.id() as i32);
    let status = child.wait()?;
    let told = fs::read_to_string(&log).unwrap_or_default();
    ensure!(status.success(), "fio ended with {status}: {}", last_lines(&told));
    works.iter().map(|work| ops_of(scratch, work)).collect()
}

fn job_file(scratch: &Path, seed: u64, works: &[Work]) -> String {
    let mut text = String::from(
        "[global]\nioengine=psync\nthread=1\ntime_based=1\nrate_process=poisson\n\
         randrepeat=1\nallow_file_create=0\nfallocate=none\ngroup_reporting=1\n\
         disable_clat=1\ndisable_slat=1\n",
    );
    for (n, work) in works.iter().enumerate() {
        let logs = scratch.join(work.name);
        let _ = writeln!(
            text,
            "[{}]\nfilename={}\nnumjobs={}\nbs={}\noffset={}\nsize={}\nruntime={}\nstartdelay={}\n\
             randseed={}\nwrite_lat_log={}",
            work.name,
            work.file.display(),
            work.clients,
            work.block,
            work.from,
            work.len,
            work.secs,
            work.after_secs,
            seed + n as u64 * 100,
            logs.display(),
        );
        text.push_str(match work.how {
            How::WriteSkewed => "rw=randwrite\nrandom_distribution=zipf:0.9\n",
            How::ReadSkewed => "rw=randread\nrandom_distribution=zipf:0.9\n",
            How::WriteEach => "rw=randwrite\n",
            How::ReadEach => "rw=randread\n",
        });
        if let Some(rate) = work.rate {
            let each = (rate / work.clients as f64).round().max(1.0);
            let _ = writeln!(text, "rate_iops={each}");
        }
    }
    text
}

/// The logs of all clients of a work, in the order of time, which counts from the clients' start.
fn ops_of(scratch: &Path, work: &Work) -> Result<Vec<Op>> {
    let (mut ops, name) = (Vec::new(), work.name);
    let (begin, end) = (format!("{name}_lat."), ".log");
    for entry in fs::read_dir(scratch)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with(&begin) && file.ends_with(end) {
            let text = fs::read_to_string(entry.path())?;
            ops.extend(text.lines().filter_map(parse));
            fs::remove_file(entry.path())?;
        }
    }
    ensure!(!ops.is_empty(), "fio logged no operation of {name}");
    ops.iter_mut().for_each(|op: &mut Op| op.at_ms += work.after_secs * 1000);
    ops.sort_by_key(|op: &Op| op.at_ms);
    Ok(ops)
}

/// Parses `time_ms, latency_ns, direction, bytes, ...`
fn parse(line: &str) -> Option<Op> {
    let mut fields = line.split(',').map(str::trim);
    let at_ms = fields.next()?.parse().ok()?;
    let nanos = fields.next()?.parse().ok()?;
    let bytes = fields.nth(1)?.parse().ok()?;
    Some(Op { at_ms, nanos, bytes })
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_log_is_an_operation() {
        let op = parse("1234, 56789, 1, 4096, 8192, 0").unwrap();
        assert_eq!((op.at_ms, op.nanos, op.bytes), (1234, 56789, 4096));
        assert!(parse("nonsense").is_none());
    }
}
