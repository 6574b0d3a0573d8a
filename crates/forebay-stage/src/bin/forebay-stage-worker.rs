//! The worker on its own: what `forebay stage-worker` is in the binary, for trials and tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(forebay_stage::worker::main())
}
