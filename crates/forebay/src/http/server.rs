//! The server side. One thread holds all connections of a door and never blocks on one of them; a few
//! other threads answer complete requests. The limits of clients are in `limits.rs`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Result};
use forebay_base::lock::{Mutex, Rank};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SocketFlags, accept_with};
use serde_json::json;

use super::answer::{Outgoing, Reply};
use super::connection::Connection;
use super::limits::{ACCEPT_PAUSE, BUFFERED_BYTES, CONTROL, Limits, METRICS, NODE};
use super::request::{Peer, Refusal, Request, Whole};
use super::socket;

/// The most that is read of a connection before the next one has its turn.
const READ_BYTES: usize = 64 << 10;

/// Answers requests on a Unix socket until the process ends.
pub fn serve<H>(path: &Path, handler: H) -> Result<()>
where
    H: Fn(Request) -> Reply + Send + Sync + 'static,
{
    serve_unix(path, &CONTROL, "control", handler)
}

/// Like [`serve`], for every user of this machine; each request has its user.
pub fn serve_everybody<H>(path: &Path, handler: H) -> Result<()>
where
    H: Fn(Request) -> Reply + Send + Sync + 'static,
{
    serve_unix(path, &NODE, "node", handler)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(path, mode).map_err(|e| Error::io(e, path.display().to_string()))
}

fn serve_unix<H>(path: &Path, limits: &'static Limits, name: &'static str, handler: H) -> Result<()>
where
    H: Fn(Request) -> Reply + Send + Sync + 'static,
{
    let what = format!("{name} socket {}", path.display());
    let listener = socket::bind(path).map_err(|e| Error::io(e, what.clone()))?;
    Door::open(listener.into(), name, limits, handler).map_err(|e| Error::io(e, what))
}

/// Like [`serve`], on a TCP address of this machine, for the metrics.
pub fn serve_tcp<H>(address: SocketAddr, handler: H) -> Result<()>
where
    H: Fn(Request) -> Reply + Send + Sync + 'static,
{
    let listener = TcpListener::bind(address)
        .map_err(|e| Error::io(e, format!("metrics-listen {address}: choose another port")))?;
    Door::open(listener.into(), "metrics", &METRICS, handler)
        .map_err(|e| Error::io(e, format!("metrics-listen {address}")))
}

/// A listener, its connections, and the channels to the answering threads.
struct Door {
    name: &'static str,
    limits: &'static Limits,
    listener: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    requests: Sender<Asked>,
    answers: Receiver<(u64, Outgoing)>,
    /// Readable when there are answers.
    bell: Arc<OwnedFd>,
    /// Set if no descriptor was left for a client: until then no connection is accepted.
    pause: Option<Instant>,
    scratch: Vec<u8>,
}

/// A request on its way to an answering thread.
struct Asked {
    id: u64,
    peer: Option<Peer>,
    whole: Whole,
}

/// The result of a poll: whether clients wait, and the connections that are ready.
struct Found {
    clients: bool,
    ready: Vec<u64>,
}

impl Door {
    fn open<H>(
        listener: OwnedFd,
        name: &'static str,
        limits: &'static Limits,
        handler: H,
    ) -> std::io::Result<()>
    where
        H: Fn(Request) -> Reply + Send + Sync + 'static,
    {
        ioctl_fionbio(&listener, true)?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (requests, tasks) = mpsc::channel();
        let (done, answers) = mpsc::channel();
        let answerers = Arc::new(Answerers {
            tasks: Mutex::new(Rank::NextRequest, tasks),
            handler,
            bell: bell.clone(),
        });
        for n in 0..limits.threads {
            let (answerers, done) = (answerers.clone(), done.clone());
            let thread = thread::Builder::new().name(format!("{name}-{n}"));
            thread.spawn(move || answerers.work(&done))?;
        }
        let scratch = vec![0; READ_BYTES];
        let connections = BTreeMap::new();
        let mut door = Door {
            name,
            limits,
            listener,
            connections,
            next: 0,
            requests,
            answers,
            bell,
            pause: None,
            scratch,
        };
        let thread = thread::Builder::new().name(format!("{name}-door"));
        thread.spawn(move || {
            loop {
                door.turn();
            }
        })?;
        Ok(())
    }

    fn turn(&mut self) {
        let found = self.wait();
        while let Ok((id, answer)) = self.answers.try_recv() {
            self.with(id, |connection, _| connection.answer(answer));
        }
        for id in found.ready {
            self.with(id, Connection::advance);
            self.keep_within_buffers(id);
        }
        let now = Instant::now();
        self.connections.retain(|_, connection| {
            !connection.has_ended() && connection.deadline().is_none_or(|end| now < end)
        });
        if found.clients {
            self.accept();
        }
    }

    /// Lets a connection act, and passes on its request if that is complete.
    fn with(&mut self, id: u64, act: impl FnOnce(&mut Connection, &mut [u8]) -> Option<Whole>) {
        // The connection may have made way for another.
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(whole) = act(connection, &mut self.scratch) {
            let asked = Asked { id, peer: connection.peer(), whole };
            self.requests.send(asked).expect("those who answer live as long as the door");
        }
    }

