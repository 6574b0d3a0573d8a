//! The contestants' work. Every value is a rate, so that ratios are speeds.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Bench, DIRECT, NATIVE, sync_all_of};
use crate::guard::go_on;
use crate::load::{self, Block, Caching, Finish, MIB, Random, Verb};
use crate::report::Report;
use crate::run::Rounds;

pub fn stream(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let len = bench.run.pick(1024, 512) * MIB;
    let [write, read, again] = bench.alternate(Rounds::Few, |dir, _| {
        let file = dir.join("stream");
        let write = load::write_seq(&file, len, Caching::Buffered, Finish::SyncAndClose)?;
        load::drop_pages(&file)?;
        let read = load::read_seq(&file, len, Caching::Buffered)?;
        let again = load::read_seq(&file, len, Caching::Buffered)?;
        Ok([write, read, again].map(|time| load::mb_per_sec(len, time)))
    })?;
    let size = len / MIB;
    let rows = [
        ("write", format!("new file of {size} MiB, fsync, closed"), &write),
        ("read-cold", format!("{size} MiB, its pages dropped before"), &read),
        ("read-warm", format!("{size} MiB, again at once"), &again),
    ];
    for (what, state, samples) in rows {
        bench.report(report, (what, &state, "MB/s"), Some(NATIVE), samples)?;
    }
    Ok(())
}

/// Files per second, from microseconds per file.
fn per_second(micros: f64) -> f64 {
    1e6 / micros
}

