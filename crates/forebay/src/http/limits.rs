//! What clients may take of the daemon: every bound of its two doors, with its reason. A client's
//! own numbers are compared with these before anything is allocated for them.

use std::time::Duration;

/// What differs between the doors.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. Beyond them the one that has kept us waiting longest makes way; while
    /// none has for `patience`, new ones wait in the listener's queue.
    pub connections: usize,
    /// From then on a connection that keeps us waiting makes way for another.
    pub patience: Duration,
    /// Threads that answer.
    pub threads: usize,
    /// A longer body is refused by its announced length.
    pub body_bytes: usize,
}

/// The Unix socket: only the owner of the daemon can connect.
pub const CONTROL: Limits = Limits {
    // A command of the owner's takes one for each poll; some scripts run a hundred commands.
    connections: 128,
    // A command sends its request at once, but its process may lose the processor before.
    patience: Duration::from_secs(2),
    // One slow listing does not hold up a status.
    threads: 4,
    // The longest sensible request lists some thousand paths.
    body_bytes: 16 << 20,
};

/// The node daemon's socket: every user of this machine can connect.
pub const NODE: Limits = Limits {
    // Commands of users and of a scheduler's hooks, each of which takes one for each poll.
    connections: 256,
    // As for metrics: a flood of silent connections is through in this time.
    patience: Duration::from_millis(200),
    // A command that makes something waits for commits of the registry.
    threads: 8,
    // The longest sensible request is the plan of a job with some hundred transfers.
    body_bytes: 256 << 10,
};

/// The port for metrics: every user of this machine can connect.
pub const METRICS: Limits = Limits {
    // One or two programs read metrics; the others are descriptors that a stranger may take of us.
    connections: 64,
    // Who reads metrics sends its request with the connection. A flood of silent connections is
    // through at `connections` in this time, and who asks waits no longer than for those before it.
    patience: Duration::from_millis(50),
    threads: 1,
    body_bytes: 0,
};

/// A path of 4,096 bytes, each written as `%xx`, and the headers of browsers fit.
pub const HEAD_BYTES: usize = 16 << 10;

/// Browsers send some twenty.
pub const HEADERS: usize = 64;

/// Of all requests of a door together, as far as they have come: a few of the longest.
pub const BUFFERED_BYTES: usize = 64 << 20;

/// From the first byte of a request to the end of its head, which clients send in one piece.
pub const HEAD_TIME: Duration = Duration::from_secs(5);

/// For the body: 16 MiB on this machine take milliseconds.
pub const BODY_TIME: Duration = Duration::from_secs(20);

/// For the client to take the answer: a listing of a million files over a slow tunnel.
pub const ANSWER_TIME: Duration = Duration::from_secs(60);

/// Between two requests on one connection: Prometheus asks every 15 to 60 s.
pub const IDLE_TIME: Duration = Duration::from_secs(90);

/// How long a client that was refused may go on sending, so that it can read why.
pub const LINGER_TIME: Duration = Duration::from_secs(2);

/// With no descriptor left for a client, when the next try is made.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
