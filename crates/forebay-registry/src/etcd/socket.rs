//! Sockets of TCP, each call with a deadline.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

/// A vanished peer is noticed after 5 s + 3 * 2 s.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// The shortest wait of a socket call: a wait of zero would mean for ever.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Connects to the first address that answers. Each gets its part of the time that is left.
pub fn connect(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for (address, others) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let part = (left(deadline)? / others).max(WAIT_MIN);
        match TcpStream::connect_timeout(address, part) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                keep_alive(&socket)?;
                return Ok(socket);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    let (idle, interval, count) = KEEPALIVE;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    Ok(sockopt::set_tcp_keepcnt(socket, count)?)
}

/// Limits the next call, which reads or writes.
pub fn limit(socket: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = Some(left(deadline)?);
    socket.set_read_timeout(left)?;
    socket.set_write_timeout(left)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left.max(WAIT_MIN)) }
}

/// The count of a call that has moved bytes; `None` if it has to be made again. `none` is the
/// meaning of a count of 0.
pub fn moved(count: io::Result<usize>, none: ErrorKind) -> io::Result<Option<usize>> {
    match count {
        Ok(0) => Err(none.into()),
        Ok(count) => Ok(Some(count)),
        Err(e) if e.kind() == ErrorKind::Interrupted => Ok(None),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        // SAFETY: shortens the queue of a listener that is open; one more connection fills it.
        assert_eq!(unsafe { libc::listen(silent.as_raw_fd(), 0) }, 0);
        let good = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let [silent, good] = [&silent, &good].map(|of| of.local_addr().expect("it is bound"));
        let _first = TcpStream::connect(silent).expect("the queue has room for one");
        let deadline = Instant::now() + Duration::from_secs(1);
        let socket = connect(&[silent, good], deadline).expect("the second one answers");
        assert_eq!(socket.peer_addr().expect("it is connected"), good);
    }
}
