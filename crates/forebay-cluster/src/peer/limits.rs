//! Every bound of the door and of askers, with its reason.

use std::time::Duration;

/// Bytes that go with one question or one answer. The kernel reads and writes 1 MiB at most.
pub const BYTES_MAX: usize = 4 << 20;

/// JSON of one question or answer: attributes of some thousand files, or an extended attribute of 64 KiB
/// written as numbers.
pub const WORDS_MAX: usize = 1 << 20;

/// The head of a message: forebay's have some 200 bytes, those of `curl` with many `-H` some more.
pub const HEAD_BYTES: usize = 8 << 10;

/// Header lines in a head.
pub const HEADERS: usize = 32;

/// JSON of a guest that has not proved yet that it has the cluster key.
pub const STRANGER_WORDS: usize = 1 << 10;

/// Connections of a door at once, each with a thread. Beyond that a connection that has not proved its key
/// makes way, or the one that was idle for longest; if there is none, a new one is answered 503.
pub const CONNECTIONS: usize = 256;

/// The time from connecting to the proof of the key.
pub const PROOF_TIME: Duration = Duration::from_secs(5);

/// The time from the first byte of a question to the end of its head.
pub const HEAD_TIME: Duration = Duration::from_secs(5);

/// The time for the rest of a question: 5 MiB need 250 kB/s.
pub const BODY_TIME: Duration = Duration::from_secs(20);

/// The time in which an answer has to be read.
pub const ANSWER_TIME: Duration = Duration::from_secs(20);

/// The time between two questions.
pub const IDLE_TIME: Duration = Duration::from_secs(60);

/// A connection that is idle for this long gives its buffers back, and its place if others need it.
pub const KEEP_BUFFERS: Duration = Duration::from_secs(1);

/// How long a refused guest may go on sending, to be able to read the reason.
pub const LINGER_TIME: Duration = Duration::from_secs(1);

/// How long a closing door waits for answers in progress.
pub const CLOSING_TIME: Duration = Duration::from_secs(10);

/// An asker drops a connection that was idle for this long: the door would close it soon.
pub const POOL_TIME: Duration = Duration::from_secs(50);

/// A connection that is idle for less keeps its place for sure: [`KEEP_BUFFERS`], less the time that a
/// question is under way.
pub const SURE_TIME: Duration = Duration::from_millis(500);

/// Idle connections that are kept to one address.
pub const POOL_CONNECTIONS: usize = 32;

/// Bytes of a cluster key.
pub const KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=4096;
