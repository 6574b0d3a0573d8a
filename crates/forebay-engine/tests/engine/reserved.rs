//! Memory that is reserved ahead of a stream of writes: there while the stream goes on, gone after
//! it, and never seen in the bytes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_engine::media::{DirMedia, Media};
use forebay_engine::{Admission, Allocate, Config, Engine, File, Progress};

use crate::rng::Rng;
use crate::start::{NEW, abandon, patient, read_all, start};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;

/// A tier in memory; removed when dropped.
struct Memory(PathBuf);

impl Memory {
    fn new(name: &str) -> (Memory, Arc<DirMedia>) {
        let dir = format!("/dev/shm/forebay-{name}-{}", std::process::id());
        std::fs::create_dir_all(&dir).expect("/dev/shm");
        let media = Arc::new(DirMedia::open(Path::new(&dir)).expect("just made"));
        assert!(media.is_memory(), "/dev/shm is a tmpfs");
        (Memory(dir.into()), media)
    }

    /// Returns the room that the shadow files take.
    fn occupied(&self) -> u64 {
        let list = |dir: &Path| std::fs::read_dir(dir).expect("a directory").flatten();
        let dirs = list(&self.0.join("shadow"));
        let files = dirs.flat_map(|dir| list(&dir.path()));
        files.filter_map(|file| file.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Appends as a front-end does.
fn append(engine: &Arc<Engine>, file: &Arc<File>, bytes: &[u8]) {
    let from = engine.verbs.stat_open(file).size;
    engine.io.write(file, from, bytes).expect("room");
    engine.room.reserve_ahead(file, from + bytes.len() as u64, bytes.len() as u64);
}

#[test]
fn a_stream_finds_memory_and_leaves_none() {
    let (memory, media) = Memory::new("stream");
    let backing = Arc::new(MemStore::new());
    let engine = start(media, backing, "reserved", Config::default(), patient()).expect("new");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("a new name");
    let mut ahead = 0;
    for n in 1..=24 {
        append(&engine, &file, &vec![n as u8; MIB as usize]);
        let beyond = memory.occupied() - n * MIB;
        assert!(beyond <= MIB, "{beyond} bytes after {n} MiB");
        ahead += u64::from(beyond == MIB);
    }
    assert!(ahead >= 16, "{ahead} of 24 writes found memory");
    assert_eq!(engine.ops.status().used_bytes, 24 * MIB, "it is not the file's");
    drop(file);
    assert_eq!(memory.occupied(), 24 * MIB);
    let bytes = read_all(&engine, Path::new("f")).expect("it is there");
    assert!(bytes.chunks(MIB as usize).zip(1..).all(|(chunk, n)| chunk.iter().all(|b| *b == n)));
    abandon(engine);
}

/// Other changes of the file find zeros in the reserved memory.
// S-1
#[test]
fn no_sequence_of_changes_sees_what_is_reserved() {
    let (memory, media) = Memory::new("sequence");
    let backing = Arc::new(MemStore::new());
    let engine = start(media, backing, "reserved", Config::default(), patient()).expect("new");
    let path = Path::new("f");
    let (mut file, _) = engine.verbs.create(path, &NEW).expect("a new name");
    let (mut rng, mut want) = (Rng::new(7), Vec::<u8>::new());
    let mut ahead = 0;
    for n in 0..600_u64 {
        let size = want.len() as u64;
        match rng.below(10) {
            0 => {
                let len = (7 * MIB + rng.below(8 * MIB)).min(size + 2 * MIB);
                engine.io.set_len(&file, len).expect("room");
                want.resize(len as usize, 0);
            }
            1 => {
                let (at, len) = (rng.below(size + 1), rng.below(2 * MIB));
                engine
                    .io
                    .allocate_in(&Admission::default(), &file, Allocate::Zero, at, len.max(1))
                    .expect("room");
                let end = (at + len.max(1)).min(size) as usize;
                want[at as usize..end].fill(0);
            }
            2 => {
                drop(file);
                file = engine.io.open(path, None).expect("it is there");
            }
            3 => drop(engine.drain.flush(&[], &Progress::default())),
            4 => drop(engine.ops.evict(&[], &Progress::default())),
            _ if size > 20 * MIB => {
                engine.io.set_len(&file, 9 * MIB).expect("room");
                want.truncate(9 * MIB as usize);
            }
            _ => {
                let bytes = vec![n as u8 | 1; rng.below(MIB) as usize + 1];
                let before = memory.occupied();
                append(&engine, &file, &bytes);
                let more = memory.occupied().saturating_sub(before);
                ahead += u64::from(more > bytes.len() as u64 + 8192);
                want.extend(bytes);
            }
        }
        assert_eq!(engine.verbs.stat_open(&file).size, want.len() as u64);
        if n % 20 == 0 {
            let mut found = vec![0; want.len()];
            assert_eq!(engine.io.read(&file, 0, &mut found).expect("it is there"), want.len());
            assert!(found == want, "after {n} changes");
        }
    }
    assert!(ahead > 20, "memory was found {ahead} times");
    drop(file);
    assert!(read_all(&engine, path).expect("it is there") == want);
    abandon(engine);
}
