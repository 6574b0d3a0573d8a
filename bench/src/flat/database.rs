//! Databases on the throttled store alone, on the fast directory alone, and on forebay with its
//! presets, in turns. Once with a tier that holds all of the data, so that the store only serves the
//! drain: each starts from a copy of the same prepared data. And once with a tier that does not, so
//! that the drain and readers that miss the tier compete.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::rig::{self, MIB};
use super::series::{Book, Interval, Steadiness};
use super::tables::Sheet;
use super::{mariadb, postgres};
use crate::emptyfs::Mode;
use crate::guard::{Serving, go_on};
use crate::mounts::{Forebay, start_apart};
use crate::report::{Finding, Report, Target};
use crate::run::{On, Run};
use crate::stat::Samples;

/// One database system: how to make its data, how to serve it, how to put load on it.
pub struct System {
    pub name: &'static str,
    pub prepare: fn(&Path, &Path) -> Result<()>,
    pub start: fn(&Path, &Path) -> Result<Server>,
    pub load: fn(&Path, u64) -> Result<Vec<Interval>>,
}

const DISK: u64 = 512 * MIB;

/// The storage of the data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Store,
    Native,
    Preset(&'static str),
    /// Complete files are written past the daemon, which is a mount's default.
    Passed,
    /// Through a daemon that keeps nothing and passes everything: the least that a mount can cost.
    Empty,
}

/// The places to compare, and their tier.
struct Contest {
    name: String,
    system: &'static System,
    /// Seconds of one measurement, and the first of them, which are not counted.
    secs: u64,
    warm_up: u64,
    /// The order of turns in the first round; each later round begins with the next place.
    places: Vec<Place>,
    rounds: usize,
    /// The tier's size and its marks.
    tier: &'static [&'static str],
    /// The least ratio to the presets threshold and age, and to the fast directory.
    beside_others: f64,
    beside_native: f64,
}

/// On the small tier, the preset age then keeps about as much dirty as the marks allow.
const MAX_AGE: &str = "10s";

/// The tier holds all data.
const ROOMY: [&str; 8] = [
    "--tier-size",
    "1GiB",
    "--dirty-low",
    "32MiB",
    "--dirty-high",
    "128MiB",
    "--dirty-hard",
    "384MiB",
];

/// The tier holds some three fifths of the data.
const TIGHT: [&str; 8] =
    ["--tier-size", "192MiB", "--dirty-low", "10%", "--dirty-high", "30%", "--dirty-hard", "60%"];

/// Where the store hardly matters, all presets are equal within the variation of a machine.
const ON_A_PAR: f64 = 0.95;

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Store => "throttled store alone",
            Place::Native => "fast directory alone",
            Place::Preset(preset) => preset,
            Place::Passed => "past the daemon",
            Place::Empty => "past an empty daemon",
        }
    }
}

pub fn mariadb(run: &Run, out: &Path, report: &mut Report, sheet: &mut Sheet) -> Result<()> {
    contest(run, &roomy(run, &mariadb::SYSTEM), (out, report, sheet))
}

/// Presets that only put off their flushes would leave them to the next preset.
pub fn mariadb_tight(run: &Run, out: &Path, report: &mut Report, sheet: &mut Sheet) -> Result<()> {
    let tight = Contest {
        name: format!("{}-tight", mariadb::SYSTEM.name),
        system: &mariadb::SYSTEM,
        secs: 40,
        warm_up: 10,
        places: ["governor", "threshold", "age"].map(Place::Preset).to_vec(),
        rounds: run.pick(3, 1),
        tier: &TIGHT,
        beside_others: 1.0,
        beside_native: 0.9,
    };
    turns(run, &tight, (out, report, sheet))
}

pub fn postgresql(run: &Run, out: &Path, report: &mut Report, sheet: &mut Sheet) -> Result<()> {
    contest(run, &roomy(run, &postgres::SYSTEM), (out, report, sheet))
}

