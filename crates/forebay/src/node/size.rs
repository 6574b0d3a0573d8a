//! The number of bytes that a transfer will bring home, before the transfer itself has counted them.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_node::records::What;
use forebay_stage::list;

/// The time limit: the caller waits, so files that are not counted by then are left out.
const PATIENCE: Duration = Duration::from_secs(3);

/// The bytes of a source; must be called with the rights of its owner. Unreadable files count as empty.
pub fn of(source: &Path, what: What, root: &Path) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    match what {
        What::List => {
            let each = listed(source, root).into_iter().map(|path| below(&path, deadline));
            each.fold(0, u64::saturating_add)
        }
        // A link to the source is followed, as the transfer follows it.
        What::File | What::Directory | What::Any => match source.canonicalize() {
            Ok(real) if real.starts_with(root) => below(&real, deadline),
            _ => 0,
        },
    }
}

fn below(top: &Path, deadline: Instant) -> u64 {
    let (mut bytes, mut left) = (0u64, vec![top.to_path_buf()]);
    while let Some(path) = left.pop().filter(|_| Instant::now() < deadline) {
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() => left.extend(names(&path, deadline)),
            // Holes need not be copied.
            Ok(found) if found.is_file() => {
                bytes = bytes.saturating_add(found.len().min(found.blocks().saturating_mul(512)));
            }
            _ => {}
        }
    }
    bytes
}

fn names(dir: &Path, deadline: Instant) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let in_time = entries.take_while(|_| Instant::now() < deadline);
    in_time.map(|entry| entry.path()).collect()
}

/// Opens a list, which must be a regular file; opening a FIFO does not wait for its other end.
fn open_list(list: &Path) -> std::io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(list)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("it is no file")),
    }
}

/// The paths in the lines of a list.
fn listed(list: &Path, root: &Path) -> Vec<PathBuf> {
    let mut text = Vec::new();
    let read = open_list(list).and_then(|file| file.take(list::BYTES_MAX).read_to_end(&mut text));
    let items = read.ok().and_then(|_| list::parse(&text, "list", Path::new("")).ok());
    let base = list.parent().unwrap_or(root);
    let place = |item: list::Item| match item.from.strip_prefix("/") {
        Ok(whole) => root.join(whole),
        Err(_) => base.join(&item.from),
    };
    items.unwrap_or_default().into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_in_the_instance_and_never_by_a_link_below() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("i");
        std::fs::create_dir_all(root.join("d/e")).unwrap();
        for (name, bytes) in [("d/a", 100), ("d/e/b", 20), ("c", 3), ("../outside", 1000)] {
            std::fs::write(root.join(name), vec![0; bytes]).unwrap();
        }
        std::os::unix::fs::symlink(root.join("../outside"), root.join("d/link")).unwrap();
        std::os::unix::fs::symlink("d", root.join("latest")).unwrap();
        std::fs::write(root.join("list"), "c\nd/e x\n").unwrap();
        let count = |name: &str, what| of(&root.join(name), what, &root);
        assert_eq!(count("d", What::Directory), 120);
        assert_eq!(count("latest", What::Any), 120);
        assert_eq!(count("c", What::File), 3);
        assert_eq!(count("list", What::List), 23);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), fifo, 0o600.into(), 0).unwrap();
        assert_eq!(count("fifo", What::List), 0, "and nobody waits for a writer");
        assert_eq!(count("not there", What::Any), 0);
        assert_eq!(count("../outside", What::File), 0);
        let mostly_holes = File::create(root.join("holes")).unwrap();
        mostly_holes.set_len(1 << 40).unwrap();
        std::io::Write::write_all(&mut &mostly_holes, &[1; 4096]).unwrap();
        let counted = count("holes", What::File);
        assert!((4096..1 << 20).contains(&counted), "{counted}");
    }
}
