//! The benchmark without the rest of forebay, for its own tests: `cargo run --example bench -- ior`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(forebay_bench::run(std::env::args_os().skip(1).collect()))
}
