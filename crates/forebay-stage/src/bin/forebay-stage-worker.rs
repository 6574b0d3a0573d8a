//! The worker as a program of its own, equal to `forebay stage-worker`, for trials and tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(forebay_stage::worker::main())
}
