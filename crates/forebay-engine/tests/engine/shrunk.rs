//! Files that others make shorter while they are open here.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Access, BackingStore};
use forebay_engine::{Admission, Admit};

use crate::media::CrashMedia;
use crate::start::{NEW, abandon, patient, start};
use crate::store::MemStore;

const PAGE: u64 = 4096;

/// The file is read without being kept, as by a rule or with a full tier.
// S-1
#[test]
fn what_is_gone_is_an_error_also_for_who_reads_around_the_tier() {
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