fn roomy(run: &Run, system: &'static System) -> Contest {
    Contest {
        name: system.name.to_owned(),
        system,
        secs: 80,
        warm_up: 40,
        places: vec![
            Place::Preset("governor"),
            Place::Native,
            Place::Preset("threshold"),
            Place::Preset("age"),
            Place::Store,
        ],
        rounds: run.pick(3, 1),
        tier: &ROOMY,
        beside_others: ON_A_PAR,
        beside_native: 0.9,
    }
}

pub fn mariadb_passed(run: &Run, out: &Path, report: &mut Report, sheet: &mut Sheet) -> Result<()> {
    contest(run, &passed(run, &mariadb::SYSTEM), (out, report, sheet))
}

pub fn postgresql_passed(
    run: &Run,
    out: &Path,
    report: &mut Report,
    sheet: &mut Sheet,
) -> Result<()> {
    contest(run, &passed(run, &postgres::SYSTEM), (out, report, sheet))
}

/// All files are complete and flushed when the database opens them.
fn passed(run: &Run, system: &'static System) -> Contest {
    Contest {
        name: format!("{}-passed", system.name),
        places: vec![Place::Passed, Place::Native, Place::Empty],
        beside_native: ON_A_PAR,
        ..roomy(run, system)
    }
}

/// The result of one measurement.
struct Course {
    intervals: Vec<Interval>,
    /// Bytes that reached the backing store during the measurement, and those still dirty at the
    /// end.
    home: Home,
}

type Home = Option<(f64, f64)>;

fn contest(
    run: &Run,
    contest: &Contest,
    (out, report, sheet): (&Path, &mut Report, &mut Sheet),
) -> Result<()> {
    let base = run.fresh(On::Tmpfs, "base")?;
    (contest.system.prepare)(&base, &rig::scratch(run, "sockets")?)?;
    let mut book = Book::open(out, &contest.name, &[("seconds", contest.secs.to_string())])?;
    let mut courses: Vec<(Place, Vec<Course>)> =
        contest.places.iter().map(|place| (*place, Vec::new())).collect();
    // A disk's speed changes from minute to minute, and with recent removals on it: the places take
    // turns, and the order of turns changes.
    for round in 0..contest.rounds {
        for turn in 0..courses.len() {
            go_on()?;
            let (place, taken) = &mut courses[(round + turn) % contest.places.len()];
            // A hundred times slower than the others: once is enough.
            if *place == Place::Store && round > 0 {
                continue;
            }
            let course = measure(run, contest, *place, &base)?;
            if round == 0 {
                book.counts(place.name(), &course.intervals)?;
            }
            taken.push(course);
        }
    }
    fs::remove_dir_all(&base)?;
    conclude(contest, &courses, book, (report, sheet))
}

/// The tier's share of the database changes for minutes, and would decide the turn of a preset that
/// starts on a fresh tier. So presets take turns on a running mount, each after each other one
/// equally often, since a turn begins with the dirty bytes of the one before.
fn turns(
    run: &Run,
    contest: &Contest,
    (out, report, sheet): (&Path, &mut Report, &mut Sheet),
) -> Result<()> {
    let base = run.fresh(On::Tmpfs, "base")?;
    let sockets = rig::scratch(run, "sockets")?;
    (contest.system.prepare)(&base, &sockets)?;
    let mut book = Book::open(out, &contest.name, &[("seconds", contest.secs.to_string())])?;
    let order = each_after_each(contest.places.len()).repeat(contest.rounds);
    // The last preset precedes the first.
    let forebay = mount(run, contest, contest.places[order[order.len() - 1]], &base)?;
    fs::remove_dir_all(&base)?;
    let data = forebay.mountpoint.join("data");
    warm_all(&data)?;
    let server = (contest.system.start)(&data, &sockets)?;
    let (load, secs) = (contest.system.load, UNTIL_WARM + contest.secs * order.len() as u64);
    let began = Instant::now();
    let loading = std::thread::spawn(move || load(&sockets, secs));
    let homes = switch(contest, &order, &forebay, (began, &loading));
    if homes.is_err() {
        let ended = loading.is_finished();
        drop(server); // This ends the load, too.
        let load = loading.join().expect("the load panicked");
        if ended {
            load?;
        }
        return homes.map(drop);
    }
    let intervals = loading.join().expect("the load panicked")?;
    drop(server);
    let mut courses: Vec<(Place, Vec<Course>)> =
        contest.places.iter().map(|place| (*place, Vec::new())).collect();
    for ((turn, who), home) in order.iter().enumerate().zip(homes?) {
        let from = (UNTIL_WARM + turn as u64 * contest.secs) as f64;
        // The load began a moment after this clock: the last second is partly the next preset's.
        let own = 0.0..(contest.secs - 1) as f64;
        let mine = intervals.iter().filter(|one| own.contains(&(one.at - from)));
        let intervals = mine.map(|one| Interval { at: one.at - from, ..*one }).collect();
        let (place, taken) = &mut courses[*who];
        let course = Course { intervals, home: Some(home) };
        if taken.is_empty() {
            book.counts(place.name(), &course.intervals)?;
        }
        taken.push(course);
    }
    conclude(contest, &courses, book, (report, sheet))
}

