//! What members ask of each other. A question is a small JSON value, and may come with bytes; so is
//! its answer.

use std::path::{Path, PathBuf};

use forebay_backing::{FileKey, Timestamp, Version};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::core::Revision;
use crate::locks::{LockAnswer, LockAsk};

/// Every question says who asks, and which epoch of the asked member it believes in; a member whose
/// epoch is another refuses ([`Refusal::Epoch`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub store: String,
    pub from: String,
    pub from_epoch: u64,
    pub to_epoch: u64,
    pub protocol: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Whether it holds this file, of a directory that it has claimed for new files. Answered once it knows: what it
    /// was just making there may be this file.
    Holds {
        file: FileKey,
        dir: FileKey,
    },
    /// Somebody else wants the file: flush it and give its claim back.
    Recall {
        file: FileKey,
    },
    /// The same for all files at or below a path, and no new ones are to be made there while the gate stands.
    RecallBelow {
        #[serde(with = "any_path")]
        path: PathBuf,
    },
    /// The file was changed by name or attribute while it was not claimed, or so it was thought: look at
    /// the store again.
    Changed {
        file: FileKey,
    },
    /// The asker has put a key at this revision: has the asked member, which may open files without asking the registry,
    /// heard of it? Answered once it has; after a while with how far it is.
    Reached {
        revision: u64,
    },
    /// A program elsewhere opens the file: the answer has a handle. Its home decides whether the program may.
    Open {
        file: FileKey,
        #[serde(with = "any_path")]
        path: PathBuf,
        write: bool,
        /// `None`: it has the file open already, and goes on with it at another home, or a daemon compares it.
        program: Option<Opener>,
    },
    Close {
        handle: u64,
    },
    Read {
        handle: u64,
        offset: u64,
        len: u32,
    },
    /// The bytes come with it. `sync`: they are durable at the home before the answer, and all that was written before.
    ///
    /// `number`, here and in whatever else changes a file: it rises with each change that the asker asks for, and is new
    /// in each. See [`Question::Fence`].
    Write {
        handle: u64,
        number: u64,
        offset: u64,
        sync: bool,
    },
    /// Pages of a mapping, not synced: of these bytes those are written that lie before the end of the file as its home
    /// knows it.
    Overwrite {
        handle: u64,
        number: u64,
        offset: u64,
    },
    /// As [`Question::Write`], to the end of the file as its home knows it. One that comes twice through this handle is done once.
    Append {
        handle: u64,
        number: u64,
        sync: bool,
    },
    Sync {
        handle: u64,
    },
    /// A descriptor of the handle was closed: where bytes are to be on the store by then, they are.
    Flush {
        handle: u64,
    },
    /// Gives the file this size.
    Resize {
        handle: u64,
        number: u64,
        size: u64,
    },
    Allocate {
        handle: u64,
        number: u64,
        offset: u64,
        len: u64,
        mode: i32,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: i32,
    },
    Attrs {
        files: Vec<FileKey>,
    },
    Name {
        number: u64,
        change: NameChange,
    },
    /// Whatever the asker has asked for under smaller numbers, here or of a home that asks this one for it, changes this
    /// file no more, also what comes yet: it has told its programs that it does not know what became of that, and they
    /// have gone on.
    Fence {
        file: FileKey,
        number: u64,
    },
    /// Bytes of an unclaimed file as the store had them in this version: the asked member reads the part that
    /// they lie in for all.
    Fetch {
        version: Version,
        #[serde(with = "any_path")]
        path: PathBuf,
        offset: u64,
        len: u32,
    },
    /// A request to the control socket of the asked member's daemon, of those that members may make.
    Daemon {
        method: String,
        path: String,
        body: Value,
    },
    /// A copy of newer bytes of the asker's, to be durable before the answer. With it come `words` bytes of
    /// what the asker's engine says of the file, and then the file's.
    Copy {
        file: FileKey,
        /// The number of the claim that it is made under.
        number: u64,
        /// Of the fill that began this partnership.
        fill: u64,
        /// It goes to all while the asked member is being filled: what it builds upon may come with the fill.
        #[serde(default)]
        beside: bool,
        words: u32,
    },
    /// What the asker's engine says of all its copies at the asked member: the words come with it.
    Mark {
        fill: u64,
    },
    /// The asked member is to drop all that it has of the asker, and to remember this number: what comes under
    /// an older one is refused from then on.
    BeginFill {
        fill: u64,
    },
    /// Of a file's locks, to its home.
    Lock {
        file: FileKey,
        #[serde(with = "any_path")]
        path: PathBuf,
        /// Of the member that asks: what it had before it began anew is not its own any more.
        epoch: u64,
        ask: LockAsk,
    },
    /// The home has granted what a program of the asked member waited for.
    Granted {
        number: u64,
    },
    /// The asking member's programs have reclaimed their locks at this life of the asked one.
    Reclaimed {
        epoch: u64,
    },
}

