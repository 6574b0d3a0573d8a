//! Registries and members that are older than the state seen before (C2, T2, T3).

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread::spawn;

use super::relay::Peer;
use super::*;
use crate::etcd::frame::{DATA, Frame};
use crate::etcd::messages::WATCH;
use crate::etcd::session::tests::{answer, framed, greeting, head, message};

const SEEN: u64 = 10;

/// The answers of a fake etcd: the revisions of its ranges one after the other (the last one is
/// repeated), and the answers of each watch.
struct Says {
    ranges: Vec<u64>,
    watch: Vec<Message>,
}

/// Starts a fake etcd and returns its port. It serves until the process ends.
fn fake(says: Says) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let says = Arc::new((says, AtomicUsize::new(0)));
    spawn(move || {
        for client in listener.incoming().flatten() {
            let says = Arc::clone(&says);
            spawn(move || serve(client, &says.0, &says.1));
        }
    });
    port
}

fn serve(client: TcpStream, says: &Says, ranges: &AtomicUsize) {
    let Some(mut client) = Peer::client(client) else { return };
    let mut sent = client.stream.write_all(&greeting());
    while sent.is_ok() {
        let Some(request) = client.call() else { return };
        let stream = last_stream(&request);
        let is_watch = request.windows(WATCH.len()).any(|part| part == WATCH.as_bytes());
        let bytes = if is_watch {
            let frame = |line: &Message| framed((DATA, 0), stream, &message(line.as_ref()));
            [head(stream), says.watch.iter().flat_map(frame).collect()].concat()
        } else {
            let at = ranges.fetch_add(1, SeqCst).min(says.ranges.len() - 1);
            answer(stream, header(1, says.ranges[at]).as_ref())
        };
        sent = client.stream.write_all(&bytes);
    }
}

/// The stream of the last frame.
pub fn last_stream(mut bytes: &[u8]) -> u32 {
    let mut stream = 0;
    while let Some(frame) = Frame::first(bytes).expect("it is HTTP/2") {
        (stream, bytes) = (frame.stream, &bytes[frame.len()..]);
    }
    stream
}

/// An answer with no more than its header.
pub fn header(cluster: u64, revision: u64) -> Message {
    Message::default().bytes(1, Message::default().number(1, cluster).number(3, revision))
}

fn created(cluster: u64, revision: u64) -> Message {
    header(cluster, revision).number(3, 1)
}

/// The event of one commit, which deleted a key.
fn event(revision: u64) -> Message {
    let kv = Message::default().bytes(1, "/test/a").number(3, revision);
    header(1, revision).bytes(11, Message::default().number(1, 1).bytes(2, kv))
}

/// A watch of a registry whose revision [`SEEN`] was seen before.
fn watch(says: Says) -> Result<Box<dyn Watch>> {
    let port = fake(says);
    let registry = at(&format!("etcd://127.0.0.1:{port}/test"), PATIENCE)?;
    assert_eq!(registry.barrier()?, Revision(SEEN));
    registry.watch("", Revision(SEEN))
}

fn refused(error: &Error, word: &str) {
    assert_eq!(error.kind(), Kind::WrongTier, "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

#[test]
fn a_member_that_lags_is_waited_for_and_what_it_sends_again_is_not_told_again() {
    let again = [created(1, 4), event(5), event(SEEN), event(SEEN + 1)];
    let mut watch = watch(Says { ranges: vec![SEEN], watch: again.into() }).expect("it begins");
    let told = suite::events(&mut *watch, 1);
    assert_eq!(told[0].revision(), Revision(SEEN + 1), "T2");
}

#[test]
fn an_older_registry_begins_no_watch_and_ends_one_that_is_quiet() {
    let older = || vec![SEEN, SEEN - 1];
    let begun = watch(Says { ranges: older(), watch: vec![created(1, SEEN - 1)] });
    refused(&begun.err().expect("it is older"), "older copy");
    let quiet = [created(1, SEEN), header(1, SEEN - 1)];
    let mut watch = watch(Says { ranges: older(), watch: quiet.into() }).expect("it begins");
    refused(&watch.next(PATIENCE).expect_err("it is older"), "older copy");
}

#[test]
fn another_registry_begins_no_watch() {
    let begun = watch(Says { ranges: vec![SEEN], watch: vec![created(2, SEEN)] });
    refused(&begun.err().expect("it is another"), "another registry");
}

/// The registry has data from some commits ago, and other clients go on with it.
#[test]
fn a_registry_that_was_restored_from_an_older_copy_is_refused_from_then_on() {
    let Some(mut server) = start(&[]) else { return };
    let b = bench(server.open(""));
    b.must(&Commit::new().put(b.key("a"), "1"));
    server.kill();
    server.copy("data", "older");
    server.run();
    until_up(&*b.registry);
    let made: Vec<_> = (0..5).map(|_| b.must(&Commit::new().put(b.key("a"), "2"))).collect();
    let mut watch = b.watch(made[4]);
    assert_eq!(watch.next(Duration::ZERO).expect("it goes on"), Seen::Quiet);
    server.kill();
    server.copy("older", "data");
    server.run();
    let others = bench(server.open(""));
    until_up(&*others.registry);
    assert!(others.revision() < made[4], "it was restored");

    let mut ended = None;
    eventually("the watch ends", || {
        ended = watch.next(SHORT).err();
        ended.is_some()
    });
    refused(&ended.expect("it ended"), "older copy");
    while others.revision() <= made[4] {
        others.must(&Commit::new().put(b.key("a"), "3"));
    }
    let late = "C2: also when it has risen above what was seen";
    refused(&watch.next(SHORT).expect_err(late), "older copy");
    refused(&b.registry.get("a").expect_err(late), "older copy");
    refused(&b.registry.commit(&Commit::new().put("a", "")).expect_err(late), "older copy");
    refused(&b.registry.lease(Duration::from_secs(5)).err().expect(late), "older copy");
}
