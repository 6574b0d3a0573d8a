//! The interface of a wrapper: its view of a call.

use std::path::Path;

use crate::Result;

/// One hook around every call of a store and of the files it handed out.
pub trait Layer: Send + Sync + 'static {
    /// Whether the descriptor behind a file may be used directly, past this layer.
    const PASSES_FD: bool;

    /// Called before the call, which is not made if this fails.
    fn before(&self, _call: &Call<'_>) -> Result<()> {
        Ok(())
    }

    /// Makes the call by `run`: at once, later, several times (if [`Verb::repeatable`]) or never.
    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        self.before(call)?;
        run()
    }

    /// Closes a dropped file, or releases a dropped pin: now, or later in another thread, since the
    /// thread that drops it may hold locks.
    fn part(&self, close: Parting) {
        // A caller that needs the result calls `close`.
        let _ = close();
    }
}

/// Closes something of the store, which may take as long as any call.
pub type Parting = Box<dyn FnOnce() -> Result<()> + Send>;

/// One call on its way to the store.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    pub verb: Verb,
    /// All paths of the call: none for the store as a whole, two for a rename or link. A file's is
    /// the one it was opened by.
    pub paths: &'a [&'a Path],
    pub offset: u64,
    /// Bytes asked for; a read may give fewer.
    pub len: u64,
}

/// The result of a call, and the number of bytes of file data it moved.
#[derive(Debug)]
pub struct Done<T> {
    pub value: T,
    pub bytes: u64,
}

macro_rules! verbs {
    ($($variant:ident $name:literal,)*) => {
        /// Every call of [`crate::BackingStore`] and [`crate::BackingFile`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Verb { $($variant,)* }

        impl Verb {
            pub const ALL: &[Verb] = &[$(Verb::$variant,)*];

            /// The method's name (`file_stat` for that of a file), as metrics and fault rules use
            /// it.
            pub fn name(self) -> &'static str {
                match self { $(Verb::$variant => $name,)* }
            }
        }
    };
}

verbs! {
    Identity "identity",
    Stat "stat",
    Open "open",
    Create "create",
    Mkdir "mkdir",
    Mknod "mknod",
    Symlink "symlink",
    Link "link",
    ReadLink "read_link",
    Unlink "unlink",
    Rmdir "rmdir",
    Rename "rename",
    SetAttr "set_attr",
    ReadDir "read_dir",
    XattrGet "xattr_get",
    XattrSet "xattr_set",
    XattrList "xattr_list",
    XattrRemove "xattr_remove",
    Statfs "statfs",
    SyncDir "sync_dir",
    SyncFiles "sync_files",
    ReadAt "read_at",
    WriteAt "write_at",
    SetLen "set_len",
    Punch "punch",
    FileStat "file_stat",
    SetTimes "set_times",
    Sync "sync",
    NextData "next_data",
    Close "close",
}

impl Verb {
    pub fn from_name(name: &str) -> Option<Verb> {
        Verb::ALL.iter().copied().find(|verb| verb.name() == name)
    }

    /// Whether a call that failed may be made again: it changes nothing, or writes the same bytes
    /// to the same place. Never a sync: the kernel drops pages it could not write and then
    /// reports success, so only the first answer counts.
    pub fn repeatable(self) -> bool {
        matches!(
            self,
            Verb::Identity
                | Verb::Stat
                | Verb::Open
                | Verb::ReadLink
                | Verb::ReadDir
                | Verb::XattrGet
                | Verb::XattrList
                | Verb::Statfs
                | Verb::ReadAt
                | Verb::WriteAt
                | Verb::FileStat
                | Verb::NextData
        )
    }
}
