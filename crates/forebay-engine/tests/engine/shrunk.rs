//! Files that others make shorter while they are open here.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::wrap::Verb;
use forebay_backing::{Access, BackingStore};
use forebay_engine::{Admission, Admit, Progress};

use crate::hook::Hook;
use crate::losses::file_of;
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, patient, read_all, start};
use crate::store::MemStore;

const PAGE: u64 = 4096;

/// The file is read without being kept, as by a rule or with a full tier.
// S-1
#[test]
fn a_read_around_the_tier_of_lost_bytes_is_an_error() {
    let store = MemStore::new();
    let (theirs, _) = store.create(Path::new("f"), &NEW).expect("memory");
    theirs.write_at(&[1; 4 * PAGE as usize], 0).expect("memory");
    let (media, backing) = (Arc::new(CrashMedia::default()), Arc::new(store.clone()));
    let engine = start(media, backing, "shrunk", Default::default(), patient()).expect("new");
    let file = engine.io.open(Path::new("f"), None).expect("it exists");
    engine.io.write(&file, 3 * PAGE, &[2; PAGE as usize]).expect("room");
    let admission = Admission { read: Admit::Deny, ..Admission::default() };
    let mut buf = vec![9; 4 * PAGE as usize];
    assert_eq!(engine.io.read_in(&admission, &file, 0, &mut buf).expect("whole"), buf.len());
    assert_eq!((buf[0], buf[3 * PAGE as usize]), (1, 2), "what is dirty here wins");

    let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it exists");
    theirs.set_len(PAGE).expect("memory");
    let mut read = |at: u64, pages: u64| {
        let part = &mut buf[..(pages * PAGE) as usize];
        engine.io.read_in(&admission, &file, at * PAGE, part).map(|n| part[..n].to_vec())
    };
    assert_eq!(read(0, 1).expect("it is there"), [1; PAGE as usize]);
    assert_eq!(read(1, 1).expect_err("gone").errno(), libc::EIO);
    assert_eq!(read(0, 4).expect_err("a part is gone").errno(), libc::EIO);
    assert_eq!(read(3, 1).expect("dirty here"), [2; PAGE as usize]);
    drop(file);
    abandon(engine);
}

/// Bytes that were cut off here are no error.
#[test]
fn what_was_cut_off_here_is_the_end_of_the_file() {
    let store = MemStore::new();
    let (theirs, _) = store.create(Path::new("f"), &NEW).expect("memory");
    theirs.write_at(&[1; 4 * PAGE as usize], 0).expect("memory");
    let (media, backing) = (Arc::new(CrashMedia::default()), Arc::new(store));
    let engine = start(media, backing, "cut", Default::default(), patient()).expect("new");
    let file = engine.io.open(Path::new("f"), None).expect("it exists");
    engine.io.set_len(&file, PAGE + 5).expect("room");
    engine.io.set_len(&file, 3 * PAGE).expect("room");
    let admission = Admission { read: Admit::Deny, ..Admission::default() };
    let mut buf = vec![9; 4 * PAGE as usize];
    assert_eq!(
        engine.io.read_in(&admission, &file, 0, &mut buf).expect("whole"),
        3 * PAGE as usize
    );
    let (kept, grown) = buf.split_at(PAGE as usize + 5);
    assert!(kept.iter().all(|byte| *byte == 1));
    assert!(grown[..2 * PAGE as usize - 5].iter().all(|byte| *byte == 0));
    drop(file);
    abandon(engine);
}

/// Goal: no byte is clean that the backing file does not reach to. Method: a file that ends in a hole is
/// flushed, and its last byte is written, or others cut the copy and set its time back, during that.
// S-5 S-6
#[test]
fn what_a_flush_has_left_beyond_the_end_on_the_store_is_still_dirty() {
    for cut_at in [None, Some(2 * PAGE)] {
        let store = MemStore::new();
        let (hooked, hook) = Hook::on(store.clone());
        let media = Arc::new(CrashMedia::default());
        let engine = start(media, hooked, "short", Default::default(), patient()).expect("new");
        let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
        engine.io.write(&file, 0, &[1; 4 * PAGE as usize]).expect("room");
        engine.drain.flush_file(&file).expect("a store that works");
        for len in [2 * PAGE, 8 * PAGE] {
            engine.io.set_len(&file, len).expect("room");
        }
        let (writer, open) = (engine.clone(), file.clone());
        let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it exists");
        let mut came = false;
        // The punch comes after the look for data, and before the size is set.
        let at = if cut_at.is_some() { Verb::SyncFiles } else { Verb::Punch };
        hook.set(move |call| {
            if call.verb == at && !std::mem::replace(&mut came, true) {
                writer.io.write(&open, 8 * PAGE - 1, b"Z").expect("room");
                if let Some(len) = cut_at {
                    let time = theirs.stat().expect("memory").mtime;
                    theirs.set_len(len).expect("memory");
                    theirs.set_times(None, Some(time)).expect("memory");
                }
            }
        });
        engine.drain.flush_file(&file).expect("a store that works");
        let len = file_of(&store, "f").len() as u64;
        assert_eq!(len, cut_at.unwrap_or(8 * PAGE), "after the first flush");
        engine.ops.evict(&[], &Progress::default());
        let mut want = [vec![1; 2 * PAGE as usize], vec![0; 6 * PAGE as usize]].concat();
        want[8 * PAGE as usize - 1] = b'Z';
        assert!(read_all(&engine, Path::new("f")).expect("all is there") == want, "{cut_at:?}");
        engine.drain.flush_file(&file).expect("a store that works");
        assert!(file_of(&store, "f") == want, "{cut_at:?}");
        drop(file);
        abandon(engine);
    }
}
