//! The errors, and the exit code of each kind.

use std::fmt;

/// A failure with the details that a reader needs: the wrong input, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The command line or a script asks for something impossible; nothing was written.
    Usage(String),
    /// The run failed part way.
    Failed(String),
    /// Ctrl-C or SIGTERM; the measurements until then have been printed.
    Interrupted,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn usage(message: impl Into<String>) -> Self {
        Error::Usage(message.into())
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Error::Failed(message.into())
    }

    /// An operating system error with the action and the path it struck.
    pub fn io(action: &str, path: impl AsRef<std::path::Path>, cause: &std::io::Error) -> Self {
        Error::Failed(format!("cannot {action} {}: {cause}", path.as_ref().display()))
    }

    /// 0 is success, 1 a failure listed, 2 usage, 130 an interruption.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Failed(_) => 1,
            Error::Usage(_) => 2,
            Error::Interrupted => 130,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message) | Error::Failed(message) => out.write_str(message),
            Error::Interrupted => out.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}
