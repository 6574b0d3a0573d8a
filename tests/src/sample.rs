//! Trees and files to work on, made from a seed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::rng::Rng;
use crate::sys;

/// Writes a file of random bytes and returns them.
pub fn file(path: &Path, seed: u64, len: usize) -> Vec<u8> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).expect("directory");
    }
    let bytes = Rng::new(seed).bytes(len);
    fs::write(path, &bytes).unwrap_or_else(|e| panic!("writing {}: {e}", path.display()));
    bytes
}

/// Makes a tree with everything that a copy can get wrong: modes, owners, old times, links of both
/// kinds, extended attributes, holes, odd names, empty files. Returns the number of files.
pub fn tree(root: &Path, seed: u64, files: usize) -> usize {
    let mut rng = Rng::new(seed);
    let mut made: Vec<PathBuf> = Vec::new();
    for i in 0..files {
        let dir = root.join(format!("d{}/e{}", i % 5, i % 3));
        let path = dir.join(name(&mut rng, i));
        let len = [0, 1, 4095, 4096, 4097, 70_000][i % 6] + rng.below(3000) as usize;
        file(&path, rng.word(), if i % 6 == 0 { 0 } else { len });
        fs::set_permissions(
            &path,
            fs::Permissions::from_mode(*rng.pick(&[0o644, 0o600, 0o755, 0o444, 0o4750])),
        )
        .expect("chmod");
        made.push(path);
    }
    specials(root, &made, &mut rng);
    // Every name gets an old time: rsync takes two times within one second for the same.
    for name in crate::tree::Tree::read(root).entries.keys() {
        old_time(&root.join(name), &mut rng);
    }
    files
}

fn name(rng: &mut Rng, i: usize) -> String {
    match i % 7 {
        0 => format!("with space {i}"),
        1 => format!("\u{fc}\u{f1}\u{ef}-{i}"),
        2 => format!("-dash{i}"),
        3 => format!("{}{i}", "long".repeat(40)),
        _ => format!("f{}-{i}", rng.below(1000)),
    }
}

fn specials(root: &Path, made: &[PathBuf], rng: &mut Rng) {
    fs::create_dir(root.join("empty")).expect("mkdir");
    symlink("d0/e0", root.join("to-dir")).expect("symlink");
    symlink("nowhere/at all", root.join("broken")).expect("symlink");
    sys::mkfifo(&root.join("fifo"), 0o640).expect("mkfifo");
    fs::hard_link(&made[1], root.join("hard-1")).expect("link");
    fs::hard_link(&made[1], root.join("d2/hard-2")).expect("link");
    for path in made.iter().step_by(4) {
        sys::set_xattr(path, "user.origin", &rng.bytes(40), 0).expect("setxattr");
    }
    if crate::is_root() {
        for path in made.iter().step_by(3) {
            chown(path, Some(1234), Some(5678)).expect("chown");
        }
    }
    let sparse = fs::File::create(root.join("sparse")).expect("create");
    std::os::unix::fs::FileExt::write_all_at(&sparse, &rng.bytes(5000), 3 << 20).expect("write");
    sparse.set_len(8 << 20).expect("truncate");
}

fn old_time(path: &Path, rng: &mut Rng) {
    let sec = rng.range(1_000_000_000, 1_600_000_000) as i64;
    let nsec = rng.below(1_000_000_000) as i64;
    sys::utimens(path, (sec, nsec), (sec, nsec)).expect("utimens");
}
