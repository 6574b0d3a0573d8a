//! The choice of a run's charts, and their contents.

use super::axis::{Quantity, Scaling};
use super::chart::{Column, HeatMap, LineChart, Mark, RatioChart, Series};
use super::scene::{Dash, SERIES, Scene};
use crate::record::{Part, Phase, Record, ScalePoint, Second};
use crate::workloads::PREPARE;

/// A chart and the name of its file.
pub struct Figure {
    pub name: String,
    pub scene: Scene,
}

/// Columns of a heat map at most: narrower ones cannot be told apart.
const COLUMNS: usize = 132;
/// Heat maps of one run at most, and slices each has at least: fewer are bars without a course.
const MAPS: usize = 6;
const MAP_SLICES: usize = 5;

/// All charts of a run, in the order of their importance.
pub fn of(record: &Record) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut put = |name: &str, scene: Option<Scene>| {
        figures.extend(scene.map(|scene| Figure { name: name.to_owned(), scene }));
    };
    put("compare", comparison(record));
    put("fill", fill(record));
    put("scaling", scaling(record));
    put("scaling-latency", scaling_latency(record));
    put("iterations", iterations(record));
    let groups = groups(record);
    put("throughput", throughput(&groups));
    put("latency", latency(&groups));
    let mapped = groups.iter().filter(|group| whole(group).count() >= MAP_SLICES);
    for group in mapped.take(MAPS) {
        put(&format!("heat-{}", group.slug()), heat(group));
    }
    figures
}

/// The slices of one phase.
struct Group<'a> {
    name: &'a str,
    iteration: u32,
    slices: Vec<&'a Second>,
}

impl Group<'_> {
    fn label(&self) -> String {
        if self.iteration == 0 {
            self.name.to_owned()
        } else {
            format!("{} #{}", self.name, self.iteration + 1)
        }
    }

    /// Fit for a file's name.
    fn slug(&self) -> String {
        let fit = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        self.label().chars().map(fit).collect()
    }
}

/// Phases that have a course: two slices or more. Preparation is not measured, and must not set the
/// scale of the measured phases.
fn groups(record: &Record) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    for slice in record.seconds.iter().filter(|slice| slice.phase != PREPARE) {
        let same = |g: &&mut Group| g.name == slice.phase && g.iteration == slice.iteration;
        match groups.iter_mut().find(same) {
            Some(group) => group.slices.push(slice),
            None => groups.push(Group {
                name: &slice.phase,
                iteration: slice.iteration,
                slices: vec![slice],
            }),
        }
    }
    groups.retain(|group| group.slices.len() > 1);
    groups
}

/// The last slice is seldom a whole one; it is shown as if it were, unless it is short.
fn whole<'a>(group: &'a Group) -> impl Iterator<Item = &'a Second> {
    let width = group.slices.iter().map(|s| s.seconds).fold(0.0, f64::max);
    group.slices.iter().copied().filter(move |s| s.seconds >= width / 2.0)
}

fn throughput(groups: &[Group]) -> Option<Scene> {
    let bytes = groups.iter().any(|g| g.slices.iter().any(|s| s.bytes > 0));
    let rate = |s: &Second| if bytes { s.bytes } else { s.ops } as f64 / s.seconds;
    let quantity = if bytes { Quantity::BytesPerSecond } else { Quantity::OpsPerSecond };
    let series = courses(groups, &rate);
    over_time(
        "Throughput over time",
        ("Throughput", quantity, Scaling::FromZero),
        series,
        warm_up(groups),
    )
}

type OfSlice = fn(&Second) -> f64;

fn latency(groups: &[Group]) -> Option<Scene> {
    let percentiles: [(&str, OfSlice); 3] = [
        ("median", |s| s.p50_ns as f64),
        ("99 % below", |s| s.p99_ns as f64),
        ("maximum", |s| s.max_ns as f64),
    ];
    let series = match groups {
        [one] => {
            percentiles.iter().map(|(name, of)| Series::new(*name, course(one, of, 0.0))).collect()
        }
        many => courses(many, &percentiles[1].1),
    };
    let title = if groups.len() == 1 { "Latency over time" } else { "Latency, 99 % below" };
    let y = ("Latency", Quantity::Nanoseconds, Scaling::Log);
    over_time(title, y, series, warm_up(groups))
}

/// A line per phase, or, of more phases than there are colors, one line through all of them.
fn courses(groups: &[Group], of: &dyn Fn(&Second) -> f64) -> Vec<Series> {
    if groups.len() <= usize::from(SERIES) {
        return groups.iter().map(|g| Series::new(g.label(), course(g, of, 0.0))).collect();
    }
    let mut points = Vec::new();
    let mut begin = 0.0;
    for group in groups {
        points.extend(course(group, of, begin));
        begin += group.slices.iter().map(|s| s.seconds).sum::<f64>();
    }
    vec![Series::new(format!("{} phases one after another", groups.len()), points)]
}

/// Points in the middle of their slices.
fn course(group: &Group, of: impl Fn(&Second) -> f64, begin: f64) -> Vec<(f64, f64)> {
    whole(group).map(|s| (begin + s.at_seconds + s.seconds / 2.0, of(s))).collect()
}

/// Where the discarded part of the run ends.
fn warm_up(groups: &[Group]) -> Vec<Mark> {
    let [one] = groups else {
        return Vec::new();
    };
    let discarded = one.slices.iter().filter(|s| s.part == Part::WarmUp);
    let end = discarded.map(|s| s.at_seconds + s.seconds).fold(0.0, f64::max);
    if end > 0.0 { vec![Mark::Span(0.0, end, "warm-up".into())] } else { Vec::new() }
}

