//! `forebay bench compare A B`: two targets measured in turn in one run.
//!
//! Invariants:
//! - C1: the targets alternate, and so does the one that goes first, so that drift over time (a
//!   filling device, a warming machine) affects both alike.
//! - C2: a ratio is formed within a round; the verdict says "different" only if the interval of the
//!   median ratio excludes 1 and the ratio is further from 1 than either target is from itself from
//!   round to round. The second condition is needed because among many quantities one is always
//!   outside of its interval by chance.

mod subject;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use crate::args::{Parsed, Spec};
use crate::environment;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::record::{Access, Better, Comparison, Header, Line, Outcome, Phase, Record, Verdict};
use crate::recorder::{Recorder, Sinks};
use crate::report::{table, terminal};
use crate::stats;
use crate::workloads;
use subject::Subject;

fn spec() -> Spec {
    Spec::new("compare")
        .about(
            "Measures two directories by turns, in at least five rounds, and tells the ratio of B to A \
             with its\ninterval, and whether the difference is more than noise. After `--`: the \
             workload and its options;\n`rates` unless told.",
        )
        .usage("A B [OPTIONS] [-- WORKLOAD [OPTIONS]]")
        .value(Some('i'), "rounds", "N", "default 7, at least 5")
        .value(None, "out", "FILE", "result lines for `forebay bench report`")
        .value(None, "json", "[FILE]", "all results as one JSON document; to stdout without FILE")
        .examples(
            "  forebay bench compare /mnt/slow /mnt/forebay\n  \
             forebay bench compare /mnt/a /mnt/b -i 9 -- rates -s 1g -n 4 --cache direct\n  \
             forebay bench compare /mnt/a /mnt/b -- steady --rate 1000 --time 20s\n  \
             forebay bench compare /mnt/a /mnt/b -- ior -F -e -t 1m -b 64m -N 2 --cache fadvise\n  \
             forebay bench compare /mnt/a /mnt/b -- mdtest -n 1000 --tasks 2 -u",
        )
}

/// The settings of a comparison.
struct Duel {
    targets: [String; 2],
    rounds: usize,
    subject: Subject,
    options: Vec<String>,
    sinks: Sinks,
}

pub fn run(args: &[String]) -> Result<u8> {
    let (mine, theirs) = split(args);
    let parsed = spec().parse(mine)?;
    if let Some(help) = parsed.help_wanted() {
        print!("{help}");
        return Ok(0);
    }
    let duel = Duel::read(&parsed, theirs)?;
    if duel.options.iter().any(|word| word == "--help" || word == "-h") {
        return duel.subject.help();
    }
    let (record, ended) = duel.fight(args)?;
    let _ = write!(duel.sinks.terminal(), "{}", terminal::results(&record));
    ended.map(|()| 0)
}

/// Splits the arguments into the command's own, and those after `--`.
fn split(args: &[String]) -> (&[String], &[String]) {
    match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &[]),
    }
}

impl Duel {
    fn read(parsed: &Parsed, theirs: &[String]) -> Result<Self> {
        let [a, b] = parsed.rest() else {
            return Err(Error::usage("compare: name two directories, A and B"));
        };
        let rounds = parsed.number("rounds", 7)?;
        if rounds < 5 {
            return Err(Error::usage(format!(
                "compare: --rounds {rounds}: fewer than 5 cannot tell a difference from noise"
            )));
        }
        let (name, options) = match theirs.split_first() {
            Some((name, options)) if !name.starts_with('-') => (name.as_str(), options),
            _ => ("rates", theirs),
        };
        let subject = Subject::named(name)?;
        keeps_nothing(options)?;
        Ok(Self {
            targets: [a.clone(), b.clone()],
            rounds,
            subject,
            options: options.to_vec(),
            sinks: Sinks::of(parsed),
        })
    }

    fn fight(&self, args: &[String]) -> Result<(Record, Result<()>)> {
        // Both targets are checked first, so that a wrong one is found now.
        for target in &self.targets {
            self.subject.check(target, &self.options)?;
        }
        let targets: Vec<PathBuf> = self.targets.iter().map(PathBuf::from).collect();
        let mut recorder = Recorder::begin(self.header(args, &targets), &self.sinks)?;
        let mut measured = Measured::default();
        let ended = (0..self.rounds).try_for_each(|round| self.round(round, &mut measured));
        let comparisons = measured.compare();
        for comparison in &comparisons {
            recorder.put(Line::Comparison(comparison.clone()))?;
        }
        recorder.finding(verdict(&comparisons, self.rounds))?;
        measured.doubts.into_iter().try_for_each(|doubt| recorder.finding(doubt))?;
        let outcome = match &ended {
            Ok(()) => Outcome::Complete,
            Err(Error::Interrupted) => Outcome::Interrupted,
            Err(_) => Outcome::Failed,
        };
        Ok((recorder.finish(outcome)?, ended))
    }

    fn header(&self, args: &[String], targets: &[PathBuf]) -> Header {
        Header {
            settings: BTreeMap::from([
                ("rounds".into(), self.rounds.to_string()),
                ("workload".into(), self.subject.name().into()),
                ("options".into(), self.options.join(" ")),
            ]),
            ..environment::header("compare", args, targets)
        }
    }

    /// Measures both targets once (C1).
    fn round(&self, round: usize, measured: &mut Measured) -> Result<()> {
        let order = if round.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        let mut records = [None, None];
        for side in order {
            if interrupt::seen() {
                return Err(Error::Interrupted);
            }
            let name = ["A", "B"][side];
            eprintln!("round {} of {}: {name}, {}", round + 1, self.rounds, self.targets[side]);
            records[side] = Some(self.subject.record(&self.targets[side], &self.options)?);
        }
        if let [Some(a), Some(b)] = &records {
            measured.add(a, b);
        }
        Ok(())
    }
}