impl Question {
    /// Whether it is about a file that is open at the asked member, which only that very process knows.
    pub fn needs_handle(&self) -> bool {
        match self {
            Question::Close { .. }
            | Question::Read { .. }
            | Question::Write { .. }
            | Question::Overwrite { .. }
            | Question::Append { .. }
            | Question::Sync { .. }
            | Question::Flush { .. }
            | Question::Resize { .. }
            | Question::Allocate { .. }
            | Question::Seek { .. } => true,
            Question::Holds { .. }
            | Question::Recall { .. }
            | Question::RecallBelow { .. }
            | Question::Changed { .. }
            | Question::Reached { .. }
            | Question::Open { .. }
            | Question::Attrs { .. }
            | Question::Name { .. }
            | Question::Fence { .. }
            | Question::Fetch { .. }
            | Question::Daemon { .. }
            | Question::Copy { .. }
            | Question::Mark { .. }
            | Question::BeginFill { .. }
            | Question::Lock { .. }
            | Question::Granted { .. }
            | Question::Reclaimed { .. } => false,
        }
    }

    /// Whether it carries bytes of files, or has them made durable: it may wait for the tier or the store.
    pub fn is_of_bytes(&self) -> bool {
        matches!(
            self,
            Question::Read { .. }
                | Question::Write { .. }
                | Question::Overwrite { .. }
                | Question::Append { .. }
                | Question::Sync { .. }
                | Question::Flush { .. }
                | Question::Resize { .. }
                | Question::Allocate { .. }
                | Question::Fetch { .. }
        )
    }

    /// Whether it is for one life of the asked member: another has nothing of what it is about.
    pub fn is_of_a_life(&self) -> bool {
        let of_locks = matches!(self, Question::Lock { .. } | Question::Reclaimed { .. });
        of_locks || self.needs_handle()
    }

    /// Where the file is that it asks for, if it says so.
    pub fn path(&self) -> Option<&std::path::Path> {
        match self {
            Question::Open { path, .. }
            | Question::RecallBelow { path }
            | Question::Lock { path, .. } => Some(path),
            Question::Name { change, .. } => Some(match change {
                NameChange::SetAttr { path, .. }
                | NameChange::SetXattr { path, .. }
                | NameChange::RemoveXattr { path, .. }
                | NameChange::Link { path, .. }
                | NameChange::Unlink { path, .. } => path,
                NameChange::Rename { from, .. } | NameChange::Replace { from, .. } => from,
            }),
            _ => None,
        }
    }
}

/// A change of a claimed file's names or attributes, made by its home. Paths are below the store's root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameChange {
    SetAttr {
        file: FileKey,
        #[serde(with = "any_path")]
        path: PathBuf,
        set: Set,
        size: Option<NewSize>,
        asker: Asker,
    },
    SetXattr {
        file: FileKey,
        #[serde(with = "any_path")]
        path: PathBuf,
        name: Vec<u8>,
        value: Vec<u8>,
        flags: i32,
        asker: Asker,
    },
    RemoveXattr {
        file: FileKey,
        #[serde(with = "any_path")]
        path: PathBuf,
        name: Vec<u8>,
        asker: Asker,
    },
    Link {
        file: FileKey,
        #[serde(with = "any_path")]
        path: PathBuf,
        #[serde(with = "any_path")]
        to: PathBuf,
    },
    Unlink {
        file: FileKey,
        #[serde(with = "any_path")]
        path: PathBuf,
    },
    /// The asker renames a file of its own over one of the home's, which makes the rename on the store: what
    /// is replaced is this file, or it is refused. `by`: whose change it is, if the asker was asked for it. A fence of that
    /// one's gives it up, too.
    Replace {
        file: FileKey,
        #[serde(with = "any_path")]
        from: PathBuf,
        #[serde(with = "any_path")]
        to: PathBuf,
        over: FileKey,
        by: Option<By>,
    },
    /// 0, `RENAME_NOREPLACE` or `RENAME_EXCHANGE`. One of the two files is the home's.
    Rename {
        file: FileKey,
        #[serde(with = "any_path")]
        from: PathBuf,
        #[serde(with = "any_path")]
        to: PathBuf,
        over: Option<FileKey>,
        flags: u32,
    },
}

impl NameChange {
    /// The file that it is about.
    pub fn file(&self) -> FileKey {
        match self {
            NameChange::SetAttr { file, .. }
            | NameChange::SetXattr { file, .. }
            | NameChange::RemoveXattr { file, .. }
            | NameChange::Link { file, .. }
            | NameChange::Unlink { file, .. }
            | NameChange::Replace { file, .. }
            | NameChange::Rename { file, .. } => *file,
        }
    }

