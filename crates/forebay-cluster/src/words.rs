//! The questions between members. A question is a small JSON value, and may come with bytes; so is its answer.

use std::path::{Path, PathBuf};

use forebay_backing::{FileKey, Timestamp, Version};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::core::Revision;
use crate::locks::{LockAnswer, LockAsk};

/// The head of every question names the asker, and the epoch that the asker believes the asked member to have; a
/// member with another epoch refuses ([`Refusal::Epoch`]).
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
    /// Whether the asked member holds this file, of a directory that it has claimed for new files. Answered once it
    /// knows: a file that it is just making there may be this one.
    Holds {
        file: FileKey,
        dir: FileKey,
    },
    /// Another member wants the file: flush it and give its claim back.
    Recall {
        file: FileKey,
    },
    /// As `Recall`, for all files at or below a path; no new ones are to be made there while the gate stands.
    RecallBelow {
        #[serde(with = "any_path")]
        path: PathBuf,
    },
    /// The file's names or attributes were changed while it was not claimed, as far as the asker knew: look at the
    /// store again.
    Changed {
        file: FileKey,
    },
    /// The asker has put a key at this revision: has the asked member, which may open files without asking the
    /// registry, heard of it? Answered once it has; after a while with how far it is.
    Reached {
        revision: u64,
    },
    /// A program of another member opens the file: the answer has a handle. The home decides whether the program may.
    Open {
        file: FileKey,
        #[serde(with = "any_path")]
        path: PathBuf,
        write: bool,
        /// `None`: the program has the file open already, and goes on with it at another home, or a daemon compares
        /// it.
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
    /// The bytes come with the question. `sync`: they, and everything written before, are durable at the home before
    /// the answer.
    ///
    /// `number`, here and in every question that changes a file: it rises with each change that the asker requests,
    /// and is new in each. See [`Question::Fence`].
    Write {
        handle: u64,
        number: u64,
        offset: u64,
        sync: bool,
    },
    /// Pages of a mapping, not synced: only bytes before the end of the file, as its home knows it, are written.
    Overwrite {
        handle: u64,
        number: u64,
        offset: u64,
    },
    /// As [`Question::Write`], at the end of the file as its home knows it. An append that comes twice through this
    /// handle is done once.
    Append {
        handle: u64,
        number: u64,
        sync: bool,
    },
    Sync {
        handle: u64,
    },
    /// A descriptor of the handle was closed: bytes that are to be on the store by then are there when this is
    /// answered.
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
    /// No change that the asker requested under smaller numbers, here or from a home that passed it on to this one,
    /// changes this file any more, also if it is still to come: the asker has told its programs that the outcome is
    /// unknown, and they have gone on.
    Fence {
        file: FileKey,
        number: u64,
    },
    /// Bytes of an unclaimed file as the store had them in this version: the asked member reads the part that
    /// contains them for all.
    Fetch {
        version: Version,
        #[serde(with = "any_path")]
        path: PathBuf,
        offset: u64,
        len: u32,
    },
    /// A request to the control socket of the asked member's daemon, one of those that members may make.
    Daemon {
        method: String,
        path: String,
        body: Value,
    },
    /// A copy of newer bytes of the asker's, to be durable before the answer. With it come `words` bytes from the
    /// asker's engine about the file, and then the file's bytes.
    Copy {
        file: FileKey,
        /// The number of the claim under which the copy is made.
        number: u64,
        /// The fill that began this partnership.
        fill: u64,
        /// The copy goes to all partners while the asked member is being filled: the bytes on which it builds may come
        /// with the fill.
        #[serde(default)]
        beside: bool,
        words: u32,
    },
    /// A message of the asker's engine about all its copies at the asked member: the words come with the question.
    Mark {
        fill: u64,
    },
    /// The asked member is to drop all its copies of the asker's bytes, and to remember this number: messages of an
    /// older fill are refused from then on.
    BeginFill {
        fill: u64,
    },
    /// The asked member may have taken the file over from the asker's life of this epoch. The pieces that it took come
    /// with the answer, from this offset on.
    Taken {
        file: FileKey,
        epoch: u64,
        offset: u64,
    },
    /// The asker has compared its bytes of all files that others took over from its earlier lives, and asks for none of
    /// these files any more.
    Compared,
    /// A request for a file's locks, to its home.
    Lock {
        file: FileKey,
        #[serde(with = "any_path")]
        path: PathBuf,
        /// The epoch of the asker: locks from before it began anew are no longer its own.
        epoch: u64,
        ask: LockAsk,
    },
    /// The home has granted the lock for which a program of the asked member waited.
    Granted {
        number: u64,
    },
    /// The asking member's programs have reclaimed their locks at this life of the asked one.
    Reclaimed {
        epoch: u64,
    },
}

