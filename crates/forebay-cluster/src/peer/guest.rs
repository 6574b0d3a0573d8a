//! One connection at the door: reads a question, has it answered, writes the answer, and again.

use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::door::Shared;
use super::hello::{
    ASK, HELLO, Hello, KEYS_DIFFER, PROVE, Prove, Refused, Welcome, other_protocol,
};
use super::key::{from_hex, hex, random};
use super::limits::{
    ANSWER_TIME, BODY_TIME, BYTES_MAX, CONNECTIONS, HEAD_TIME, IDLE_TIME, KEEP_BUFFERS,
    LINGER_TIME, PROOF_TIME, STRANGER_WORDS,
};
use super::line::{Line, Trouble};
use super::message::{Front, Lengths, bad, put_answer, read_question};
use super::seal::{Nonces, Session, Side};
use super::stream::Stream;
use super::tls::{Sealed, Tls};
use crate::keys::PROTOCOL;
use crate::words::{Answer, Head, Question};

#[derive(Deserialize)]
struct Asked {
    head: Head,
    question: Question,
}

/// The part of a question that every protocol has.
#[derive(Deserialize)]
struct AskedBy {
    head: SpeaksOnly,
}

#[derive(Deserialize)]
struct SpeaksOnly {
    protocol: u32,
}

struct Guest<'d> {
    shared: &'d Shared,
    id: u64,
    line: Line,
    state: State,
    /// The buffers are reused from question to question.
    bytes: Vec<u8>,
    out: Vec<u8>,
    head: Vec<u8>,
    words: Vec<u8>,
}

enum State {
    /// No key is asked for.
    Open,
    /// The key has to be proved until this time.
    Stranger(Instant),
    Greeted(Instant, Nonces),
    Proved(Box<Session>),
}

/// Serves a connection until it ends.
pub fn serve(shared: &Shared, id: u64, socket: Arc<TcpStream>) {
    let proves_until = Instant::now() + PROOF_TIME;
    let stream: Box<dyn Stream> = match &shared.tls {
        None => Box::new(socket),
        Some(tls) => match greeted(tls, &socket, proves_until) {
            Ok(sealed) => Box::new(sealed),
            Err(trouble) => {
                let from = socket.peer_addr().ok();
                return tracing::info!(
                    ?from,
                    ?trouble,
                    "somebody who asks as a member was turned away"
                );
            }
        },
    };
    let state = match shared.key {
        None => {
            shared.has_proved(id);
            State::Open
        }
        Some(_) => State::Stranger(proves_until),
    };
    let line = Line::new(stream);
    let [bytes, out, head, words] = [const { Vec::new() }; 4];
    let mut guest = Guest { shared, id, line, state, bytes, out, head, words };
    loop {
        match guest.turn() {
            Ok(true) => {}
            Ok(false) => return guest.line.drain(LINGER_TIME),
            Err(Trouble::Broken(_)) => return,
            Err(Trouble::Late) => return guest.refuse(408, "the question did not come in time"),
            Err(Trouble::Bad(status, why)) => return guest.refuse(status, &why),
        }
    }
}

fn greeted(tls: &Tls, socket: &Arc<TcpStream>, deadline: Instant) -> Result<Sealed, Trouble> {
    let sealed = tls.answer(socket.clone())?;
    sealed.greet(deadline).map(|()| sealed)
}

/// Refuses a connection when the door is full. Never waits: the few bytes fit into a new
/// connection.
pub fn turn_away(socket: &TcpStream) {
    let why = format!("{CONNECTIONS} connections are open already: try again later");
    let words =
        serde_json::to_vec(&Refused { status: 503, error: why }).expect("a text becomes JSON");
    let mut head = Vec::new();
    put_answer(&mut head, 503, true, Lengths { words: words.len(), bytes: 0, seal: None });
    head.extend_from_slice(&words);
    // A guest that is gone already needs no answer.
    let _ = rustix::net::send(socket, &head, rustix::net::SendFlags::DONTWAIT);
}

