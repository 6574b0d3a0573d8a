use super::*;
use crate::etcd::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GO_AWAY, HEADERS, PING,
};
use crate::etcd::frame::{RESET, SETTINGS, WINDOW as MORE};

const MAX: usize = 1 << 20;

/// A message of gRPC.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0], (bytes.len() as u32).to_be_bytes().as_slice(), bytes].concat()
}

/// A frame.
pub fn framed(kind: (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::write(&mut bytes, kind, stream, payload);
    bytes
}

/// The settings that a server begins with.
pub fn greeting() -> Vec<u8> {
    framed((SETTINGS, 0), 0, &[])
}

/// The headers before the messages of an answer.
pub fn head(stream: u32) -> Vec<u8> {
    let mut block = vec![0x88]; // `:status: 200`
    hpack::literal(&mut block, "content-type", "application/grpc");
    framed((HEADERS, END_HEADERS), stream, &block)
}

/// The headers at the end of an answer.
pub fn trailers(stream: u32, code: &str, text: &str) -> Vec<u8> {
    let mut block = Vec::new();
    hpack::literal(&mut block, "grpc-status", code);
    hpack::literal(&mut block, "grpc-message", text);
    framed((HEADERS, END_HEADERS | END_STREAM), stream, &block)
}

/// A whole answer of one message.
pub fn answer(stream: u32, bytes: &[u8]) -> Vec<u8> {
    let data = framed((DATA, 0), stream, &message(bytes));
    [head(stream), data, trailers(stream, "0", "")].concat()
}

/// A session that has called, and whose output was sent.
fn calling() -> Session {
    let mut session = Session::new(hpack::PLAIN, "etcd:2379".into());
    session.call("/service/method", Some("t"), b"request");
    session.output.clear();
    session
}

fn told(session: &mut Session) -> Vec<u8> {
    match session.heard(MAX).expect("it is right") {
        Some(Heard::Message(message)) => message,
        other => panic!("no message, but {other:?}"),
    }
}

fn ended(session: &mut Session) -> End {
    match session.heard(MAX).expect("it is right") {
        Some(Heard::Ended(end)) => end,
        other => panic!("no end, but {other:?}"),
    }
}

fn end(code: i64, message: &str) -> End {
    End { http: 200, code: Some(code), message: message.into() }
}

/// The frames that were put out: kind, flags, stream and payload.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some(frame) = Frame::first(bytes).expect("it is right") {
        bytes = &bytes[frame.len()..];
        frames.push((frame.kind, frame.flags, frame.stream, frame.payload.to_vec()));
    }
    assert_eq!(bytes, b"", "whole frames");
    frames
}

/// Method: an answer with all that it may have (headers in three frames, padding, priority, frames
/// that mean nothing here, two messages over three frames) is cut at every place in turn.
#[test]
fn an_answer_may_come_in_any_pieces() {
    let headers = &head(1)[9..];
    let (first, rest) = headers.split_at(4);
    let (second, third) = rest.split_at(3);
    let padded = [&[2, 0, 0, 0, 0, 16], first, &[0, 0]].concat();
    let messages = [message(b"hello"), message(b"there")].concat();
    let bytes = [
        framed((SETTINGS, 0), 0, &[0, 3, 0, 0, 0, 100]),
        framed((SETTINGS, ACK), 0, &[]),
        framed((HEADERS, 0x28), 1, &padded),
        framed((CONTINUATION, 0), 1, second),
        framed((CONTINUATION, END_HEADERS), 1, third),
        framed((0x2a, 0xff), 1, b"of no known kind"),
        framed((DATA, 0), 1, &messages[..3]),
        framed((PING, 0), 0, b"12345678"),
        framed((DATA, 8), 1, &[&[3], &messages[3..12], &[0; 3]].concat()),
        framed((DATA, 0), 1, &messages[12..]),
        trailers(1, "0", ""),
    ]
    .concat();
    for at in 0..=bytes.len() {
        let mut session = calling();
        session.take(&bytes[..at]).expect("it is right");
        session.take(&bytes[at..]).expect("it is right");
        assert_eq!(
            (told(&mut session), told(&mut session)),
            (b"hello".to_vec(), b"there".to_vec())
        );
        assert_eq!(ended(&mut session), end(0, ""), "{at}");
        assert!(session.is_free());
        let ping = (PING, ACK, 0, b"12345678".to_vec());
        assert_eq!(frames(&session.output), [(SETTINGS, ACK, 0, vec![]), ping]);
    }
}

