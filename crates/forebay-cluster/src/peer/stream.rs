//! The interface of a connection to its transport. TCP is one; TLS over TCP is another.

use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

pub trait Stream: Send {
    /// Appends up to `most` bytes; 0 at the end of the stream. `WouldBlock` when the time is over.
    fn read(&self, into: &mut Vec<u8>, most: usize) -> io::Result<usize>;

    /// Writes some of these bytes, in this order. `WouldBlock` when the time is over.
    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends the bytes that [`Stream::write`] has taken and not sent yet. `WouldBlock` when the time
    /// is over.
    fn flush(&self) -> io::Result<()>;

    /// The time that a read and a write may take, never zero.
    fn set_times(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()>;

    /// From now on the reader is woken once this many unread bytes are there, at least 1.
    fn wake_at(&self, bytes: usize) -> io::Result<()>;

    /// Whether nothing has come, not even the end of the stream. Never waits.
    fn is_quiet(&self) -> bool;

    /// Tells the other end that nothing more is sent.
    fn finish(&self);
}

impl Stream for Arc<TcpStream> {
    fn read(&self, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        into.reserve(most);
        let len = into.len();
        let room = &mut into.spare_capacity_mut()[..most];
        let ((got, _), _) = recv(self, room, RecvFlags::empty())?;
        let got = got.len();
        // SAFETY: `recv` has written `got` bytes right behind the first `len`.
        unsafe { into.set_len(len + got) };
        Ok(got)
    }

    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        (&mut &**self).write_vectored(from)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_times(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        if read.is_some() {
            self.set_read_timeout(read)?;
        }
        if write.is_some() {
            self.set_write_timeout(write)?;
        }
        Ok(())
    }

    fn wake_at(&self, bytes: usize) -> io::Result<()> {
        let (low, len) = (bytes as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the option is one integer, which outlives the call.
        let set = unsafe {
            let low = (&raw const low).cast();
            libc::setsockopt(self.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, low, len)
        };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn is_quiet(&self) -> bool {
        let mut byte = [0u8; 1];
        let found = recv(self, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(found, Err(Errno::AGAIN))
    }

    fn finish(&self) {
        // Fails if the other end is gone.
        let _ = self.shutdown(Shutdown::Write);
    }
}
