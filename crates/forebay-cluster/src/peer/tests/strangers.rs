//! Garbage, halves, slowness and crowds.

use std::time::Instant;

use super::*;
use crate::peer::limits::{CONNECTIONS, KEEP_BUFFERS};
use crate::words::Refusal;

/// xorshift: the same numbers in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn garbage_does_nothing_and_the_door_still_answers() {
    let mut numbers = Numbers(0x5eed);
    let question = Question::Write { handle: 1, number: 1, offset: 4096, sync: false };
    for key in [None, key()] {
        let (_door, echo, address) = door(key.clone());
        let at: SocketAddr = address.parse().unwrap();
        for round in 0..1500 {
            let text = match round % 3 {
                0 => (0..numbers.next() % 600).map(|_| numbers.next() as u8).collect(),
                // A question whose head, JSON or lengths are damaged.
                _ => {
                    let mut text = post(&words(&question), "some bytes");
                    for _ in 0..=numbers.next() % 8 {
                        let place = numbers.next() as usize % text.len();
                        text[place] = numbers.next() as u8;
                    }
                    text
                }
            };
            let said = say(at, &text);
            assert!(said.is_empty() || said.starts_with("HTTP/1.1 "), "{said}");
        }
        let peers = Peers::new(key.clone());
        assert_eq!(ask(&peers, &address, &Question::Sync { handle: 1 }).unwrap(), Answer::Done);
        if key.is_some() {
            assert_eq!(echo.count.load(Ordering::SeqCst), 1);
        }
    }
}

#[test]
fn half_a_question_is_not_answered() {
    let (door, echo, address) = door(None);
    let whole = post(
        &words(&Question::Write { handle: 1, number: 1, offset: 0, sync: false }),
        "some bytes",
    );
    for len in 0..whole.len() {
        let said = say(address.parse().unwrap(), &whole[..len]);
        assert!(!said.contains("200 OK"), "{len}: {said}");
    }
    assert_eq!(echo.count.load(Ordering::SeqCst), 0);
    assert!(say(address.parse().unwrap(), &whole).contains("200 OK"));
    let began = Instant::now();
    while door.connections() > 0 {
        assert!(began.elapsed() < Duration::from_secs(3), "{} are left", door.connections());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn one_who_sends_drop_by_drop_is_sent_away_in_time() {
    let (_door, echo, address) = door(None);
    let mut slow = TcpStream::connect(&address).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let began = Instant::now();
    let mut said = String::new();
    for byte in b"POST /ask HTTP/1.1\r\nAnd: so on and so on and so on".iter().cycle() {
        if slow.write_all(&[*byte]).is_err() || slow.read_to_string(&mut said).is_ok() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(9), "still let in");
    }
    assert!(said.contains("408") && said.contains("in time"), "{said}");
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(echo.count.load(Ordering::SeqCst), 0);
}

#[test]
fn strangers_in_thousands_keep_no_member_out() {
    let (door, _echo, address) = door(key());
    // As many as this process may open at once, for both ends.
    let mut held = Vec::new();
    let mut most = 0;
    for _ in 0..2000 {
        held.push(TcpStream::connect(&address).unwrap());
        if held.len() > 300 {
            held.remove(0);
        }
        most = most.max(door.connections());
    }
    assert!(most <= CONNECTIONS, "{most}");
    let peers = Peers::new(key());
    let began = Instant::now();
    ask(&peers, &address, &Question::Sync { handle: 1 }).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn one_too_many_is_told_so() {
    let (door, _echo, address) = door(None);
    // Each guest has begun to ask: none is idle.
    let begun = || {
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.write_all(b"POST").unwrap();
        socket
    };
    let held: Vec<_> = (0..CONNECTIONS).map(|_| begun()).collect();
    let began = Instant::now();
    while door.connections() < held.len() || door.may_go() > 0 {
        assert!(began.elapsed() < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(5));
    }
    // As with a home that is busy: the question is repeated within the patience.
    let said = ask(&Peers::new(None), &address, &Question::Sync { handle: 1 }).unwrap();
    assert_eq!(said, Answer::Refused(Refusal::Busy));
    let told = say(address.parse().unwrap(), b"");
    assert!(told.contains("503") && told.contains("256 connections"), "{told}");
    drop(held);
}

/// Members keep connections for later questions: eight members may keep enough to fill a door.
#[test]
fn a_guest_at_a_full_door_takes_the_place_of_the_one_idle_for_longest() {
    let (door, _echo, address) = door(key());
    let write = Question::Write { handle: 1, number: 1, offset: 0, sync: false };
    let asks = |peers: &Peers| ask(peers, &address, &write).map(|_| ());
    let members: Vec<_> = (0..CONNECTIONS).map(|_| Peers::new(key())).collect();
    members.iter().for_each(|member| asks(member).expect("there is room"));
    assert_eq!(door.connections(), CONNECTIONS);
    thread::sleep(KEEP_BUFFERS + Duration::from_millis(500));
    asks(members.last().unwrap()).expect("its connection is there");
    for _ in 0..3 {
        asks(&Peers::new(key())).expect("the idle make way");
    }
    asks(&members[0]).expect("it asks on a new connection");
    assert!(door.connections() <= CONNECTIONS);
}