/// Method: the frames of the beginning and of two calls are read back.
#[test]
fn calls_follow_one_another() {
    let mut session = Session::new(hpack::SECURE, "etcd:2379".into());
    session.call("/service/method", Some("t"), b"one");
    let sent = session.output.split_off(PREFACE.len());
    assert_eq!(std::mem::take(&mut session.output), PREFACE);
    let sent = frames(&sent);
    let kinds: Vec<_> = sent.iter().map(|frame| (frame.0, frame.1, frame.2)).collect();
    let call = |stream| [(HEADERS, END_HEADERS, stream), (DATA, END_STREAM, stream)];
    assert_eq!(kinds[..2], [(SETTINGS, 0, 0), (MORE, 0, 0)]);
    assert_eq!(kinds[2..], call(1));
    assert_eq!(sent[3].3, message(b"one"));
    let headers = hpack::decode(&sent[2].3[3..]).expect("it is right");
    let header = |name: &str| headers.iter().find(|field| field.name == name.as_bytes());
    for (name, value) in [(":path", "/service/method"), (":authority", "etcd:2379"), ("token", "t")]
    {
        assert_eq!(header(name).expect(name).value, value.as_bytes());
    }
    assert!(!session.is_free(), "it waits for the answer");
    session.take(&[greeting(), answer(1, b"1")].concat()).expect("it is right");
    assert_eq!((told(&mut session), ended(&mut session)), (b"1".to_vec(), end(0, "")));
    session.output.clear();
    session.call("/service/method", None, b"two");
    let kinds: Vec<_> = frames(&session.output).iter().map(|f| (f.0, f.1, f.2)).collect();
    assert_eq!(kinds, call(3));
    session.take(&answer(3, b"2")).expect("it is right");
    assert_eq!(told(&mut session), b"2");
}

#[test]
fn a_refusal_tells_its_code_and_its_message() {
    let mut session = calling();
    session.take(&greeting()).expect("it is right");
    let mut block = vec![0x88];
    hpack::literal(&mut block, "grpc-status", "9");
    hpack::literal(&mut block, "grpc-message", "100%25 %e2%82%ac, 5% and %zz");
    session.take(&framed((HEADERS, END_HEADERS | END_STREAM), 1, &block)).expect("it is right");
    assert_eq!(ended(&mut session), end(9, "100% \u{20ac}, 5% and %zz"));
    session.call("/service/method", None, b"");
    session.take(&framed((HEADERS, END_HEADERS | END_STREAM), 3, &[0x8d])).expect("it is right");
    assert_eq!(ended(&mut session), End { http: 404, code: None, message: String::new() });
}

/// Method: a request of 1.5 MiB, of which the server grants a part at a time, for the stream and for
/// the connection.
#[test]
fn a_request_goes_no_faster_than_the_server_takes_it() {
    let request: Vec<u8> = (0..3 << 19).map(|at: u32| at as u8).collect();
    let mut session = Session::new(hpack::PLAIN, "etcd".into());
    session.call("/service/method", None, &request);
    session.output.drain(..PREFACE.len());
    let (mut came, mut granted) = (Vec::new(), WINDOW_AT_FIRST as usize);
    session.take(&greeting()).expect("it is right");
    loop {
        let sent = frames(&std::mem::take(&mut session.output));
        let data: Vec<_> = sent.into_iter().filter(|frame| frame.0 == DATA).collect();
        assert!(data.iter().all(|frame| frame.3.len() <= PAYLOAD_AT_FIRST));
        let last = data.last().is_some_and(|frame| frame.1 == END_STREAM);
        came.extend(data.into_iter().flat_map(|frame| frame.3));
        assert!(came.len() == granted || last, "{} of {granted}", came.len());
        if last {
            break;
        }
        let more = 100_000_u32;
        session.take(&framed((MORE, 0), 1, &more.to_be_bytes())).expect("it is right");
        assert!(session.output.is_empty(), "the connection has no room");
        session.take(&framed((MORE, 0), 0, &more.to_be_bytes())).expect("it is right");
        granted += more as usize;
    }
    assert_eq!(came, message(&request));
}

/// The settings give a stream more room, or less than none, and larger frames.
#[test]
fn settings_hold_for_the_request_under_way() {
    let mut session = Session::new(hpack::PLAIN, "etcd".into());
    session.call("/service/method", None, &[7; 100_000]);
    session.output.clear();
    session.take(&framed((SETTINGS, 0), 0, &[0, 4, 0, 0, 0, 10])).expect("it is right");
    session.take(&framed((MORE, 0), 0, &200_000_u32.to_be_bytes())).expect("it is right");
    session.take(&framed((MORE, 0), 1, &65_525_u32.to_be_bytes())).expect("it is right");
    assert_eq!(frames(&session.output), [(SETTINGS, ACK, 0, vec![])], "the room is used up");
    session.output.clear();
    let more = [0, 5, 0, 1, 0, 0, 0, 4, 0, 1, 0, 0];
    session.take(&framed((SETTINGS, 0), 0, &more)).expect("it is right");
    let sent = frames(&session.output);
    let sizes: Vec<_> = sent.iter().filter(|f| f.0 == DATA).map(|f| (f.1, f.3.len())).collect();
    assert_eq!(sizes, [(END_STREAM, 100_005 - 65_535)]);
}

