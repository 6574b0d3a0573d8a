//! Charts: lines over an axis, and heat maps over time, laid out as scenes.
//!
//! Drawn for a width of 480, so that the type is still readable when a phone shrinks it.

use super::axis::{Axis, Quantity, Scaling, text};
use super::scene::{Anchor, Area, Dash, Face, HEATS, Ink, Scene, Shape, Turn};

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
/// The part of the chart inside of the axes.
const PLOT: Area = Area { x: 66.0, y: 54.0, width: 396.0, height: 196.0 };
/// The greatest width of a character of a label: that of the bitmap type.
const LETTER: f64 = 6.6;
/// Points more than this far apart on average get a dot each.
const DOT_DISTANCE: f64 = 12.0;

/// A line of a chart.
#[derive(Debug, Clone)]
pub struct Series {
    pub label: String,
    pub points: Vec<(f64, f64)>,
    pub dash: Dash,
}

impl Series {
    pub fn new(label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { label: label.into(), points, dash: Dash::Solid }
    }
}

/// Something to point out.
#[derive(Debug, Clone)]
pub enum Mark {
    /// A value of x.
    At(f64, String),
    /// A span of x, shaded.
    Span(f64, f64, String),
}

#[derive(Debug, Clone)]
pub struct LineChart {
    pub title: String,
    pub x: (String, Quantity, Scaling),
    pub y: (String, Quantity, Scaling),
    pub series: Vec<Series>,
    pub marks: Vec<Mark>,
}

impl LineChart {
    pub fn draw(&self) -> Scene {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::new(&self.x.0, self.x.1, self.x.2, points().map(|p| p.0));
        let y = Axis::new(&self.y.0, self.y.1, self.y.2, points().map(|p| p.1));
        let mut scene = frame(&self.title, (&x, self.x.1), (&y, self.y.1));
        for mark in &self.marks {
            draw_mark(&mut scene, &x, mark);
        }
        for (index, series) in self.series.iter().enumerate() {
            self.draw_series(&mut scene, (&x, &y), series, Ink::Series(index as u8));
        }
        self.legend(&mut scene);
        scene
    }

    fn draw_series(&self, scene: &mut Scene, (x, y): (&Axis, &Axis), series: &Series, ink: Ink) {
        let finite = series.points.iter().filter(|p| p.0.is_finite() && p.1.is_finite());
        let places: Vec<((f64, f64), (f64, f64))> =
            finite.map(|p| ((across(x.place(p.0)), up(y.place(p.1))), *p)).collect();
        scene.line(places.iter().map(|p| p.0).collect(), ink, 2.0, series.dash);
        if series.dash == Dash::Dashed || places.len() as f64 * DOT_DISTANCE > PLOT.width {
            return;
        }
        for ((px, py), value) in places {
            let tip = format!(
                "{}: {} at {}",
                series.label,
                text(self.y.1, value.1),
                text(self.x.1, value.0)
            );
            scene.shapes.push(Shape::Dot { x: px, y: py, radius: 3.5, ink, tip });
        }
    }

    fn legend(&self, scene: &mut Scene) {
        let mut left = PLOT.x;
        for (index, series) in self.series.iter().enumerate() {
            let ink = Ink::Series(index as u8);
            scene.line(vec![(left, 38.0), (left + 16.0, 38.0)], ink, 3.0, series.dash);
            scene.label(left + 21.0, 42.0, Anchor::Start, Ink::Faint, &series.label);
            left += 36.0 + series.label.chars().count() as f64 * LETTER;
        }
    }
}

/// Counts by latency and time.
#[derive(Debug, Clone)]
pub struct HeatMap {
    pub title: String,
    /// A column per slice of time: begin and length in seconds, and counts per latency range in ns.
    pub columns: Vec<Column>,
}

#[derive(Debug, Clone)]
pub struct Column {
    pub at: f64,
    pub seconds: f64,
    pub counts: Vec<(u64, u64, u64)>,
}