fn over_time(
    title: &str,
    y: (&str, Quantity, Scaling),
    series: Vec<Series>,
    marks: Vec<Mark>,
) -> Option<Scene> {
    let drawn = series.iter().any(|s| s.points.len() > 1);
    drawn.then(|| {
        LineChart {
            title: title.into(),
            x: ("Time".into(), Quantity::Seconds, Scaling::FromZero),
            y: (y.0.into(), y.1, y.2),
            series,
            marks,
        }
        .draw()
    })
}

fn heat(group: &Group) -> Option<Scene> {
    let each = group.slices.len().div_ceil(COLUMNS);
    let columns: Vec<Column> = group.slices.chunks(each).map(column).collect();
    let filled = columns.iter().any(|column| !column.counts.is_empty());
    let title = format!("Latency map: {}", group.label());
    filled.then(|| HeatMap { title, columns }.draw())
}

/// Slices side by side as one.
fn column(slices: &[&Second]) -> Column {
    let mut counts = std::collections::BTreeMap::new();
    for (from, to, count) in slices.iter().flat_map(|slice| &slice.histogram) {
        *counts.entry((*from, *to)).or_insert(0u64) += count;
    }
    Column {
        at: slices[0].at_seconds,
        seconds: slices.iter().map(|slice| slice.seconds).sum(),
        counts: counts.into_iter().map(|((from, to), count)| (from, to, count)).collect(),
    }
}

/// Rates of phases that were repeated, such as IOR's.
fn iterations(record: &Record) -> Option<Scene> {
    let mut series: Vec<Series> = Vec::new();
    let told = |phase: &&Phase| phase.bytes > 0 && phase.seconds > 0.0 && phase.name != PREPARE;
    for phase in record.phases.iter().filter(told) {
        let point = (f64::from(phase.iteration) + 1.0, phase.bytes as f64 / phase.seconds);
        match series.iter_mut().find(|known| known.label == phase.name) {
            Some(known) => known.points.push(point),
            None => series.push(Series::new(&phase.name, vec![point])),
        }
    }
    series.retain(|one| one.points.len() > 1);
    series.truncate(usize::from(SERIES));
    (!series.is_empty()).then(|| {
        LineChart {
            title: "Throughput by iteration".into(),
            x: ("Iteration".into(), Quantity::Count, Scaling::FromZero),
            y: ("Throughput".into(), Quantity::BytesPerSecond, Scaling::FromZero),
            series,
            marks: Vec::new(),
        }
        .draw()
    })
}

fn fill(record: &Record) -> Option<Scene> {
    let points = record.fill.iter().map(|p| (p.share, p.bytes_per_second)).collect();
    (record.fill.len() > 1).then(|| {
        LineChart {
            title: "Throughput as it fills".into(),
            x: ("In use".into(), Quantity::Share, Scaling::FromZero),
            y: ("Throughput".into(), Quantity::BytesPerSecond, Scaling::FromZero),
            series: vec![Series::new("random writes, steady part", points)],
            marks: Vec::new(),
        }
        .draw()
    })
}

fn scaling(record: &Record) -> Option<Scene> {
    let of = |p: &ScalePoint| (f64::from(p.clients), p.ops_per_second);
    let measured = record.scale.iter().map(of).collect();
    let mut series = vec![Series::new("measured", measured)];
    if let Some(first) = record.scale.first() {
        series.extend(proportional(record, first));
    }
    clients(record, "Throughput by clients", ("Throughput", Quantity::OpsPerSecond), series)
}

/// The line that the first point predicts, as far as it fits over the measured curve.
fn proportional(record: &Record, first: &ScalePoint) -> Option<Series> {
    let top = record.scale.iter().map(|p| p.ops_per_second).fold(0.0, f64::max) * 1.1;
    let most = f64::from(record.scale.last()?.clients);
    let each = first.ops_per_second / f64::from(first.clients.max(1));
    let end = most.min(top / each);
    let start = (f64::from(first.clients), first.ops_per_second);
    let points = vec![start, (end, end * each)];
    (end > start.0).then(|| Series { label: "in proportion".into(), points, dash: Dash::Dashed })
}

fn scaling_latency(record: &Record) -> Option<Scene> {
    let line = |name: &str, of: fn(&ScalePoint) -> u64| {
        let point = |p: &ScalePoint| (f64::from(p.clients), of(p) as f64);
        Series::new(name, record.scale.iter().map(point).collect())
    };
    let series =
        vec![line("median", |p| p.latency.p50_ns), line("99 % below", |p| p.latency.p99_ns)];
    clients(record, "Latency by clients", ("Latency", Quantity::Nanoseconds), series)
}

fn clients(
    record: &Record,
    title: &str,
    y: (&str, Quantity),
    series: Vec<Series>,
) -> Option<Scene> {
    let knee = record.scale.iter().find(|point| point.knee);
    let mark = knee.map(|p| Mark::At(f64::from(p.clients), format!("knee: {}", p.clients)));
    (record.scale.len() > 1).then(|| {
        LineChart {
            title: title.into(),
            x: ("Clients".into(), Quantity::Count, Scaling::FromZero),
            y: (y.0.into(), y.1, Scaling::FromZero),
            series,
            marks: mark.into_iter().collect(),
        }
        .draw()
    })
}

fn comparison(record: &Record) -> Option<Scene> {
    let rows: Vec<_> = record
        .comparisons
        .iter()
        .map(|c| (c.name.clone(), c.ratio_low, c.ratio, c.ratio_high))
        .collect();
    let title = "B over A, with its interval".to_owned();
    (!rows.is_empty()).then(|| RatioChart { title, rows }.draw())
}
