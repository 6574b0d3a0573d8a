//! Tests of a door from outside, with clients that are slow, many, broken or gone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::json;

use super::limits::{BODY_TIME, CONTROL, HEAD_TIME, METRICS};
use super::{Reply, Request, serve, serve_tcp};

const PATIENCE: Duration = Duration::from_secs(30);

fn answer(request: Request) -> Reply {
    match request.path.as_str() {
        "/panic" => panic!("as asked"),
        "/large" => Reply::text("text/plain", "x".repeat(8 << 20)),
        path => Reply::new(200, json!({ "path": path, "body": request.body })),
    }
}

fn control(
    handler: impl Fn(Request) -> Reply + Send + Sync + 'static,
) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    serve(&path, handler).unwrap();
    (dir, path)
}

fn connect(path: &Path) -> UnixStream {
    let stream = forebay_client::connect(path, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn metrics() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    serve_tcp(free, answer).unwrap();
    free
}

/// Everything that a server sends before it closes.
fn asked(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Reads one answer with a Content-Length.
fn next_answer(stream: &mut impl Read) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    let head = String::from_utf8(text).unwrap();
    let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; len.map_or(0, |len| len.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    head + std::str::from_utf8(&body).unwrap()
}

#[test]
fn a_connection_serves_many_requests_and_several_at_once() {
    let (_dir, path) = control(answer);
    let mut stream = connect(&path);
    for i in 0..3 {
        write!(stream, "GET /{i} HTTP/1.1\r\nHost: forebay\r\n\r\n").unwrap();
        let answer = next_answer(&mut stream);
        assert!(answer.contains("keep-alive") && answer.contains(&format!("\"/{i}\"")), "{answer}");
    }
    stream
        .write_all(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nConnection: close\r\n\r\n")
        .unwrap();
    assert!(next_answer(&mut stream).contains("\"/a\""));
    let last = asked(stream, "");
    assert!(last.contains("\"/b\"") && last.contains("Connection: close"), "{last}");
}

#[test]
fn a_body_is_sent_after_leave_was_given() {
    let (_dir, path) = control(answer);
    let mut stream = connect(&path);
    stream
        .write_all(b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 7\r\n\r\n")
        .unwrap();
    let mut leave = [0; 25];
    stream.read_exact(&mut leave).unwrap();
    assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"\"there\"").unwrap();
    assert!(next_answer(&mut stream).contains("there"));
}

/// The client of a refused request can read the refusal, though it goes on sending.
#[test]
fn a_client_that_still_sends_reads_the_refusal() {
    let address = metrics();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n").unwrap();
    for _ in 0..16 {
        stream.write_all(&[b'x'; 65536]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[test]
fn an_answer_to_head_has_no_body() {
    let (_dir, path) = control(answer);
    let answer = asked(connect(&path), "HEAD /x HTTP/1.0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn a_panic_is_an_answer_and_those_who_answer_live_on() {
    let (_dir, path) = control(answer);
    for _ in 0..2 * CONTROL.threads {
        let answer = asked(connect(&path), "GET /panic HTTP/1.0\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    }
    assert!(asked(connect(&path), "GET /x HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
}

/// A byte now and then does not extend the time limit.
#[test]
fn a_head_that_does_not_come_is_dropped_in_time() {
    let (_dir, path) = control(answer);
    let mut stream = connect(&path);
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let began = Instant::now();
    let mut byte = [0];
    loop {
        let _ = stream.write_all(b"G");
        match stream.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => panic!("an answer to nothing"),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        assert!(began.elapsed() < HEAD_TIME + BODY_TIME, "still there");
    }
    assert!(began.elapsed() + Duration::from_millis(300) > HEAD_TIME, "{:?}", began.elapsed());
}

/// Silent connections, many times the door's limit, do not keep an honest client out.
#[test]
fn a_flood_of_silent_connections_makes_way() {
    let address = metrics();
    let began = Instant::now();
    let flood: Vec<TcpStream> =
        (0..5 * METRICS.connections).map(|_| TcpStream::connect(address).unwrap()).collect();
    let answer = asked(TcpStream::connect(address).unwrap(), "GET /x HTTP/1.0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(began.elapsed() < HEAD_TIME, "{:?}: they were waited for", began.elapsed());
    let mut oldest = &flood[0];
    oldest.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(oldest.read(&mut [0]).unwrap_or(0), 0, "the oldest made way");
}

/// A client that does not take its answer holds one connection, and delays no other client.
#[test]
fn answers_that_nobody_takes_do_not_hold_up_others() {
    let (_dir, path) = control(answer);
    let mut idle = Vec::new();
    for _ in 0..3 * CONTROL.threads {
        let mut stream = connect(&path);
        stream.write_all(b"GET /large HTTP/1.1\r\n\r\n").unwrap();
        idle.push(stream);
    }
    assert!(asked(connect(&path), "GET /x HTTP/1.0\r\n\r\n").contains("\"/x\""));
    let large = next_answer(&mut idle[0]);
    assert!(large.len() > 8 << 20, "and it is there when it is taken");
}

/// The callback of an answer is called, whether the client takes the answer or goes.
#[test]
fn what_comes_after_an_answer_comes_in_any_case() {
    let heard = Arc::new(AtomicUsize::new(0));
    let counter = heard.clone();
    let (_dir, path) = control(move |_| {
        let counter = counter.clone();
        let then = move || {
            counter.fetch_add(1, SeqCst);
        };
        let large = Reply::text("text/plain", "x".repeat(8 << 20));
        Reply { then: Some(Box::new(then)), ..large }
    });
    let stream = connect(&path);
    asked(stream, "GET / HTTP/1.0\r\n\r\n");
    let mut gone = connect(&path);
    gone.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut byte = [0];
    gone.read_exact(&mut byte).unwrap();
    assert!(heard.load(SeqCst) <= 1, "not before it is taken");
    drop(gone);
    let deadline = Instant::now() + PATIENCE;
    while heard.load(SeqCst) < 2 {
        assert!(Instant::now() < deadline, "{} of 2", heard.load(SeqCst));
        std::thread::yield_now();
    }
}
