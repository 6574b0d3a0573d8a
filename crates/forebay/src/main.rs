//! The `forebay` command: configuration, assembly of the daemon, and one file per subcommand in
//! `cmd/`. The bytes are the engine's business.

mod cli;
mod cmd;
mod config;
mod daemon;
mod http;
mod moment;
mod mounts;
mod nearest;
mod pulse;
mod signals;
mod ui;
mod units;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = match cli::Cli::read().command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("forebay: {error}");
            error.exit_code()
        }
    };
    ExitCode::from(code)
}
