//! Binding a socket whose path may be longer than `sun_path` (108 bytes).

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use forebay_base::folder::Folder;

/// Listens where only the owner may connect, in a directory of our own. A socket left there is
/// removed: whoever holds the tier's lock is the only one that may serve it.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let (dir, name) = forebay_client::split(path)?;
    Folder::own(dir)?.listen(name)
}
