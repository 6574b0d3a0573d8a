//! `forebay bench`: hands its arguments to the benchmark, which knows nothing of this binary, and
//! tells it where the bytes of forebay mounts are.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use forebay_backing::{Error, Result};
use forebay_base::lock::sleep;
use forebay_bench::beneath::{self, Beneath, Bytes};
use forebay_bench::interrupt;

use super::ls;
use super::watch::{self, Scope};
use crate::mounts::{Mounts, Place};
use crate::ui::note;
use crate::wire::{File, Job, JobKind, JobState};

/// Measure any path: IOR's and mdtest's workloads and more, honest about the page cache.
#[derive(Debug, clap::Args)]
#[command(after_help = forebay_bench::EXAMPLES, disable_help_flag = true)]
pub struct Args {
    /// The benchmark and its options; `forebay bench --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK")]
    args: Vec<OsString>,
}

/// The exit code of the benchmark, which has printed its errors itself.
pub fn run(args: Args) -> u8 {
    beneath::name(&OurMounts);
    forebay_bench::run(args.args)
}

/// Finds the bytes of files in forebay mounts: in the shadow files of the fast tier, and in the backing
/// store where these are absent.
struct OurMounts;

const POLL: Duration = Duration::from_millis(5);

impl Beneath for OurMounts {
    fn bytes_of(&self, paths: &[&Path]) -> Vec<Bytes> {
        let places: Vec<Option<Place>> = paths.iter().map(|path| place(path)).collect();
        let Some(first) = places.iter().flatten().next() else {
            return vec![Bytes::Here; paths.len()];
        };
        let held = Held::of(first, &places);
        let bytes = places.iter().map(|place| match (place, &held) {
            (None, _) => Bytes::Here,
            (Some(place), Ok(held)) if place.tier == first.tier => Bytes::In(held.files(place)),
            (Some(_), _) => Bytes::Unknown,
        });
        bytes.collect()
    }

    fn holder(&self, directory: &Path) -> Option<PathBuf> {
        place(directory).map(|place| place.tier)
    }

    fn settle(&self, directory: &Path) -> Option<forebay_bench::Result<()>> {
        place(directory)?;
        Some(fence(directory).unwrap_or_else(|e| Err(failed(&e.to_string()))))
    }
}

fn failed(why: &str) -> forebay_bench::Error {
    forebay_bench::Error::failed(format!("the mount was asked for a fence: {why}"))
}

fn place(path: &Path) -> Option<Place> {
    let mounts = Mounts::read().ok()?;
    mounts.place(&mounts.absolute(path).ok()?)
}

/// The bytes of some files of one mount that the fast tier holds.
struct Held {
    tier: PathBuf,
    backing: PathBuf,
    files: HashMap<PathBuf, File>,
}

impl Held {
    fn of(first: &Place, places: &[Option<Place>]) -> Result<Held> {
        let held = Held::ask(first, places);
        if let Err(error) = &held {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                note!(
                    "bench: what of the bytes is in memory is not known: {error}; run it as \
                     the user who mounted"
                );
            });
        }
        held
    }

    fn ask(first: &Place, places: &[Option<Place>]) -> Result<Held> {
        let client = crate::http::Client::new(&first.tier);
        let files = ls::fetch(&client, &common(places))?;
        let files = files.into_iter().map(|file| (PathBuf::from(file.path.clone()), file));
        let status = client.get("/v1/status")?;
        let backing = PathBuf::from(status["backing"].as_str().unwrap_or_default());
        let tier = std::fs::canonicalize(&first.tier);
        let tier = tier.map_err(|e| Error::io(e, first.tier.display().to_string()))?;
        Ok(Held { tier, backing, files: files.collect() })
    }

    fn files(&self, place: &Place) -> Vec<PathBuf> {
        let file = self.files.get(&place.path);
        let shadow = file.map(|file| self.tier.join(&file.shadow));
        let whole = file.is_some_and(|file| file.cached_bytes >= file.size);
        shadow.into_iter().chain((!whole).then(|| self.backing.join(&place.path))).collect()
    }
}

/// The directory that holds all of the files.
fn common(places: &[Option<Place>]) -> PathBuf {
    let mut paths = places.iter().flatten().map(|place| place.path.as_path());
    let Some(first) = paths.next() else { return PathBuf::new() };
    let shared = |all: &Path, path: &Path| -> PathBuf {
        let same = all.components().zip(path.components()).take_while(|(a, b)| a == b);
        same.map(|(part, _)| part).collect()
    };
    paths.fold(first.to_path_buf(), |all, path| shared(&all, path))
}

/// Waits until all dirty bytes below a directory are on the backing store; Ctrl-C gives up.
fn fence(directory: &Path) -> Result<forebay_bench::Result<()>> {
    let scope = Scope::of(&[directory.to_path_buf()])?;
    let client = scope.client();
    let id = watch::start_new(&client, &scope.job(JobKind::Fence))?;
    let url = format!("/v1/jobs/{id}");
    loop {
        let job: Job = watch::read_job(&client, &url)?;
        if job.state != JobState::Running {
            return Ok(told(&job));
        }
        if interrupt::seen() {
            client.delete(&url)?;
            return Ok(Err(forebay_bench::Error::Interrupted));
        }
        sleep(POLL);
    }
}

fn told(job: &Job) -> forebay_bench::Result<()> {
    let failures = job.report.as_ref().map_or(&[][..], |report| &report.failures);
    match (job.exit_code, failures.first()) {
        (Some(0), _) => Ok(()),
        (_, Some(first)) => Err(failed(&format!("{}: {}", first.path, first.error))),
        (_, None) => Err(failed(job.error.as_deref().unwrap_or("it was cancelled"))),
    }
}