/// Seconds until the load, and the tier's contents, have settled: with 60 the first turn of each
/// preset had the fewest transactions, and the governor's is the very first.
const UNTIL_WARM: u64 = 180;

/// A circular order in which each preset follows each other one once.
fn each_after_each(presets: usize) -> Vec<usize> {
    let pairs = (0..presets).flat_map(|a| (a + 1..presets).map(move |b| [a, b]));
    pairs.flatten().collect()
}

/// Runs the presets in turns; returns the bytes that each of them flushed during its measurement.
fn switch(
    contest: &Contest,
    order: &[usize],
    forebay: &Forebay,
    (began, loading): (Instant, &JoinHandle<Result<Vec<Interval>>>),
) -> Result<Vec<(f64, f64)>> {
    let wait = |secs: u64| -> Result<()> {
        while began.elapsed() < Duration::from_secs(secs) {
            go_on()?;
            ensure!(!loading.is_finished(), "the load ended before its time");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    };
    let mut homes = Vec::new();
    for (turn, who) in order.iter().enumerate() {
        let from = UNTIL_WARM + turn as u64 * contest.secs;
        wait(from)?;
        rig::set(forebay, "preset", contest.places[*who].name())?;
        wait(from + contest.warm_up)?;
        let before = flushed_and_dirty(forebay)?.0;
        wait(from + contest.secs)?;
        let (flushed, dirty) = flushed_and_dirty(forebay)?;
        homes.push((flushed - before, dirty));
    }
    Ok(homes)
}

fn conclude(
    contest: &Contest,
    courses: &[(Place, Vec<Course>)],
    book: Book,
    (report, sheet): (&mut Report, &mut Sheet),
) -> Result<()> {
    sheet.record(book.close()?);
    for (place, taken) in courses {
        note(contest, *place, taken, sheet);
    }
    judge(contest, courses, report)
}

fn measure(run: &Run, contest: &Contest, place: Place, base: &Path) -> Result<Course> {
    let sockets = rig::scratch(run, "sockets")?;
    let serve = |data: &Path| -> Result<Vec<Interval>> {
        // Dirty pages of the last place must not burden this one.
        // SAFETY: no arguments.
        unsafe { libc::sync() };
        let server = (contest.system.start)(data, &sockets)?;
        let course = (contest.system.load)(&sockets, contest.secs);
        drop(server);
        course
    };
    let bare = match place {
        Place::Native => Some(run.native(On::Disk)?),
        Place::Empty => Some(run.empty(On::Disk, Mode::Pass)?),
        _ => None,
    };
    if let Some(bare) = bare {
        copy(base, &bare.path("data"))?;
        return Ok(Course { intervals: serve(&bare.path("data"))?, home: None });
    }
    let forebay = mount(run, contest, place, base)?;
    let data = forebay.mountpoint.join("data");
    if place != Place::Store {
        warm_all(&data)?;
    }
    let before = flushed_and_dirty(&forebay)?.0;
    let intervals = serve(&data)?;
    let (flushed, dirty) = flushed_and_dirty(&forebay)?;
    let home = (place != Place::Store).then_some((flushed - before, dirty));
    Ok(Course { intervals, home })
}

fn flushed_and_dirty(forebay: &Forebay) -> Result<(f64, f64)> {
    let number = |of: &Value, path: &str| of.pointer(path).and_then(Value::as_f64);
    let flushed = number(&forebay.stats()?, "/counters/flushed_bytes")
        .context("no bytes flushed in stats")?;
    let dirty = number(&forebay.status()?, "/dirty_bytes").context("no dirty bytes in status")?;
    Ok((flushed, dirty))
}

/// Mounts a place. The store alone is a mount that writes around its tier, which is as small as
/// possible and keeps a tenth of the bytes read.
fn mount(run: &Run, contest: &Contest, place: Place, base: &Path) -> Result<Forebay> {
    let throttle = rig::disk(DISK);
    let mut options = vec!["--throttle", &throttle];
    if place != Place::Passed {
        options.extend(["--passthrough", "read"]);
    }
    let preset = if let Place::Preset(preset) = place { preset } else { "governor" };
    match place {
        Place::Preset(_) | Place::Passed => {
            options.extend(["--preset", preset, "--max-age", MAX_AGE]);
            options.extend(["--settle", "1s"]);
            options.extend(contest.tier);
        }
        _ => options.extend(["--policy", "write-around", "--tier-size", "16MiB"]),
    }
    let mut forebay = run.forebay_parts(On::Disk, On::Tmpfs, &options)?;
    copy(base, &forebay.backing.join("data"))?;
    forebay.mount()?;
    Ok(forebay)
}

/// Copies a tree with owners and modes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    ensure!(done.success(), "cp -a {} failed", from.display());
    Ok(())
}

