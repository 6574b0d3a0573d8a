//! The tables of a report, as rows of text: the terminal aligns them, the page marks them up.

use super::axis::{Quantity, text};
use crate::record::{Access, Comparison, Header, Latency, Outcome, Phase, Record, Verdict};
use crate::units::{human_bytes, human_count, human_nanos, human_rate};
use crate::workloads::PREPARE;

pub struct Table {
    pub title: &'static str,
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// Every table that the run has data for.
pub fn of(record: &Record) -> Vec<Table> {
    [
        comparisons(record),
        fill(record),
        scale(record),
        phases(record),
        timings(record),
        figures(record),
    ]
    .into_iter()
    .filter(|table| !table.rows.is_empty())
    .collect()
}

/// Facts about the run: name and value.
pub fn facts(record: &Record) -> Vec<(String, String)> {
    let header = &record.header;
    let mut facts = vec![
        ("Command".to_owned(), header.command.join(" ")),
        ("Began".to_owned(), header.began.clone()),
        ("Tool".to_owned(), header.tool.clone()),
        ("Page cache".to_owned(), header.cache.clone()),
        ("Transfers".to_owned(), header.backend.clone()),
        ("Machine".to_owned(), machine(header)),
        ("Memory".to_owned(), memory(header)),
    ];
    for place in &header.targets {
        let kind = match place.rotational {
            Some(true) => ", rotational, as the kernel says",
            Some(false) => ", not rotational, as the kernel says",
            None => "",
        };
        let model = if place.model.is_empty() { "" } else { ", " };
        let text = format!(
            "{}: {} on {}{model}{}{kind}, {} of {} free; {}",
            place.path,
            place.file_system,
            place.source,
            place.model,
            human_bytes(place.free_bytes),
            human_bytes(place.size_bytes),
            place.mount_options
        );
        facts.push(("Target".to_owned(), text));
    }
    facts.push(("Ended".to_owned(), ended(record)));
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

fn machine(header: &Header) -> String {
    format!("{}, {} x {}", header.host.kernel, header.host.cpus, header.host.cpu)
}

fn memory(header: &Header) -> String {
    let host = &header.host;
    format!(
        "{}, {} free, {} in the page cache at the start",
        human_bytes(host.memory_bytes),
        human_bytes(host.free_bytes),
        human_bytes(host.cached_bytes)
    )
}

fn ended(record: &Record) -> String {
    let Some(end) = record.end else {
        return "cut off: the run was killed, or goes on".into();
    };
    let how = match end.outcome {
        Outcome::Complete => "complete",
        Outcome::Interrupted => "interrupted; what was measured until then is shown",
        Outcome::Failed => "failed; what was measured until then is shown",
    };
    format!("{how}, after {:.1} s", end.seconds)
}

/// The warnings of all phases, each once, with the phases it is about.
pub fn warnings(record: &Record) -> Vec<String> {
    let mut all: Vec<(&str, Vec<String>)> = Vec::new();
    for phase in &record.phases {
        for warning in &phase.warnings {
            match all.iter_mut().find(|(known, _)| known == warning) {
                Some((_, phases)) => phases.push(label(phase)),
                None => all.push((warning, vec![label(phase)])),
            }
        }
    }
    all.into_iter().map(|(warning, phases)| format!("{}: {warning}", phases.join(", "))).collect()
}

/// The best rate of each kind of phase in one sentence, for runs that found nothing else.
pub fn best(record: &Record) -> String {
    let mut best: Vec<(&Phase, f64)> = Vec::new();
    for phase in record.phases.iter().filter(|phase| phase.name != PREPARE) {
        let Some(rate) = per_second(amount(phase), phase.seconds) else { continue };
        match best.iter_mut().find(|(known, _)| known.name == phase.name) {
            Some((_, most)) => *most = most.max(rate),
            None => best.push((phase, rate)),
        }
    }
    let texts = best.iter().map(|(phase, rate)| match is_about_names(phase) {
        true => format!("{} {}/s", phase.name, human_count(*rate)),
        false => format!("{} {}", phase.name, human_rate(*rate)),
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn amount(phase: &Phase) -> u64 {
    if is_about_names(phase) { phase.ops } else { phase.bytes }
}

/// Whether a phase is described by its operations, and not by bytes.
fn is_about_names(phase: &Phase) -> bool {
    phase.access == Access::Metadata || phase.bytes == 0
}

fn label(phase: &Phase) -> String {
    if phase.iteration == 0 {
        phase.name.clone()
    } else {
        format!("{} #{}", phase.name, phase.iteration + 1)
    }
}

fn per_second(amount: u64, seconds: f64) -> Option<f64> {
    (amount > 0 && seconds > 0.0).then(|| amount as f64 / seconds)
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

fn latencies(latency: Option<&Latency>) -> [String; 5] {
    match latency {
        None => std::array::from_fn(|_| "-".into()),
        Some(l) => [l.p50_ns, l.p95_ns, l.p99_ns, l.p999_ns, l.max_ns].map(human_nanos),
    }
}

fn phases(record: &Record) -> Table {
    let head = vec![
        "phase", "tasks", "bytes", "seconds", "rate", "ops/s", "p50", "p95", "p99", "p99.9", "max",
        "cached",
    ];
    let rows = record
        .phases
        .iter()
        .map(|phase| {
            let rate = per_second(phase.bytes, phase.seconds).map(human_rate);
            let ops = per_second(phase.ops, phase.seconds).map(human_count);
            let mut row = vec![
                label(phase),
                phase.tasks.to_string(),
                human_bytes(phase.bytes),
                format!("{:.3}", phase.seconds),
                or_dash(rate),
                or_dash(ops),
            ];
            row.extend(latencies(phase.latency.as_ref()));
            row.push(or_dash(phase.resident_share.map(|s| format!("{:.1} %", s * 100.0))));
            row
        })
        .collect();
    Table { title: "Phases", head, rows }
}

/// IOR's columns, for the phases that have separate timings.
fn timings(record: &Record) -> Table {
    let head = vec![
        "access",
        "bw(MiB/s)",
        "IOPS",
        "block(KiB)",
        "xfer(KiB)",
        "open(s)",
        "wr/rd(s)",
        "close(s)",
        "total(s)",
        "iter",
    ];
    let told = record.phases.iter().filter(|phase| phase.open_seconds.is_some());
    Table { title: "As IOR prints it", head, rows: told.map(timing).collect() }
}

fn timing(phase: &Phase) -> Vec<String> {
    let seconds = |s: Option<f64>| or_dash(s.map(|s| format!("{s:.6}")));
    let kib = |bytes: Option<u64>| or_dash(bytes.map(|b| format!("{:.2}", b as f64 / 1024.0)));
    let mib = per_second(phase.bytes, phase.seconds).map(|rate| rate / (1 << 20) as f64);
    let iops = phase.io_seconds.and_then(|s| per_second(phase.ops, s));
    vec![
        phase.name.clone(),
        or_dash(mib.map(|m| format!("{m:.2}"))),
        or_dash(iops.map(|i| format!("{i:.2}"))),
        kib(phase.block_bytes),
        kib(phase.transfer_bytes),
        seconds(phase.open_seconds),
        seconds(phase.io_seconds),
        seconds(phase.close_seconds),
        format!("{:.6}", phase.seconds),
        phase.iteration.to_string(),
    ]
}

fn figures(record: &Record) -> Table {
    let rows = record
        .phases
        .iter()
        .flat_map(|phase| {
            phase.figures.iter().map(|(name, value)| {
                let (name, text) = figure(name, *value);
                vec![format!("{}: {name}", label(phase)), text]
            })
        })
        .collect();
    Table { title: "Figures", head: vec!["figure", "value"], rows }
}

/// A name like `waited_seconds` and its value, for people.
fn figure(name: &str, value: f64) -> (String, String) {
    let units = [
        ("_bytes_per_second", Quantity::BytesPerSecond),
        ("_ops_per_second", Quantity::OpsPerSecond),
        ("_seconds", Quantity::Seconds),
        ("_ns", Quantity::Nanoseconds),
        ("_share", Quantity::Share),
    ];
    for (end, quantity) in units {
        if let Some(stem) = name.strip_suffix(end) {
            return (stem.replace('_', " "), text(quantity, value));
        }
    }
    if let Some(stem) = name.strip_suffix("_per_second") {
        return (stem.replace('_', " "), format!("{}/s", human_count(value)));
    }
    if let Some(stem) = name.strip_suffix("_bytes") {
        return (stem.replace('_', " "), human_bytes(value as u64));
    }
    let number = if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") };
    (name.replace('_', " "), number)
}

fn fill(record: &Record) -> Table {
    let head = vec![
        "in use",
        "bytes",
        "rate",
        "of the first",
        "ops/s",
        "p50",
        "p99",
        "variation",
        "steady",
    ];
    let rows = record
        .fill
        .iter()
        .map(|p| {
            vec![
                format!("{:.1} %", p.share * 100.0),
                human_bytes(p.filled_bytes),
                human_rate(p.bytes_per_second),
                format!("{:.2}", p.ratio_to_first),
                human_count(p.ops_per_second),
                human_nanos(p.latency.p50_ns),
                human_nanos(p.latency.p99_ns),
                format!("{:.1} %", p.variation * 100.0),
                if p.steady { "yes" } else { "no" }.into(),
            ]
        })
        .collect();
    Table { title: "As it fills", head, rows }
}

fn scale(record: &Record) -> Table {
    let head = vec!["clients", "ops/s", "rate", "p50", "p95", "p99", "max", ""];
    let rows = record
        .scale
        .iter()
        .map(|p| {
            vec![
                p.clients.to_string(),
                human_count(p.ops_per_second),
                human_rate(p.bytes_per_second),
                human_nanos(p.latency.p50_ns),
                human_nanos(p.latency.p95_ns),
                human_nanos(p.latency.p99_ns),
                human_nanos(p.latency.max_ns),
                if p.knee { "knee" } else { "" }.into(),
            ]
        })
        .collect();
    Table { title: "By clients", head, rows }
}

fn comparisons(record: &Record) -> Table {
    let head = vec!["what", "A", "B", "B / A", "between", "noise", "verdict"];
    let rows = record.comparisons.iter().map(comparison).collect();
    Table { title: "A against B", head, rows }
}

fn comparison(c: &Comparison) -> Vec<String> {
    let value = |v: f64| match c.unit.as_str() {
        "bytes_per_second" => human_rate(v),
        "ns" => human_nanos(v as u64),
        unit => format!("{} {unit}", human_count(v)),
    };
    vec![
        c.name.clone(),
        value(c.median_a),
        value(c.median_b),
        format!("{:.3}", c.ratio),
        format!("{:.3} and {:.3}", c.ratio_low, c.ratio_high),
        format!("{:.1} %", c.noise_share * 100.0),
        verdict(c.verdict).into(),
    ]
}

pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NoDifference => "within the noise",
        Verdict::ABetter => "A is better",
        Verdict::BBetter => "B is better",
    }
}
