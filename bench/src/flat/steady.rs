//! A steady load at 70 % of the rate that the store absorbs: the cost of the drain, and the
//! evenness of the load, for every preset.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::fio::{self, How, Op, Work};
use super::rig::{self, MIB, PRESETS};
use super::series::{Book, Span, Steadiness, per_second, percentile_ms, within};
use super::tables::Sheet;
use crate::mounts::Forebay;
use crate::report::{Finding, Report, Target};
use crate::run::Run;

const SHARE: f64 = 0.7;

/// Data that is read all the time, and cached.
const HOT: u64 = 32 * MIB;

/// Data that is read a little, and too large to become cached.
const COLD: u64 = 256 * MIB;

/// Reads per second of uncached data: the store has a foreground load, too.
const MISSES: f64 = 20.0;

const CLIENTS: usize = 4;

/// The length of the drain's turns of work and rest.
const TURN_SECS: u64 = 10;

struct Plan {
    /// Far more than may be dirty at once; otherwise all of it would be dirty and the drain a
    /// stream.
    data: u64,
    calibrate: u64,
    warm_up: u64,
    measured: u64,
    turns: u64,
}

fn plan(run: &Run) -> Plan {
    match run.quick {
        true => Plan { data: 1024 * MIB, calibrate: 20, warm_up: 10, measured: 15, turns: 4 },
        false => Plan { data: 1024 * MIB, calibrate: 30, warm_up: 20, measured: 40, turns: 8 },
    }
}

pub fn run(run: &Run, out: &Path, report: &mut Report, sheet: &mut Sheet) -> Result<()> {
    let plan = plan(run);
    let capacity = calibrate(run, &plan)?;
    let rate = capacity * SHARE;
    let state = format!(
        "{rate:.0} writes/s (70 % of {capacity:.0}) and as many reads of 4 KiB, writes \
         zipf 0.9 over {} MiB, Poisson; {MISSES} uncached reads/s",
        plan.data / MIB
    );
    let settings = [("load", state.clone()), ("mount", options_text())];
    let mut book = Book::open(out, "presets", &settings)?;
    let mut stores = Book::open(out, "presets-uncached-reads", &settings)?;
    for preset in PRESETS {
        let (cached, misses) = one(run, &plan, preset, rate)?;
        let secs = plan.warm_up + plan.measured;
        book.ops(preset, &cached, secs, plan.warm_up)?;
        stores.ops(preset, &misses, secs, plan.warm_up)?;
        judge(report, sheet, &plan, preset, &state, (&cached, &misses))?;
    }
    book.finding(&state)?;
    sheet.note(&state);
    sheet.record(book.close()?);
    sheet.record(stores.close()?);
    turns(run, &plan, rate, out, report, sheet)
}

fn options() -> Vec<&'static str> {
    vec![
        "--max-age",
        "15s",
        "--settle",
        "3s",
        "--tier-size",
        "352MiB",
        "--dirty-low",
        "16MiB",
        "--dirty-high",
        "64MiB",
        "--dirty-hard",
        "112MiB",
    ]
}

fn options_text() -> String {
    options().join(" ")
}

/// Mounts with the data that is read in the tier, except the cold; written data need not be there.
fn mount(run: &Run, plan: &Plan, preset: &str) -> Result<Forebay> {
    let mut options = options();
    options.extend(["--preset", preset]);
    let forebay = rig::mount(run, &rig::disk(plan.data), &options, |backing| {
        rig::full_file(&backing.join("data"), plan.data)?;
        rig::full_file(&backing.join("hot"), HOT)?;
        rig::full_file(&backing.join("cold"), COLD)
    })?;
    rig::warm(&forebay.mountpoint.join("hot"))?;
    Ok(forebay)
}

fn load<'a>(forebay: &Forebay, plan: &Plan, rate: Option<f64>, secs: u64) -> [Work<'a>; 3] {
    let work = |(name, file): (_, &str), how, (clients, rate), len| Work {
        name,
        file: forebay.mountpoint.join(file),
        how,
        clients,
        rate,
        block: 4096,
        from: 0,
        len,
        after_secs: 0,
        secs,
    };
    [
        work(("write", "data"), How::WriteSkewed, (CLIENTS, rate), plan.data),
        work(("read", "hot"), How::ReadSkewed, (CLIENTS, rate.or(Some(500.0))), HOT),
        work(("miss", "cold"), How::ReadEach, (2, Some(MISSES)), COLD),
    ]
}

/// The rate of writes that is accepted in the long run when writers want more than the store can
/// do.
fn calibrate(run: &Run, plan: &Plan) -> Result<f64> {
    let forebay = mount(run, plan, "governor")?;
    let works = load(&forebay, plan, None, plan.calibrate);
    let ops = fio::run(&rig::scratch(run, "fio")?, 1, &works)?;
    let span = Span::secs(plan.calibrate / 2, plan.calibrate);
    Ok(Steadiness::of(&per_second(&ops[0], span)).mean)
}