fn warm_all(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => warm_all(&entry.path())?,
            kind if kind.is_file() => rig::warm(&entry.path())?,
            _ => {}
        }
    }
    Ok(())
}

/// A row of the table, from the round whose rate is the median.
fn note(contest: &Contest, place: Place, rounds: &[Course], sheet: &mut Sheet) {
    let mut rounds: Vec<(Vec<&Interval>, Home)> =
        rounds.iter().map(|course| (counted(contest, &course.intervals), course.home)).collect();
    rounds.sort_by(|a, b| rate(&a.0).total_cmp(&rate(&b.0)));
    let rates: Vec<f64> = rounds.iter().map(|round| rate(&round.0)).collect();
    let (counted, home) = &rounds[rounds.len() / 2];
    let mib = |bytes: f64| bytes / MIB as f64;
    let (steady, fine) = (by_tens(counted), by_second(counted));
    let mut high: Vec<u64> = counted.iter().map(|one| one.high_ns).collect();
    high.sort_unstable();
    let typical = high.get(high.len() / 2).map_or(f64::NAN, |ns| *ns as f64 / 1e6);
    sheet.database(&[
        contest.name.clone(),
        place.name().into(),
        format!("{:.1} ({:.1} - {:.1})", steady.mean, rates[0], rates[rates.len() - 1]),
        format!("{:.1} % ({:.1} %)", steady.variation * 100.0, fine.variation * 100.0),
        format!("{:.2} ({:.2})", steady.lowest, fine.lowest),
        format!("{typical:.1}"),
        home.map_or("-".into(), |(to, left)| format!("{:.0} ({:.0})", mib(to), mib(left))),
    ]);
}

/// The steadiness over intervals of ten seconds.
fn by_tens(counted: &[&Interval]) -> Steadiness {
    Steadiness::of(&counted.chunks(10).map(rate).collect::<Vec<_>>())
}

fn by_second(counted: &[&Interval]) -> Steadiness {
    let seconds: Vec<f64> = counted.iter().map(|one| one.ops as f64 / one.seconds).collect();
    Steadiness::of(&seconds)
}

/// The intervals without the first seconds.
fn counted<'a>(contest: &Contest, course: &'a [Interval]) -> Vec<&'a Interval> {
    course.iter().filter(|one| one.at >= contest.warm_up as f64).collect()
}

