//! TLS between members, if they have certificates (rustls): no other party reads or changes their messages. Each end
//! shows a certificate that the authority of all members has signed. The asked member's certificate names the IP
//! address at which it is asked.

use std::io::{self, BufRead, ErrorKind, IoSlice, Write};
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::Result;
use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_registry::pem::{certificates, private_key, roots, unusable};
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection,
};

use super::line::Trouble;
use super::stream::Stream;

/// How much is read from the socket at once, and how much is sealed ahead of it.
const AHEAD: usize = 256 << 10;

/// The certificates of a member, and the authority that it trusts.
#[derive(Debug)]
pub struct Tls {
    asks: Arc<ClientConfig>,
    answers: Arc<ServerConfig>,
}

impl Tls {
    /// Reads files in PEM: a certificate with its chain, its key, and the authority that has signed the certificates
    /// of all members.
    ///
    /// # Errors
    ///
    /// [`forebay_base::Kind::Usage`] for an unusable file, or a key that others may read, with the remedy.
    pub fn read(cert: &Path, key: &Path, ca: &Path) -> Result<Tls> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = Arc::new(roots(ca)?);
        let mine = || Ok::<_, forebay_base::Error>((certificates(cert)?, private_key(key)?));
        let asks = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| unusable(ca, e))?
            .with_root_certificates(authorities.clone());
        let (chain, private) = mine()?;
        let asks = asks.with_client_auth_cert(chain, private).map_err(|e| unusable(cert, e))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider.clone());
        let verifier = verifier.build().map_err(|e| unusable(ca, e))?;
        let (chain, private) = mine()?;
        let mut answers = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| unusable(ca, e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, private)
            .map_err(|e| unusable(cert, e))?;
        // Connections are kept and never resumed; unrequested bytes would look like the end of a quiet connection.
        answers.send_tls13_tickets = 0;
        Ok(Tls { asks: Arc::new(asks), answers: Arc::new(answers) })
    }

    /// A connection to a member, which is to be greeted first.
    pub fn ask(
        &self,
        socket: Arc<TcpStream>,
        there: IpAddr,
    ) -> std::result::Result<Sealed, Trouble> {
        let name = ServerName::IpAddress(there.into());
        let connection = ClientConnection::new(self.asks.clone(), name).map_err(broken)?;
        Ok(Sealed::new(socket, connection.into()))
    }

    /// A connection that another member has opened.
    pub fn answer(&self, socket: Arc<TcpStream>) -> std::result::Result<Sealed, Trouble> {
        let connection = ServerConnection::new(self.answers.clone()).map_err(broken)?;
        Ok(Sealed::new(socket, connection.into()))
    }
}

fn broken(why: rustls::Error) -> Trouble {
    Trouble::Broken(why.to_string())
}

/// A connection whose bytes are sealed.
pub struct Sealed {
    socket: Arc<TcpStream>,
    state: Mutex<State>,
}

struct State {
    connection: Connection,
    /// Bytes read from the socket and not yet opened; the rest begins at `at`.
    inbox: Vec<u8>,
    at: usize,
}

impl Sealed {
    fn new(socket: Arc<TcpStream>, mut connection: Connection) -> Sealed {
        connection.set_buffer_limit(Some(AHEAD));
        let state = State { connection, inbox: Vec::new(), at: 0 };
        let state = Mutex::new(Rank::Sealed, state);
        Sealed { socket, state }
    }

    #[track_caller]
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Has both ends show their certificates. The asker may hear only with the first answer that its own was not
    /// believed.
    pub fn greet(&self, deadline: Instant) -> std::result::Result<(), Trouble> {
        let mut state = self.state();
        while state.connection.is_handshaking() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Trouble::Late);
            }
            let left = left.max(Duration::from_millis(1));
            let timed = self.socket.set_times(Some(left), Some(left));
            let done = timed.and_then(|()| state.send_some(&self.socket)).and_then(|is_all| {
                let waits = is_all && state.connection.is_handshaking();
                if waits { state.receive(&self.socket) } else { Ok(1) }
            });
            match done {
                Ok(0) => return Err(Trouble::Broken(CLOSED.into())),
                Ok(_) => {}
                Err(error) if is_early(&error) => {}
                Err(error) if error.kind() == TURNED_AWAY => {
                    return Err(Trouble::Bad(503, error.to_string()));
                }
                Err(error) => return Err(Trouble::Broken(error.to_string())),
            }
        }
        drop(state);
        // The end of the greeting is not answered. Bytes that cannot be sent now go with the next message.
        match self.flush() {
            Err(error) if !is_early(&error) => Err(Trouble::Broken(error.to_string())),
            _ => Ok(()),
        }
    }
}

