//! The limits of clients: every bound of the daemon's doors, with its reason. A number that a client
//! sends is compared with these before memory is allocated for it.

use std::time::Duration;

/// The limits that differ between the doors.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. Beyond this number the connection for which the door has waited longest makes
    /// way; if it has waited for none for `patience`, new connections stay in the listener's queue.
    pub connections: usize,
    /// After this time without progress by its client, a connection makes way for another.
    pub patience: Duration,
    /// The number of threads that answer requests.
    pub threads: usize,
    /// The longest body; a longer one is refused by its announced length.
    pub body_bytes: usize,
}

/// The Unix socket: only the owner of the daemon can connect.
pub const CONTROL: Limits = Limits {
    // A command of the owner takes one for each poll; some scripts run a hundred commands.
    connections: 128,
    // A command sends its request at once, but may be preempted before that.
    patience: Duration::from_secs(2),
    // One slow listing does not delay a status.
    threads: 4,
    // The longest sensible request lists some thousand paths.
    body_bytes: 16 << 20,
};

/// The node daemon's socket: every user of this machine can connect.
pub const NODE: Limits = Limits {
    // Commands of users and of a scheduler's hooks each take one for each poll.
    connections: 256,
    // As for metrics: a flood of silent connections is dropped in this time.
    patience: Duration::from_millis(200),
    // A command that makes something waits for commits of the registry.
    threads: 8,
    // The longest sensible request is the plan of a job with some hundred transfers.
    body_bytes: 256 << 10,
};

/// The port for metrics: every user of this machine can connect.
pub const METRICS: Limits = Limits {
    // One or two programs read metrics; the rest bounds the descriptors that other users can take.
    connections: 64,
    // A reader of metrics sends its request as it connects. A flood of silent connections is dropped by
    // `connections` per this time, and a reader waits only for the connections queued before its own.
    patience: Duration::from_millis(50),
    threads: 1,
    body_bytes: 0,
};

/// A path of 4,096 bytes, each written as `%xx`, and the headers of browsers fit.
pub const HEAD_BYTES: usize = 16 << 10;

/// Browsers send some twenty.
pub const HEADERS: usize = 64;

/// The unfinished and unanswered requests of a door together: a few of the longest.
pub const BUFFERED_BYTES: usize = 64 << 20;

/// From the first byte of a request to the end of its head, which clients send in one piece.
pub const HEAD_TIME: Duration = Duration::from_secs(5);

/// For receiving the body: 16 MiB on this machine take milliseconds.
pub const BODY_TIME: Duration = Duration::from_secs(20);

/// For sending the answer: a listing of a million files over a slow tunnel.
pub const ANSWER_TIME: Duration = Duration::from_secs(60);

/// Between two requests on one connection: Prometheus asks every 15 to 60 s.
pub const IDLE_TIME: Duration = Duration::from_secs(90);

/// How long a client that was refused may go on sending, so that it can read the refusal.
pub const LINGER_TIME: Duration = Duration::from_secs(2);

/// The pause before the next accept if no descriptor is left for a client.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