/// Refuses result files of the workload's own: each round would overwrite them.
fn keeps_nothing(options: &[String]) -> Result<()> {
    let sinks = |word: &&String| {
        let name = word.split('=').next().unwrap_or_default();
        name == "--out" || name == "--json"
    };
    match options.iter().find(sinks) {
        Some(word) => Err(Error::usage(format!(
            "compare: {word} after `--`: each round would overwrite it; give it before `--`"
        ))),
        None => Ok(()),
    }
}

/// Values of each quantity by name, a pair per round, in the order of the workload's output.
#[derive(Default)]
struct Measured {
    quantities: Vec<(Quantity, Vec<(f64, f64)>)>,
    /// The warnings about the first round; the other rounds would repeat them.
    doubts: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Quantity {
    name: String,
    unit: &'static str,
    better: Better,
}

impl Measured {
    /// Pairs the figures of both records; a phase in only one of them cannot be compared.
    fn add(&mut self, a: &Record, b: &Record) {
        if self.quantities.is_empty() {
            let doubts = |name, record| {
                let all = table::warnings(record).into_iter();
                all.map(move |text| format!("Doubtful, in the first round of {name}: {text}"))
            };
            self.doubts = doubts("A", a).chain(doubts("B", b)).collect();
        }
        let (a, b) = (quantities(a), quantities(b));
        for (quantity, value_a) in a {
            let Some((_, value_b)) = b.iter().find(|(other, _)| *other == quantity) else {
                continue;
            };
            match self.quantities.iter_mut().find(|(known, _)| *known == quantity) {
                Some((_, pairs)) => pairs.push((value_a, *value_b)),
                None => self.quantities.push((quantity, vec![(value_a, *value_b)])),
            }
        }
    }

    fn compare(&self) -> Vec<Comparison> {
        self.quantities.iter().filter_map(|(quantity, pairs)| compare(quantity, pairs)).collect()
    }
}

/// The rate of each phase and the latency of its slowest hundredth.
fn quantities(record: &Record) -> Vec<(Quantity, f64)> {
    let compared = |phase: &&Phase| {
        phase.name != workloads::PREPARE && phase.seconds > 0.0 && phase.access != Access::None
    };
    record.phases.iter().filter(compared).flat_map(of_phase).collect()
}

fn of_phase(phase: &Phase) -> Vec<(Quantity, f64)> {
    let label = match phase.iteration {
        0 => phase.name.clone(),
        n => format!("{} #{}", phase.name, n + 1),
    };
    let rate = match (phase.access, phase.bytes) {
        (Access::Metadata, _) | (_, 0) => (phase.ops as f64 / phase.seconds, "ops/s"),
        (_, bytes) => (bytes as f64 / phase.seconds, "bytes_per_second"),
    };
    let quantity = Quantity { name: label.clone(), unit: rate.1, better: Better::Higher };
    let mut all = vec![(quantity, rate.0)];
    if let Some(latency) = phase.latency {
        let name = format!("{label}, p99");
        all.push((Quantity { name, unit: "ns", better: Better::Lower }, latency.p99_ns as f64));
    }
    all
}

/// `None` if there are too few rounds to say anything.
fn compare(quantity: &Quantity, pairs: &[(f64, f64)]) -> Option<Comparison> {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let usable = pairs.iter().filter(|(a, b)| *a > 0.0 && *b > 0.0);
    let ratios: Vec<f64> = usable.map(|(a, b)| b / a).collect();
    let interval = stats::median_interval(&ratios)?;
    let (ratio, noise) = (stats::median(&ratios), stats::own_noise(&a).max(stats::own_noise(&b)));
    Some(Comparison {
        name: quantity.name.clone(),
        unit: quantity.unit.into(),
        better: quantity.better,
        median_a: stats::median(&a),
        median_b: stats::median(&b),
        a,
        b,
        ratio,
        ratio_low: interval.low,
        ratio_high: interval.high,
        confidence: interval.confidence,
        noise_share: noise,
        verdict: match ratio.max(1.0 / ratio) > 1.0 + noise {
            true => judge(quantity.better, interval.low, interval.high),
            false => Verdict::NoDifference,
        },
    })
}

/// C2.
fn judge(better: Better, low: f64, high: f64) -> Verdict {
    let b_is_more = low > 1.0;
    let b_is_less = high < 1.0;
    match better {
        _ if !b_is_more && !b_is_less => Verdict::NoDifference,
        Better::Higher if b_is_more => Verdict::BBetter,
        Better::Lower if b_is_less => Verdict::BBetter,
        _ => Verdict::ABetter,
    }
}

fn verdict(comparisons: &[Comparison], rounds: usize) -> String {
    let count = |verdict| comparisons.iter().filter(|c| c.verdict == verdict).count();
    match comparisons.first() {
        None => format!("Too few of the {rounds} rounds were completed to compare anything."),
        Some(first) => format!(
            "Of {} quantities B is better in {}, A in {}, and {} are within the noise, at {:.0} % \
             confidence each, over {} rounds.",
            comparisons.len(),
            count(Verdict::BBetter),
            count(Verdict::ABetter),
            count(Verdict::NoDifference),
            first.confidence * 100.0,
            first.a.len(),
        ),
    }
}

#[cfg(test)]
mod tests;
