//! `forebay bench report`: turns result files into a page, pictures and a summary.
//!
//! Reads only the format of [`crate::record`]; measures nothing. The way of a picture: [`figures`]
//! chooses, [`chart`] and [`axis`] lay out, [`svg`] or [`raster`] and [`png`] write.

mod axis;
pub(crate) mod bars;
mod chart;
mod figures;
mod html;
mod png;
mod raster;
mod scene;
mod svg;
pub(crate) mod table;
pub mod terminal;

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use crate::args::{Parsed, Spec};
use crate::error::{Error, Result};
use crate::record::Record;
use html::Run;
use scene::Theme;

fn spec() -> Spec {
    Spec::new("report")
        .about(
            "Turns result files (written by --out FILE.ndjson of any benchmark) into one HTML page \
             that\nneeds no network, pictures, and a summary on the terminal.",
        )
        .usage("FILE... [OPTIONS]")
        .value(
            None,
            "out",
            "PATH",
            "FILE.html, or a directory (made if missing); default report.html",
        )
        .flag(None, "svg", "also write each chart as an SVG file beside the page")
        .flag(None, "png", "also write each chart as a PNG file beside the page")
        .flag(None, "terminal", "write no file, print the summary only")
        .examples(
            "  forebay bench report steady.ndjson\n  \
             forebay bench report before.ndjson after.ndjson --out results --svg --png",
        )
}

/// Runs the command; the code is 0 or the error's.
pub fn run(args: &[String]) -> Result<u8> {
    let parsed = spec().parse(args)?;
    if let Some(help) = parsed.help_wanted() {
        print!("{help}");
        return Ok(0);
    }
    let runs = read_all(parsed.rest())?;
    let place = Place::of(&parsed)?;
    for run in &runs {
        println!("{}\n", run.name);
        println!("{}", terminal::facts(&run.record));
        println!("{}", terminal::results(&run.record));
    }
    if !parsed.flag("terminal") {
        write_all(&runs, &place, &parsed)?;
    }
    Ok(0)
}

fn read_all(paths: &[String]) -> Result<Vec<Run>> {
    if paths.is_empty() {
        return Err(Error::usage("report: no FILE given; name one written by --out FILE.ndjson"));
    }
    paths
        .iter()
        .map(|path| {
            let file = File::open(path).map_err(|e| Error::usage(format!("{path}: {e}")))?;
            let record = Record::read(path, BufReader::new(file))?;
            let stem = Path::new(path).file_stem().unwrap_or_default();
            Ok(Run { name: stem.to_string_lossy().into_owned(), record })
        })
        .collect()
}

/// The paths of the page and the pictures.
struct Place {
    page: PathBuf,
    directory: PathBuf,
}

impl Place {
    /// A name that is not a page's is a directory, so that a result file cannot be overwritten.
    fn of(parsed: &Parsed) -> Result<Self> {
        let out = PathBuf::from(parsed.get("out").unwrap_or("report.html"));
        let is_page = out.extension().is_some_and(|e| e == "html" || e == "htm");
        if is_page && !out.is_dir() {
            let directory = out.parent().map_or_else(PathBuf::new, Path::to_owned);
            return Ok(Self { page: out, directory });
        }
        if out.exists() && !out.is_dir() {
            let text = format!("--out {}: exists and is not a directory", out.display());
            return Err(Error::usage(format!("{text}; name a directory or FILE.html")));
        }
        Ok(Self { page: out.join("report.html"), directory: out })
    }
}

fn write_all(runs: &[Run], place: &Place, parsed: &Parsed) -> Result<()> {
    if !place.directory.as_os_str().is_empty() {
        fs::create_dir_all(&place.directory)
            .map_err(|e| Error::usage(format!("--out {}: {e}", place.directory.display())))?;
    }
    write(&place.page, html::page(runs).as_bytes())?;
    for run in runs {
        for figure in figures::of(&run.record) {
            let stem = place.directory.join(format!("{}-{}", run.name, figure.name));
            if parsed.flag("svg") {
                write(&with_ending(&stem, "svg"), svg::document(&figure.scene).as_bytes())?;
            }
            if parsed.flag("png") {
                let image = raster::paint(&figure.scene, Theme::Light);
                write(&with_ending(&stem, "png"), &png::encode(&image))?;
            }
        }
    }
    Ok(())
}

/// Not `with_extension`: a run's name may have a dot in it.
fn with_ending(stem: &Path, ending: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|e| Error::io("write", path, &e))?;
    println!("wrote {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests;