const CLOSED: &str = "the other end closed the connection instead of showing a certificate: is it without \
                      peer-cert, or not a member?";

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The start of a full door's refusal, which comes before any greeting.
const FULL: &[u8] = b"HTTP/1.1 503 ";
const TURNED_AWAY: ErrorKind = ErrorKind::ConnectionRefused;

impl State {
    /// Sends some of the sealed bytes that are not sent yet. Returns whether those were all.
    fn send_some(&mut self, socket: &TcpStream) -> io::Result<bool> {
        if self.connection.wants_write() {
            self.connection.write_tls(&mut &*socket)?;
        }
        Ok(!self.connection.wants_write())
    }

    /// Takes in bytes that have come, or waits for some; 0 at the end of the stream.
    fn receive(&mut self, socket: &Arc<TcpStream>) -> io::Result<usize> {
        if self.at == self.inbox.len() {
            self.inbox.clear();
            self.at = 0;
            socket.read(&mut self.inbox, AHEAD)?;
        }
        if self.connection.is_handshaking() && self.inbox.starts_with(FULL) {
            return Err(io::Error::new(TURNED_AWAY, "its door is full"));
        }
        let mut rest = &self.inbox[self.at..];
        let read = self.connection.read_tls(&mut rest)?;
        self.at = self.inbox.len() - rest.len();
        if let Err(why) = self.connection.process_new_packets() {
            // The other end may have to be told the reason.
            let _ = self.send_some(socket);
            return Err(io::Error::new(ErrorKind::InvalidData, told(&why)));
        }
        Ok(read)
    }

    /// Takes bytes that were opened and not read yet; `None`: none so far.
    fn opened(&mut self, into: &mut Vec<u8>, most: usize) -> io::Result<Option<usize>> {
        let mut reader = self.connection.reader();
        match reader.fill_buf() {
            Ok(bytes) => {
                let some = bytes.len().min(most);
                into.extend_from_slice(&bytes[..some]);
                reader.consume(some);
                Ok(Some(some))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            // Each message states its length.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }
}

/// The text of an error between two ends, with the remedy.
fn told(why: &rustls::Error) -> String {
    match why {
        rustls::Error::InvalidCertificate(_) => format!(
            "its certificate is not believed: {why}; it has to be signed by what this member's peer-ca names, \
             and to name the IP address of its peer-listen"
        ),
        rustls::Error::NoCertificatesPresented => {
            "it shows no certificate: give it peer-cert".into()
        }
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired,
        ) => format!(
            "it does not believe this member's certificate ({why}): is that signed by what its peer-ca names?"
        ),
        rustls::Error::InvalidMessage(_) => {
            format!(
                "it does not speak TLS ({why}): give all members of the store peer-cert, or none"
            )
        }
        why => why.to_string(),
    }
}

impl Stream for Sealed {
    fn read(&self, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        let mut state = self.state();
        loop {
            if let Some(read) = state.opened(into, most)? {
                return Ok(read);
            }
            let is_empty = state.at == state.inbox.len();
            match if is_empty { state.send_some(&self.socket) } else { Ok(true) } {
                // A peer that waits for the rest sends nothing.
                Ok(false) => return Err(ErrorKind::WouldBlock.into()),
                Err(error) if is_early(&error) => return Err(error),
                // Nothing can be sent to a peer that is gone, but it may have sent the reason.
                Ok(true) | Err(_) => {}
            }
            if state.receive(&self.socket)? == 0 {
                return Ok(0);
            }
        }
    }

    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.state();
        match state.send_some(&self.socket)? {
            true => state.connection.writer().write_vectored(from),
            false => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.state().send_some(&self.socket)? {
            true => Ok(()),
            false => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn set_times(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        self.socket.set_times(read, write)
    }

    /// How many of the socket's bytes these are is unknown: the reader is woken by the first one.
    fn wake_at(&self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        let mut state = self.state();
        let nothing = state.at == state.inbox.len();
        let opened = state.connection.reader().fill_buf().map(drop);
        nothing
            && matches!(opened, Err(error) if error.kind() == ErrorKind::WouldBlock)
            && self.socket.is_quiet()
    }

    fn finish(&self) {
        let mut state = self.state();
        state.connection.send_close_notify();
        // Fails if the other end is gone.
        let _ = state.send_some(&self.socket);
        self.socket.finish();
    }
}