/// The course of one preset: operations on cached data, and reads of uncached data.
fn one(run: &Run, plan: &Plan, preset: &str, rate: f64) -> Result<(Vec<Op>, Vec<Op>)> {
    let forebay = mount(run, plan, preset)?;
    let works = load(&forebay, plan, Some(rate), plan.warm_up + plan.measured);
    let ops = fio::run(&rig::scratch(run, "fio")?, 1, &works)?;
    Ok(split(ops))
}

fn split(mut ops: Vec<Vec<Op>>) -> (Vec<Op>, Vec<Op>) {
    let misses = ops.pop().unwrap_or_default();
    let mut cached = ops.concat();
    cached.sort_by_key(|op| op.at_ms);
    (cached, misses)
}

fn judge(
    report: &mut Report,
    sheet: &mut Sheet,
    plan: &Plan,
    preset: &str,
    state: &str,
    (cached, misses): (&[Op], &[Op]),
) -> Result<()> {
    let span = Span::secs(plan.warm_up, plan.warm_up + plan.measured);
    let steady = Steadiness::of(&per_second(cached, span));
    let (cached, misses) = (within(cached, span), within(misses, span));
    sheet.preset(&[
        preset.to_owned(),
        format!("{:.0}", steady.mean),
        format!("{:.1} %", steady.variation * 100.0),
        format!("{:.2}", steady.lowest),
        format!("{:.2}", percentile_ms(&cached, 50.0)),
        format!("{:.2}", percentile_ms(&cached, 99.0)),
        format!("{:.1}", percentile_ms(&cached, 99.9)),
        format!("{:.1}", percentile_ms(&misses, 50.0)),
        format!("{:.1}", percentile_ms(&misses, 99.0)),
    ]);
    let of = |what: &str, unit, value| {
        Finding::alone(&format!("flat/steady-{what}"), state, unit, preset, &[value])
    };
    let own = preset == "governor";
    let variation = of("variation", "%", steady.variation * 100.0);
    report.add(if own { variation.target(Target::AtMost(5.0)) } else { variation })?;
    let lowest = of("lowest-second", "of the mean", steady.lowest);
    report.add(if own { lowest.target(Target::AtLeast(0.5)) } else { lowest })?;
    report.add(of("p99", "ms", percentile_ms(&cached, 99.0)))?;
    report.add(of("p99-uncached", "ms", percentile_ms(&misses, 99.0)))
}

/// The ratio of latencies between the drain's turns of work and rest, under one load.
fn turns(
    run: &Run,
    plan: &Plan,
    rate: f64,
    out: &Path,
    report: &mut Report,
    sheet: &mut Sheet,
) -> Result<()> {
    let forebay = mount(run, plan, "governor")?;
    let begin = plan.warm_up;
    let secs = begin + plan.turns * TURN_SECS;
    let works = load(&forebay, plan, Some(rate), secs);
    let scratch = rig::scratch(run, "fio")?;
    let ops = std::thread::scope(|scope| {
        scope.spawn(|| take_turns(&forebay, plan));
        fio::run(&scratch, 2, &works)
    })?;
    let (cached, misses) = split(ops);
    let mut book = Book::open(out, "drain-in-turns", &[("rate", format!("{rate:.0}"))])?;
    book.ops("operations on cached data", &cached, secs, begin)?;
    sheet.record(book.close()?);
    for (what, ops, target) in
        [("cached", &cached, Some(Target::AtMost(1.25))), ("uncached", &misses, None)]
    {
        let p99 = |turn: u64| {
            let from = begin + turn * TURN_SECS;
            // The first second of a turn belongs to neither.
            percentile_ms(&within(ops, Span::secs(from + 1, from + TURN_SECS)), 99.0)
        };
        let pairs: Vec<(f64, f64)> =
            (0..plan.turns / 2).map(|pair| (p99(pair * 2), p99(pair * 2 + 1))).collect();
        let mut samples = crate::stat::Samples::new(2);
        for (working, resting) in pairs {
            samples.add(0, working);
            samples.add(1, resting);
        }
        let names = ["drain works".to_owned(), "drain rests".to_owned()];
        let case = format!("flat/drain-cost-{what}-p99");
        let state = "turns of 10 s, preset governor and hold";
        let finding = Finding::new(&case, state, "ms", &names, &samples);
        report.add(match target {
            Some(target) => finding.ratio_target("drain rests", target),
            None => finding,
        })?;
        sheet.fact(format!(
            "p99 of {what} operations: {:.2} ms with the drain at work, {:.2} ms at rest, ratio {:.2} \
             ({:.2} - {:.2})",
            samples.summary(0).median,
            samples.summary(1).median,
            samples.ratio(0, 1).median,
            samples.ratio(0, 1).min,
            samples.ratio(0, 1).max
        ));
    }
    Ok(())
}

fn take_turns(forebay: &Forebay, plan: &Plan) {
    std::thread::sleep(Duration::from_secs(plan.warm_up));
    for turn in 0..plan.turns {
        let preset = if turn % 2 == 0 { "governor" } else { "hold" };
        if let Err(error) = rig::set(forebay, "preset", preset) {
            eprintln!("{error:#}");
        }
        std::thread::sleep(Duration::from_secs(TURN_SECS));
    }
}
