//! Bytes: an open that begins after a write has returned sees that write, on every node.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread;
use std::time::Duration;

use forebay_tests::cluster::{Cluster, HOLD, difference, read, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, proof, text, within};

use crate::{append, appender, random, write};

/// One second, the time to live of attributes, and the delay of a busy machine.
const ATTR_TTL: Duration = Duration::from_secs(4);

// S-25
#[test]
fn what_one_node_wrote_another_reads_before_any_of_it_is_on_the_store() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    let sizes = [1, 4096, (1 << 20) + 7, 8 << 20];
    for (seed, size) in sizes.into_iter().enumerate() {
        write(&cluster.at(0, format!("f{size}")), &random(size, seed as u64));
    }
    write(&cluster.at(0, "empty"), b"");
    let is_home = |name: &str, bytes: &[u8]| cluster.stored(name).is_ok_and(|found| found == bytes);
    for (seed, size) in sizes.into_iter().enumerate() {
        let (name, bytes) = (format!("f{size}"), random(size, seed as u64));
        let found = read(&cluster.at(1, &name)).unwrap();
        assert_eq!(difference(&found, &bytes), None, "{name}: {} bytes", found.len());
        assert!(!is_home(&name, &bytes), "{name} was on the store already");
    }
    assert_eq!(read(&cluster.at(1, "empty")).unwrap(), b"");
    assert!(cluster.dirty(0) >= 9 << 20, "it waits at its home");
    assert_eq!(cluster.dirty(1), 0);
    within(PATIENCE, "its home has claimed the files", || {
        cluster.claims(1, "n1") >= sizes.len() as u64
    });
    cluster.flush(0);
    for (seed, size) in sizes.into_iter().enumerate() {
        let (name, bytes) = (format!("f{size}"), random(size, seed as u64));
        assert!(is_home(&name, &bytes), "{name} has come home");
        assert_eq!(difference(&read(&cluster.at(1, &name)).unwrap(), &bytes), None, "{name}");
    }
    within(PATIENCE, "what is home is claimed by nobody", || cluster.claims(1, "n1") == 0);
    proof!("{} files were read from their home", sizes.len());
}

#[test]
fn a_file_that_another_node_overwrote_reads_anew() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    // The home keeps one file, and flushes the other after each round.
    for name in ["kept", "flushed"] {
        let mut want = random(300_000, 0);
        write(&cluster.at(0, name), &want);
        for round in 1..=12_u64 {
            let (writer, reader) = ((round % 2) as usize, (1 - round % 2) as usize);
            // The bytes in its page cache must not be those it reads afterwards.
            assert_eq!(difference(&read(&cluster.at(reader, name)).unwrap(), &want), None);
            let at = cluster.at(writer, name);
            match round % 3 {
                0 => {
                    want = random(300_000 - round as usize * 1000, round);
                    write(&at, &want);
                }
                kind => {
                    let part = random(5000, round);
                    let offset = round * 20_001 - kind;
                    let file = File::options().write(true).open(&at).unwrap();
                    file.write_all_at(&part, offset).unwrap();
                    want[offset as usize..offset as usize + 5000].copy_from_slice(&part);
                }
            }
            for node in [reader, writer] {
                let found = read(&cluster.at(node, name)).unwrap();
                let differs = difference(&found, &want);
                assert_eq!(differs, None, "{name}, round {round}, n{}: {}", node + 1, found.len());
            }
            if name == "flushed" {
                cluster.flush(0);
                cluster.flush(1);
                let found = cluster.stored(name).unwrap();
                assert_eq!(difference(&found, &want), None, "{name}, round {round}, the store");
            }
        }
    }
}

#[test]
fn files_made_on_one_node_appear_on_the_others_with_size_and_bytes() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    std::fs::create_dir(cluster.at(0, "d")).unwrap();
    for n in 0..100 {
        write(&cluster.at(n % 2, format!("d/f{n}")), &random(n * 137, n as u64));
    }
    for node in 0..3 {
        let mut listed = std::fs::read_dir(cluster.at(node, "d")).unwrap().count();
        assert_eq!(listed, 100, "n{}", node + 1);
        for n in 0..100 {
            let at = cluster.at(node, format!("d/f{n}"));
            // The kernel may have been told about the file before this node heard which node is its home.
            within(ATTR_TTL, &format!("f{n} has its size on n{}", node + 1), || {
                std::fs::metadata(&at).unwrap().len() == n as u64 * 137
            });
            let found = read(&at).unwrap();
            assert_eq!(
                difference(&found, &random(n * 137, n as u64)),
                None,
                "f{n} on n{}",
                node + 1
            );
            listed -= 1;
        }
        assert_eq!(listed, 0);
    }
    let home = (0..100).filter(|n| {
        cluster.stored(format!("d/f{n}")).is_ok_and(|found| found == random(n * 137, *n as u64))
    });
    assert!(home.count() < 10, "most were never on the store");
}

