//! `forebay hold-writers`: the process that makes the requests by which a mount holds writers past its daemon. The
//! daemon starts it; it is no command for people.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use forebay_fuse::holds::holder;

const WORD: &str = "hold-writers";

/// The exit code, if the process was started for this.
pub fn run(args: &[OsString]) -> Option<u8> {
    let rest = args.get(1).filter(|word| *word == WORD).map(|_| &args[2..])?;
    Some(u8::from(holder::main(rest).is_err()))
}

/// The process but for the arguments. A terminal's signals do not reach it: it ends with the daemon.
pub fn program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("forebay").arg(WORD).env_clear().current_dir("/").process_group(0);
    command
}
