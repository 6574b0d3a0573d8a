//! Every bound of the door and of those who ask, with its reason.

use std::time::Duration;

/// Bytes that go with one question or one answer. The kernel reads and writes 1 MiB at most.
pub const BYTES_MAX: usize = 4 << 20;

/// JSON of one question or answer: attributes of some thousand files, or an extended attribute of 64 KiB
/// written as numbers.
pub const WORDS_MAX: usize = 1 << 20;

/// The head of a message: ours have some 200 bytes, those of `curl` with many `-H` some more.
pub const HEAD_BYTES: usize = 8 << 10;

/// Header lines in a head.
pub const HEADERS: usize = 32;

/// JSON of somebody who has not proved yet that he has the cluster key.
pub const STRANGER_WORDS: usize = 1 << 10;

/// Connections of a door at once, each with a thread. Beyond them a connection that has not proved its key
/// makes way, or the one that was idle for longest; while there is none, a new one is answered 503.
pub const CONNECTIONS: usize = 256;

/// From connecting to the proof of the key.
pub const PROOF_TIME: Duration = Duration::from_secs(5);

/// From the first byte of a question to the end of its head.
pub const HEAD_TIME: Duration = Duration::from_secs(5);

/// For the rest of a question: 5 MiB need 250 kB/s.
pub const BODY_TIME: Duration = Duration::from_secs(20);

/// For an answer to be taken.
pub const ANSWER_TIME: Duration = Duration::from_secs(20);

/// Between two questions.
pub const IDLE_TIME: Duration = Duration::from_secs(60);

/// A connection idle for so long gives its buffers back, and its place if others need it.
pub const KEEP_BUFFERS: Duration = Duration::from_secs(1);

/// How long whoever was refused may go on sending, so that he can read why.
pub const LINGER_TIME: Duration = Duration::from_secs(1);

/// How long a door that closes waits for answers that are being made.
pub const CLOSING_TIME: Duration = Duration::from_secs(10);

/// Who asks drops a connection that was idle for so long: the door would close it soon.
pub const POOL_TIME: Duration = Duration::from_secs(50);

/// A connection idle for less keeps its place for sure: [`KEEP_BUFFERS`], less what a question is under way.
pub const SURE_TIME: Duration = Duration::from_millis(500);

/// Idle connections that are kept to one address.
pub const POOL_CONNECTIONS: usize = 32;

/// Bytes of a cluster key.
pub const KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=4096;
