//! Four writers at once: a file each on four nodes, a file each on one node, one file of four nodes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::cluster::Pair;
use crate::guard::go_on;
use crate::load::{self, Block, MIB, RANDOM_BLOCK, SEQ_BLOCK};
use crate::report::{Finding, Report, Target};
use crate::run::{Rounds, Run};

pub const NODES: usize = 4;

/// One writer's part of a file: a number of blocks from an offset on.
struct Part {
    path: PathBuf,
    writer: u64,
    first: u64,
    blocks: u64,
}

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    let pair = Pair::start(run, NODES)?;
    let blocks = run.pick(256, 64);
    let own = |dir: &Path, writer: usize| {
        let path = dir.join(format!("file-{writer}"));
        Part { path, writer: writer as u64, first: 0, blocks }
    };
    let shared = |node: usize, writer: usize| Part {
        path: pair.cluster.at(node, "shared"),
        writer: writer as u64,
        first: writer as u64 * blocks,
        blocks,
    };
    let [samples] = run.alternate(3, Rounds::Few, |who, round| {
        let node = |writer: usize| pair.cluster.at(writer, "");
        let parts: Vec<Part> = match who {
            0 => (0..NODES).map(|writer| own(&node(writer), writer)).collect(),
            1 => (0..NODES).map(|writer| own(pair.dirs()[1], writer)).collect(),
            _ => (0..NODES).map(|writer| shared(writer, writer)).collect(),
        };
        if who == 2 {
            // Each round has another node as the home.
            File::create(&parts[round as usize % NODES].path)?;
        }
        let rate = write(&parts).with_context(|| format!("round {round}, way {who}"))?;
        for writer in 0..NODES {
            let reader = (writer + 1) % NODES;
            verify(&match who {
                0 => own(&node(reader), writer),
                1 => own(pair.dirs()[1], writer),
                _ => shared(reader, writer),
            })?;
        }
        let files = if who == 2 { 1 } else { NODES };
        parts[..files].iter().try_for_each(|part| fs::remove_file(&part.path))?;
        Ok([rate])
    })?;
    let state = format!(
        "{NODES} writers, {blocks} MiB each, 1 MiB at a time, verified from another node afterwards"
    );
    let names = |names: [&str; 2]| names.map(str::to_owned);
    let who = names(["4 nodes", "1 node"]);
    let each = Finding::new("nodes-files/file-each", &state, "MB/s", &who, &samples.only(&[0, 1]));
    report.add(each.ratio_target("1 node", Target::AtLeast(0.9)))?;
    let who = names(["one file", "file each"]);
    let one = Finding::new("nodes-files/one-file", &state, "MB/s", &who, &samples.only(&[2, 0]));
    report.add(one)
}

/// MB/s of all writers together, from their common beginning until the last has closed its file.
fn write(parts: &[Part]) -> Result<f64> {
    let begin = Barrier::new(parts.len() + 1);
    let seconds = std::thread::scope(|scope| {
        let spawn = |part| {
            let begin = &begin;
            scope.spawn(move || {
                let mut block = Block::new(SEQ_BLOCK);
                begin.wait();
                write_part(part, &mut block)
            })
        };
        let writers: Vec<_> = parts.iter().map(spawn).collect();
        begin.wait();
        let start = Instant::now();
        let done = writers.into_iter().map(|writer| writer.join().expect("no panic inside"));
        // All have ended before the time is taken, whatever their results.
        let done: Vec<Result<()>> = done.collect();
        let seconds = start.elapsed();
        done.into_iter().collect::<Result<()>>().map(|()| seconds)
    })?;
    Ok(load::mb_per_sec(parts.iter().map(|part| part.blocks * MIB).sum(), seconds))
}

fn write_part(part: &Part, block: &mut Block) -> Result<()> {
    let file = File::options().write(true).create(true).truncate(false).open(&part.path);
    let file = file.with_context(|| format!("cannot write {}", part.path.display()))?;
    for number in part.first..part.first + part.blocks {
        go_on()?;
        stamp(block, part.writer, number);
        file.write_all_at(block.bytes(), number * MIB)?;
    }
    Ok(())
}

/// Stamps every page with its writer and its place.
fn stamp(block: &mut Block, writer: u64, number: u64) {
    for (page, bytes) in block.bytes_mut().chunks_mut(RANDOM_BLOCK).enumerate() {
        let place = number * (SEQ_BLOCK / RANDOM_BLOCK) as u64 + page as u64;
        bytes[..8].copy_from_slice(&writer.to_le_bytes());
        bytes[8..16].copy_from_slice(&place.to_le_bytes());
    }
}

/// Compares every byte of a part with the bytes its writer wrote.
fn verify(part: &Part) -> Result<()> {
    let (mut want, mut found) = (Block::new(SEQ_BLOCK), vec![0; SEQ_BLOCK]);
    let file = File::open(&part.path)?;
    for number in part.first..part.first + part.blocks {
        go_on()?;
        stamp(&mut want, part.writer, number);
        file.read_exact_at(&mut found, number * MIB)?;
        let path = part.path.display();
        ensure!(found == want.bytes(), "{path}: other bytes than writer {} wrote", part.writer);
    }
    Ok(())
}
