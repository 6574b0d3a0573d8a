//! Appends beside those who write at a place: the end is where it is when the bytes are written.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use forebay_engine::{Admission, Config};

use crate::losses::BOOT;
use crate::media::CrashMedia;
use crate::start::{NEW, patient, start};
use crate::store::MemStore;

const ROUNDS: usize = 4000;
const LEN: usize = 64;

/// One thread writes behind what it takes for the end, another appends. Where both meet the append comes behind what was
/// acknowledged, and never over it; a write may come over an append that it did not see.
#[test]
fn an_append_never_comes_over_what_was_written_behind_the_end() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let engine = start(Arc::new(media), store, BOOT, Config::default(), patient());
    let engine = engine.expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    let (appender, appended) = (engine.clone(), file.clone());
    let appends = thread::spawn(move || {
        let (mut last, mut after_others) = (0, 0);
        for _ in 0..ROUNDS {
            let end = appender.io.append_in(&Admission::default(), &appended, &[b'a'; LEN]);
            let end = end.expect("room");
            after_others += usize::from(end > last + LEN as u64);
            assert!(end >= last + LEN as u64, "it ends behind the one before");
            last = end;
        }
        after_others
    });
    let mut written = Vec::new();
    while !appends.is_finished() {
        let offset = engine.verbs.facts(&file).size;
        engine.io.write(&file, offset, &[b'w'; LEN]).expect("room");
        written.push(offset);
    }
    assert!(appends.join().expect("no append fails") > 0, "they met");
    let mut bytes = [0; LEN];
    for offset in written {
        engine.io.read(&file, offset, &mut bytes).expect("it is in the tier");
        assert_eq!(bytes, [b'w'; LEN], "what was acknowledged at {offset}");
    }
}
