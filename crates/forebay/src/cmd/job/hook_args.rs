//! The command-line arguments of a scheduler's hooks.

use std::path::PathBuf;
use std::time::Duration;

use crate::node::client::NodeArgs;
use crate::units::{parse_duration, parse_size};

#[derive(Debug, clap::Subcommand)]
pub enum Hook {
    /// Store a job's plan, before anything is made.
    #[command(
        after_help = "Examples:\n  forebay job setup --job 17 --uid 1000 --gid 1000 --script job.sh --nodes 2"
    )]
    Setup(Setup),
    /// Fill named instances, and check the sources that the job will need.
    #[command(name = "data-in", after_help = "Examples:\n  forebay job data-in --job 17")]
    DataIn(Step),
    /// Say whether data-in is done.
    #[command(name = "test-data-in", after_help = "Examples:\n  forebay job test-data-in --job 17")]
    TestDataIn(Step),
    /// Print how much the job was granted, in bytes.
    #[command(name = "real-size", after_help = "Examples:\n  forebay job real-size --job 17")]
    RealSize(RealSize),
    /// Write the job's variables into a file.
    #[command(after_help = "Examples:\n  forebay job paths --job 17 --file /tmp/path_file")]
    Paths(Paths),
    /// Make the job's instances on its nodes, and fill them.
    #[command(
        name = "pre-run",
        after_help = "Examples:\n  forebay job pre-run --job 17 --nodes n1,n2"
    )]
    PreRun(PreRun),
    /// Start the stage-outs that the job asked for, once its processes are gone.
    #[command(
        name = "post-run",
        after_help = "Examples:\n  forebay job post-run --job 17 --exit-code 0"
    )]
    PostRun(PostRun),
    /// Wait until the job's data are home.
    #[command(name = "data-out", after_help = "Examples:\n  forebay job data-out --job 17")]
    DataOut(Step),
    /// Say whether the job's data are home.
    #[command(
        name = "test-data-out",
        after_help = "Examples:\n  forebay job test-data-out --job 17"
    )]
    TestDataOut(Step),
    /// Remove what is home; the rest goes home by itself, or is kept.
    #[command(
        after_help = "Examples:\n  forebay job teardown --job 17\n  forebay job teardown --job 17 --hurry"
    )]
    Teardown(Teardown),
    /// Show jobs: yours, or all if you are root or the scheduler.
    #[command(after_help = "Examples:\n  forebay job status\n  forebay job status --job 17 --json")]
    Status(Status),
    /// Print the pools as Slurm reads them.
    #[command(after_help = "Examples:\n  forebay job pools")]
    Pools(Pools),
    /// Say on a node that a job's processes are gone; always exits 0.
    #[command(after_help = "Examples:\n  forebay job epilog --job 17")]
    Epilog(Step),
    /// Make or remove a named instance for a user.
    #[command(
        subcommand,
        after_help = "Examples:\n  forebay job persistent create --name set --uid 1000 --gid 1000 \
        --bytes 10GiB\n  forebay job persistent destroy --name set"
    )]
    Persistent(Persistent),
}

#[derive(Debug, clap::Args)]
pub struct Which {
    /// The scheduler's number of the job.
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub job: String,

    #[command(flatten)]
    pub node: NodeArgs,
}

#[derive(Debug, clap::Args)]
pub struct Step {
    #[command(flatten)]
    pub which: Which,

    #[command(flatten)]
    pub limit: Limit,
}

#[derive(Debug, clap::Args)]
pub struct Limit {
    /// Give up after this time [default: what burst_buffer.conf gives the hook, less 10 s].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub limit: Option<Duration>,
}

#[derive(Debug, clap::Args)]
#[command(override_usage = "forebay job setup --job ID --uid N --gid N --script FILE [OPTIONS]")]
pub struct Setup {
    #[command(flatten)]
    pub which: Which,

    /// The job's owner.
    #[arg(long)]
    pub uid: u32,

    /// The owner's group.
    #[arg(long)]
    pub gid: u32,

    /// The job script.
    #[arg(long, value_name = "FILE")]
    pub script: PathBuf,

    /// How many nodes the job gets; asks squeue, if not given.
    #[arg(long, value_name = "COUNT")]
    pub nodes: Option<u32>,

    /// The pool that the scheduler has counted for it.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,

    /// The room in that pool.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub bytes: Option<u64>,

