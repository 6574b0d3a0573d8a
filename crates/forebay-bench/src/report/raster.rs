//! A scene as pixels.
//!
//! Edges are smoothed by how far a pixel's center is inside a shape, which is exact enough for
//! lines, dots and upright boxes, the only shapes there are. Type is Noto Sans Mono, prepared as
//! bitmaps at the two sizes used, so no font is parsed and none has to be installed.
//!
//! Invariant X1: a pixel outside of the picture is ignored, wherever a shape reaches.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

use super::scene::{Anchor, Area, Dash, Face, Ink, Rgb, Scene, Shape, Theme, Turn};

/// Device pixels per unit: the type at hand is 24 and 32 pixels high, for 12 and 16.
pub const SCALE: f64 = 2.0;

/// Rows of pixels, three bytes each.
pub struct Image {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<u8>,
}

/// Paints a scene on paper.
pub fn paint(scene: &Scene, theme: Theme) -> Image {
    let (width, height) = ((scene.width * SCALE) as usize, (scene.height * SCALE) as usize);
    let pixels = Ink::Paper.rgb(theme).repeat(width * height);
    let mut image = Image { width, height, pixels };
    for shape in &scene.shapes {
        image.shape(shape, theme);
    }
    image
}

impl Image {
    fn shape(&mut self, shape: &Shape, theme: Theme) {
        match shape {
            Shape::Box { at, ink, opacity } => self.rectangle(*at, ink.rgb(theme), *opacity),
            Shape::Cells { cells, ink } => {
                cells.iter().for_each(|cell| self.rectangle(*cell, ink.rgb(theme), 1.0));
            }
            Shape::Line { points, ink, width, dash } => {
                self.polyline(points, ink.rgb(theme), *width * SCALE, *dash);
            }
            Shape::Dot { x, y, radius, ink, .. } => {
                let at = (x * SCALE, y * SCALE);
                self.disk(at, radius * SCALE, ink.rgb(theme));
            }
            Shape::Text { x, y, text, face, anchor, turn, ink } => {
                let at = (x * SCALE, y * SCALE);
                self.text(at, text, *face, *anchor, *turn, ink.rgb(theme));
            }
        }
    }

    /// Lays `color` over a pixel with the given cover of 0 to 1 (X1).
    fn blend(&mut self, x: i64, y: i64, color: Rgb, cover: f64) {
        let inside = (0..self.width as i64).contains(&x) && (0..self.height as i64).contains(&y);
        if !inside || cover <= 0.0 {
            return;
        }
        let at = (y as usize * self.width + x as usize) * 3;
        for (under, over) in self.pixels[at..at + 3].iter_mut().zip(color) {
            let mixed = f64::from(*under) + (f64::from(over) - f64::from(*under)) * cover.min(1.0);
            *under = mixed.round() as u8;
        }
    }

    fn rectangle(&mut self, at: Area, color: Rgb, opacity: f64) {
        let (left, top) = (at.x * SCALE, at.y * SCALE);
        let (right, bottom) = (left + at.width * SCALE, top + at.height * SCALE);
        for y in top.floor() as i64..bottom.ceil() as i64 {
            let tall = overlap(y, top, bottom);
            for x in left.floor() as i64..right.ceil() as i64 {
                self.blend(x, y, color, tall * overlap(x, left, right) * opacity);
            }
        }
    }

    fn disk(&mut self, (cx, cy): (f64, f64), radius: f64, color: Rgb) {
        for y in (cy - radius - 1.0) as i64..=(cy + radius + 1.0) as i64 {
            for x in (cx - radius - 1.0) as i64..=(cx + radius + 1.0) as i64 {
                let far = (x as f64 + 0.5 - cx).hypot(y as f64 + 0.5 - cy);
                self.blend(x, y, color, radius + 0.5 - far);
            }
        }
    }

    /// A pixel takes the best cover of all segments, so that joints are not painted twice.
    fn polyline(&mut self, points: &[(f64, f64)], color: Rgb, width: f64, dash: Dash) {
        let mut cover = std::collections::BTreeMap::new();
        for (from, to) in segments(points, dash) {
            cover_segment(&mut cover, from, to, width / 2.0);
        }
        for ((y, x), part) in cover {
            self.blend(x, y, color, part);
        }
    }

