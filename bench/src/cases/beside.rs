//! The cost of a change of a name beside many cached files, which must not grow with them, and the
//! memory for these files.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::load;
use crate::mounts::Forebay;
use crate::report::{Finding, Report, Target};
use crate::run::{On, Run};

const PER_DIR: usize = 1_000;
const TIMES: usize = 200;
const FLUSHES: usize = 20;

/// The measured verbs, in microseconds each.
const VERBS: [&str; 5] = ["create", "rename-file", "unlink", "rename-empty-dir", "rename-full-dir"];

pub fn run(run: &Run, report: &mut Report) -> Result<()> {
    let counts = run.pick([0, 100_000, 1_000_000], [0, 10_000, 100_000]);
    let mut forebay = run.forebay_parts(On::Tmpfs, On::Tmpfs, &["--preset", "hold"])?;
    forebay.mount()?;
    let root = forebay.mountpoint.clone();
    fs::create_dir(root.join("full"))?;
    std::thread::sleep(Duration::from_secs(1));
    let empty = forebay.resident_kib()?;
    let mut cached = 0;
    for count in counts {
        while cached < count {
            let dir = root.join(format!("full/dir-{:04}", cached / PER_DIR));
            fs::create_dir(&dir)?;
            load::write_small(&dir, PER_DIR, 1, 4)?;
            cached += PER_DIR;
        }
        forebay.flush()?;
        for (verb, samples) in VERBS.into_iter().zip(verbs(&root)?) {
            let case = format!("beside/{verb}");
            let state = match verb {
                "rename-full-dir" => format!("{count} cached files below it"),
                _ => format!("beside {count} cached files"),
            };
            let state = format!("{state}; tier and store on tmpfs");
            let finding = Finding::alone(&case, &state, "us", "forebay", &samples);
            report.add(finding.target(Target::AtMost(1_000.0)))?;
        }
        let state = format!("one of a byte, by a command, beside {count} cached files");
        let samples = flushes(&forebay, &root)?;
        report.add(Finding::alone("beside/flush-file", &state, "us", "forebay", &samples))?;
        if count > 0 {
            let state = format!("{count} files of one byte, just written and flushed");
            let bytes = growth(&forebay, empty, count)?;
            let finding =
                Finding::alone("beside/memory-per-file", &state, "B/file", "forebay", &[bytes]);
            report.add(finding)?;
        }
    }
    // The unmount drops the kernel's knowledge of files, and freed memory that was not returned.
    forebay.unmount()?;
    let took = forebay.mount()?.as_secs_f64();
    let state = format!("{cached} cached files of one byte; tier and store on tmpfs");
    report.add(Finding::alone("beside/mount", &state, "s", "forebay", &[took]))?;
    let bytes = growth(&forebay, empty, cached)?;
    let finding =
        Finding::alone("beside/memory-per-cached-file", &state, "B/file", "forebay", &[bytes]);
    report.add(finding.target(Target::AtMost(550.0)))
}

/// The growth of resident memory over an empty tier's, in bytes per file.
fn growth(forebay: &Forebay, empty: f64, count: usize) -> Result<f64> {
    std::thread::sleep(Duration::from_secs(1));
    Ok((forebay.resident_kib()? - empty) * 1024.0 / count as f64)
}

/// The times of flushes of one file, including the start of the command.
fn flushes(forebay: &Forebay, root: &Path) -> Result<Vec<f64>> {
    let one = root.join("beside/one");
    let flush = |_| {
        fs::write(&one, b"x")?;
        Ok(forebay.flush_path(&one)?.as_secs_f64() * 1e6)
    };
    (0..FLUSHES).map(flush).collect()
}

/// Medians of single calls, so that one slow call in many only shows in the spread.
fn verbs(root: &Path) -> Result<[Vec<f64>; 5]> {
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("beside"))?;
    let mut samples: [Vec<f64>; 5] = Default::default();
    for _ in 0..TIMES {
        let mut time = |verb: usize, call: &dyn Fn() -> std::io::Result<()>| -> Result<()> {
            let start = Instant::now();
            call()?;
            samples[verb].push(start.elapsed().as_secs_f64() * 1e6);
            Ok(())
        };
        time(0, &|| File::create_new(at("beside/f")).map(drop))?;
        fs::write(at("beside/f"), b"x")?;
        time(1, &|| fs::rename(at("beside/f"), at("beside/g")))?;
        time(2, &|| fs::remove_file(at("beside/g")))?;
        fs::create_dir(at("d"))?;
        time(3, &|| fs::rename(at("d"), at("e")))?;
        fs::remove_dir(at("e"))?;
        time(4, &|| fs::rename(at("full"), at("moved")))?;
        fs::rename(at("moved"), at("full"))?;
    }
    Ok(samples)
}
