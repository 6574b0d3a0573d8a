//! `forebay bench bars`: times of a few kinds of work, done in two ways, as bars side by side.
//!
//! Reads a table that any script can write; measures nothing.

use std::fs;
use std::path::Path;

use super::scene::{Anchor, Area, Dash, Face, Ink, Scene, Shape, Turn};
use super::svg;
use crate::args::Spec;
use crate::error::{Error, Result};

fn spec() -> Spec {
    Spec::new("bars")
        .about(
            "Draws times of several kinds of work, done in two ways, as bars: one SVG file that \
             follows the reader's light or dark theme. FILE has tab-separated columns. Its first \
             line names the two ways behind an empty first column; every other line has what was \
             done and its two times in seconds.",
        )
        .usage("FILE --out PICTURE.svg [OPTIONS]")
        .value(None, "out", "PICTURE.svg", "where the picture goes")
        .value(None, "title", "TEXT", "what stands above it")
        .examples(
            "  forebay bench bars demo.tsv --out docs/demo.svg --title 'Seconds, less is better'",
        )
}

/// Runs the command; the code is 0 or the error's.
pub fn run(args: &[String]) -> Result<u8> {
    let parsed = spec().parse(args)?;
    if let Some(help) = parsed.help_wanted() {
        print!("{help}");
        return Ok(0);
    }
    let [file] = parsed.rest() else {
        return Err(Error::usage("bars: name one FILE with the times"));
    };
    let out =
        parsed.get("out").ok_or_else(|| Error::usage("bars: --out PICTURE.svg is missing"))?;
    let text = fs::read_to_string(file).map_err(|e| Error::usage(format!("{file}: {e}")))?;
    let title = parsed.get("title").unwrap_or("Seconds");
    let chart = BarChart::read(title, &text).map_err(|e| Error::usage(format!("{file}: {e}")))?;
    fs::write(out, svg::document(&chart.draw()))
        .map_err(|e| Error::io("write", Path::new(out), &e))?;
    println!("wrote {out}");
    Ok(0)
}

/// Pairs of times.
#[derive(Debug, Clone, PartialEq)]
struct BarChart {
    title: String,
    ways: [String; 2],
    rows: Vec<(String, [f64; 2])>,
}

const WIDTH: f64 = 640.0;
const LEFT: f64 = 16.0;
/// The space right of the longest bar for its time and the ratio.
const RIGHT: f64 = 150.0;
const TOP: f64 = 68.0;
const ROW: f64 = 62.0;
const BAR: f64 = 15.0;

impl BarChart {
    fn read(title: &str, text: &str) -> std::result::Result<Self, String> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let head: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
        let [_, a, b] = head[..] else {
            return Err("its first line has to name two ways, behind tabs".into());
        };
        let rows = lines.map(|line| {
            let wrong = || format!("{line:?}: write what was done, a tab, seconds, a tab, seconds");
            let columns: Vec<&str> = line.split('\t').collect();
            let [name, a, b] = columns[..] else { return Err(wrong()) };
            let time = |text: &str| text.trim().parse::<f64>().ok().filter(|&time| time > 0.0);
            let times = time(a).zip(time(b)).ok_or_else(wrong)?;
            Ok((name.to_owned(), [times.0, times.1]))
        });
        let rows = rows.collect::<std::result::Result<Vec<_>, String>>()?;
        match rows.is_empty() {
            true => Err("it has no times".into()),
            false => Ok(Self { title: title.into(), ways: [a.into(), b.into()], rows }),
        }
    }

    fn draw(&self) -> Scene {
        let height = TOP + self.rows.len() as f64 * ROW + 4.0;
        let mut scene = Scene::new(WIDTH, height, &self.title);
        big(&mut scene, LEFT, 26.0, Anchor::Start, &self.title);
        self.legend(&mut scene);
        let most = self.rows.iter().flat_map(|row| row.1).fold(0.0, f64::max);
        for (index, (name, times)) in self.rows.iter().enumerate() {
            let y = TOP + index as f64 * ROW;
            scene.label(LEFT, y + 12.0, Anchor::Start, Ink::Text, name);
            for (way, time) in times.iter().enumerate() {
                let at = y + 18.0 + way as f64 * (BAR + 2.0);
                let width = (time / most * (WIDTH - LEFT - RIGHT)).max(1.0);
                let area = Area { x: LEFT, y: at, width, height: BAR };
                scene.shapes.push(Shape::Box { at: area, ink: ink(way), opacity: 1.0 });
                let told = format!("{time:.1} s");
                scene.label(LEFT + width + 6.0, at + 12.0, Anchor::Start, Ink::Faint, told);
            }
            let ratio = format!("{:.1} \u{d7}", times[0] / times[1]);
            big(&mut scene, WIDTH - LEFT, y + 40.0, Anchor::End, &ratio);
            let line = vec![(LEFT, y + ROW - 6.0), (WIDTH - LEFT, y + ROW - 6.0)];
            scene.line(line, Ink::Grid, 1.0, Dash::Solid);
        }
        scene
    }

    fn legend(&self, scene: &mut Scene) {
        let mut x = LEFT;
        for (way, name) in self.ways.iter().enumerate() {
            let at = Area { x, y: 40.0, width: 12.0, height: 12.0 };
            scene.shapes.push(Shape::Box { at, ink: ink(way), opacity: 1.0 });
            scene.label(x + 18.0, 50.0, Anchor::Start, Ink::Text, name);
            x += 40.0 + name.chars().count() as f64 * 7.0;
        }
    }
}

fn ink(way: usize) -> Ink {
    if way == 0 { Ink::Grid } else { Ink::Series(0) }
}

fn big(scene: &mut Scene, x: f64, y: f64, anchor: Anchor, text: &str) {
    let (text, turn, ink) = (text.to_owned(), Turn::Level, Ink::Text);
    scene.shapes.push(Shape::Text { x, y, text, face: Face::Title, anchor, turn, ink });
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\twithout\twith\nburst\t6.6\t2.0\nread again\t2.1\t0.3\n";

    #[test]
    fn a_table_becomes_bars_of_its_lengths() {
        let scene = BarChart::read("Seconds", TABLE).unwrap().draw();
        let bars = scene.shapes.iter().filter_map(|shape| match shape {
            Shape::Box { at, .. } if at.height == BAR => Some(at.width),
            _ => None,
        });
        let bars: Vec<f64> = bars.collect();
        let longest = WIDTH - LEFT - RIGHT;
        assert_eq!(bars.len(), 4);
        for (bar, time) in bars.iter().zip([6.6, 2.0, 2.1, 0.3]) {
            assert!((bar - longest * time / 6.6).abs() < 1e-9, "{bars:?}");
        }
        let svg = svg::document(&scene);
        assert!(svg.contains(">3.3 \u{d7}<") && svg.contains(">7.0 \u{d7}<"), "{svg}");
        assert!(svg.contains("read again") && svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn what_is_no_table_is_told() {
        let wrong = |text: &str| BarChart::read("t", text).unwrap_err();
        assert!(wrong("").contains("first line"));
        assert!(wrong("\ta\tb\n").contains("no times"));
        assert!(wrong("\ta\tb\nx\t1\t0\n").contains("seconds"));
        let words: Vec<String> = ["/nonexistent", "--out", "x.svg"].map(String::from).into();
        assert_eq!(run(&words).unwrap_err().exit_code(), 2);
    }
}
