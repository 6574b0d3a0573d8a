//! `forebay bench`: hands its arguments to the benchmark, which knows nothing of this binary.

use std::ffi::OsString;

/// Measure any path: IOR's and mdtest's workloads and more, honest about the page cache.
#[derive(Debug, clap::Args)]
#[command(after_help = forebay_bench::EXAMPLES, disable_help_flag = true)]
pub struct Args {
    /// The benchmark and its options; `forebay bench --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK")]
    args: Vec<OsString>,
}

/// The exit code of the benchmark, which has told its errors itself.
pub fn run(args: Args) -> u8 {
    forebay_bench::run(args.args)
}
