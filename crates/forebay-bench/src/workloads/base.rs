//! The options that every workload has, besides its own.

use std::fs;
use std::path::PathBuf;

use super::Queue;
use crate::args::{Parsed, Spec};
use crate::cache::Policy;
use crate::environment;
use crate::error::{Error, Result};
use crate::io::Api;
use crate::recorder::Sinks;
use crate::team::Kind;
use crate::units::{human_bytes, terse_rate};

/// Whether the files stay after the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Remove,
    Stay,
}

/// The options all workloads have.
#[derive(Debug, Clone)]
pub struct Base {
    /// The directory to measure; `None` measures the tool itself.
    pub place: Option<PathBuf>,
    pub api: Api,
    /// Transfers in flight per task.
    pub depth: usize,
    pub kind: Kind,
    pub policy: Policy,
    pub seed: u64,
    pub(super) sinks: Sinks,
    pub(super) keep: Keep,
    pub(super) limit: Option<f64>,
}

impl Base {
    /// Adds the common options to a workload's own.
    pub fn options(spec: Spec) -> Spec {
        spec.usage("DIR [OPTIONS]")
            .value(None, "target", "DIR|null", "the directory to measure; null: the tool itself")
            .value(None, "cache", "POLICY", "page cache: keep, drop, direct, fadvise, hog=75%")
            .value(None, "api", "API", "POSIX (default) or URING, but for steady and bfs")
            .value(None, "depth", "N", "transfers in flight per task, with --api URING")
            .flag(None, "threads", "tasks are threads, not processes")
            .value(None, "seed", "N", "seed of all that is random; default 1")
            .value(None, "device-limit", "RATE", "bytes per second the device can do, to flag more")
            .value(None, "out", "FILE", "result lines for `forebay bench report`")
            .value(
                None,
                "json",
                "[FILE]",
                "all results as one JSON document; to stdout without FILE",
            )
            .flag(None, "keep", "leave the files")
    }

    /// Reads the options; checks what can be checked without writing (L1).
    pub fn read(parsed: &Parsed, cache: Policy, queue: Queue) -> Result<Self> {
        let place = place(parsed)?;
        let policy = parsed.get("cache").map_or(Ok(cache), Policy::parse)?;
        policy.check()?;
        let (api, depth) = api(parsed, place.is_none(), queue)?;
        let limit = parsed.get("device-limit").map(parse_limit).transpose()?;
        Ok(Self {
            place,
            api,
            depth,
            kind: if parsed.flag("threads") { Kind::Threads } else { Kind::Processes },
            policy,
            seed: parsed.number("seed", 1)?,
            sinks: Sinks::of(parsed),
            keep: if parsed.flag("keep") { Keep::Stay } else { Keep::Remove },
            limit,
        })
    }

    /// A usage error for transfers that O_DIRECT cannot make.
    pub fn check_aligned(&self, transfers: &[(&str, u64)]) -> Result<()> {
        let odd = |(_, size): &&(&str, u64)| !size.is_multiple_of(512);
        match transfers.iter().find(odd) {
            Some((option, size)) if self.direct() && self.api != Api::Null => {
                Err(Error::usage(format!(
                    "{option} {size} is not a multiple of 512, which --cache direct needs; change it, \
                     or use --cache fadvise"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns a usage error if the target has too little room.
    pub fn check_room(&self, bytes: u64) -> Result<()> {
        let Some(place) = &self.place else {
            return Ok(());
        };
        let free = environment::place(place).free_bytes;
        if bytes <= free {
            return Ok(());
        }
        Err(Error::usage(format!(
            "needs {} in {}, which has {} free; make it smaller",
            human_bytes(bytes),
            place.display(),
            human_bytes(free)
        )))
    }

    pub fn direct(&self) -> bool {
        self.policy == Policy::Direct
    }
}

fn place(parsed: &Parsed) -> Result<Option<PathBuf>> {
    let given = match (parsed.get("target"), parsed.rest()) {
        (Some(target), []) => target,
        (None, [one]) => one,
        (None, []) => return Err(Error::usage("no DIR given; name the directory to measure")),
        (Some(_), [one, ..]) => {
            return Err(Error::usage(format!("{one}: --target names the directory already")));
        }
        (None, [_, second, ..]) => {
            return Err(Error::usage(format!("{second}: one directory only; see also compare")));
        }
    };
    if given == "null" {
        return Ok(None);
    }
    match fs::metadata(given) {
        Ok(found) if found.is_dir() => Ok(Some(given.into())),
        Ok(_) => Err(Error::usage(format!("{given}: is not a directory"))),
        Err(error) => Err(Error::usage(format!("{given}: {error}"))),
    }
}

fn api(parsed: &Parsed, null: bool, queue: Queue) -> Result<(Api, usize)> {
    let api = parsed.get("api").map_or(Ok(Api::Posix), Api::parse)?;
    let depth = parsed.number("depth", 1usize)?;
    let refuse = |text: String| Err(Error::usage(text));
    match queue {
        _ if api == Api::Mmap => {
            refuse("--api MMAP: only ior has it; use POSIX or URING here".into())
        }
        Queue::Single(remedy) if api == Api::Uring => refuse(format!("--api URING: {remedy}")),
        Queue::Single(remedy) if depth > 1 => refuse(format!("--depth {depth}: {remedy}")),
        _ if !(1..=4096).contains(&depth) => refuse(format!("--depth {depth}: use 1 to 4096")),
        _ if null => Ok((Api::Null, depth)),
        _ if depth > 1 && api == Api::Posix => {
            refuse("--depth: POSIX calls wait for each transfer; add --api URING".into())
        }
        _ => Ok((api, depth)),
    }
}

fn parse_limit(text: &str) -> Result<f64> {
    terse_rate(text).map_err(|error| Error::usage(format!("--device-limit: {error}")))
}