    fn text(
        &mut self,
        at: (f64, f64),
        text: &str,
        face: Face,
        anchor: Anchor,
        turn: Turn,
        color: Rgb,
    ) {
        let (weight, height) = type_of(face);
        let step = get_raster_width(weight, height) as i64;
        let length = step * text.chars().count() as i64;
        let start = match anchor {
            Anchor::Start => 0,
            Anchor::Middle => -length / 2,
            Anchor::End => -length,
        };
        // The base line of the bitmaps is about four fifths down their box.
        let rise = -(height.val() as i64 * 4 / 5);
        for (index, c) in text.chars().enumerate() {
            let glyph = get_raster(c, weight, height)
                .or_else(|| get_raster('?', weight, height))
                .expect("the basic Latin range is built in");
            for (row, line) in glyph.rows().enumerate() {
                for (column, &strength) in line.iter().enumerate() {
                    let along = start + index as i64 * step + column as i64;
                    let down = rise + row as i64;
                    let (dx, dy) = if turn == Turn::Up { (down, -along) } else { (along, down) };
                    let (x, y) = (at.0.round() as i64 + dx, at.1.round() as i64 + dy);
                    self.blend(x, y, color, f64::from(strength) / 255.0);
                }
            }
        }
    }
}

fn type_of(face: Face) -> (FontWeight, RasterHeight) {
    match face {
        Face::Label => (FontWeight::Regular, RasterHeight::Size24),
        Face::Title => (FontWeight::Bold, RasterHeight::Size32),
    }
}

/// Length of a pixel that lies between two edges.
fn overlap(pixel: i64, low: f64, high: f64) -> f64 {
    let pixel = pixel as f64;
    ((pixel + 1.0).min(high) - pixel.max(low)).clamp(0.0, 1.0)
}

type Point = (f64, f64);

/// The pieces to paint, in device pixels.
fn segments(points: &[Point], dash: Dash) -> Vec<(Point, Point)> {
    let scaled: Vec<Point> = points.iter().map(|(x, y)| (x * SCALE, y * SCALE)).collect();
    let whole = scaled.windows(2).map(|pair| (pair[0], pair[1]));
    match dash {
        Dash::Solid => whole.collect(),
        Dash::Dashed => whole.flat_map(|(from, to)| dashes(from, to)).collect(),
    }
}

/// Five units on, four off, beginning anew at each corner.
fn dashes(from: Point, to: Point) -> Vec<(Point, Point)> {
    let length = (to.0 - from.0).hypot(to.1 - from.1);
    let at = |along: f64| {
        let part = (along / length).min(1.0);
        (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part)
    };
    let count = (length / (9.0 * SCALE)).ceil() as usize;
    (0..count)
        .map(|i| {
            let start = i as f64 * 9.0 * SCALE;
            (at(start), at(start + 5.0 * SCALE))
        })
        .collect()
}

fn cover_segment(
    cover: &mut std::collections::BTreeMap<(i64, i64), f64>,
    from: Point,
    to: Point,
    radius: f64,
) {
    let reach = radius + 1.0;
    let (left, right) = (from.0.min(to.0) - reach, from.0.max(to.0) + reach);
    let (top, bottom) = (from.1.min(to.1) - reach, from.1.max(to.1) + reach);
    for y in top.floor() as i64..=bottom.ceil() as i64 {
        for x in left.floor() as i64..=right.ceil() as i64 {
            let far = distance((x as f64 + 0.5, y as f64 + 0.5), from, to);
            let part = (radius + 0.5 - far).min(1.0);
            if part > 0.0 {
                let best = cover.entry((y, x)).or_insert(0.0);
                *best = part.max(*best);
            }
        }
    }
}

/// From a point to a segment.
fn distance(point: Point, from: Point, to: Point) -> f64 {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let square = dx * dx + dy * dy;
    let along = ((point.0 - from.0) * dx + (point.1 - from.1) * dy) / square.max(f64::MIN_POSITIVE);
    let along = along.clamp(0.0, 1.0);
    (point.0 - from.0 - along * dx).hypot(point.1 - from.1 - along * dy)
}
