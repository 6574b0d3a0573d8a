//! The flags of an open, as the kernel passes them on from a program.

use forebay_cluster::core::Access;

/// The flag of an open to run a file, internal to the kernel, which passes it on to the daemon (linux/fs.h).
const FMODE_EXEC: i32 = 0x20;

/// The flags of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFlags(i32);

impl From<i32> for OpenFlags {
    fn from(flags: i32) -> OpenFlags {
        OpenFlags(flags)
    }
}

impl OpenFlags {
    /// An open to read.
    pub const READ: OpenFlags = OpenFlags(libc::O_RDONLY);

    fn has(self, flag: i32) -> bool {
        self.0 & flag != 0
    }

    fn mode(self) -> i32 {
        self.0 & libc::O_ACCMODE
    }

    /// Whether the descriptor can be written to.
    pub fn writes(self) -> bool {
        self.mode() != libc::O_RDONLY
    }

    /// Whether the open makes the file empty. Linux truncates for an open to read, too, if the caller may
    /// write.
    pub fn truncates(self) -> bool {
        self.has(libc::O_TRUNC)
    }

    /// Whether the open or its descriptor may change the file.
    pub fn changes(self) -> bool {
        self.writes() || self.truncates()
    }

    /// Whether each write goes to the end of the file.
    pub fn appends(self) -> bool {
        self.writes() && self.has(libc::O_APPEND)
    }

    /// Whether each write is synced.
    pub fn syncs(self) -> bool {
        self.has(libc::O_DSYNC)
    }

    /// Whether the file must not exist before.
    pub fn is_exclusive(self) -> bool {
        self.has(libc::O_EXCL)
    }

    /// Whether a program can write to the file through a mapping, which needs a descriptor for both.
    pub fn maps_writes(self) -> bool {
        self.mode() == libc::O_RDWR
    }

    /// What the file's home is asked for.
    pub fn access(self) -> Access {
        match self.changes() {
            true => Access::Write,
            false => Access::Read,
        }
    }

    /// The rights that the program needs, as access(2) names them.
    pub fn rights(self) -> i32 {
        let wants = match self.mode() {
            libc::O_RDONLY if self.has(FMODE_EXEC) => libc::X_OK,
            libc::O_RDONLY => libc::R_OK,
            libc::O_WRONLY => libc::W_OK,
            _ => libc::R_OK | libc::W_OK,
        };
        if self.truncates() { wants | libc::W_OK } else { wants }
    }
}
