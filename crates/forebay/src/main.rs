//! The `forebay` command: configuration, assembly of the daemon, and one file per subcommand in
//! `cmd/`. The engine (forebay-engine) moves the bytes.

// Printed text contains file names, and a name can hold terminal commands: `ui` escapes them.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod burst_conf;
mod cli;
mod cmd;
mod config;
mod daemon;
mod daemons;
mod dw;
mod helper;
mod holder;
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

use forebay_base::{nearest, units};

use crate::ui::Output;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = dw::run(&args) {
        return ExitCode::from(code);
    }
    if let Some(code) = holder::run(&args) {
        return ExitCode::from(code);
    }
    match helper::Call::of(&args) {
        Some(call) => helper::exit_code(called_by_mount(call)),
        None => ExitCode::from(run(args)),
    }
}

fn called_by_mount(call: helper::Call) -> u8 {
    match call.words {
        Ok(Some(words)) => run(std::iter::once("forebay".into()).chain(words).collect()),
        Ok(None) => 0,
        Err(error) => ui::tell_error(&error, Output::Human),
    }
}

/// Carries out a command line and returns the exit code.
fn run(args: Vec<OsString>) -> u8 {
    let (cli, output) = cli::Cli::read(args);
    cli.command.run().unwrap_or_else(|error| ui::tell_error(&error, output))
}
