//! The parts of a picture, independent of SVG or pixels.
//!
//! A scene is a list of shapes in units of CSS pixels, origin at the top left, painted in order.
//! Colors are roles ([`Ink`]), so that one scene serves light and dark.
//!
//! Invariant C1: series colors are told apart with any of the common color deficiencies (Okabe and
//! Ito's palette), and the heat map's by brightness alone (cividis).

/// A picture.
#[derive(Debug, Clone)]
pub struct Scene {
    pub width: f64,
    pub height: f64,
    /// The text for screen readers.
    pub title: String,
    pub shapes: Vec<Shape>,
}

#[derive(Debug, Clone)]
pub enum Shape {
    Box {
        at: Area,
        ink: Ink,
        opacity: f64,
    },
    /// Many boxes of one color.
    Cells {
        cells: Vec<Area>,
        ink: Ink,
    },
    Line {
        points: Vec<(f64, f64)>,
        ink: Ink,
        width: f64,
        dash: Dash,
    },
    /// A disk with a text to show when pointed at.
    Dot {
        x: f64,
        y: f64,
        radius: f64,
        ink: Ink,
        tip: String,
    },
    Text {
        x: f64,
        y: f64,
        text: String,
        face: Face,
        anchor: Anchor,
        turn: Turn,
        ink: Ink,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// A color by its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    Paper,
    Text,
    Faint,
    Grid,
    /// One of [`SERIES`] colors.
    Series(u8),
    /// One of [`HEATS`] steps from few to many.
    Heat(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dash {
    Solid,
    Dashed,
}

/// The two sizes of type: 12 and 16 pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Face {
    Label,
    Title,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Level,
    /// Reads from bottom to top.
    Up,
}

/// Number of series colors.
pub const SERIES: u8 = 6;
/// Number of steps of the heat map.
pub const HEATS: u8 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    Light,
    Dark,
}

pub type Rgb = [u8; 3];

const LIGHT: [Rgb; SERIES as usize] = [
    [0x00, 0x72, 0xb2],
    [0xd5, 0x5e, 0x00],
    [0x00, 0x9e, 0x73],
    [0xcc, 0x79, 0xa7],
    [0xe6, 0x9f, 0x00],
    [0x56, 0xb4, 0xe9],
];

/// The same palette in the order that stands out from a dark ground.
const DARK: [Rgb; SERIES as usize] = [
    [0x56, 0xb4, 0xe9],
    [0xe6, 0x9f, 0x00],
    [0x2f, 0xc4, 0x98],
    [0xcc, 0x79, 0xa7],
    [0xf0, 0xe4, 0x42],
    [0xe0, 0x6c, 0x1a],
];

/// Cividis at equal distances, dark to bright.
const CIVIDIS: [Rgb; 9] = [
    [0x00, 0x22, 0x4e],
    [0x1b, 0x37, 0x6e],
    [0x43, 0x4e, 0x6c],
    [0x60, 0x64, 0x6e],
    [0x7d, 0x7c, 0x78],
    [0x9c, 0x94, 0x77],
    [0xbc, 0xaf, 0x6f],
    [0xde, 0xcb, 0x5c],
    [0xfe, 0xe8, 0x38],
];

impl Ink {
    pub fn rgb(self, theme: Theme) -> Rgb {
        match (self, theme) {
            (Ink::Paper, Theme::Light) => [0xff, 0xff, 0xff],
            (Ink::Paper, Theme::Dark) => [0x16, 0x1b, 0x22],
            (Ink::Text, Theme::Light) => [0x1c, 0x23, 0x2b],
            (Ink::Text, Theme::Dark) => [0xe4, 0xe9, 0xef],
            (Ink::Faint, Theme::Light) => [0x56, 0x60, 0x6b],
            (Ink::Faint, Theme::Dark) => [0x9d, 0xa7, 0xb3],
            (Ink::Grid, Theme::Light) => [0xdd, 0xe2, 0xe7],
            (Ink::Grid, Theme::Dark) => [0x33, 0x3b, 0x45],
            (Ink::Series(n), Theme::Light) => LIGHT[usize::from(n % SERIES)],
            (Ink::Series(n), Theme::Dark) => DARK[usize::from(n % SERIES)],
            (Ink::Heat(step), theme) => heat(step, theme),
        }
    }

    /// Every ink there is, for a style sheet.
    pub fn all() -> impl Iterator<Item = Ink> {
        [Ink::Paper, Ink::Text, Ink::Faint, Ink::Grid]
            .into_iter()
            .chain((0..SERIES).map(Ink::Series))
            .chain((0..HEATS).map(Ink::Heat))
    }
}

/// The color of a step: high counts stand out most, dark on paper, bright on dark. The ends nearest
/// to the ground are left out, so that a single operation shows.
fn heat(step: u8, theme: Theme) -> Rgb {
    let share = f64::from(step.min(HEATS - 1)) / f64::from(HEATS - 1);
    mix(match theme {
        Theme::Light => 0.97 - share * 0.97,
        Theme::Dark => 0.2 + share * 0.8,
    })
}

fn mix(share: f64) -> Rgb {
    let at = share.clamp(0.0, 1.0) * (CIVIDIS.len() - 1) as f64;
    let left = (at as usize).min(CIVIDIS.len() - 2);
    let part = at - left as f64;
    std::array::from_fn(|i| {
        let (a, b) = (f64::from(CIVIDIS[left][i]), f64::from(CIVIDIS[left + 1][i]));
        (a + (b - a) * part).round() as u8
    })
}

impl Scene {
    pub fn new(width: f64, height: f64, title: impl Into<String>) -> Self {
        Self { width, height, title: title.into(), shapes: Vec::new() }
    }

    pub fn line(&mut self, points: Vec<(f64, f64)>, ink: Ink, width: f64, dash: Dash) {
        self.shapes.push(Shape::Line { points, ink, width, dash });
    }

    pub fn label(&mut self, x: f64, y: f64, anchor: Anchor, ink: Ink, text: impl Into<String>) {
        let (face, turn) = (Face::Label, Turn::Level);
        self.shapes.push(Shape::Text { x, y, text: text.into(), face, anchor, turn, ink });
    }
}
