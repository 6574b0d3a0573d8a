//! A file as an NBD export on a socket, and a client of it, as `docs/BLOCK.md` has them.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::{PATIENCE, Proc, eventually, text, tool, within};

/// `qemu-nbd` with its usual cache: bytes that a client has not flushed may be in memory.
pub fn qemu_nbd(file: &Path, socket: &Path, more: &[&str]) -> Command {
    let mut command = Command::new("qemu-nbd");
    command.args(["--format=raw", "--discard=unmap", "--persistent"]).args(more);
    command.args(["--socket", text(socket)]).arg(file);
    command
}

/// Starts the server and waits until it listens.
pub fn serve(mut command: Command, socket: &Path) -> Proc {
    let server = Proc::spawn(command.stdin(Stdio::null()));
    within(PATIENCE, "the server listens", || socket.exists());
    server
}

/// A client of the server on a socket; every command must succeed.
pub fn qemu_io(socket: &Path, commands: &[&str]) {
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let mut args = vec!["-f", "raw", "-d", "unmap"];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    args.push(&uri);
    let mut out = tool("qemu-io", &args);
    // The socket exists a moment before the server listens.
    eventually(PATIENCE, || {
        let refused = out.text().contains("refused");
        if refused {
            out = tool("qemu-io", &args);
        }
        !refused
    });
    let out = out.ok();
    assert!(!out.text().contains("failed"), "{out:#?}");
}