/// Operations per second.
fn rate(intervals: &[&Interval]) -> f64 {
    let secs: f64 = intervals.iter().map(|one| one.seconds).sum();
    intervals.iter().map(|one| one.ops as f64).sum::<f64>() / secs
}

/// Compares the governor with each of the others, in each round.
fn judge(contest: &Contest, courses: &[(Place, Vec<Course>)], report: &mut Report) -> Result<()> {
    let case = format!("flat/{}", contest.name);
    let each = |value: fn(&[&Interval]) -> f64, taken: &[Course]| -> Vec<f64> {
        taken.iter().map(|course| value(&counted(contest, &course.intervals))).collect()
    };
    let names: Vec<String> = courses.iter().map(|(place, _)| place.name().to_owned()).collect();
    let finding = |state, unit, value| {
        let mut samples = Samples::new(courses.len());
        for (n, (_, taken)) in courses.iter().enumerate() {
            each(value, taken).iter().for_each(|one| samples.add(n, *one));
        }
        Finding::new(&case, state, unit, &names, &samples)
    };
    let mut rates = finding("throughput", "transactions/s", rate)
        .ratio_target(Place::Native.name(), Target::AtLeast(contest.beside_native))
        .ratio_target(Place::Empty.name(), Target::AtLeast(ON_A_PAR))
        .ratio_target(Place::Store.name(), Target::AtLeast(10.0));
    let mut unsteady = finding("variation of 10 s", "share", |taken| by_tens(taken).variation);
    // Idle and hold only put off their flushes.
    for preset in ["threshold", "age"] {
        rates = rates.ratio_target(preset, Target::AtLeast(contest.beside_others));
        unsteady = unsteady.ratio_target(preset, Target::AtMost(1.0));
    }
    report.add(rates)?;
    report.add(unsteady)
}

/// A server that is ended by its pid.
pub struct Server {
    child: Child,
    /// The signal that ends it and its children at once; its data are not needed.
    signal: i32,
    _watched: Serving,
}

impl Server {
    pub fn start(command: &mut Command, log: &Path, signal: i32) -> Result<Server> {
        let child = start_apart(command, log)?;
        let pid = child.id() as i32;
        let watched = Serving::new(&Path::new("server").join(pid.to_string()), pid);
        Ok(Server { child, signal, _watched: watched })
    }

    /// Waits until the server answers `ask`.
    pub fn until_ready(mut self, log: &Path, ask: impl Fn() -> bool) -> Result<Server> {
        let began = Instant::now();
        while !ask() {
            go_on()?;
            if let Some(status) = self.child.try_wait()? {
                let told = fs::read_to_string(log).unwrap_or_default();
                let last = told.lines().last().unwrap_or_default();
                bail!("the server ended with {status}: {last}");
            }
            ensure!(began.elapsed() < Duration::from_secs(90), "the server does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(self)
    }

    /// Ends the server in order, so that its data is whole.
    pub fn stop(mut self) -> Result<()> {
        // SAFETY: a child of this process that was not waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // SAFETY: as above.
            unsafe { libc::kill(self.child.id() as i32, self.signal) };
            let _ = self.child.wait();
        }
    }
}

/// Runs a program to its end; returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("cannot start {program}"))?;
    let told = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{program} ended with {}: {}", done.status, told.trim());
    Ok(String::from_utf8_lossy(&done.stdout).into_owned() + &told)
}

/// A program in PATH or one of Debian's places.
pub fn program(name: &str, places: &[&str]) -> PathBuf {
    let mut found: Vec<PathBuf> = places.iter().map(|dir| Path::new(dir).join(name)).collect();
    found.retain(|path| path.exists());
    found.pop().unwrap_or_else(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::each_after_each;

    #[test]
    fn each_preset_follows_each_other_one_once() {
        for presets in 2..=5 {
            let order = each_after_each(presets);
            let next = order.iter().cycle().skip(1);
            let mut pairs: Vec<_> = order.iter().zip(next).collect();
            pairs.sort_unstable();
            pairs.dedup();
            assert!(pairs.iter().all(|(a, b)| a != b), "{order:?}");
            assert_eq!(pairs.len(), presets * (presets - 1), "{order:?}");
        }
    }
}