impl HeatMap {
    pub fn draw(&self) -> Scene {
        let end = self.columns.iter().map(|c| c.at + c.seconds).fold(0.0, f64::max);
        let x = Axis::new("Time", Quantity::Seconds, Scaling::FromZero, [0.0, end].into_iter());
        let ranges = || self.columns.iter().flat_map(|column| &column.counts);
        let edges = ranges().flat_map(|(from, to, _)| [*from as f64, *to as f64]);
        let y = Axis::new("Latency", Quantity::Nanoseconds, Scaling::Log, edges);
        let mut scene = frame(&self.title, (&x, Quantity::Seconds), (&y, Quantity::Nanoseconds));
        let most = ranges().map(|range| range.2).max().unwrap_or(1);
        let mut steps = vec![Vec::new(); usize::from(HEATS)];
        for column in &self.columns {
            for &(from, to, count) in &column.counts {
                let cell = cell(&x, &y, column, (from, to));
                steps[usize::from(step_of(count, most))].push(cell);
            }
        }
        for (step, cells) in steps.into_iter().enumerate().filter(|(_, cells)| !cells.is_empty()) {
            scene.shapes.push(Shape::Cells { cells, ink: Ink::Heat(step as u8) });
        }
        key(&mut scene, most);
        scene
    }
}

/// The step of a count, by logarithm: a single stalled operation must be visible beside a hundred
/// thousand others.
fn step_of(count: u64, most: u64) -> u8 {
    let share = (count as f64).ln_1p() / (most as f64).ln_1p();
    (share * f64::from(HEATS)).min(f64::from(HEATS - 1)) as u8
}

/// On whole pixels of the bitmap, so that neighbors touch without a seam.
fn cell(x: &Axis, y: &Axis, column: &Column, (from, to): (u64, u64)) -> Area {
    let snap = |place: f64| (place * 2.0).round() / 2.0;
    let left = snap(across(x.place(column.at)));
    let right = snap(across(x.place(column.at + column.seconds)));
    let bottom = snap(up(y.place(from as f64)));
    let top = snap(up(y.place(to as f64)));
    Area { x: left, y: top, width: right - left, height: bottom - top }
}

/// The colors' meaning, in the place of a legend.
fn key(scene: &mut Scene, most: u64) {
    scene.label(PLOT.x, 42.0, Anchor::Start, Ink::Faint, "1");
    for step in 0..HEATS {
        let at =
            Area { x: PLOT.x + 12.0 + f64::from(step) * 7.0, y: 33.0, width: 7.0, height: 10.0 };
        scene.shapes.push(Shape::Cells { cells: vec![at], ink: Ink::Heat(step) });
    }
    let end = PLOT.x + 18.0 + f64::from(HEATS) * 7.0;
    let text = format!("{most} operations");
    scene.label(end, 42.0, Anchor::Start, Ink::Faint, text);
}

/// Ratios with their intervals, one row each, around 1.
#[derive(Debug, Clone)]
pub struct RatioChart {
    pub title: String,
    /// Name, low, middle, high.
    pub rows: Vec<(String, f64, f64, f64)>,
}

impl RatioChart {
    pub fn draw(&self) -> Scene {
        let values = self.rows.iter().flat_map(|row| [row.1, row.3]).chain([0.9, 1.1]);
        let x = Axis::new("B / A", Quantity::Ratio, Scaling::Between, values);
        let mut scene = Scene::new(WIDTH, 110.0 + self.rows.len() as f64 * 40.0, &self.title);
        let bottom = scene.height - 50.0;
        title(&mut scene, &self.title);
        for (place, label) in x.ticks(Quantity::Ratio) {
            let at = 20.0 + place * (WIDTH - 40.0);
            scene.line(vec![(at, 36.0), (at, bottom)], Ink::Grid, 1.0, Dash::Solid);
            scene.label(at, bottom + 17.0, Anchor::Middle, Ink::Faint, label);
        }
        let place = |value: f64| 20.0 + x.place(value) * (WIDTH - 40.0);
        scene.line(vec![(place(1.0), 36.0), (place(1.0), bottom)], Ink::Text, 1.5, Dash::Dashed);
        for (index, (name, low, middle, high)) in self.rows.iter().enumerate() {
            let y = 68.0 + index as f64 * 40.0;
            let ink = Ink::Series(0);
            let width = name.chars().count() as f64 * LETTER;
            let at = Area { x: 22.0, y: y - 23.0, width, height: 15.0 };
            scene.shapes.push(Shape::Box { at, ink: Ink::Paper, opacity: 0.9 });
            scene.label(24.0, y - 12.0, Anchor::Start, Ink::Text, name);
            scene.line(vec![(place(*low), y), (place(*high), y)], ink, 3.0, Dash::Solid);
            let tip = format!("{name}: {middle:.3}, between {low:.3} and {high:.3}");
            scene.shapes.push(Shape::Dot { x: place(*middle), y, radius: 5.0, ink, tip });
        }
        scene.label(WIDTH / 2.0, scene.height - 12.0, Anchor::Middle, Ink::Text, &x.label);
        scene
    }
}

