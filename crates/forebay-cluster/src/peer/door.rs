//! The door of a member: accepts other members' connections, each with a thread of its own.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank, sleep};
use forebay_base::{Error, Kind, Result};

use super::guest;
use super::key::Key;
use super::limits::{CLOSING_TIME, CONNECTIONS};
use super::tls::Tls;
use crate::words::{Answer, Head, Question};

/// Answers questions of other members. Called by many threads at once.
pub trait Service: Send + Sync {
    /// `bytes` came with the question; bytes that go with the answer are put into `out`, which is empty: at most
    /// [`super::limits::BYTES_MAX`].
    fn answer(&self, head: &Head, question: Question, bytes: &[u8], out: &mut Vec<u8>) -> Answer;
}

/// A door that is open until it is dropped. Dropping ends all connections, and waits for answers in progress, for 10
/// s at most.
pub struct Door {
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    address: SocketAddr,
    accepts: Option<JoinHandle<()>>,
}

/// What the threads of a door share.
pub struct Shared {
    pub key: Option<Key>,
    pub tls: Option<Arc<Tls>>,
    pub service: Arc<dyn Service>,
    guests: Mutex<Guests>,
    left: Condvar,
}

#[derive(Default)]
struct Guests {
    next: u64,
    open: BTreeMap<u64, Guest>,
    closing: bool,
}

struct Guest {
    socket: Arc<TcpStream>,
    /// The guest has proved that it has the key, or no key is asked for.
    proved: bool,
    /// Since when the guest has asked nothing, if that is longer than a moment.
    idle: Option<Instant>,
}

impl Guest {
    /// Whether the guest makes way for another one: it is a stranger, or asks nothing.
    fn may_go(&self) -> bool {
        !self.proved || self.idle.is_some()
    }
}

impl Door {
    /// Listens. Port 0 takes a free one: see [`Door::address`].
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] for an address that is not loopback without a key; the kernel's error for the address.
    pub fn open(
        address: SocketAddr,
        (key, tls): (Option<Key>, Option<Arc<Tls>>),
        service: Arc<dyn Service>,
    ) -> Result<Door> {
        if key.is_none() && !address.ip().is_loopback() {
            let why = format!(
                "members listen on {address} only with a cluster key: name its file, or a loopback address"
            );
            return Err(Error::new(Kind::Usage, why));
        }
        let failed = |e| Error::io(e, format!("members' address {address}"));
        let listener = Arc::new(TcpListener::bind(address).map_err(failed)?);
        let address = listener.local_addr().map_err(failed)?;
        let (guests, left) = (Mutex::new(Rank::Guests, Guests::default()), Condvar::new());
        let shared = Arc::new(Shared { key, tls, service, guests, left });
        let (taken, from) = (shared.clone(), listener.clone());
        let thread = thread::Builder::new().name("peers-door".into());
        let accepts = thread.spawn(move || taken.accept(&from)).map_err(failed)?;
        Ok(Door { shared, listener, address, accepts: Some(accepts) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.guests().open.len()
    }

    /// The number of connections that would make way for another one.
    #[cfg(test)]
    pub(crate) fn may_go(&self) -> usize {
        self.shared.guests().open.values().filter(|guest| guest.may_go()).count()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let mut guests = self.shared.guests();
        guests.closing = true;
        for guest in guests.open.values() {
            // A guest that is gone has nothing to end.
            let _ = guest.socket.shutdown(Shutdown::Both);
        }
        drop(guests);
        // On Linux this wakes the accepting thread.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(accepts) = self.accepts.take() {
            // Its panic is in the log.
            let _ = accepts.join();
        }
        let all_left = self.shared.wait(CLOSING_TIME, |guests| guests.open.is_empty());
        if !all_left {
            tracing::warn!("answers to other members are still being made after {CLOSING_TIME:?}");
        }
    }
}