impl Guest<'_> {
    /// Handles one question; returns whether another may come.
    fn turn(&mut self) -> Result<bool, Trouble> {
        if !self.await_question()? {
            return Ok(false);
        }
        let within = |time: Duration| match &self.state {
            State::Stranger(end) | State::Greeted(end, _) => (*end).min(Instant::now() + time),
            State::Open | State::Proved(_) => Instant::now() + time,
        };
        let (head_end, body_end) = (within(HEAD_TIME), within(BODY_TIME));
        let front = read_question(&mut self.line, head_end)?;
        if front.method != "POST" {
            let why = format!("{} is not answered here: POST {ASK}", front.method);
            return Err(Trouble::Bad(405, why));
        }
        let is_known = matches!(self.state, State::Open | State::Proved(_));
        if !is_known && (front.words > STRANGER_WORDS || front.bytes > 0) {
            return Err(Trouble::Bad(401, no_key()));
        }
        if front.waits {
            self.line.write([b"HTTP/1.1 100 Continue\r\n\r\n"], body_end)?;
        }
        self.line.gather(front.words, body_end)?;
        match front.path.as_str() {
            ASK => self.ask(&front, body_end)?,
            HELLO => self.hello(&front)?,
            PROVE => self.prove(&front)?,
            path => {
                let why = format!("nothing is at {path:?}: POST {ASK}");
                return Err(Trouble::Bad(404, why));
            }
        }
        Ok(!front.closes)
    }

    /// Waits for the first byte of a question; returns whether it came.
    fn await_question(&mut self) -> Result<bool, Trouble> {
        if !self.line.unused().is_empty() {
            return Ok(true);
        }
        let now = Instant::now();
        let end = match &self.state {
            State::Stranger(end) | State::Greeted(end, _) => *end,
            State::Open | State::Proved(_) => now + IDLE_TIME,
        };
        match self.line.more(end.min(now + KEEP_BUFFERS)) {
            Err(Trouble::Late) => {}
            done => return done.map(|()| true),
        }
        for buffer in [&mut self.bytes, &mut self.out, &mut self.head, &mut self.words] {
            *buffer = Vec::new();
        }
        self.line.slim();
        self.shared.is_idle(self.id);
        match self.line.more(end) {
            Err(Trouble::Late) => Ok(false),
            // The question that came is not carried out: the asker could not be told.
            Ok(()) if !self.shared.wakes(self.id) => {
                Err(Trouble::Broken("another has its place".into()))
            }
            done => done.map(|()| true),
        }
    }

    fn ask(&mut self, front: &Front, deadline: Instant) -> Result<(), Trouble> {
        let words = &self.line.unused()[..front.words];
        match &mut self.state {
            State::Open => {}
            State::Stranger(_) | State::Greeted(..) => return Err(Trouble::Bad(401, no_key())),
            State::Proved(session) => {
                let seal = front.seal.as_deref().unwrap_or_default();
                if !session.check(seal, words, front.bytes) {
                    let why = "the seal is not this message's: it was changed, or sent before";
                    return Err(Trouble::Bad(403, why.into()));
                }
            }
        }
        let Asked { head, question } = read_asked(words)?;
        self.line.used(front.words);
        self.line.take(front.bytes, &mut self.bytes, deadline)?;
        self.out.clear();
        let (service, bytes, out) = (&self.shared.service, &self.bytes, &mut self.out);
        let answer = || service.answer(&head, question, bytes, out);
        // The panic is in the log.
        let answer = catch_unwind(AssertUnwindSafe(answer))
            .map_err(|_| Trouble::Bad(500, "the member failed; see its log".into()))?;
        if self.out.len() > BYTES_MAX {
            let why = format!("an answer has {} bytes; {BYTES_MAX} pass", self.out.len());
            return Err(Trouble::Bad(500, why));
        }
        self.reply(&answer, front.closes)
    }

    fn reply(&mut self, answer: &Answer, closes: bool) -> Result<(), Trouble> {
        self.words.clear();
        let written = serde_json::to_writer(&mut self.words, answer);
        written.map_err(|e| Trouble::Bad(500, format!("the answer cannot be written: {e}")))?;
        let seal = match &mut self.state {
            State::Proved(session) => Some(session.seal(&self.words, self.out.len())),
            _ => None,
        };
        let (words, bytes) = (self.words.len(), self.out.len());
        put_answer(&mut self.head, 200, closes, Lengths { words, bytes, seal: seal.as_deref() });
        let deadline = Instant::now() + ANSWER_TIME;
        match self.line.write([&self.head, &self.words, &self.out], deadline) {
            Err(Trouble::Late) => Err(Trouble::Broken("the answer was not taken".into())),
            done => done,
        }
    }

    fn hello(&mut self, front: &Front) -> Result<(), Trouble> {
        let (Some(key), State::Stranger(end)) = (&self.shared.key, &self.state) else {
            let why = match self.shared.key {
                None => "this member has no cluster key: give it the one that whoever asks has",
                Some(_) => "this connection has greeted already",
            };
            return Err(Trouble::Bad(403, why.into()));
        };
        let end = *end;
        let hello: Hello = self.read(front)?;
        if hello.protocol != PROTOCOL {
            return Err(bad(other_protocol(PROTOCOL, hello.protocol)));
        }
        let asker = from_hex(&hello.nonce).ok_or_else(|| bad("the nonce is not 32 bytes"))?;
        let door = random().map_err(|e| Trouble::Bad(500, e.to_string()))?;
        let nonces = Nonces { asker, door };
        let welcome = Welcome { nonce: hex(&door), proof: nonces.prove(key, Side::Door) };
        self.state = State::Greeted(end, nonces);
        self.send(
            200,
            &serde_json::to_vec(&welcome).expect("texts become JSON"),
            front.closes,
            None,
        )
    }

    fn prove(&mut self, front: &Front) -> Result<(), Trouble> {
        let prove: Prove = self.read(front)?;
        let (Some(key), State::Greeted(_, nonces)) = (&self.shared.key, &self.state) else {
            return Err(Trouble::Bad(403, format!("a proof follows {HELLO}")));
        };
        if !nonces.check(key, Side::Asker, &prove.proof) {
            tracing::warn!("another member was refused: {KEYS_DIFFER}");
            return Err(Trouble::Bad(403, KEYS_DIFFER.into()));
        }
        let session = nonces.session(key, Side::Door);
        self.state = State::Proved(Box::new(session));
        self.shared.has_proved(self.id);
        self.send(200, b"{}", front.closes, None)
    }

    fn read<T: DeserializeOwned>(&mut self, front: &Front) -> Result<T, Trouble> {
        let read = serde_json::from_slice(&self.line.unused()[..front.words]);
        self.line.used(front.words);
        if front.bytes > 0 {
            return Err(bad("no bytes belong to this message"));
        }
        read.map_err(|e| bad(format!("the JSON is not as expected: {e}")))
    }

    fn send(
        &mut self,
        status: u16,
        words: &[u8],
        closes: bool,
        seal: Option<&str>,
    ) -> Result<(), Trouble> {
        let lengths = Lengths { words: words.len(), bytes: 0, seal };
        put_answer(&mut self.head, status, closes, lengths);
        self.line.write([&self.head, words], Instant::now() + HEAD_TIME)
    }

    /// Sends the reason, and ends the connection.
    fn refuse(&mut self, status: u16, why: &str) {
        let refused = Refused { status, error: why.into() };
        let words = serde_json::to_vec(&refused).expect("a text becomes JSON");
        let seal = match &mut self.state {
            State::Proved(session) => Some(session.seal(&words, 0)),
            _ => None,
        };
        if self.send(status, &words, true, seal.as_deref()).is_ok() {
            self.line.drain(LINGER_TIME);
        }
    }
}

fn no_key() -> String {
    "this member answers only who has its cluster key: give whoever asks the key's file".into()
}

fn read_asked(words: &[u8]) -> Result<Asked, Trouble> {
    let asked = serde_json::from_slice::<Asked>(words);
    let by = match &asked {
        Ok(asked) => Some(asked.head.protocol),
        Err(_) => serde_json::from_slice::<AskedBy>(words).ok().map(|by| by.head.protocol),
    };
    if let Some(there) = by.filter(|there| *there != PROTOCOL) {
        return Err(bad(other_protocol(PROTOCOL, there)));
    }
    let asked = asked.map_err(|e| bad(format!("the question is not as expected: {e}")))?;
    match asked.question {
        Question::Read { len, .. } | Question::Fetch { len, .. } if len as usize > BYTES_MAX => {
            let why = format!("{len} bytes are asked for: at most {BYTES_MAX} at once");
            Err(Trouble::Bad(413, why))
        }
        _ => Ok(asked),
    }
}
