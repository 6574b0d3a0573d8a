//! One connection with deadlines: reads messages' parts, writes whole messages.

use std::io::{self, ErrorKind, IoSlice};
use std::time::{Duration, Instant};

use super::stream::Stream;

/// How much is read at once where the bytes that follow may belong elsewhere.
const SIP: usize = 16 << 10;

/// How many bytes of a long part are waited for at once: each wake-up of the reader costs both ends.
const GULP: usize = 256 << 10;

/// Why a message did not pass.
#[derive(Debug)]
pub enum Trouble {
    /// The deadline was reached.
    Late,
    /// The other end closed the connection, or the connection broke.
    Broken(String),
    /// The message cannot be understood or is not allowed: an HTTP status, and the reason.
    Bad(u16, String),
}

pub struct Line {
    stream: Box<dyn Stream>,
    /// Bytes that were read; those not yet used begin at `at`.
    inbox: Vec<u8>,
    at: usize,
    /// The time limits that are set on the stream.
    read_time: Duration,
    write_time: Duration,
    /// How many bytes have to be there for the reader to be woken.
    wakes_at: usize,
}

impl Line {
    pub fn new(stream: Box<dyn Stream>) -> Line {
        let (read_time, write_time) = (Duration::ZERO, Duration::ZERO);
        Line { stream, inbox: Vec::new(), at: 0, read_time, write_time, wakes_at: 1 }
    }

    pub fn is_quiet(&self) -> bool {
        self.at == self.inbox.len() && self.stream.is_quiet()
    }

    /// The bytes that came and were not used.
    pub fn unused(&self) -> &[u8] {
        &self.inbox[self.at..]
    }

    pub fn used(&mut self, len: usize) {
        self.at += len;
        if self.at == self.inbox.len() {
            self.inbox.clear();
            self.at = 0;
        }
    }

    /// Gives the buffer back if it is empty.
    pub fn slim(&mut self) {
        if self.inbox.is_empty() {
            self.inbox = Vec::new();
        }
    }

    /// Waits for more [`Line::unused`] bytes.
    pub fn more(&mut self, deadline: Instant) -> Result<(), Trouble> {
        if self.at > 0 {
            self.inbox.drain(..self.at);
            self.at = 0;
        }
        let mut inbox = std::mem::take(&mut self.inbox);
        let read = self.read(&mut inbox, SIP, deadline);
        self.inbox = inbox;
        read
    }

    /// Waits until `len` bytes are unused.
    pub fn gather(&mut self, len: usize, deadline: Instant) -> Result<(), Trouble> {
        while self.unused().len() < len {
            self.more(deadline)?;
        }
        Ok(())
    }

    /// Puts the next `len` bytes into `out`, from its beginning.
    pub fn take(
        &mut self,
        len: usize,
        out: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<(), Trouble> {
        out.clear();
        let here = len.min(self.unused().len());
        out.reserve_exact(len);
        out.extend_from_slice(&self.unused()[..here]);
        self.used(here);
        while out.len() < len {
            let (most, wakes_at) = gulp(len - out.len());
            self.wake_at(wakes_at)?;
            self.read(out, most, deadline)?;
        }
        self.wake_at(1)
    }

    /// Throws away all that comes until the other end closes, for a while.
    pub fn drain(&mut self, time: Duration) {
        self.stream.finish();
        let deadline = Instant::now() + time;
        let mut waste = Vec::new();
        while self.read(&mut waste, SIP, deadline).is_ok() {
            waste.clear();
        }
    }

    fn wake_at(&mut self, bytes: usize) -> Result<(), Trouble> {
        if bytes != self.wakes_at {
            self.stream.wake_at(bytes).map_err(broken)?;
            self.wakes_at = bytes;
        }
        Ok(())
    }

    fn read(&mut self, into: &mut Vec<u8>, most: usize, deadline: Instant) -> Result<(), Trouble> {
        loop {
            let left = left(deadline)?;
            if let Some(time) = better(self.read_time, left) {
                self.stream.set_times(Some(time), None).map_err(broken)?;
                self.read_time = time;
            }
            match self.stream.read(into, most) {
                Ok(0) => return Err(Trouble::Broken("the other end closed the connection".into())),
                Ok(_) => return Ok(()),
                Err(error) if is_to_repeat(&error) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }

    /// Writes the parts, in one go as far as the socket allows.
    pub fn write<const N: usize>(
        &mut self,
        parts: [&[u8]; N],
        deadline: Instant,
    ) -> Result<(), Trouble> {
        let mut slices = parts.map(IoSlice::new);
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        let mut is_sent = false;
        while !rest.is_empty() || !is_sent {
            let left = left(deadline)?;
            if let Some(time) = better(self.write_time, left) {
                self.stream.set_times(None, Some(time)).map_err(broken)?;
                self.write_time = time;
            }
            let done = match rest.is_empty() {
                true => self.stream.flush().map(|()| is_sent = true),
                false => self.stream.write(rest).map(|n| IoSlice::advance_slices(&mut rest, n)),
            };
            match done {
                Ok(()) => {}
                Err(error) if is_to_repeat(&error) => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }
}

/// For `left` bytes still to come: how many are read next, and at how many the reader is woken. The second number
/// counts unread bytes: at least that many have to be left however far the read has come, or nothing would wake the
/// reader.
fn gulp(left: usize) -> (usize, usize) {
    match left / 2 {
        half if half < SIP => (left, 1),
        half => (half, half.min(GULP)),
    }
}

fn left(deadline: Instant) -> Result<Duration, Trouble> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Trouble::Late) } else { Ok(left) }
}

/// The time limit to set for the time left, if the present limit is too long or would wake the thread often. Limits
/// are powers of two: a series of questions sets none.
fn better(set: Duration, left: Duration) -> Option<Duration> {
    if !set.is_zero() && set <= left && left < set * 4 {
        return None;
    }
    let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    // Within the last millisecond: one more.
    Some(Duration::from_millis(1 << millis.max(1).ilog2().min(20)))
}

fn is_to_repeat(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn broken(error: io::Error) -> Trouble {
    Trouble::Broken(error.to_string())
}
