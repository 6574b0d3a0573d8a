//! `forebay stage-worker`: the process that carries one transfer out, started by the node daemon with
//! the rights of the transfer's owner. Its order comes on standard input.

#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Args {}

pub fn run() -> u8 {
    forebay_stage::worker::main()
}
