//! A client's connection: it reads a request, waits for the answer, writes it, and starts again. No call
//! here blocks.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::answer::{CONTINUE, Outgoing, Reply};
use super::limits::{ANSWER_TIME, BODY_TIME, HEAD_TIME, IDLE_TIME, LINGER_TIME, Limits};
use super::request::{After, Incoming, Peer, Phase, Refusal, Step, Whole};

pub struct Connection {
    socket: OwnedFd,
    /// The client of a Unix socket.
    peer: Option<Peer>,
    incoming: Incoming,
    state: State,
    /// When the connection entered this state.
    since: Instant,
}

enum State {
    Reading(Phase),
    /// The answer to a request of this many bytes is being made.
    Answering(usize),
    Writing(Outgoing),
    /// The request was refused, and the client may still be sending: its bytes are discarded.
    Lingering,
    Ended,
}

impl Connection {
    pub fn new(socket: OwnedFd, limits: &Limits) -> Connection {
        let incoming = Incoming::new(limits);
        // A client sends right after it connects: it gets the time of a head, not that of an idle connection.
        let (peer, state) = (peer_of(&socket), State::Reading(Phase::Head));
        Connection { socket, peer, incoming, state, since: Instant::now() }
    }

    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// The events to poll for; none while the answer is being made.
    pub fn interest(&self) -> Option<PollFlags> {
        match self.state {
            State::Reading(_) | State::Lingering => Some(PollFlags::IN),
            State::Writing(_) => Some(PollFlags::OUT),
            State::Answering(_) | State::Ended => None,
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Bytes of its requests in memory.
    pub fn buffered(&self) -> usize {
        let answering = if let State::Answering(len) = self.state { len } else { 0 };
        self.incoming.len() + answering
    }

    pub fn is_reading(&self) -> bool {
        matches!(self.state, State::Reading(_))
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Since when the door has waited for the client.
    pub fn awaited_since(&self) -> Option<Instant> {
        self.interest().map(|_| self.since)
    }

    pub fn deadline(&self) -> Option<Instant> {
        let time = match self.state {
            State::Reading(Phase::Idle) => IDLE_TIME,
            State::Reading(Phase::Head) => HEAD_TIME,
            State::Reading(Phase::Body) => BODY_TIME,
            State::Writing(_) => ANSWER_TIME,
            State::Lingering => LINGER_TIME,
            State::Answering(_) => return None,
            State::Ended => Duration::ZERO,
        };
        Some(self.since + time)
    }

    /// Reads or writes as much as the socket allows. Returns a complete request, to be answered.
    pub fn advance(&mut self, scratch: &mut [u8]) -> Option<Whole> {
        match &mut self.state {
            State::Reading(_) => self.read(scratch),
            State::Writing(_) => self.write(),
            State::Lingering => self.throw_away(scratch),
            State::Answering(_) | State::Ended => None,
        }
    }

    /// Takes the answer to the connection's request, and starts sending it.
    pub fn answer(&mut self, answer: Outgoing) -> Option<Whole> {
        self.enter(State::Writing(answer));
        self.write()
    }

    /// Answers that the request is refused, and then closes.
    pub fn refuse(&mut self, refusal: Refusal) -> Option<Whole> {
        self.incoming.clear();
        self.answer(Outgoing::new(Reply::from(refusal), "", After::Close))
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.since = Instant::now();
    }

    fn read(&mut self, scratch: &mut [u8]) -> Option<Whole> {
        match recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
            Ok((0, _)) => self.enter(State::Ended),
            Ok((len, _)) => {
                self.incoming.push(&scratch[..len]);
                return self.step();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.enter(State::Ended),
        }
        None
    }

    fn step(&mut self) -> Option<Whole> {
        loop {
            match self.incoming.step() {
                Step::More(phase) => {
                    // The time of a phase counts from its first byte; a later byte does not restart it.
                    if !matches!(self.state, State::Reading(now) if now == phase) {
                        self.enter(State::Reading(phase));
                    }
                    return None;
                }
                Step::Continue => self.give_leave(),
                // The connection waited in the queue of a full door, and its client gave up: a request that the
                // client believes to have failed must not be carried out later.
                Step::Whole(_) if self.client_has_gone() => {
                    self.enter(State::Ended);
                    return None;
                }
                Step::Whole(whole) => {
                    self.enter(State::Answering(whole.len()));
                    return Some(whole);
                }
                Step::Refused(refusal) => return self.refuse(refusal),
            }
        }
    }

    /// Whether both directions are closed: a client that has sent everything and waits for the answer is there.
    fn client_has_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = poll(&mut polled, Some(&now));
        polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Sends the leave to send the body. Nothing else is being sent, so the socket takes these few bytes;
    /// a client that does not get them sends its body after a while.
    fn give_leave(&mut self) {
        let _ = send(&self.socket, CONTINUE, SendFlags::NOSIGNAL);
    }

    fn write(&mut self) -> Option<Whole> {
        let State::Writing(answer) = &mut self.state else { return None };
        while !answer.rest().is_empty() {
            match send(&self.socket, answer.rest(), SendFlags::NOSIGNAL) {
                Ok(len) => answer.sent(len),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Err(_) => {
                    self.enter(State::Ended);
                    return None;
                }
            }
        }
        match answer.after {
            After::KeepAlive => {
                self.enter(State::Reading(Phase::Idle));
                self.step()
            }
            After::Close => {
                self.leave();
                None
            }
        }
    }

    /// Closes the writing side only: closing a socket to which the client still writes could discard the answer.
    fn leave(&mut self) {
        let _ = shutdown(&self.socket, Shutdown::Write);
        self.enter(State::Lingering);
    }

    fn throw_away(&mut self, scratch: &mut [u8]) -> Option<Whole> {
        match recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
            Ok((len, _)) if len > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.enter(State::Ended),
        }
        None
    }
}

fn peer_of(socket: &OwnedFd) -> Option<Peer> {
    let of_machine = rustix::net::getsockname(socket).ok()?.address_family() == AddressFamily::UNIX;
    let found = rustix::net::sockopt::socket_peercred(socket).ok().filter(|_| of_machine)?;
    let (uid, gid) = (found.uid.as_raw(), found.gid.as_raw());
    Some(Peer { uid, gid, pid: found.pid.as_raw_nonzero().get() })
}
