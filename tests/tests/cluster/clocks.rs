//! Nodes whose clocks have different times of day.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_tests::cluster::{Cluster, difference, read, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, proof, skip, text, within};

use crate::{append, random, write};

/// The time of a lease, and some more.
const LONGER_THAN_A_LEASE: Duration = Duration::from_secs(13);

/// The library of Debian's package `faketime`.
fn faketime() -> Option<PathBuf> {
    let libs = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let at = libs.map(|dir| dir.path().join("faketime/libfaketime.so.1"));
    at.into_iter().find(|lib| lib.exists())
}

/// The hour of a line of a daemon's log, counted from midnight of 1970.
fn logged(line: &str) -> Option<f64> {
    let number = |from: usize, to: usize| line.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    // Days since 1970, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day;
    let hours = (days - 719_469) * 24 + number(11, 13)?;
    Some(hours as f64 + number(14, 16)? as f64 / 60.0)
}

#[test]
fn nodes_whose_clocks_are_hours_apart_agree() {
    needs_forebay!();
    needs_tools!("etcd");
    let Some(faketime) = faketime() else { skip!("faketime is not installed") };
    let flags =
        ["--max-age", "1s", "--settle", "200ms", "--entry-ttl", "100ms", "--attr-ttl", "100ms"];
    let mut cluster = Cluster::laid(3);
    for (node, offset) in [(1, "+5h"), (2, "-30h")] {
        cluster.nodes[node].env = vec![
            ("LD_PRELOAD".into(), text(&faketime).into()),
            ("FAKETIME".into(), offset.into()),
            ("DONT_FAKE_MONOTONIC".into(), "1".into()),
            ("NO_FAKE_STAT".into(), "1".into()),
        ];
    }
    (0..3).for_each(|node| cluster.mount(node, &flags));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() / 3600.0;
    for (node, offset) in [(0, 0.0), (1, 5.0), (2, -30.0)] {
        let log = cluster.nodes[node].log();
        let told =
            log.lines().next().and_then(logged).unwrap_or_else(|| panic!("no time in {log}"));
        assert!((told - now - offset).abs() < 0.3, "n{}: {told} at {now}: {log}", node + 1);
    }
    let (began, mut rounds, mut log) = (Instant::now(), 0, String::new());
    write(&cluster.at(0, "log"), b"");
    while began.elapsed() < LONGER_THAN_A_LEASE {
        let (writer, reader) = (rounds % 3, (rounds + 1) % 3);
        let bytes = random(50_000 + rounds, rounds as u64);
        for name in [format!("new{rounds}"), format!("over{}", rounds % 5)] {
            write(&cluster.at(writer, &name), &bytes);
            let found = read(&cluster.at(reader, &name)).unwrap();
            assert_eq!(difference(&found, &bytes), None, "{name}: n{} wrote", writer + 1);
        }
        let line = format!("n{} {rounds}\n", writer + 1);
        append(&cluster.at(writer, "log"), line.as_bytes()).unwrap();
        log += &line;
        reads(&cluster.at(reader, "log"), log.as_bytes());
        rounds += 1;
        thread::sleep(Duration::from_millis(30));
    }
    for node in 0..3 {
        (1..=3).for_each(|n| assert!(cluster.is_alive(node, &format!("n{n}")), "n{n}"));
    }
    // All bytes are flushed, and claims are given back.
    within(PATIENCE, "nobody has claimed anything", || {
        (1..=3).all(|n| cluster.claims(0, &format!("n{n}")) == 0)
    });
    assert_eq!(cluster.stored("log").unwrap(), log.as_bytes());
    for node in 0..3 {
        assert_eq!(cluster.status(node)["conflicted_files"], 0, "n{}", node + 1);
        reads(&cluster.at(node, "log"), log.as_bytes());
    }
    proof!("{rounds} rounds with clocks that are 35 hours apart");
}
