//! TLS on a socket. rustls' own stream makes any number of calls to the socket for one of its own, and so
//! keeps no deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::socket::{limit, moved};

pub struct Sealed {
    session: ClientConnection,
    socket: TcpStream,
}

impl Sealed {
    pub fn new(socket: TcpStream, name: String, config: &Arc<ClientConfig>) -> io::Result<Sealed> {
        let name =
            ServerName::try_from(name).map_err(|e| io::Error::new(ErrorKind::InvalidInput, e))?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Sealed { session, socket })
    }

    /// Writes all bytes, and takes those that the session has.
    ///
    /// # Errors
    ///
    /// `TimedOut`; the next call goes on where this one stopped.
    pub fn send(&mut self, bytes: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        loop {
            let count = self.session.writer().write(bytes)?;
            bytes.drain(..count);
            self.flush(deadline)?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    /// Reads the available bytes, and waits for some if there are none.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` at the end.
    pub fn read(&mut self, into: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            self.flush(deadline)?;
            match self.session.reader().read(into) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.take(deadline)?,
                other => return other,
            }
        }
    }

    /// Sends what the session has to send; the handshake comes first.
    fn flush(&mut self, deadline: Instant) -> io::Result<()> {
        loop {
            if self.session.wants_write() {
                limit(&self.socket, deadline)?;
                moved(self.session.write_tls(&mut self.socket), ErrorKind::WriteZero)?;
            } else if self.session.is_handshaking() {
                self.take(deadline)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Waits for bytes of the peer, once.
    fn take(&mut self, deadline: Instant) -> io::Result<()> {
        limit(&self.socket, deadline)?;
        moved(self.session.read_tls(&mut self.socket), ErrorKind::UnexpectedEof)?;
        self.session.process_new_packets().map(drop).map_err(|error| {
            // Tells the peer why, if it still listens.
            let _ = self.session.write_tls(&mut self.socket);
            io::Error::new(ErrorKind::InvalidData, error)
        })
    }
}
