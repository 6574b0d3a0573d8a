//! A load that rises through the hard mark of a small tier: without a step, and settling at the
//! rate of the drain.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::fio::{self, How, Op, Work};
use super::rig::{self, Look, MIB};
use super::series::{Book, Span, Steadiness, per_second, percentile_ms, within};
use super::tables::Sheet;
use crate::report::{Finding, Report, Target};
use crate::run::Run;

const DATA: u64 = 1024 * MIB;
const BLOCK: u64 = 4096;
/// The number of clients, which begin one after the other, each with this many writes a second.
const CLIENTS: u64 = 12;
const EACH: f64 = 250.0;

pub fn run(run: &Run, out: &Path, report: &mut Report, sheet: &mut Sheet) -> Result<()> {
    let (apart, settle, counted) = run.pick((3, 24, 20), (1, 18, 15));
    let secs = CLIENTS * apart + settle + counted;
    let options =
        ["--tier-size", "64MiB", "--max-age", "15s", "--settle", "3s", "--preset", "governor"];
    let forebay = rig::mount(run, &rig::disk(DATA), &options, |backing| {
        rig::hollow_file(&backing.join("data"), DATA)
    })?;
    let names: Vec<String> = (0..CLIENTS).map(|n| format!("client{n}")).collect();
    let share = DATA / CLIENTS / MIB * MIB;
    let works: Vec<Work> = (0..CLIENTS)
        .map(|n| Work {
            name: &names[n as usize],
            file: forebay.mountpoint.join("data"),
            how: How::WriteEach,
            clients: 1,
            rate: Some(EACH),
            block: BLOCK,
            from: n * share,
            len: share,
            after_secs: n * apart,
            secs: secs - n * apart,
        })
        .collect();
    let scratch = rig::scratch(run, "fio")?;
    let (ops, looks) =
        rig::watched(&forebay, Duration::from_millis(250), || fio::run(&scratch, 3, &works))?;
    let slowed = rig::counter(&forebay, "writers_slowed")?;
    let mut ops: Vec<Op> = ops.concat();
    ops.sort_by_key(|op| op.at_ms);
    record(out, sheet, (&ops, &looks), secs, apart)?;
    judge(report, sheet, (&ops, &looks), Span::secs(secs - counted, secs), slowed)
}

fn record(
    out: &Path,
    sheet: &mut Sheet,
    (ops, looks): (&[Op], &[Look]),
    secs: u64,
    apart: u64,
) -> Result<()> {
    let course = |of: &dyn Fn(u64) -> f64| -> Vec<(f64, u64)> {
        (0..secs).map(|second| (second as f64, of(second).max(0.0) as u64)).collect()
    };
    let accepted = per_second(ops, Span::secs(0, secs));
    let mut book = Book::open(out, "rising", &[("clients", CLIENTS.to_string())])?;
    let offered = |second: u64| ((second / apart + 1).min(CLIENTS) * BLOCK) as f64 * EACH;
    book.bytes("offered", &course(&offered), secs as f64)?;
    book.bytes("accepted", &course(&|s| accepted[s as usize] * BLOCK as f64), secs as f64)?;
    let drained = |s: u64| rig::landed_between(looks, s as f64, s as f64 + 1.0);
    book.bytes("drained", &course(&drained), secs as f64)?;
    sheet.record(book.close()?);
    let mut waits = Book::open(out, "rising-latency", &[])?;
    waits.ops("writes", ops, secs, 0)?;
    sheet.record(waits.close()?);
    let mut level = Book::open(out, "rising-level", &[])?;
    let dirty = |s: u64| looks.iter().find(|look| look.at >= s as f64).map_or(0, |l| l.dirty);
    level.bytes("dirty bytes", &course(&|s| dirty(s) as f64), secs as f64)?;
    level.finding("the values are levels in bytes, not rates")?;
    level.close().map(drop)
}

fn judge(
    report: &mut Report,
    sheet: &mut Sheet,
    (ops, looks): (&[Op], &[Look]),
    span: Span,
    slowed: u64,
) -> Result<()> {
    let (from, to) = (span.from as f64 / 1000.0, span.to as f64 / 1000.0);
    let steady = Steadiness::of(&per_second(ops, span));
    let accepted = steady.mean * BLOCK as f64;
    let drained = rig::landed_between(looks, from, to) / (to - from);
    let p99 = percentile_ms(&within(ops, span), 99.0);
    let max = percentile_ms(ops, 100.0);
    let state = "12 writers of 250 x 4 KiB/s one after the other, tier of 64 MiB";
    let one = |case: &str, unit, value| {
        Finding::alone(&format!("flat/rising-{case}"), state, unit, "governor", &[value])
    };
    let off = (accepted / drained - 1.0).abs() * 100.0;
    report.add(one("accepted", "MB/s", accepted / 1e6).against("drained", drained / 1e6, None))?;
    report.add(one("accepted-off-drain", "%", off).target(Target::AtMost(5.0)))?;
    report.add(one("lowest-second", "of the mean", steady.lowest).target(Target::AtLeast(0.5)))?;
    report.add(one("write-p99", "ms", p99))?;
    sheet.fact(format!(
        "Through the hard mark: {:.2} MB/s accepted, {:.2} MB/s drained once settled ({off:.1} % \
         apart); lowest second {:.2} of the mean, variation {:.1} %; p99 of writes {p99:.0} ms, \
         longest {max:.0} ms; {slowed} writes were slowed down",
        accepted / 1e6,
        drained / 1e6,
        steady.lowest,
        steady.variation * 100.0
    ));
    Ok(())
}
