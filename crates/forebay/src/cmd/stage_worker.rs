//! `forebay stage-worker`: the process that carries out one transfer. The node daemon starts it with
//! the rights of the transfer's owner, and writes its order to standard input.

#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Args {}

pub fn run() -> u8 {
    forebay_stage::worker::main()
}
