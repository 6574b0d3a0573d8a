//! Binding a socket whose path may be longer than `sun_path` (108 bytes).

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use forebay_base::folder::Folder;

/// Listens where only the owner can connect, in a directory of the daemon's own. An old socket there is
/// removed: only the process that holds the tier's lock may serve it.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let (dir, name) = forebay_client::split(path)?;
    Folder::own(dir)?.listen(name)
}
