//! The addresses of a member's name. The system's lookup has no deadline, so a thread makes it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Instant;

use forebay_base::lock::{Condvar, Mutex, Rank};

type Lookup = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// A new lookup may take one part in this many of the time that is left if an earlier one has told addresses.
const ANEW: u32 = 4;

pub struct Name {
    name: String,
    port: u16,
    lookup: Lookup,
    known: Arc<Known>,
}

struct Known {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Default)]
struct State {
    /// As the last lookup that found some has told them.
    addresses: Vec<SocketAddr>,
    /// Whether a thread looks now: at most one does.
    looking: bool,
    /// Why the last lookup found none.
    why: String,
}

impl Name {
    pub fn new(name: &str, port: u16) -> Name {
        Name::with(name, port, |name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }

    fn with(name: &str, port: u16, lookup: Lookup) -> Name {
        let state = Mutex::new(Rank::Etcd, State::default());
        let known = Arc::new(Known { state, told: Condvar::new() });
        Name { name: name.into(), port, lookup, known }
    }

    /// The addresses; the earlier ones if the lookup fails, or is slow.
    pub fn addresses(&self, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.name.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let mut state = self.known.state.lock();
        if !state.looking {
            self.look()?;
            state.looking = true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let left = if state.addresses.is_empty() { left } else { left / ANEW };
        let (state, late) = self.known.told.wait_timeout_while(state, left, |s| s.looking);
        match state.addresses.is_empty() {
            false => Ok(state.addresses.clone()),
            true if late => Err(ErrorKind::TimedOut.into()),
            true => Err(io::Error::other(state.why.clone())),
        }
    }

    fn look(&self) -> io::Result<()> {
        let (name, port, lookup) = (self.name.clone(), self.port, self.lookup);
        let known = Arc::clone(&self.known);
        let look = move || known.note(lookup(&name, port));
        Builder::new().name("fb-lookup".into()).spawn(look).map(drop)
    }
}

impl Known {
    fn note(&self, found: io::Result<Vec<SocketAddr>>) {
        let mut state = self.state.lock();
        state.looking = false;
        match found {
            Ok(addresses) if !addresses.is_empty() => state.addresses = addresses,
            Ok(_) => state.why = "the name has no address".into(),
            Err(error) => state.why = error.to_string(),
        }
        drop(state);
        self.told.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    use forebay_base::lock::sleep;

    use super::*;

    /// Whether the next lookup is slow.
    static SLOW: AtomicBool = AtomicBool::new(true);
    const LONG: Duration = Duration::from_secs(1);

    fn lookup(_: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if SLOW.swap(false, SeqCst) {
            sleep(LONG);
        }
        Ok(vec![([127, 0, 0, 1], port).into()])
    }

    #[test]
    fn a_slow_lookup_ends_at_the_deadline_and_earlier_addresses_hold() {
        let name = Name::with("etcd.example", 7, lookup);
        let soon = || Instant::now() + LONG / 4;
        let error = name.addresses(soon()).expect_err("it is slow");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let found = name.addresses(Instant::now() + 2 * LONG).expect("it is there at last");
        SLOW.store(true, SeqCst);
        let began = Instant::now();
        assert_eq!(name.addresses(soon()).expect("it was found before"), found);
        assert!(!SLOW.load(SeqCst) && began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    }
}