impl Shared {
    /// No panic leaves the table half changed, and places are given up while threads panic.
    #[track_caller]
    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock_anyway()
    }

    /// Waits until `so` holds, and returns whether it does.
    fn wait(&self, time: Duration, so: impl Fn(&Guests) -> bool) -> bool {
        let guests = self.guests();
        let (guests, _) = self.left.wait_timeout_while_anyway(guests, time, |guests| !so(guests));
        so(&guests)
    }

    fn accept(self: Arc<Shared>, listener: &TcpListener) {
        let mut warned = Instant::now().checked_sub(Duration::from_secs(60));
        loop {
            let accepted = listener.accept();
            if self.guests().closing {
                return;
            }
            let admitted = accepted.and_then(|(socket, _)| self.clone().admit(socket));
            if let Err(error) = admitted {
                if warned.is_none_or(|at| at.elapsed() > Duration::from_secs(60)) {
                    tracing::warn!("another member could not be let in: {error}");
                    warned = Some(Instant::now());
                }
                // No descriptor, memory or thread is left; they come back as connections end.
                sleep(Duration::from_millis(20));
            }
        }
    }

    fn admit(self: Arc<Shared>, socket: TcpStream) -> std::io::Result<()> {
        socket.set_nodelay(true)?;
        if !self.make_room() {
            guest::turn_away(&socket);
            return Ok(());
        }
        let socket = Arc::new(socket);
        let guest = Guest { socket: socket.clone(), proved: false, idle: None };
        let mut guests = self.guests();
        let id = guests.next;
        guests.next += 1;
        guests.open.insert(id, guest);
        drop(guests);
        let here = Leaves { shared: self.clone(), id };
        let thread = thread::Builder::new().name(format!("peers-{id}"));
        thread.spawn(move || guest::serve(&here.shared, here.id, socket))?;
        Ok(())
    }

    /// Whether there is room for one more, after the oldest stranger, or the guest that was idle for longest, has
    /// made way if need be.
    fn make_room(&self) -> bool {
        let mut guests = self.guests();
        if guests.open.len() < CONNECTIONS {
            return true;
        }
        // The oldest of the strangers comes first.
        let is_first = |guest: &&mut Guest| (guest.proved, guest.idle.filter(|_| guest.proved));
        let may_go = guests.open.values_mut().filter(|guest| guest.may_go());
        let Some(goes) = may_go.min_by_key(is_first) else { return false };
        goes.idle = None;
        let _ = goes.socket.shutdown(Shutdown::Both);
        drop(guests);
        self.wait(Duration::from_millis(100), |guests| guests.open.len() < CONNECTIONS)
    }

    pub fn has_proved(&self, id: u64) {
        if let Some(guest) = self.guests().open.get_mut(&id) {
            guest.proved = true;
        }
    }

    pub fn is_idle(&self, id: u64) {
        if let Some(guest) = self.guests().open.get_mut(&id) {
            guest.idle = Some(Instant::now());
        }
    }

    /// Ends a guest's idling. Returns whether it may ask: it may have made way just now.
    pub fn wakes(&self, id: u64) -> bool {
        let mut guests = self.guests();
        guests.open.get_mut(&id).is_some_and(|guest| guest.idle.take().is_some())
    }
}

/// A connection's place at the door, given up however its thread ends.
struct Leaves {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Leaves {
    fn drop(&mut self) {
        self.shared.guests().open.remove(&self.id);
        self.shared.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    struct Silent;

    impl Service for Silent {
        fn answer(&self, _: &Head, _: Question, _: &[u8], _: &mut Vec<u8>) -> Answer {
            Answer::Done
        }
    }

    #[test]
    fn a_door_closes_and_its_guests_leave_also_when_somebody_has_panicked_with_their_table() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let door = Door::open(address, (None, None), Arc::new(Silent)).expect("it is free");
        let _guest = TcpStream::connect(door.address()).expect("it listens");
        let is_in = door.shared.wait(CLOSING_TIME, |guests| guests.open.len() == 1);
        assert!(is_in || door.connections() == 1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guests = door.shared.guests();
            panic!("with the table");
        }));
        assert!(panicked.is_err());
        let shared = door.shared.clone();
        drop(door);
        assert!(shared.guests().open.is_empty());
    }
}
