//! The load on the store for a dataset that all nodes read.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;
use super::many::NODES;
use crate::load::{self, Caching, Finish, MIB};
use crate::report::{Finding, Report, Target};
use crate::run::{On, Run};

const SHARED: &[&str] = &["--preset", "hold", "--share-reads"];

const SMALL: u64 = 20_000;

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    let len = run.pick(256, 64) * MIB;
    let small = run.pick(500, 100);
    let size = len + small * SMALL;
    let (mut factors, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..run.few_rounds() {
        let cluster = Cluster::start_each(run, On::Tmpfs, &[SHARED; NODES])?;
        let at = cluster.store().to_path_buf();
        load::write_seq(&at.join("large"), len, Caching::Buffered, Finish::Close)?;
        for number in 0..small {
            fs::write(at.join(format!("small-{number}")), vec![number as u8; SMALL as usize])?;
        }
        let start = Instant::now();
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..NODES)
                .map(|node| {
                    let cluster = &cluster;
                    scope.spawn(move || read(cluster, node, len, small))
                })
                .collect();
            let read = readers.into_iter().map(|reader| reader.join().expect("no panic inside"));
            read.collect::<Vec<_>>().into_iter().collect::<Result<()>>()
        })?;
        rates.push(load::mb_per_sec(size * NODES as u64, start.elapsed()));
        let fetched = (0..NODES).map(|node| fetched(&cluster, node)).sum::<Result<u64>>()?;
        ensure!(fetched >= size, "{fetched} bytes left the store, {size} were read");
        for node in 0..NODES {
            let same = load::same_bytes(&at.join("large"), &cluster.at(node, "large"))?;
            ensure!(same, "node {} has read other bytes than the store has", node + 1);
        }
        factors.push(fetched as f64 / size as f64);
    }
    let state = format!("{NODES} nodes at once, {} MiB and {small} files of 20 kB", len / MIB);
    let factor = Finding::alone("nodes-share-reads/factor", &state, "times", "store", &factors);
    report.add(factor.target(Target::AtMost(1.05)))?;
    report.add(Finding::alone("nodes-share-reads/read", &state, "MB/s", "all nodes", &rates))
}

fn read(cluster: &Cluster, node: usize, len: u64, small: u64) -> Result<()> {
    load::read_seq(&cluster.at(node, "large"), len, Caching::Buffered)?;
    for number in 0..small {
        let at = cluster.at(node, &format!("small-{number}"));
        let found = fs::read(&at).with_context(|| at.display().to_string())?;
        ensure!(found == vec![number as u8; SMALL as usize], "{}: other bytes", at.display());
    }
    Ok(())
}

/// Bytes that a node has read from the store.
fn fetched(cluster: &Cluster, node: usize) -> Result<u64> {
    let stats = cluster.nodes[node].stats()?;
    stats["counters"]["fill_bytes"].as_u64().context("`forebay stats --json` has no fill_bytes")
}
