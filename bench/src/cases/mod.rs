//! The cases, one file per line of the targets.

pub mod beside;
pub mod daemon;
pub mod drain;
pub mod fill;
pub mod meta;
pub mod passthrough;
pub mod peers;
pub mod start;

use std::time::Duration;

use anyhow::Result;

use crate::report::Report;
use crate::run::Run;

pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    /// The time after which the case is ended.
    pub bound: Duration,
    /// Cases that use forebay's own commands cannot measure another subject.
    pub needs: Needs,
    pub work: fn(&Run, &mut Report) -> Result<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    AnySubject,
    Forebay,
    /// Only when asked for with `--peers` (or by name).
    Asking,
}

const fn case(
    name: &'static str,
    bound_secs: u64,
    needs: Needs,
    work: fn(&Run, &mut Report) -> Result<()>,
    about: &'static str,
) -> Case {
    Case { name, about, bound: Duration::from_secs(bound_secs), needs, work }
}

pub const CASES: &[Case] = &[
    case(
        "passthrough-disk-seq",
        120,
        Needs::AnySubject,
        passthrough::disk_seq,
        "1 MiB sequential, tier and native directory on the disk",
    ),
    case(
        "passthrough-tmpfs-seq",
        90,
        Needs::AnySubject,
        passthrough::tmpfs_seq,
        "1 MiB sequential, tier and native directory on tmpfs",
    ),
    case(
        "passthrough-disk-random",
        240,
        Needs::AnySubject,
        passthrough::disk_random,
        "4 KiB random, tier and native directory on the disk",
    ),
    case(
        "passthrough-tmpfs-random",
        180,
        Needs::AnySubject,
        passthrough::tmpfs_random,
        "4 KiB random, tier and native directory on tmpfs",
    ),
    case(
        "passthrough-mmap",
        120,
        Needs::AnySubject,
        passthrough::mmap,
        "4 KiB random copies through a shared mapping",
    ),
    case(
        "daemon",
        150,
        Needs::AnySubject,
        daemon::run,
        "no passthrough (forebay: --passthrough off), tier on tmpfs",
    ),
    case(
        "metadata-tmpfs",
        180,
        Needs::AnySubject,
        meta::tmpfs,
        "one directory of many empty files, on tmpfs",
    ),
    case(
        "metadata-disk",
        180,
        Needs::AnySubject,
        meta::disk,
        "one directory of many empty files, on the disk",
    ),
    case(
        "beside",
        900,
        Needs::Forebay,
        beside::run,
        "changes of names beside many cached files, on tmpfs; memory",
    ),
    case(
        "fill",
        120,
        Needs::Forebay,
        fill::run,
        "reading uncached files from a store of 100 MB/s and 5 ms",
    ),
    case("drain", 240, Needs::Forebay, drain::run, "flushing to a store of 100 MB/s"),
    case(
        "foreground",
        120,
        Needs::Forebay,
        drain::foreground,
        "reading cached files while a drain runs",
    ),
    case("start", 480, Needs::Forebay, start::run, "mounting a tier of many files; memory"),
    case(
        "peers",
        420,
        Needs::Asking,
        peers::run,
        "the same work on rclone and JuiceFS, everything on the disk",
    ),
];
