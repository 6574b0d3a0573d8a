//! `forebay bench`: hands its arguments to the benchmark, which knows nothing of this binary.

use std::ffi::OsString;

const EXAMPLES: &str = "\
Examples:
  forebay bench ior -t 1m -b 16m -s 16 -N 4 -e -o /mnt/fast/testFile
  forebay bench ior -w -z -t 4k -b 1g -a URING --depth 32 -o /mnt/fast/testFile
  forebay bench ior --target null -t 4k -b 4g
  forebay bench mdtest -n 1000 --tasks 4 -u -d /mnt/fast/metadata
  forebay bench ior --help

docs/BENCHMARKING.md teaches how to get numbers that are true.";

/// Measure any path: IOR's and mdtest's workloads and more, honest about the page cache.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Args {
    /// The benchmark and its options; `forebay bench --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK")]
    args: Vec<OsString>,
}

/// The exit code of the benchmark, which has told its errors itself.
pub fn run(args: Args) -> u8 {
    forebay_bench::run(args.args)
}