pub fn metadata(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let count = bench.run.pick(20_000, 5_000);
    let samples = bench.alternate(Rounds::Many, |dir, _| {
        let begun = Instant::now();
        load::create_empty(dir, count)?;
        sync_all_of(dir)?;
        let create = begun.elapsed();
        let stat = load::stat_all(dir, count)?;
        let list = load::list(dir, count)?;
        let begun = Instant::now();
        load::unlink_all(dir, count)?;
        sync_all_of(dir)?;
        let unlink = begun.elapsed();
        let rate = |time: Duration| count as f64 / time.as_secs_f64();
        Ok([rate(create), per_second(stat), per_second(list), rate(unlink)])
    })?;
    let rows = [
        ("create", "open O_EXCL and close, no data; syncfs at the end"),
        ("stat", "warm"),
        ("readdir", "warm"),
        ("unlink", "syncfs at the end"),
    ];
    for ((what, state), samples) in rows.into_iter().zip(&samples) {
        let state = format!("{count} files, one thread; {state}");
        bench.report(report, (what, &state, "files/s"), Some(NATIVE), samples)?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let what = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().with_context(|| what.clone())?;
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

pub fn untar(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let count = bench.run.pick(20_000, 4_000);
    let from = bench.run.fresh(crate::run::On::Tmpfs, "tree")?;
    let archive = load::archive(&from, count)?;
    let [untar, gone] = bench.alternate(Rounds::Few, |dir, _| {
        let begun = Instant::now();
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(dir))?;
        sync_all_of(dir)?;
        let untar = begun.elapsed();
        let begun = Instant::now();
        fs::remove_dir_all(dir.join("tree"))?;
        sync_all_of(dir)?;
        Ok([untar, begun.elapsed()].map(|time| count as f64 / time.as_secs_f64()))
    })?;
    fs::remove_dir_all(&from)?;
    let state = format!("{count} files of 1 to 32 KiB, tar -x of an archive on tmpfs, syncfs");
    bench.report(report, ("untar", &state, "files/s"), Some(NATIVE), &untar)?;
    let state = format!("{count} files, rm -r of the same, syncfs");
    bench.report(report, ("remove-tree", &state, "files/s"), Some(NATIVE), &gone)
}

pub fn compile(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let cc = ["cc", "gcc", "clang"].into_iter().find(|cc| {
        Command::new(cc).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    let Some(cc) = cc else {
        return report.skip("compile", "no C compiler (gcc)");
    };
    let count = bench.run.pick(80, 30);
    let [rate] = bench.alternate(Rounds::Few, |dir, _| {
        for file in 0..count {
            fs::write(dir.join(format!("part{file}.c")), c_source(file))?;
        }
        fs::write(dir.join("main.c"), "int main(void) { return 0; }\n")?;
        sync_all_of(dir)?;
        let begun = Instant::now();
        for file in 0..count {
            go_on()?;
            let name = format!("part{file}");
            let mut command = Command::new(cc);
            command.args(["-O0", "-c", &format!("{name}.c"), "-o", &format!("{name}.o")]);
            run(command.current_dir(dir))?;
        }
        let line = format!("{cc} main.c part*.o -o program && ./program");
        run(Command::new("sh").args(["-c", &line]).current_dir(dir))?;
        sync_all_of(dir)?;
        Ok([f64::from(count) / begun.elapsed().as_secs_f64()])
    })?;
    let state = format!("{count} files, {cc} -O0, one at a time, linked and run; syncfs");
    bench.report(report, ("compile", &state, "files/s"), Some(NATIVE), &rate)
}

fn c_source(file: u32) -> String {
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    for function in 0..40 {
        text.push_str(&format!(
            "int f{file}_{function}(int n, char *s) {{\n  for (int i = 0; i < n; i++)\n    \
             s[i] = (char)(i * {function} + strlen(s));\n  return printf(\"%s\", s);\n}}\n"
        ));
    }
    text
}

pub fn direct(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let len = bench.run.pick(1024, 256) * MIB;
    let time = bench.run.slice() * 4;
    for threads in [1, 8] {
        let [write, read] = bench.alternate(Rounds::Many, |dir, round| {
            let path = dir.join("direct");
            load::fill(&load::create(&path, Caching::Direct)?, len)?;
            let file = File::options().read(true).write(true).open(&path)?;
            file.sync_all()?;
            drop(file);
            let open = || -> Result<File> {
                let mut options = File::options();
                std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_DIRECT);
                Ok(options.read(true).write(true).open(&path)?)
            };
            let files = [open()?];
            let work = |verb| Random { verb, threads, time, seed: round };
            let write = load::random(&files, len, work(Verb::Write))?;
            let read = load::random(&files, len, work(Verb::Read))?;
            Ok([write, read])
        })?;
        let state = format!("4 KiB, O_DIRECT, random in a written file of {} MiB", len / MIB);
        for (what, samples) in [("write", &write), ("read", &read)] {
            let what = format!("direct-{what}-{threads}t");
            bench.report(report, (&what, &state, "IOPS"), Some(DIRECT), samples)?;
        }
    }
    Ok(())
}

pub fn sync(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let time = bench.run.slice() * 4;
    let [log, files] = bench.alternate(Rounds::Many, |dir, _| {
        Ok([log_of(&dir.join("log"), time)?, small_files(dir, time)?])
    })?;
    let state = "4 KiB appended, fdatasync each";
    bench.report(report, ("sync-log", state, "syncs/s"), Some(DIRECT), &log)?;
    let state = "a file of 4 KiB created, written, fsynced, closed";
    bench.report(report, ("sync-files", state, "files/s"), Some(DIRECT), &files)
}

fn log_of(path: &Path, time: Duration) -> Result<f64> {
    let block = Block::new(4096);
    let mut log = File::create(path)?;
    rate(time, |_| {
        log.write_all(block.bytes())?;
        Ok(log.sync_data()?)
    })
}

fn small_files(dir: &Path, time: Duration) -> Result<f64> {
    let block = Block::new(4096);
    rate(time, |index| {
        let mut file = File::create_new(dir.join(format!("small-{index}")))?;
        file.write_all(block.bytes())?;
        Ok(file.sync_all()?)
    })
}

/// Calls of `work` per second.
fn rate(time: Duration, mut work: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < time {
        go_on()?;
        work(count)?;
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}