/// Method: 40 MiB in frames as a server sends them, which must grant what it takes.
#[test]
fn a_long_answer_is_granted_as_it_comes() {
    let mut session = calling();
    session.take(&[greeting(), head(1)].concat()).expect("it is right");
    let (mut left, mut came) = ([i64::from(WINDOW); 2], 0);
    let data = framed((DATA, 0), 1, &message(&[1; 16_000]));
    for _ in 0..(40 << 20) / 16_000 {
        session.take(&data).expect("it is right");
        came += told(&mut session).len();
        left = left.map(|left| left - 16_005);
        assert!(left.iter().all(|left| *left > 0), "the server may go on");
        for (kind, _, stream, payload) in frames(&std::mem::take(&mut session.output)) {
            if kind == MORE {
                left[stream as usize] += i64::from(frame::number(&payload).expect("a number"));
            }
        }
    }
    assert!(came > 39 << 20 && left.iter().all(|left| *left <= i64::from(WINDOW)));
}

#[test]
fn a_message_that_claims_too_much_is_told() {
    let mut session = calling();
    let claim = [&[0], (MAX as u32 + 1).to_be_bytes().as_slice()].concat();
    session.take(&[greeting(), framed((DATA, 0), 1, &claim)].concat()).expect("it is right");
    let error = session.heard(MAX).expect_err("it is too large");
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    assert!(error.to_string().contains("1048577"), "{error}");
}

/// A server that ends its connection says which call it has not seen; the others are answered.
#[test]
fn a_connection_that_the_server_ends_takes_no_other_call() {
    let go = |last: u32| framed((GO_AWAY, 0), 0, &[last.to_be_bytes(), [0; 4]].concat());
    let mut session = calling();
    session.take(&[greeting(), go(1), answer(1, b"a")].concat()).expect("it was seen");
    assert_eq!((told(&mut session), ended(&mut session)), (b"a".to_vec(), end(0, "")));
    assert!(!session.is_free());

    let mut session = calling();
    session.take(&[greeting(), answer(1, b"a")].concat()).expect("it is right");
    session.call("/service/method", None, b"");
    let error = session.take(&go(1)).expect_err("it was not seen");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
}

#[test]
fn a_call_that_the_server_resets_fails() {
    let mut session = calling();
    let reset = framed((RESET, 0), 1, &7_u32.to_be_bytes());
    session.take(&[greeting(), reset].concat()).expect("it is right");
    let error = session.heard(MAX).expect_err("it was reset");
    assert!(error.kind() == ErrorKind::ConnectionAborted && error.to_string().contains('7'));
    assert!(!session.is_free());
}

/// An answer that came before the whole request leaves the rest unsent.
#[test]
fn an_early_answer_ends_the_request() {
    let mut session = Session::new(hpack::PLAIN, "etcd".into());
    session.call("/service/method", None, &[7; 1 << 20]);
    session.output.clear();
    session.take(&[greeting(), trailers(1, "8", "too large")].concat()).expect("it is right");
    assert!(!session.is_free());
    let more = framed((MORE, 0), 0, &1_000_000_u32.to_be_bytes());
    session.take(&more).expect("it is right");
    session.take(&framed((MORE, 0), 1, &1_000_000_u32.to_be_bytes())).expect("it is right");
    assert!(frames(&session.output).iter().all(|frame| frame.0 != DATA));
}

/// Method: what other services begin with; frames that no server sends; headers without an end.
#[test]
fn what_is_no_etcd_is_told() {
    let greeted = |frames: &[Vec<u8>]| [&[greeting()], frames].concat().concat();
    let endless = vec![framed((CONTINUATION, 0), 1, &[0; 16 << 10]); 5];
    for bytes in [
        b"SSH-2.0-OpenSSH_9\r\n".to_vec(),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        b"220 mail.example.org ESMTP\r\n".to_vec(),
        vec![0x15, 3, 1, 0, 2, 2, 10], // An alert of TLS.
        framed((DATA, 0), 1, b""),
        greeted(&[framed((5, END_HEADERS), 1, &[0, 0, 0, 2])]),
        greeted(&[framed((HEADERS, END_HEADERS), 1, &[0xff])]),
        greeted(&[framed((HEADERS, 0), 1, &[]), greeting()]),
        greeted(&[framed((HEADERS, 8), 1, &[9, 1])]),
        greeted(&[framed((HEADERS, 0), 1, &[]), framed((CONTINUATION, END_HEADERS), 3, &[])]),
        greeted(&[vec![framed((HEADERS, 0), 1, &[])], endless].concat()),
    ] {
        let error = calling().take(&bytes).expect_err("that is no etcd");
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{bytes:?}");
    }
    let mut session = calling();
    let cut = framed((DATA, END_STREAM), 1, &message(b"cut")[..6]);
    session.take(&[greeting(), head(1), cut].concat()).expect("it may go on");
    assert!(session.heard(MAX).is_err());
}
