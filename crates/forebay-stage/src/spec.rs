//! The order of a transfer: its source, its destination, and its options.

use std::path::{Component, Path, PathBuf};

use forebay_base::glob::Pattern;
use forebay_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::text::Text;

/// More threads than this would only wait for each other.
const THREADS_MAX: usize = 256;

/// A transfer of small files mostly waits for the slow side, so there are more threads than
/// processors.
const THREADS: usize = 8;

/// An id is part of file names, which have at most 255 bytes.
const ID_MAX: usize = 64;

/// A place below a directory that is opened once; the path is relative to it and cannot leave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    pub root: Text,
    /// If empty: the root itself.
    #[serde(default)]
    pub path: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// One file; the destination's path is its new name.
    File,
    /// A tree; the destination's path is the new name of its top. If that path is empty, the tree's entries
    /// are added to the root itself, which keeps its mode and times.
    Directory,
    /// The files and trees that this list names, each relative to the source's path. A destination is the
    /// same name, or the one beside it in the list, relative to the destination's path.
    List(Place),
}

/// What to do with a directory that exists at the destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Existing {
    /// Files are added and replaced one by one; other files stay.
    #[default]
    Merge,
    /// The new tree takes the place of the old one, which is removed.
    Replace,
}

/// What to do with a file that exists at the destination and differs from the source's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overwrite {
    #[default]
    Always,
    /// Replaced only if the source's was changed later.
    Older,
    /// The existing file stays, and counts as kept.
    Never,
    /// The existing file stays, and the source's fails.
    Fail,
}

/// The attributes of a file that are copied beside its bytes and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preserve {
    pub times: bool,
    pub mode: bool,
    /// Only root may give files away: without root's rights this has no effect.
    pub owner: bool,
    pub xattrs: bool,
    pub acls: bool,
    pub hard_links: bool,
}

impl Default for Preserve {
    fn default() -> Preserve {
        Preserve {
            times: true,
            mode: true,
            owner: true,
            xattrs: true,
            acls: true,
            hard_links: true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    pub preserve: Preserve,
    /// Whether every file is read back and compared.
    pub checksum: bool,
    /// Bytes a second for all threads together; 0 is no cap.
    pub rate: u64,
    pub threads: usize,
    /// Patterns of names that are published after all others, and only if no file failed.
    pub last: Vec<String>,
    pub existing: Existing,
    pub overwrite: Overwrite,
    /// Bits that files and directories lose of their source's mode, if the mode is not preserved.
    pub umask: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            preserve: Preserve::default(),
            checksum: false,
            rate: 0,
            threads: THREADS,
            last: Vec::new(),
            existing: Existing::default(),
            overwrite: Overwrite::default(),
            umask: 0o022,
        }
    }
}

/// One transfer. A run takes up the remains of a killed run with the same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub id: String,
    pub source: Place,
    pub destination: Place,
    pub what: What,
    #[serde(default)]
    pub options: Options,
}

impl Spec {
    /// Refuses a spec that can never be carried out, whatever the file systems hold.
    pub fn check(&self) -> Result<()> {
        check_id(&self.id)?;
        self.source.check("source")?;
        self.destination.check("destination")?;
        match &self.what {
            What::List(list) => list.check("list")?,
            What::File => self.named()?,
            What::Directory if self.options.existing == Existing::Replace => self.named()?,
            What::Directory => {}
        }
        self.options.check()
    }

    /// Requires a name at the destination, for a file or for a tree that replaces another.
    fn named(&self) -> Result<()> {
        match self.destination.path.0.file_name() {
            Some(_) => Ok(()),
            None => {
                Err(usage("destination: path is empty: give the name that the copy shall have"))
            }
        }
    }

    pub(crate) fn last(&self) -> Result<Vec<Pattern>> {
        let read = |text: &String| text.parse().map_err(|e| usage(format!("last: {text:?}: {e}")));
        self.options.last.iter().map(read).collect()
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        let threads = self.threads;
        match threads {
            0 => Err(usage(format!("threads: 0 copy nothing: give 1 to {THREADS_MAX}"))),
            _ if threads > THREADS_MAX => {
                Err(usage(format!("threads: {threads} are too many: give 1 to {THREADS_MAX}")))
            }
            _ => Ok(()),
        }
    }
}

impl Place {
    fn check(&self, side: &str) -> Result<()> {
        let root = &self.root.0;
        if !root.is_absolute() {
            let shown = root.display();
            return Err(usage(format!("{side}: root {shown:?} is not absolute: begin it with /")));
        }
        inner(&self.path.0).map_err(|why| usage(format!("{side}: path {why}")))
    }

    /// The path, for messages.
    pub(crate) fn shown(&self) -> String {
        self.root.0.join(&self.path.0).display().to_string()
    }
}

/// Whether a path is relative and has no `..`.
pub(crate) fn inner(path: &Path) -> std::result::Result<(), String> {
    for part in path.components() {
        let fault = match part {
            Component::Normal(_) | Component::CurDir => continue,
            Component::ParentDir => "goes up by `..`: name the place itself",
            _ => "is absolute: give it relative to the root",
        };
        return Err(format!("{:?} {fault}", path.display()));
    }
    Ok(())
}

/// The same path without `.` and doubled slashes.
pub(crate) fn tidy(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn check_id(id: &str) -> Result<()> {
    let fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !id.is_empty() && id.len() <= ID_MAX && id.chars().all(fit) {
        true => Ok(()),
        false => Err(usage(format!(
            "id {id:?} is not 1 to {ID_MAX} letters, digits, `-`, `_` or `.`: choose another"
        ))),
    }
}

pub(crate) fn usage(text: impl Into<String>) -> Error {
    Error::new(Kind::Usage, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        let json = r#"{"id": "t-1", "source": {"root": "/a", "path": "b"},
            "destination": {"root": "/c", "path": "d"}, "what": "directory"}"#;
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_least_spec_has_sane_defaults_and_comes_back_as_it_was() {
        let spec = spec();
        spec.check().unwrap();
        assert_eq!(spec.options, Options::default());
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), spec);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_remedy() {
        let refused = |change: &dyn Fn(&mut Spec), words: &[&str]| {
            let mut spec = spec();
            change(&mut spec);
            let error = spec.check().unwrap_err();
            assert_eq!(error.kind(), Kind::Usage);
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        refused(&|s| s.id = "a/b".into(), &["a/b", "letters"]);
        refused(&|s| s.id = "x".repeat(65), &["64"]);
        refused(&|s| s.source.root = "a".into(), &["source", "absolute", "begin it with /"]);
        refused(&|s| s.source.path = "a/../b".into(), &["source", "a/../b", ".."]);
        refused(&|s| s.destination.path = "/x".into(), &["destination", "/x", "relative"]);
        let replace = |s: &mut Spec| {
            s.destination.path = "".into();
            s.options.existing = Existing::Replace;
        };
        refused(&replace, &["destination", "name"]);
        let file = |s: &mut Spec| {
            s.destination.path = "".into();
            s.what = What::File;
        };
        refused(&file, &["destination", "name"]);
        refused(&|s| s.options.threads = 0, &["threads", "256"]);
        let list = Place { root: "/l".into(), path: "..".into() };
        refused(&|s| s.what = What::List(list.clone()), &["list", ".."]);
    }
}