    /// The files that it changes: that one, and what loses its name to it.
    pub fn files(&self) -> Vec<FileKey> {
        let over = match self {
            NameChange::Replace { over, .. } => Some(*over),
            NameChange::Rename { over, .. } => *over,
            _ => None,
        };
        let file = self.file();
        [file].into_iter().chain(over.filter(|over| *over != file)).collect()
    }

    /// Who asked the asker for it.
    pub fn by(&self) -> Option<&By> {
        match self {
            NameChange::Replace { by, .. } => by.as_ref(),
            _ => None,
        }
    }

    /// The names after which the store answers otherwise once it is made.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let (one, other) = match self {
            NameChange::SetAttr { path, .. }
            | NameChange::SetXattr { path, .. }
            | NameChange::RemoveXattr { path, .. }
            | NameChange::Unlink { path, .. } => (path, None),
            NameChange::Link { path, to, .. } => (path, Some(to)),
            NameChange::Replace { from, to, .. } | NameChange::Rename { from, to, .. } => {
                (from, Some(to))
            }
        };
        [Some(one), other].into_iter().flatten().map(PathBuf::as_path)
    }
}

/// Who asks for a change: a member in one of its lives, with the change's number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct By {
    pub member: String,
    pub epoch: u64,
    pub number: u64,
}

/// The program that asks, by which its file's home decides what it may do. Its member is trusted for what it says of
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    pub uid: u32,
    pub gid: u32,
    /// Its other groups. `None`: its member cannot see them, and relies on its own kernel, which could.
    pub groups: Option<Vec<u32>>,
    /// Its effective capabilities: bit N is capability N of capabilities(7).
    pub capable: u64,
    /// In a user namespace of its own its capabilities are for files of these alone.
    #[serde(default)]
    pub within: Option<Within>,
}

/// Users and groups of a user namespace (user_namespaces(7)), by what they are outside: the first, and how many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Within {
    pub uids: Vec<(u32, u32)>,
    pub gids: Vec<(u32, u32)>,
}

impl Within {
    pub fn holds(&self, uid: u32, gid: u32) -> bool {
        let holds = |ranges: &[(u32, u32)], id: u32| {
            ranges.iter().any(|&(first, count)| id >= first && id - first < count)
        };
        holds(&self.uids, uid) && holds(&self.gids, gid)
    }
}

/// A program that opens a file: R_OK, W_OK and X_OK of access(2) as they are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opener {
    pub asker: Asker,
    pub wants: i32,
}

/// A size that is set. Who has the file open for writing needs no right to write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSize {
    pub size: u64,
    pub is_open: bool,
}

/// `SetAttr` on the wire. `None` leaves as it is; of a time, `Some(None)` means now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub atime: Option<Option<Timestamp>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub mtime: Option<Option<Timestamp>>,
}

/// What is there, even null: of a time, null means now, and none at all means as it was.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<Timestamp>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Attributes on the wire; the kind is a regular file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attrs {
    pub file: FileKey,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Done,
    Holds(bool),
    /// The claim is given back; `false`: it is in use and stays.
    Given(bool),
    /// It has heard of all up to this revision.
    Reached(u64),
    /// `as_of` is a revision of the registry's by which the home had the file already: that it was given back before is
    /// old news.
    Opened {
        handle: u64,
        attrs: Attrs,
        as_of: Revision,
    },
    /// Bytes come with it: fewer than asked for at the end of the file.
    Bytes,
    /// The same, and nobody had the file open for writing when they were read.
    QuietBytes,
    /// Where an append ended.
    At(u64),
    /// In the order of the question; `None` where the file is not held here.
    Attrs(Vec<Option<Attrs>>),
    /// `as_of`: as in [`Answer::Opened`], of the claim under which it was made.
    Changed {
        attrs: Option<Attrs>,
        as_of: Revision,
    },
    /// What the daemon answered, with its HTTP status.
    Said {
        status: u16,
        body: Value,
    },
    /// `ends`: how often the asking member's locks were given back there, since it was dead or had begun anew.
    Lock {
        answer: LockAnswer,
        ends: u64,
    },
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// The asked member is not, or no longer, of that epoch.
    Epoch(u64),
    /// It does not hold the file: the asker looks again for who does.
    NotHere,
    /// It is asked for too much at once: nothing was done, and it may be asked again.
    Busy,
    /// A handle of before a restart, or one that was closed: EIO for whoever wrote through it.
    Handle,
    /// What the call came to.
    Errno(i32, String),
}

/// A path as text, or as a list of its bytes if it is no UTF-8.
mod any_path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        match path.to_str() {
            Some(text) => to.serialize_str(text),
            None => path.as_os_str().as_bytes().serialize(to),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(match Either::deserialize(from)? {
            Either::Text(text) => text.into(),
            Either::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}
