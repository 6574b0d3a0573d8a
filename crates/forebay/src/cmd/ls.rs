//! `forebay ls`.

use std::path::{Path, PathBuf};

use forebay_backing::{Error, Kind, Result};

use super::watch::Scope;
use crate::http::Client;
use crate::ui::table::{Align, lay_out};
use crate::ui::{note, say, say_json};
use crate::units::{human_secs, human_size};
use crate::wire::{Copies, File};

const EXAMPLES: &str = "\
Examples:
  forebay ls /mnt/fast
  forebay ls -l /mnt/fast/results
  forebay ls --dirty --json /mnt/fast";

/// List the files of which the fast tier holds something.
///
/// Paths are relative to the root of the mount. The state is clean, dirty, flushing, failed or
/// conflict.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A file or a directory in a mount.
    #[arg(default_value = ".")]
    path: PathBuf,

    /// Show state, size, cached and dirty bytes, the age of the oldest dirty byte, and, where copies are
    /// kept, how many other members have copies of the acknowledged bytes that are not on the store yet.
    #[arg(short, long)]
    long: bool,

    /// Only files with dirty bytes.
    #[arg(long)]
    dirty: bool,

    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let scope = Scope::of(std::slice::from_ref(&args.path))?;
    let mut files = fetch(&scope.client(), &scope.place.path)?;
    if args.dirty {
        files.retain(|file| file.dirty_bytes > 0 || file.state != "clean");
    }
    if files.is_empty() {
        must_exist(&args.path)?;
    }
    match (args.json, args.long) {
        (true, _) => say_json(&files),
        (false, true) => long(&files).iter().for_each(say),
        (false, false) => files.iter().for_each(|file| say(&file.path)),
    }
    if files.is_empty() && !args.json {
        note!("nothing of {} is in the fast tier", args.path.display());
    }
    Ok(0)
}

/// Fails if the name does not exist, or is a symbolic link: the user must name its target.
fn must_exist(path: &Path) -> Result<()> {
    let attr = std::fs::symlink_metadata(path);
    let attr = attr.map_err(|e| Error::io(e, path.display().to_string()))?;
    let link = format!("{} is a symbolic link: name what it points to", path.display());
    if attr.is_symlink() { Err(Error::new(Kind::Usage, link)) } else { Ok(()) }
}

/// Asks the daemon for the files that it holds at or below a path.
pub fn fetch(client: &Client, path: &Path) -> Result<Vec<File>> {
    let answer = client.get(&format!("/v1/files?prefix={}", encode(path)))?;
    serde_json::from_value(answer)
        .map_err(|e| Error::new(Kind::Unreachable, format!("the daemon's answer: {e}")))
}

pub fn encode(path: &Path) -> String {
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
    let encoded = bytes.iter().map(|b| match plain(*b) {
        true => char::from(*b).to_string(),
        false => format!("%{b:02x}"),
    });
    encoded.collect()
}

fn long(files: &[File]) -> Vec<String> {
    let head = ["state", "size", "cached", "dirty", "age", "copies", "", "path"]
        .map(String::from)
        .to_vec();
    let rows = files.iter().map(|file| {
        vec![
            file.state.clone(),
            human_size(file.size),
            human_size(file.cached_bytes),
            human_size(file.dirty_bytes),
            file.dirty_age_secs.map_or_else(|| "-".into(), human_secs),
            file.copies.map_or_else(|| "-".into(), copies),
            if file.pinned { "pinned".into() } else { String::new() },
            match &file.error {
                Some(error) => format!("{} ({error})", file.path),
                None => file.path.to_string(),
            },
        ]
    });
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    use Align::{Left, Right};
    lay_out(&[Left, Right, Right, Right, Right, Right, Left, Left], &rows)
}

fn copies(of: Copies) -> String {
    format!("{} of {}", of.members, of.wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded_for_the_query() {
        assert_eq!(encode(Path::new("a b/c&d%")), "a%20b/c%26d%25");
    }
}
