//! Opening and closing a door, and what it refuses.

use std::time::Instant;

use forebay_base::Kind;

use super::*;

#[test]
fn nothing_listens_beyond_loopback_without_a_key() {
    let open = |key| {
        Door::open(
            "0.0.0.0:0".parse().unwrap(),
            (key, None),
            Arc::new(Echo::default()) as Arc<dyn Service>,
        )
    };
    let error = open(None).err().unwrap();
    assert_eq!(error.kind(), Kind::Usage);
    assert!(error.to_string().contains("cluster key"), "{error}");
    open(key()).unwrap();
}

#[test]
fn dropped_it_ends_its_connections_and_waits_for_answers() {
    let (door, echo, address) = door(None);
    let held: Vec<_> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let at = address.clone();
    let slow = thread::spawn(move || {
        ask(&Peers::new(None), &at, &Question::Recall { file: file(400) }).unwrap_err()
    });
    while echo.count.load(Ordering::SeqCst) == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    let began = Instant::now();
    drop(door);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(echo.asked.lock().unwrap().len(), 1, "the answer was made to its end");
    while Arc::strong_count(&echo) > 1 {
        assert!(began.elapsed() < Duration::from_secs(4), "a thread is left");
        thread::sleep(Duration::from_millis(1));
    }
    slow.join().unwrap();
    drop(held);
    TcpStream::connect(&address).unwrap_err();
}

#[test]
fn another_protocol_is_named() {
    let (_door, echo, address) = door(None);
    let mut head = head();
    let other = PROTOCOL + 1;
    head.protocol = other;
    let (peers, question) = (Peers::new(None), Question::Sync { handle: 1 });
    let asked = peers.ask(&address, &head, &question, b"", &mut Vec::new(), PATIENCE);
    let error = asked.unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    let said = format!("protocol {PROTOCOL} and whoever asks speaks {other}");
    assert!(error.to_string().contains(&said), "{error}");
    // The protocol is checked even if the question is unknown here.
    let text = format!(r#"{{"head":{{"protocol":{other}}},"question":{{"dance":{{}}}}}}"#);
    let text = post(&text, "");
    let said = say(address.parse().unwrap(), &text);
    assert!(said.contains(&format!("speaks {other}")), "{said}");
    assert_eq!(echo.count.load(Ordering::SeqCst), 0);
}

#[test]
fn a_service_that_panics_fails_one_question() {
    let (_door, _echo, address) = door(key());
    let peers = Peers::new(key());
    let error =
        ask(&peers, &address, &Question::Holds { file: file(666), dir: file(1) }).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("see its log"), "{error}");
    ask(&peers, &address, &Question::Sync { handle: 1 }).unwrap();
}

#[test]
fn curl_can_ask() {
    let (_door, echo, address) = door(None);
    let address: SocketAddr = address.parse().unwrap();
    // As `curl --data-binary` sends it: the whole body is JSON.
    let words = words(&Question::Read { handle: 1, offset: 0, len: 3 });
    let length = words.len();
    let text = format!(
        "POST /ask HTTP/1.1\r\nHost: x\r\nUser-Agent: curl/8\r\nAccept: */*\r\nContent-Length: {length}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\n{words}"
    );
    let said = say(address, text.as_bytes());
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
    assert!(said.contains("Content-Length: 10\r\nForebay-Words: 7\r\n"), "{said}");
    assert!(said.contains("\r\n\r\n\"bytes\""), "{said}");
    // curl asks first whether a long body may come.
    let waits = text.replace("Host: x", "Expect: 100-continue");
    let said = say(address, waits.as_bytes());
    assert!(said.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"), "{said}");
    assert_eq!(echo.count.load(Ordering::SeqCst), 2);
}

#[test]
fn what_is_too_long_is_refused_by_its_length() {
    let (_door, echo, address) = door(None);
    let peers = Peers::new(None);
    let address_of: SocketAddr = address.parse().unwrap();
    let question = Question::Write { handle: 1, number: 1, offset: 0, sync: false };
    let bytes = vec![0; (4 << 20) + 1];
    let asked = peers.ask(&address, &head(), &question, &bytes, &mut Vec::new(), PATIENCE);
    assert_eq!(asked.unwrap_err().kind(), Kind::Usage);
    let question = Question::Read { handle: 1, offset: 0, len: u32::MAX };
    let error = ask(&peers, &address, &question).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    for (text, status) in [
        ("POST /ask HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n".to_string(), 413),
        ("POST /ask HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n".into(), 400),
        ("POST /ask HTTP/1.1\r\nContent-Length: -1\r\n\r\n".into(), 400),
        ("POST /ask HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}".into(), 400),
        ("POST /ask HTTP/1.1\r\nContent-Length: 2\r\nForebay-Words: 3\r\n\r\n{}".into(), 400),
        ("POST /ask HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 411),
        (format!("POST /ask HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(9000)), 431),
        (format!("POST /ask HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(40)), 431),
        ("GET /ask HTTP/1.1\r\n\r\n".into(), 405),
        ("POST /other HTTP/1.1\r\n\r\n".into(), 404),
        ("POST /ask HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}".into(), 400),
    ] {
        let said = say(address_of, text.as_bytes());
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{text:.60}: {said}");
        assert!(said.contains("\"error\":"), "{said}");
    }
    assert_eq!(echo.count.load(Ordering::SeqCst), 0);
}

/// A question for more bytes than may pass is not begun either.
#[test]
fn nobody_is_asked_for_more_bytes_than_may_pass() {
    let (_door, echo, address) = door(None);
    let peers = Peers::new(None);
    let len = u32::MAX;
    let at = forebay_backing::Timestamp { sec: 1, nsec: 0 };
    let version = forebay_backing::Version { key: file(1), size: 1, mtime: at, ctime: at };
    let fetch = Question::Fetch { version, path: "f".into(), offset: 0, len };
    for question in [fetch, Question::Read { handle: 1, offset: 0, len }] {
        let error = ask(&peers, &address, &question).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{error}");
    }
    assert_eq!(echo.count.load(Ordering::SeqCst), 0);
}
