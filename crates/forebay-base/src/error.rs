//! The one error type: a kind that decides what happens next, a context that names the object,
//! and the source it came from.

use std::fmt;
use std::io;

pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error, as far as a decision depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An errno of a system call that needs no decision of its own; passed through as it is.
    Os(i32),
    /// The backing store does not answer or is gone: retried, never loses dirty bytes (S10).
    Unavailable,
    /// An operation did not end within its stated time.
    TimedOut,
    /// The backing file changed while dirty bytes for it were held (S8).
    Conflict,
    /// The fast tier, its index or its log contradicts itself.
    Corrupt,
    /// The directory is no fast tier, or one that this program does not read (S11).
    WrongTier,
    /// The fast tier is of another backing store (S11).
    OtherStore,
    /// Another process has the fast tier (S11).
    InUse,
    /// A flag, a file or a key the user gave cannot be used.
    Usage,
    /// No daemon answers.
    Unreachable,
    /// Dirty bytes could not be brought to the backing store.
    DirtyAtRisk,
    /// A lease that the call depends on has run out: its holder takes a new one and looks again.
    Lapsed,
    /// The user asked to stop.
    Interrupted,
}

/// Whether the same call may succeed later without any intervention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Transient: try again after a pause.
    Later,
    /// Final until something outside changes.
    Never,
}

#[derive(Debug)]
pub struct Error {
    kind: Kind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub fn new(kind: Kind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), source: None }
    }

    /// An errno with the object it befell.
    pub fn os(errno: i32, context: impl Into<String>) -> Error {
        Error::new(Kind::Os(errno), context)
    }

    /// An errno from storage: an errno that says that the storage itself is gone becomes
    /// [`Kind::Unavailable`].
    pub fn storage(errno: i32, context: impl Into<String>) -> Error {
        match errno {
            libc::ENOTCONN
            | libc::ECONNABORTED
            | libc::EHOSTDOWN
            | libc::ENODEV
            | libc::ESHUTDOWN => Error::new(Kind::Unavailable, context)
                .with_source(io::Error::from_raw_os_error(errno)),
            _ => Error::os(errno, context),
        }
    }

    pub fn io(error: io::Error, context: impl Into<String>) -> Error {
        let kind = error.raw_os_error().map_or(Kind::Os(libc::EIO), Kind::Os);
        Error { kind, context: context.into(), source: Some(Box::new(error)) }
    }

    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.source = Some(source.into());
        self
    }

    /// Puts the operation that was under way in front of the context.
    pub fn context(mut self, outer: impl fmt::Display) -> Error {
        self.context = format!("{outer}: {}", self.context);
        self
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn is(&self, errno: i32) -> bool {
        self.kind == Kind::Os(errno)
    }

    /// Whether nothing is at the path: it does not exist, or leads through a file or a link.
    pub fn is_nowhere(&self) -> bool {
        [libc::ENOENT, libc::ENOTDIR, libc::ELOOP].iter().any(|errno| self.is(*errno))
    }

    /// The errno that a program sees.
    pub fn errno(&self) -> i32 {
        self.kind.row().0
    }

    /// The exit code of the `forebay` command when this error ends it.
    pub fn exit_code(&self) -> u8 {
        self.kind.row().1
    }

    pub fn retry(&self) -> Retry {
        self.kind.row().2
    }

    /// The status with which a daemon's door answers a request that ended with this error.
    pub fn http_status(&self) -> u16 {
        self.kind.row().3
    }
}

impl Kind {
    /// The table: errno, exit code, whether to retry, status of an HTTP answer.
    fn row(self) -> (i32, u8, Retry, u16) {
        match self {
            Kind::Os(errno) => (errno, 1, os_retry(errno), os_status(errno)),
            Kind::Unavailable => (libc::EIO, 1, Retry::Later, 503),
            Kind::TimedOut => (libc::ETIMEDOUT, 1, Retry::Later, 503),
            Kind::Conflict => (libc::ESTALE, 4, Retry::Never, 409),
            Kind::Corrupt => (libc::EIO, 1, Retry::Never, 500),
            Kind::WrongTier | Kind::OtherStore | Kind::InUse | Kind::Usage => {
                (libc::EINVAL, 2, Retry::Never, 400)
            }
            Kind::Unreachable => (libc::ENOTCONN, 3, Retry::Later, 500),
            Kind::DirtyAtRisk => (libc::EIO, 4, Retry::Later, 500),
            Kind::Lapsed => (libc::ESTALE, 1, Retry::Never, 500),
            Kind::Interrupted => (libc::EINTR, 130, Retry::Never, 500),
        }
    }
}

fn os_status(errno: i32) -> u16 {
    match errno {
        libc::EPERM => 403,
        libc::ENOENT => 404,
        _ => 500,
    }
}

fn os_retry(errno: i32) -> Retry {
    match errno {
        libc::EAGAIN
        | libc::EINTR
        | libc::EBUSY
        | libc::EIO
        | libc::ENOSPC
        | libc::EDQUOT
        | libc::ETIMEDOUT
        | libc::ENOTCONN
        | libc::ECONNABORTED
        | libc::EHOSTDOWN
        | libc::EHOSTUNREACH
        | libc::ENOMEM => Retry::Later,
        _ => Retry::Never,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match (&self.source, self.kind) {
            (Some(source), _) => write!(f, ": {source}"),
            (None, Kind::Os(errno)) => write!(f, ": {}", io::Error::from_raw_os_error(errno)),
            (None, _) => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}
