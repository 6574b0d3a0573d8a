//! A scene as SVG.
//!
//! Colors are classes of a style sheet, with both themes in it, so that the same drawing follows
//! the reader's setting inside a page and alone. No script, no font, no reference to anywhere.

use std::fmt::Write;

use super::scene::{Anchor, Area, Dash, Face, Ink, Rgb, Scene, Shape, Theme, Turn};

/// A file of its own, which includes its style sheet.
pub fn document(scene: &Scene) -> String {
    let style =
        format!("<style>{}</style><rect class=\"fp\" width=\"100%\" height=\"100%\"/>", style());
    let space = " xmlns=\"http://www.w3.org/2000/svg\"";
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", drawing(scene, space, &style))
}

/// A drawing for a page that has [`style`] in its head.
pub fn inline(scene: &Scene) -> String {
    drawing(scene, "", "")
}

/// The classes: `f?` fills, `k?` strokes.
pub fn style() -> String {
    let mut text =
        String::from("text{font:12px system-ui,sans-serif}.big{font-size:16px;font-weight:600}");
    colors(&mut text, Theme::Light);
    text.push_str("@media(prefers-color-scheme:dark){");
    colors(&mut text, Theme::Dark);
    text.push('}');
    text
}

fn colors(text: &mut String, theme: Theme) {
    for ink in Ink::all() {
        let (name, color) = (class(ink), hex(ink.rgb(theme)));
        let _ = write!(text, ".f{name}{{fill:{color}}}.k{name}{{stroke:{color}}}");
    }
}

fn class(ink: Ink) -> String {
    match ink {
        Ink::Paper => "p".into(),
        Ink::Text => "t".into(),
        Ink::Faint => "m".into(),
        Ink::Grid => "g".into(),
        Ink::Series(n) => n.to_string(),
        Ink::Heat(step) => format!("h{step}"),
    }
}

pub fn hex([r, g, b]: Rgb) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn drawing(scene: &Scene, attributes: &str, first: &str) -> String {
    let (width, height) = (Short(scene.width), Short(scene.height));
    let title = escape(&scene.title);
    let mut out = format!(
        "<svg{attributes} viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{title}\">{first}"
    );
    for shape in &scene.shapes {
        put(&mut out, shape);
    }
    out.push_str("</svg>");
    out
}

fn put(out: &mut String, shape: &Shape) {
    let written = match shape {
        Shape::Box { at, ink, opacity } => write!(
            out,
            "<rect class=\"f{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" opacity=\"{}\"/>",
            class(*ink),
            Short(at.x),
            Short(at.y),
            Short(at.width),
            Short(at.height),
            Short(*opacity)
        ),
        Shape::Cells { cells, ink } => {
            let path: String = cells.iter().map(cell).collect();
            write!(
                out,
                "<path class=\"f{}\" shape-rendering=\"crispEdges\" d=\"{path}\"/>",
                class(*ink)
            )
        }
        Shape::Line { points, ink, width, dash } => line(out, points, *ink, *width, *dash),
        Shape::Dot { x, y, radius, ink, tip } => write!(
            out,
            "<circle class=\"f{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"><title>{}</title></circle>",
            class(*ink),
            Short(*x),
            Short(*y),
            Short(*radius),
            escape(tip)
        ),
        Shape::Text { x, y, text, face, anchor, turn, ink } => {
            let big = if *face == Face::Title { " big" } else { "" };
            let (x, y) = (Short(*x), Short(*y));
            let turned = match turn {
                Turn::Level => String::new(),
                Turn::Up => format!(" transform=\"rotate(-90 {x} {y})\""),
            };
            write!(
                out,
                "<text class=\"f{}{big}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{}\"{turned}>{}</text>",
                class(*ink),
                anchored(*anchor),
                escape(text)
            )
        }
    };
    written.expect("writing to a String cannot fail");
}

fn cell(at: &Area) -> String {
    let (x, y, width, height) = (Short(at.x), Short(at.y), Short(at.width), Short(at.height));
    format!("M{x} {y}h{width}v{height}h-{width}z")
}

fn line(
    out: &mut String,
    points: &[(f64, f64)],
    ink: Ink,
    width: f64,
    dash: Dash,
) -> std::fmt::Result {
    let mut path = String::with_capacity(points.len() * 12);
    for (x, y) in points {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        write!(path, "{letter}{} {}", Short(*x), Short(*y))?;
    }
    let dashes = if dash == Dash::Dashed { " stroke-dasharray=\"5 4\"" } else { "" };
    write!(
        out,
        "<path class=\"k{}\" d=\"{path}\" fill=\"none\" stroke-width=\"{}\" \
         stroke-linejoin=\"round\"{dashes}/>",
        class(ink),
        Short(width)
    )
}

fn anchored(anchor: Anchor) -> &'static str {
    match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    }
}

/// A number with two decimals at most: a hundredth of a pixel is enough, and files stay small.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.2}", self.0);
        out.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Text for element content and for attributes in double quotes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no way to write the other control characters.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