// S-25
#[test]
fn lines_that_two_nodes_append_to_one_log_are_whole_and_all_there() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    let line =
        |node: usize, n: usize| format!("n{node} {n} {}\n", "x".repeat((n * 7 + node) % 150));
    for (log, kept_open) in [("held", true), ("anew", false)] {
        let count = if kept_open { 1000 } else { 150 };
        write(&cluster.at(2, log), b"");
        thread::scope(|scope| {
            for node in 0..2 {
                let at = cluster.at(node, log);
                scope.spawn(move || {
                    let mut held = kept_open.then(|| appender(&at).unwrap());
                    for n in 0..count {
                        let line = line(node, n);
                        match &mut held {
                            Some(file) => file.write_all(line.as_bytes()).unwrap(),
                            None => append(&at, line.as_bytes()).unwrap(),
                        }
                    }
                });
            }
        });
        for node in 0..3 {
            let found = String::from_utf8(read(&cluster.at(node, log)).unwrap()).unwrap();
            let mut next = [0; 2];
            for (number, whole) in found.split_inclusive('\n').enumerate() {
                let from = usize::from(whole.starts_with("n1"));
                let want = line(from, next[from]);
                assert_eq!(whole, want, "{log} on n{}: line {number}", node + 1);
                next[from] += 1;
            }
            assert_eq!(next, [count; 2], "{log} on n{}", node + 1);
        }
        let both = cluster.stored(log).unwrap();
        assert!(both.len() < read(&cluster.at(0, log)).unwrap().len(), "{log} waits at its home");
    }
}

/// A writer and a reader that both have the file open, the writer first: the reader sees the writes as on one
/// machine.
#[test]
fn a_reader_that_opened_after_a_writer_sees_its_writes() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    let writer = File::create(cluster.at(0, "f")).unwrap();
    writer.write_all_at(b"begin", 0).unwrap();
    let mut reader = File::open(cluster.at(1, "f")).unwrap();
    let mut bytes = vec![];
    for round in 0..200_u64 {
        let text = format!("round {round:06}");
        writer.write_all_at(text.as_bytes(), round * 12).unwrap();
        reader.seek(SeekFrom::Start(round * 12)).unwrap();
        bytes.clear();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), text);
    }
    // The other way round: a writer on another node, beside the home's own.
    let other = File::options().write(true).open(cluster.at(1, "f")).unwrap();
    for round in 0..200_u64 {
        let text = format!("ROUND {round:06}");
        other.write_all_at(text.as_bytes(), round * 12).unwrap();
        let mut bytes = [0; 12];
        let at_home = File::open(cluster.at(0, "f")).unwrap();
        at_home.read_exact_at(&mut bytes, round * 12).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), text, "at its home");
    }
    other.sync_all().unwrap();
}

#[test]
fn a_file_that_grows_elsewhere_shows_its_size() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    let mut log = appender(&cluster.at(0, "log")).unwrap();
    let seen = cluster.at(1, "log");
    for step in 1..=20_u64 {
        log.write_all(&random(10_000, step)).unwrap();
        within(Duration::from_secs(5), "the size shows", || {
            std::fs::metadata(&seen).is_ok_and(|found| found.len() == step * 10_000)
        });
        let mut listed = std::fs::read_dir(cluster.at(1, "")).unwrap().flatten();
        let entry = listed.find(|entry| entry.file_name() == "log").unwrap();
        assert_eq!(entry.metadata().unwrap().len(), step * 10_000, "as ls -l shows it");
    }
    assert!(cluster.stored("log").unwrap().len() < 200_000, "not what the store says");
}

/// Claims come and go while files are flushed: no byte is lost on the way.
#[test]
fn files_that_go_home_and_are_written_elsewhere_keep_every_write() {
    needs_forebay!();
    needs_tools!("etcd");
    let eager =
        ["--max-age", "200ms", "--settle", "100ms", "--entry-ttl", "100ms", "--attr-ttl", "100ms"];
    let cluster = Cluster::start(3, &eager);
    let mut want = vec![0_u8; 64 << 10];
    write(&cluster.at(0, "f"), &want);
    let mut homes = std::collections::BTreeSet::new();
    for round in 0..60_u64 {
        let node = (round * 7 % 3) as usize;
        let part = random(1000, round);
        let offset = round * 997 % (60 << 10);
        let file = File::options().write(true).open(cluster.at(node, "f")).unwrap();
        file.write_all_at(&part, offset).unwrap();
        drop(file);
        want[offset as usize..offset as usize + 1000].copy_from_slice(&part);
        let reader = (node + 1 + round as usize % 2) % 3;
        let found = read(&cluster.at(reader, "f")).unwrap();
        assert_eq!(difference(&found, &want), None, "round {round}: n{} wrote", node + 1);
        if round % 10 == 9 {
            // Long enough for the claim to be given back now and then.
            within(PATIENCE, "it comes home", || {
                cluster.stored("f").is_ok_and(|found| found == want)
            });
            within(PATIENCE, "nobody has claimed it", || {
                (1..=3).all(|n| cluster.claims(0, &format!("n{n}")) == 0)
            });
            homes.insert(node);
        }
    }
    assert!(homes.len() > 1, "it had more homes than one: {homes:?}");
    for node in 0..3 {
        reads(&cluster.at(node, "f"), &want);
        assert_eq!(cluster.status(node)["conflicted_files"], 0);
    }
}

