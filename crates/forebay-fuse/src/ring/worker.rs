//! A thread with an entry. It waits for a request, has it answered, commits the answer, and so on,
//! until the session ends or another thread has given the answer and taken the entry.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use super::Crew;
use super::abi::{COMMIT_AND_FETCH, REGISTER};
use super::buffer::{KEPT, View};
use super::headers::Headers;
use super::reply::{OnRing, Seat, at_home, come_home};
use super::uring::{Command, Uring};
use crate::codec::{self, NOTIFY_REPLY, OPEN};

/// A large buffer that was not needed for this long gives its memory back.
const TRIM_AFTER: Duration = Duration::from_secs(2);

/// The first step with the entry that a worker begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The entry is registered.
    New,
    /// The answer in the entry is committed.
    Adopted,
}

/// The command that a worker submits next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Register,
    Commit,
    /// Commits a poke, and finds out whether a request was waiting.
    CommitPoke,
}

pub struct Worker {
    crew: Arc<Crew>,
    uring: Uring,
    view: View,
    seat: Box<Seat>,
    step: Step,
}

impl Worker {
    /// Gives the entry back if there is no ring or no memory for it.
    pub fn new(
        crew: Arc<Crew>,
        seat: Box<Seat>,
        start: Start,
    ) -> Result<Worker, (io::Error, Box<Seat>)> {
        let made = Uring::new().and_then(|uring| Ok((uring, seat.buffer.view()?)));
        let step = match start {
            Start::New => Step::Register,
            Start::Adopted => Step::Commit,
        };
        match made {
            Ok((uring, view)) => Ok(Worker { crew, uring, view, seat, step }),
            Err(e) => Err((e, seat)),
        }
    }

    /// Registers a new entry; `Err` if the kernel refuses it.
    pub fn register(&mut self) -> io::Result<()> {
        let crew = self.crew.clone();
        let queue = crew.queue(self.seat.queue);
        queue.idle.fetch_add(1, SeqCst);
        let refused = |e| {
            queue.idle.fetch_sub(1, SeqCst);
            Err(e)
        };
        if let Err(e) = self.submit() {
            return refused(e);
        }
        // No request is delivered before the first wait: a result is an error.
        match self.uring.ready() {
            None => Ok(()),
            Some(result) => refused(io::Error::from_raw_os_error(-result)),
        }
    }

    /// Serves until the entry is gone. A new entry was registered before.
    pub fn serve(mut self) {
        loop {
            let Some(headers) = self.fetch() else { return };
            let unique = headers.head.unique;
            self.seat.commit_id = headers.commit_id();
            self.seat.large |= headers.payload_len() > KEPT;
            self.step = match headers.head.opcode {
                NOTIFY_REPLY => Step::CommitPoke,
                _ => Step::Commit,
            };
            let request = headers.request(self.view.payload(headers.payload_len()));
            at_home(unique);
            let carrier = OnRing::new(self.crew.clone(), unique, self.seat);
            codec::serve(&self.crew.shared, &request, carrier);
            self.crew.working.fetch_sub(1, SeqCst);
            match come_home() {
                Some(seat) => self.seat = seat,
                None => return,
            }
        }
    }

    /// Submits the next command and waits for a request. Returns `None` at the end of the session.
    fn fetch(&mut self) -> Option<Headers> {
        let crew = self.crew.clone();
        let queue = crew.queue(self.seat.queue);
        let mut backlog = false;
        if self.step != Step::Register {
            queue.idle.fetch_add(1, SeqCst);
            self.push();
        }
        let mut result = None;
        if self.step == Step::CommitPoke {
            result = match self.uring.submit_pushed() {
                Ok(()) => self.uring.ready(),
                Err(e) => return self.end(&e),
            };
            backlog = result.is_some();
        }
        let result = match result.map_or_else(|| self.wait(), Ok) {
            Ok(result) => result,
            Err(e) => return self.end(&e),
        };
        let idle = queue.idle.fetch_sub(1, SeqCst) - 1;
        if result < 0 {
            queue.idle.fetch_add(1, SeqCst);
            return self.end(&io::Error::from_raw_os_error(-result));
        }
        crew.working.fetch_add(1, SeqCst);
        let headers = Headers::new(*self.seat.buffer.headers());
        if headers.head.opcode == OPEN {
            crew.recent.store(headers.head.node, Relaxed);
        }
        // A poke is answered at once and needs no idle entry beside it.
        if headers.head.opcode != NOTIFY_REPLY {
            match idle {
                0 => crew.grow(self.seat.queue),
                _ if backlog => crew.poke(self.seat.queue),
                _ => {}
            }
        }
        Some(headers)
    }

    fn wait(&mut self) -> io::Result<i32> {
        if self.seat.large {
            if let Some(result) = self.uring.wait(Some(TRIM_AFTER))? {
                return Ok(result);
            }
            // Nothing is delivered while this thread does not wait (B1).
            self.seat.buffer.trim();
            self.seat.large = false;
        }
        loop {
            if let Some(result) = self.uring.wait(None)? {
                return Ok(result);
            }
        }
    }

    fn push(&mut self) {
        let buffers = self.seat.buffer.iovecs();
        self.uring.push(self.crew.device.as_fd(), &command(&self.seat, self.step, &buffers));
    }

    fn submit(&mut self) -> io::Result<()> {
        let buffers = self.seat.buffer.iovecs();
        self.uring.push(self.crew.device.as_fd(), &command(&self.seat, self.step, &buffers));
        self.uring.submit_pushed()
    }

    fn end(&mut self, why: &io::Error) -> Option<Headers> {
        let queue = self.crew.queue(self.seat.queue);
        queue.idle.fetch_sub(1, SeqCst);
        queue.entries.fetch_sub(1, SeqCst);
        if self.crew.ended.load(Relaxed) || is_end(why) {
            self.crew.ended.store(true, Relaxed);
        } else {
            tracing::error!(error = %why, "a ring entry is lost");
        }
        None
    }
}

/// Whether the kernel gives this error when the mount is gone.
pub fn is_end(e: &io::Error) -> bool {
    let ends = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::ENODEV];
    e.raw_os_error().is_some_and(|errno| ends.contains(&errno))
}

fn command<'a>(seat: &Seat, step: Step, buffers: &'a [libc::iovec]) -> Command<'a> {
    match step {
        Step::Register => Command { op: REGISTER, queue: seat.queue, commit_id: 0, buffers },
        Step::Commit | Step::CommitPoke => Command {
            op: COMMIT_AND_FETCH,
            queue: seat.queue,
            commit_id: seat.commit_id,
            buffers: &[],
        },
    }
}
