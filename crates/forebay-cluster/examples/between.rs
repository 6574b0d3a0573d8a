//! `between [ROUNDS]`: how fast members ask each other on loopback, beside bare TCP in turn.
//!
//! Prints rates of each round, and the medians of the rounds' ratios to bare TCP: reads of 4 KiB and of 1 MiB, without
//! a cluster key and with one. Bare TCP sends 64 bytes and gets the same 4 KiB or 1 MiB back.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_cluster::keys::PROTOCOL;
use forebay_cluster::peer::{Door, Key, Peers, Service};
use forebay_cluster::words::{Answer, Head, Question};

const ROUND: Duration = Duration::from_millis(400);

struct Bytes(Vec<u8>);

impl Service for Bytes {
    fn answer(&self, _: &Head, question: Question, _: &[u8], out: &mut Vec<u8>) -> Answer {
        let Question::Read { len, .. } = question else { return Answer::Done };
        out.extend_from_slice(&self.0[..len as usize]);
        Answer::Bytes
    }
}

/// Answers 64 bytes with the number of bytes that the question begins with.
fn bare() -> std::io::Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let asks = TcpStream::connect(listener.local_addr()?)?;
    let (mut answers, _) = listener.accept()?;
    asks.set_nodelay(true)?;
    answers.set_nodelay(true)?;
    thread::spawn(move || {
        let (bytes, mut question) = (vec![7; 1 << 20], [0; 64]);
        while answers.read_exact(&mut question).is_ok() {
            let len = u32::from_le_bytes(question[..4].try_into().expect("four bytes"));
            if answers.write_all(&bytes[..len as usize]).is_err() {
                return;
            }
        }
    });
    Ok(asks)
}

/// How many times a second `act` runs.
fn rate(mut act: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let (began, mut times) = (Instant::now(), 0u32);
    while began.elapsed() < ROUND {
        act()?;
        times += 1;
    }
    Ok(f64::from(times) / began.elapsed().as_secs_f64())
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(9), |text| text.parse::<usize>())?;
    let key = Key::new(&[7; 32])?;
    let mut members = Vec::new();
    for (name, key) in [("no key", None), ("key", Some(key))] {
        let service = Arc::new(Bytes(vec![7; 1 << 20]));
        let door = Door::open("127.0.0.1:0".parse()?, (key.clone(), None), service)?;
        members.push((name, door.address().to_string(), Peers::new(key), door));
    }
    let head = Head {
        store: "scratch".into(),
        from: "node1".into(),
        from_epoch: 3,
        to_epoch: 4,
        protocol: PROTOCOL,
    };
    let mut tcp = bare()?;
    let mut out = Vec::new();
    for len in [4 << 10, 1 << 20] {
        let mut ratios = vec![Vec::new(); members.len()];
        for _ in 0..rounds {
            out.resize(len as usize, 0);
            let mut question = [0; 64];
            question[..4].copy_from_slice(&u32::to_le_bytes(len));
            let of_tcp = rate(|| {
                tcp.write_all(&question)?;
                Ok(tcp.read_exact(&mut out)?)
            })?;
            print!("{len:>8} bytes: bare TCP {of_tcp:>7.0}/s");
            for ((name, address, peers, _), ratios) in members.iter().zip(&mut ratios) {
                let question = Question::Read { handle: 1, offset: 4096, len };
                let asked = rate(|| {
                    let patience = Duration::from_secs(5);
                    peers.ask(address, &head, &question, b"", &mut out, patience)?;
                    Ok(())
                })?;
                print!(", {name} {asked:>7.0}/s");
                ratios.push(asked / of_tcp);
            }
            println!();
        }
        for ((name, ..), ratios) in members.iter().zip(&mut ratios) {
            ratios.sort_by(f64::total_cmp);
            let (least, most) = (ratios[0], ratios[rounds - 1]);
            println!("{name}: {:.2} ({least:.2} - {most:.2}) of bare TCP", ratios[rounds / 2]);
        }
    }
    Ok(())
}