/// Bytes that were fetched ahead must not hide the writes of a program on the same node, nor those of a program that
/// had the file open first.
#[test]
fn a_reader_in_order_sees_its_nodes_writes_ahead_of_it() {
    needs_forebay!();
    needs_tools!("etcd");
    const STEP: usize = 64 << 10;
    const STEPS: usize = 100;
    let cluster = Cluster::start(2, HOLD);
    let mut want = random(STEP * STEPS, 1);
    write(&cluster.at(0, "f"), &want);
    for writer in [1, 0] {
        // Of the other node: it would be passed over if it came after the reader.
        let first = (writer == 0).then(|| File::options().write(true).open(cluster.at(0, "f")));
        let mut reader = File::open(cluster.at(1, "f")).unwrap();
        let mut found = vec![0; STEP];
        for step in 0..STEPS {
            if step % 10 == 5 {
                let at = (step + step % 3) * STEP;
                let new = random(STEP, (step + writer * STEPS) as u64);
                let file = match &first {
                    Some(file) => file.as_ref().unwrap().try_clone().unwrap(),
                    None => File::options().write(true).open(cluster.at(1, "f")).unwrap(),
                };
                file.write_all_at(&new, at as u64).unwrap();
                want[at..at + STEP].copy_from_slice(&new);
            }
            reader.read_exact(&mut found).unwrap();
            let differs = difference(&found, &want[step * STEP..(step + 1) * STEP]);
            assert_eq!(differs, None, "n{} writes, step {step}", writer + 1);
        }
        assert_eq!(reader.read(&mut found).unwrap(), 0);
    }
    assert_eq!(difference(&read(&cluster.at(0, "f")).unwrap(), &want), None);
}

fn counter(cluster: &Cluster, node: usize, name: &str) -> u64 {
    let mnt = text(&cluster.nodes[node].mnt);
    let all = cluster.forebay(node, &["stats", mnt, "--json"]).ok().json();
    all["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {all:#}"))
}

/// A write through an O_DSYNC or O_SYNC descriptor is durable when it is acknowledged, also if it goes to another
/// node, past the kernel's cache.
// S-3 S-25
#[test]
fn what_is_written_to_be_synced_is_synced_at_its_home() {
    needs_forebay!();
    needs_tools!("etcd");
    const WRITES: u64 = 20;
    let cluster = Cluster::start(2, HOLD);
    // The file is not open at home: a writer past the daemon would let others pass it, too.
    write(&cluster.at(0, "f"), b"begun");
    let ways = [
        (1, libc::O_DSYNC, "another node"),
        (1, libc::O_SYNC, "another node, O_SYNC"),
        (1, libc::O_DSYNC | libc::O_APPEND, "another node, appending"),
        (0, libc::O_DSYNC | libc::O_APPEND, "the home, appending"),
        (0, libc::O_DSYNC, "the home"),
        (1, 0, "another node, not synced"),
    ];
    for (node, flags, how) in ways {
        let mut file =
            File::options().write(true).custom_flags(flags).open(cluster.at(node, "f")).unwrap();
        let before = counter(&cluster, 0, "syncs");
        for _ in 0..WRITES {
            file.write_all(b"a line\n").unwrap();
        }
        let synced = counter(&cluster, 0, "syncs") - before;
        assert_eq!(synced, if flags == 0 { 0 } else { WRITES }, "{how}");
    }
}

/// With write-through a close returns when the bytes are on the store, on every node.
#[test]
fn a_close_elsewhere_returns_when_the_bytes_are_on_the_store() {
    needs_forebay!();
    needs_tools!("etcd");
    let through = [HOLD, &["--policy", "write-through"]].concat();
    let cluster = Cluster::start(2, &through);
    let home = File::create(cluster.at(0, "f")).unwrap();
    let file = File::options().write(true).open(cluster.at(1, "f")).unwrap();
    for round in 0..20 {
        let text = format!("through {round}");
        file.write_all_at(text.as_bytes(), 0).unwrap();
        close(file.try_clone().unwrap()).unwrap();
        assert_eq!(cluster.stored("f").unwrap(), text.as_bytes());
    }
    drop(file);
    drop(home);
}

fn close(file: File) -> std::io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: this program owns the descriptor, and gives it up here.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
