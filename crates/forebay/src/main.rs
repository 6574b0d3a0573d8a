//! The `forebay` command: configuration, assembly of the daemon, and one file per subcommand in
//! `cmd/`. The bytes are the engine's business.

// Names are in what is printed, and names can command a terminal: `ui` escapes them.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod burst_conf;
mod cli;
mod cmd;
mod config;
mod daemon;
mod dw;
mod helper;
mod http;
mod moment;
mod mounts;
mod node;
mod pulse;
mod registry_problems;
mod rights;
mod signals;
mod slurm;
mod ui;
mod wire;

use std::ffi::OsString;
use std::process::ExitCode;

use forebay_backing::Result;
use forebay_base::{nearest, units};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = dw::run(&args) {
        return ExitCode::from(code);
    }
    match helper::Call::of(&args) {
        Some(call) => helper::exit_code(told(called_by_mount(call))),
        None => ExitCode::from(told(cli::Cli::read(args).command.run())),
    }
}

fn called_by_mount(call: helper::Call) -> Result<u8> {
    let Some(words) = call.words? else { return Ok(0) };
    let args = std::iter::once("forebay".into()).chain(words).collect();
    cli::Cli::read(args).command.run()
}

fn told(result: Result<u8>) -> u8 {
    result.unwrap_or_else(|error| {
        ui::note!("{error}");
        error.exit_code()
    })
}