impl Question {
    /// Whether the question is about a file that is open at the asked member, which only that very process knows.
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
            | Question::Taken { .. }
            | Question::Compared
            | Question::Lock { .. }
            | Question::Granted { .. }
            | Question::Reclaimed { .. } => false,
        }
    }

    /// Whether the question carries bytes of files, or has them made durable: it may wait for the tier or the store.
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
                | Question::Taken { .. }
        )
    }

    /// Whether the question is for one life of the asked member: another life has nothing to which it applies.
    pub fn is_of_a_life(&self) -> bool {
        let of_locks = matches!(self, Question::Lock { .. } | Question::Reclaimed { .. });
        of_locks || self.needs_handle()
    }

    /// The path of the file that the question is about, if it names one.
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
        /// The asker has the file open, which is changed whatever its names are by now.
        is_open: bool,
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
    /// The asker renames a file of its own over one of the home's, and the home makes the rename on the store: the
    /// replaced file must be this one, or the rename is refused. `by`: the member that asked the asker for the
    /// change, if one did. A fence of that member also gives the change up.
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
    /// The file that the change is about.
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

    /// The files that the change affects: that one, and the file that loses its name to it.
    pub fn files(&self) -> Vec<FileKey> {
        let over = match self {
            NameChange::Replace { over, .. } => Some(*over),
            NameChange::Rename { over, .. } => *over,
            _ => None,
        };
        let file = self.file();
        [file].into_iter().chain(over.filter(|over| *over != file)).collect()
    }

    /// The member that asked the asker for the change.
    pub fn by(&self) -> Option<&By> {
        match self {
            NameChange::Replace { by, .. } => by.as_ref(),
            _ => None,
        }
    }

    /// The names for which the store's answers differ once the change is made.
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

/// The member that asks for a change: one of its lives, with the change's number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct By {
    pub member: String,
    pub epoch: u64,
    pub number: u64,
}

/// The program that asks, by which the file's home decides what the program may do. Its member is trusted to describe
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    pub uid: u32,
    pub gid: u32,
    /// The program's other groups. `None`: its member cannot see them, and relies on its own kernel, which could.
    pub groups: Option<Vec<u32>>,
    /// The program's effective capabilities: bit N is capability N of capabilities(7).
    pub capable: u64,
    /// In a user namespace of its own, the program's capabilities apply to files of these users and groups alone.
    #[serde(default)]
    pub within: Option<Within>,
}

/// Users and groups of a user namespace (user_namespaces(7)), by their numbers outside: the first, and how many.
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

/// A program that opens a file: the wanted R_OK, W_OK and X_OK of access(2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opener {
    pub asker: Asker,
    pub wants: i32,
}

/// A size to set. A program that has the file open for writing needs no right to write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSize {
    pub size: u64,
    pub is_open: bool,
}

/// `SetAttr` on the wire. `None` leaves a value as it is; for a time, `Some(None)` means now.
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

/// Reads a value that is present, even null: for a time, null means now, and an absent one leaves it as it was.
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
    /// The claim is given back; `false`: the file is in use and the claim stays.
    Given(bool),
    /// The member has heard of everything up to this revision.
    Reached(u64),
    /// `as_of` is a registry revision at which the home already had the file: an earlier give-back of it is old news.
    Opened {
        handle: u64,
        attrs: Attrs,
        as_of: Revision,
    },
    /// Bytes come with the answer: fewer than asked for at the end of the file.
    Bytes,
    /// As `Bytes`; no program had the file open for writing when they were read.
    QuietBytes,
    /// The offset at which an append ended.
    At(u64),
    /// In the order of the question; `None` where the file is not held here.
    Attrs(Vec<Option<Attrs>>),
    /// `as_of`: as in [`Answer::Opened`], for the claim under which the change was made.
    Changed {
        attrs: Option<Attrs>,
        as_of: Revision,
    },
    /// The size of the file as it was taken over, and the seed of the sums of its pieces, which come with the answer;
    /// `None` if it was not.
    Taken(Option<TakenAs>),
    /// The daemon's answer, with its HTTP status.
    Said {
        status: u16,
        body: Value,
    },
    /// `ends`: how often the asking member's locks were given back at the home, since the member was dead or had
    /// begun anew.
    Lock {
        answer: LockAnswer,
        ends: u64,
    },
    Refused(Refusal),
}

/// A file as it was taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenAs {
    pub size: u64,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// The asked member no longer has that epoch, or never had it.
    Epoch(u64),
    /// The asked member does not hold the file: the asker looks again for the holder.
    NotHere,
    /// The asked member has too many questions at once: nothing was done, and the asker may ask again.
    Busy,
    /// A handle from before a restart, or one that was closed: EIO for a program that wrote through it.
    Handle,
    /// The error of the call.
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
