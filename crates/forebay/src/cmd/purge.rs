//! `forebay purge`.

use std::path::PathBuf;

use forebay_backing::{Error, Kind, Result};

use super::ls;
use super::watch::{self, Scope};
use crate::ui::{Answer, confirm, note};
use crate::units::{counted, human_size};
use crate::wire::{File, JobKind};

const EXAMPLES: &str = "\
Examples:
  forebay purge /mnt/fast/scratch
  forebay purge --yes /mnt/fast/scratch/core.1234

Beside `forebay resolve --keep theirs` this is the only command that throws away bytes the backing
store does not have. It lists them and asks first; without a terminal it needs --yes. A directory stands
for the files that forebay knows by a name below it: name a file that others have moved or linked there.";

/// Throw away what the fast tier holds of files, dirty bytes included.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files or directories in a mount.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Do not ask.
    #[arg(long)]
    yes: bool,

    /// Print the job as JSON.
    #[arg(long)]
    json: bool,
}

/// How many of the files that will lose bytes are named one by one before the question.
const NAMED_MAX: usize = 20;

pub fn run(args: &Args) -> Result<u8> {
    let scope = Scope::of(&args.paths)?;
    let lost = lost_files(&scope)?;
    announce(&lost);
    if !args.yes {
        let bytes = lost.iter().map(|file| file.dirty_bytes).sum();
        let question = match lost.len() as u64 {
            0 => "Nothing is dirty there, nothing will be lost.".to_string(),
            n => format!("{} in {} will be lost.", human_size(bytes), counted(n, "file")),
        };
        if let Answer::No = confirm(&question)? {
            return Err(Error::new(Kind::Interrupted, "nothing was purged"));
        }
    }
    watch::run(JobKind::Purge, &scope, args.json.into())
}

fn lost_files(scope: &Scope) -> Result<Vec<File>> {
    let client = scope.client();
    let mut lost = Vec::new();
    for path in &scope.paths {
        let files = ls::fetch(&client, &PathBuf::from(path.clone()))?;
        lost.extend(files.into_iter().filter(|file| file.dirty_bytes > 0));
    }
    Ok(lost)
}

fn announce(lost: &[File]) {
    for file in lost.iter().take(NAMED_MAX) {
        note!("lost with purge: {} ({} dirty)", file.path, human_size(file.dirty_bytes));
    }
    if lost.len() > NAMED_MAX {
        note!("and {} more", counted((lost.len() - NAMED_MAX) as u64, "file"));
    }
}
