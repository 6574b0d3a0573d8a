//! Bare TCP between two hosts: the least cost of bytes and round trips there.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::net::Host;
use crate::guard::go_on;
use crate::load::{Block, SEQ_BLOCK};

/// The length of a member's question, without its bytes.
const QUESTION: usize = 64;

/// A connection to a server that sends, or takes, as many bytes as requested.
pub struct Tcp {
    stream: TcpStream,
    block: Block,
}

/// The direction of the bytes.
#[derive(Clone, Copy)]
enum Way {
    FromThere = 0,
    ToThere = 1,
}

impl Tcp {
    /// The server's thread ends with the connection.
    pub fn between(server: &Host, client: &Host) -> Result<Tcp> {
        let listener = server.listen()?;
        let stream = client.connect(listener.local_addr()?)?;
        let (answers, _) = listener.accept()?;
        answers.set_nodelay(true)?;
        std::thread::spawn(move || {
            // The thread ends with an error: the other side has closed the connection.
            let _ = serve(answers);
        });
        Ok(Tcp { stream, block: Block::new(SEQ_BLOCK) })
    }

    fn ask(&mut self, way: Way, len: u64) -> Result<()> {
        let mut question = [way as u8; QUESTION];
        question[..8].copy_from_slice(&len.to_le_bytes());
        Ok(self.stream.write_all(&question)?)
    }

    /// The time to receive this many bytes, as one stream.
    pub fn read(&mut self, len: u64) -> Result<Duration> {
        let start = Instant::now();
        self.ask(Way::FromThere, len)?;
        self.take(len)?;
        Ok(start.elapsed())
    }

    /// The time to send this many bytes, as one stream, and to get the confirmation.
    pub fn write(&mut self, len: u64) -> Result<Duration> {
        let start = Instant::now();
        self.ask(Way::ToThere, len)?;
        pass(&mut self.stream, &self.block, len)?;
        self.stream.read_exact(&mut [0])?;
        Ok(start.elapsed())
    }

    fn take(&mut self, len: u64) -> Result<()> {
        let mut left = len as usize;
        while left > 0 {
            let want = left.min(SEQ_BLOCK);
            match self.stream.read(&mut self.block.bytes_mut()[..want]) {
                Ok(0) => bail!("the server has gone"),
                Ok(n) => left -= n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Round trips a second: a question, and this many bytes back.
    pub fn ping_pong(&mut self, bytes: u64, time: Duration) -> Result<f64> {
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < time {
            go_on()?;
            self.ask(Way::FromThere, bytes)?;
            self.take(bytes)?;
            count += 1;
        }
        Ok(f64::from(count) / start.elapsed().as_secs_f64())
    }

    /// Round trips a second: this many bytes there, and one back.
    pub fn pong_ping(&mut self, bytes: u64, time: Duration) -> Result<f64> {
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < time {
            go_on()?;
            self.write(bytes)?;
            count += 1;
        }
        Ok(f64::from(count) / start.elapsed().as_secs_f64())
    }
}

fn pass(stream: &mut TcpStream, block: &Block, len: u64) -> Result<()> {
    let mut left = len as usize;
    while left > 0 {
        let now = left.min(SEQ_BLOCK);
        stream.write_all(&block.bytes()[..now])?;
        left -= now;
    }
    Ok(())
}

fn serve(stream: TcpStream) -> Result<()> {
    let mut connection = Tcp { stream, block: Block::new(SEQ_BLOCK) };
    let mut question = [0; QUESTION];
    loop {
        connection.stream.read_exact(&mut question)?;
        let len = u64::from_le_bytes(question[..8].try_into()?);
        if question[8] == Way::ToThere as u8 {
            connection.take(len)?;
            connection.stream.write_all(&[0])?;
        } else {
            pass(&mut connection.stream, &connection.block, len)?;
        }
    }
}
