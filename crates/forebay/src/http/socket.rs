//! Binding and connecting to a socket whose path may be longer than `sun_path` (108 bytes).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_base::folder::Folder;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// `sun_path` holds 107 bytes and a NUL; a round number below it leaves nothing to chance.
const PATH_MAX: usize = 100;

/// Listens where only the owner may connect, in a directory of our own. A socket left there is
/// removed: whoever holds the tier's lock is the only one that may serve it.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let (dir, name) = split(path)?;
    Folder::own(dir)?.listen(name)
}

/// Connects within `patience`: the queue of a daemon that hangs may be full.
pub fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    with_short_path(path, |short| Ok(net::connect(&socket, &SocketAddrUnix::new(short)?)?))?;
    Ok(socket.into())
}

/// Calls with a name of the socket that fits, by way of a descriptor of its directory.
fn with_short_path<T>(path: &Path, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= PATH_MAX {
        return call(path);
    }
    let (dir, name) = split(path)?;
    let dir = File::open(dir)?;
    call(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent().zip(name).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}