    /// The scheduler makes and removes named instances by calls of their own.
    #[arg(long)]
    pub named_apart: bool,

    #[command(flatten)]
    pub limit: Limit,
}

#[derive(Debug, clap::Args)]
pub struct RealSize {
    #[command(flatten)]
    pub which: Which,
}

#[derive(Debug, clap::Args)]
pub struct Spool {
    /// Where the node daemon keeps the files for hooks that must not wait [default: $FOREBAY_SPOOL or
    /// /run/forebay/slurm].
    #[arg(long, value_name = "DIR")]
    pub spool: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct Paths {
    /// The scheduler's number of the job.
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub job: String,

    /// The file that the scheduler reads.
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,

    #[command(flatten)]
    pub spool: Spool,
}

#[derive(Debug, clap::Args)]
pub struct Pools {
    #[command(flatten)]
    pub spool: Spool,
}

#[derive(Debug, clap::Args)]
pub struct PreRun {
    #[command(flatten)]
    pub which: Which,

    /// The job's nodes; asks squeue, if neither is given.
    #[arg(long, value_name = "NAMES", conflicts_with = "nodes_file")]
    pub nodes: Option<String>,

    /// A file with one node a line.
    #[arg(long, value_name = "FILE")]
    pub nodes_file: Option<PathBuf>,

    #[command(flatten)]
    pub limit: Limit,
}

#[derive(Debug, clap::Args)]
pub struct PostRun {
    #[command(flatten)]
    pub which: Which,

    /// The job's exit code; asks squeue, if not given.
    #[arg(long, value_name = "CODE")]
    pub exit_code: Option<i32>,

    #[command(flatten)]
    pub limit: Limit,
}

#[derive(Debug, clap::Args)]
pub struct Teardown {
    #[command(flatten)]
    pub which: Which,

    /// Do not wait for bytes that are not home: they are kept, and listed in the manifest.
    #[arg(long)]
    pub hurry: bool,

    #[command(flatten)]
    pub limit: Limit,
}

#[derive(Debug, clap::Args)]
pub struct Status {
    /// Only this job.
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub job: Option<String>,

    /// Print everything as JSON.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub node: NodeArgs,
}

#[derive(Debug, clap::Subcommand)]
pub enum Persistent {
    /// Make an instance.
    #[command(
        after_help = "Examples:\n  forebay job persistent create --name set --uid 1000 --gid 1000 \
        --bytes 10GiB"
    )]
    Create(CreatePersistent),
    /// Remove an instance, once its stage-outs are done.
    #[command(after_help = "Examples:\n  forebay job persistent destroy --name set")]
    Destroy(DestroyPersistent),
}

#[derive(Debug, clap::Args)]
pub struct CreatePersistent {
    #[arg(long)]
    pub name: String,

    /// The owner.
    #[arg(long)]
    pub uid: u32,

    #[arg(long)]
    pub gid: u32,

    #[arg(long)]
    pub pool: Option<String>,

    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub bytes: u64,

    #[command(flatten)]
    pub limit: Limit,

    #[command(flatten)]
    pub node: NodeArgs,
}

#[derive(Debug, clap::Args)]
pub struct DestroyPersistent {
    #[arg(long)]
    pub name: String,

    #[arg(long)]
    pub hurry: bool,

    #[command(flatten)]
    pub node: NodeArgs,
}

/// Reads a size. A scheduler writes bytes as a number alone.
fn bytes(text: &str) -> std::result::Result<u64, String> {
    text.parse().or_else(|_| parse_size(text))
}

/// Reads a job's number: digits, and Slurm's `_` for array tasks. It becomes part of file names.
fn job_id(text: &str) -> std::result::Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_digit() || byte == b'_';
    match text.bytes().next().is_some_and(|byte| byte.is_ascii_digit())
        && text.len() <= 20
        && text.bytes().all(plain)
    {
        true => Ok(text.into()),
        false => Err(format!("{text}: give the number that the scheduler gave the job")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_jobs_are_no_paths() {
        assert_eq!(job_id("17").unwrap(), "17");
        assert_eq!(job_id("17_3").unwrap(), "17_3");
        for bad in ["", "..", "1/2", "1;2", "_1", "1 2", "123456789012345678901"] {
            assert!(job_id(bad).is_err(), "{bad}");
        }
    }
}