fn across(place: f64) -> f64 {
    PLOT.x + place * PLOT.width
}

fn up(place: f64) -> f64 {
    PLOT.y + (1.0 - place) * PLOT.height
}

fn title(scene: &mut Scene, text: &str) {
    scene.shapes.push(Shape::Text {
        x: 12.0,
        y: 22.0,
        text: text.to_owned(),
        face: Face::Title,
        anchor: Anchor::Start,
        turn: Turn::Level,
        ink: Ink::Text,
    });
}

/// Title, grid, ticks and labels.
fn frame(name: &str, x: (&Axis, Quantity), y: (&Axis, Quantity)) -> Scene {
    let mut scene = Scene::new(WIDTH, HEIGHT, name);
    title(&mut scene, name);
    let (right, bottom) = (PLOT.x + PLOT.width, PLOT.y + PLOT.height);
    for (place, label) in y.0.ticks(y.1) {
        let at = up(place);
        scene.line(vec![(PLOT.x, at), (right, at)], Ink::Grid, 1.0, Dash::Solid);
        scene.label(PLOT.x - 6.0, at + 4.0, Anchor::End, Ink::Faint, label);
    }
    for (place, label) in x.0.ticks(x.1) {
        let at = across(place);
        scene.line(vec![(at, bottom), (at, bottom + 4.0)], Ink::Faint, 1.0, Dash::Solid);
        scene.label(at, bottom + 17.0, Anchor::Middle, Ink::Faint, label);
    }
    scene.line(vec![(PLOT.x, bottom), (right, bottom)], Ink::Faint, 1.0, Dash::Solid);
    scene.label(PLOT.x + PLOT.width / 2.0, HEIGHT - 12.0, Anchor::Middle, Ink::Text, &x.0.label);
    scene.shapes.push(Shape::Text {
        x: 15.0,
        y: PLOT.y + PLOT.height / 2.0,
        text: y.0.label.clone(),
        face: Face::Label,
        anchor: Anchor::Middle,
        turn: Turn::Up,
        ink: Ink::Text,
    });
    scene
}

fn draw_mark(scene: &mut Scene, x: &Axis, mark: &Mark) {
    let (at, label) = match mark {
        Mark::At(value, label) => {
            let at = across(x.place(*value));
            let bottom = PLOT.y + PLOT.height;
            scene.line(vec![(at, PLOT.y), (at, bottom)], Ink::Text, 1.0, Dash::Dashed);
            (at, label)
        }
        Mark::Span(from, to, label) => {
            let (left, right) = (across(x.place(*from)), across(x.place(*to)));
            let at = Area { x: left, y: PLOT.y, width: right - left, height: PLOT.height };
            scene.shapes.push(Shape::Box { at, ink: Ink::Faint, opacity: 0.15 });
            (left, label)
        }
    };
    let room = PLOT.x + PLOT.width - at;
    if label.chars().count() as f64 * LETTER + 5.0 < room {
        scene.label(at + 4.0, PLOT.y + 13.0, Anchor::Start, Ink::Text, label);
    } else {
        scene.label(at - 4.0, PLOT.y + 13.0, Anchor::End, Ink::Text, label);
    }
}
