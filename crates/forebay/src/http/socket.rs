//! Binding and connecting to a socket whose path may be longer than `sun_path` (108 bytes).

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// `sun_path` holds 107 bytes and a NUL; a round number below it leaves nothing to chance.
const PATH_MAX: usize = 100;

/// Listens where only the owner may connect. A socket left there is removed: whoever holds the
/// tier's lock is the only one that may serve it.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = with_short_path(path, |short| UnixListener::bind(short))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
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
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let dir = File::open(dir)?;
    call(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}