    /// Refuses the request of a connection that is reading, while all requests together are too long.
    fn keep_within_buffers(&mut self, id: u64) {
        let held: usize = self.connections.values().map(Connection::buffered).sum();
        let reads = self.connections.get(&id).is_some_and(Connection::is_reading);
        if held > BUFFERED_BYTES && reads {
            let why = "too many long requests at once; try again".into();
            self.with(id, |connection, _| connection.refuse(Refusal { status: 503, why }));
        }
    }

    /// Waits until a connection, the listener or an answer needs work.
    fn wait(&self) -> Found {
        let now = Instant::now();
        let accepts = self.accepts(now);
        let listens = if accepts { PollFlags::IN } else { PollFlags::empty() };
        let mut polled =
            vec![PollFd::new(&self.bell, PollFlags::IN), PollFd::new(&self.listener, listens)];
        let mut ids = Vec::new();
        for (id, connection) in &self.connections {
            if let Some(interest) = connection.interest() {
                ids.push(*id);
                polled.push(PollFd::from_borrowed_fd(connection.socket(), interest));
            }
        }
        let limit = self.until_next(now).map(timespec);
        if poll(&mut polled, limit.as_ref()).is_err() {
            return Found { clients: false, ready: Vec::new() };
        }
        let rang = !polled[0].revents().is_empty();
        let clients = accepts && !polled[1].revents().is_empty();
        let is_ready =
            |(id, polled): (u64, &PollFd<'_>)| (!polled.revents().is_empty()).then_some(id);
        let ready = ids.into_iter().zip(&polled[2..]).filter_map(is_ready).collect();
        if rang {
            // No answer is lost: they are taken after this.
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        Found { clients, ready }
    }

    fn until_next(&self, now: Instant) -> Option<Duration> {
        let deadlines = self.connections.values().filter_map(Connection::deadline);
        let room = (!self.has_room(now)).then(|| now + self.limits.patience);
        let next = deadlines.chain(self.pause.filter(|end| now < *end)).chain(room).min();
        next.map(|at| at.saturating_duration_since(now))
    }

    fn accepts(&self, now: Instant) -> bool {
        self.pause.is_none_or(|end| now >= end) && self.has_room(now)
    }

    fn has_room(&self, now: Instant) -> bool {
        self.connections.len() < self.limits.connections || self.slowest(now).is_some()
    }

    /// The connection for which the door has waited longest, if that is longer than the patience.
    fn slowest(&self, now: Instant) -> Option<u64> {
        let awaited =
            |(id, connection): (&u64, &Connection)| Some((connection.awaited_since()?, *id));
        let (since, id) = self.connections.iter().filter_map(awaited).min()?;
        (now.saturating_duration_since(since) >= self.limits.patience).then_some(id)
    }

    /// Accepts clients, as long as there is room for them.
    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while self.has_room(Instant::now()) {
            match accept_with(&self.listener, flags) {
                Ok(socket) => self.admit(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return self.rest(error),
            }
        }
        if self.pause.take().is_some() {
            tracing::warn!("the {} door lets clients in again", self.name);
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        if self.connections.len() >= self.limits.connections
            && let Some(slowest) = self.slowest(Instant::now())
        {
            self.connections.remove(&slowest);
        }
        let id = self.next;
        self.next += 1;
        self.connections.insert(id, Connection::new(socket, self.limits));
        // Most requests arrive together with their connection.
        self.with(id, Connection::advance);
    }

    /// Pauses accepting if there is no descriptor or no memory for a client: clients wait in the queue.
    fn rest(&mut self, error: Errno) {
        if self.pause.is_none() {
            tracing::warn!("the {} door lets nobody in for now: {error}", self.name);
        }
        self.pause = Some(Instant::now() + ACCEPT_PAUSE);
    }
}

fn timespec(time: Duration) -> Timespec {
    // Rounded up: with a shorter wait, poll would return before the deadline again and again.
    let time = time + Duration::from_millis(1);
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// The threads that answer requests.
struct Answerers<H> {
    tasks: Mutex<Receiver<Asked>>,
    handler: H,
    bell: Arc<OwnedFd>,
}

impl<H: Fn(Request) -> Reply> Answerers<H> {
    fn work(&self, done: &Sender<(u64, Outgoing)>) {
        while let Some(asked) = self.next() {
            let reply = self.answer(&asked);
            let answer = Outgoing::new(reply, &asked.whole.method, asked.whole.after);
            if done.send((asked.id, answer)).is_err() {
                return;
            }
            let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        }
    }

    fn next(&self) -> Option<Asked> {
        self.tasks.lock().recv().ok()
    }

    /// Answers a request. A panic in the handler must not end the door; the log has the panic.
    fn answer(&self, asked: &Asked) -> Reply {
        let answer = || asked.whole.read(asked.peer).map_or_else(Reply::from, &self.handler);
        let answer = catch_unwind(AssertUnwindSafe(answer));
        let broken = |_| Reply::new(500, json!({ "error": "the daemon failed; see its log" }));
        answer.unwrap_or_else(broken)
    }
}
