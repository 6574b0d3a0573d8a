//! What one IOR test shall do, and IOR's defaults; [`super::settings`] tells keys and values.

use std::path::{Path, PathBuf};

use crate::cache::{Amount, Policy};
use crate::io::Api;
use crate::pattern::Pattern;
use crate::team::Kind;
use crate::units::MIB;
use crate::{Error, Result};

/// Whose data a task reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reorder {
    /// Its own.
    #[default]
    Off,
    /// That of the rank a constant shift away (`-C`).
    Constant,
    /// That of a rank a random shift away, each task its own (`-Z`).
    Random,
    /// Every rank's data exactly once, shuffled (`-ZZ`).
    Shuffle,
}

/// In which order a task visits the transfers of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    Sequential,
    /// Each once, in random order within its segment (`-z`).
    Shuffled,
    /// At random, so some twice and some never (`-zz`).
    Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    #[default]
    Default,
    Json,
    Csv,
}

/// One test. Flags of IOR's are kept as numbers, since that is how scripts write them and how the
/// summary prints them.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    pub api: Api,
    pub reference: u64,
    pub block: u64,
    pub transfer: u64,
    pub segments: u64,
    pub tasks: usize,
    pub tasks_per_node: usize,
    pub kind: Kind,
    pub depth: usize,
    pub direct: bool,
    pub range_locks: bool,
    pub file_per_task: bool,
    pub unique_dir: bool,
    pub multi_file: bool,
    pub constant: u64,
    pub random_tasks: u64,
    pub task_offset: usize,
    pub random_seed: i64,
    pub random_offset: u64,
    pub random_offset_seed: u64,
    pub sync: bool,
    pub sync_each: bool,
    pub write: bool,
    pub read: bool,
    pub check_write: bool,
    pub check_read: bool,
    pub signature: Option<u32>,
    pub pattern: Pattern,
    pub keep: bool,
    pub keep_with_error: bool,
    pub use_existing: bool,
    pub repetitions: usize,
    pub delay: f64,
    pub deadline: f64,
    pub wear_out: bool,
    pub wear_out_iterations: u64,
    pub status_file: Option<PathBuf>,
    pub min_seconds: f64,
    pub max_minutes: f64,
    pub memory: Option<Amount>,
    pub barriers: bool,
    pub single_attempt: bool,
    pub outlier_seconds: f64,
    pub random_prefill: u64,
    /// What is to be told of settings without effect.
    pub ignored: Vec<String>,
    pub path: String,
    pub verbose: u64,
    pub dry_run: bool,
    pub warnings_as_errors: bool,
    pub summary_file: Option<PathBuf>,
    pub summary_format: Format,
    pub rank_csv: Option<PathBuf>,
    pub op_csv: Option<PathBuf>,
    pub cache: Policy,
    pub device_limit: Option<f64>,
    pub out: Option<PathBuf>,
    pub json: Option<PathBuf>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            api: Api::Posix,
            reference: 0,
            block: MIB,
            transfer: 256 << 10,
            segments: 1,
            tasks: 1,
            tasks_per_node: 1,
            kind: Kind::Processes,
            depth: 32,
            direct: false,
            range_locks: false,
            file_per_task: false,
            unique_dir: false,
            multi_file: false,
            constant: 0,
            random_tasks: 0,
            task_offset: 1,
            random_seed: 0,
            random_offset: 0,
            random_offset_seed: 0,
            sync: false,
            sync_each: false,
            write: false,
            read: false,
            check_write: false,
            check_read: false,
            signature: None,
            pattern: Pattern::Timestamp,
            keep: false,
            keep_with_error: false,
            use_existing: false,
            repetitions: 1,
            delay: 0.0,
            deadline: 0.0,
            wear_out: false,
            wear_out_iterations: 0,
            status_file: None,
            min_seconds: 0.0,
            max_minutes: 0.0,
            memory: None,
            barriers: false,
            single_attempt: false,
            outlier_seconds: 0.0,
            random_prefill: 0,
            ignored: Vec::new(),
            path: "testFile".to_owned(),
            verbose: 0,
            dry_run: false,
            warnings_as_errors: false,
            summary_file: None,
            summary_format: Format::Default,
            rank_csv: None,
            op_csv: None,
            cache: Policy::Keep,
            device_limit: None,
            out: None,
            json: None,
        }
    }
}

impl Params {
    /// Puts the files into the directory `place`; `null` transfers nothing.
    pub fn move_to(&mut self, place: &str) -> Result<()> {
        if let Some(kept) = &self.summary_file {
            return Err(Error::usage(format!(
                "-O summaryFile={}: single rounds are not kept; leave it out",
                kept.display()
            )));
        }
        if place == "null" {
            self.api = Api::Null;
            return Ok(());
        }
        let moved = self.path.split('@').map(|name| {
            let path = crate::environment::inside(place, "-o", Path::new(name))?;
            Ok(path.to_string_lossy().into_owned())
        });
        self.path = moved.collect::<Result<Vec<_>>>()?.join("@");
        Ok(())
    }

    pub fn reorder(&self) -> Reorder {
        match (self.constant, self.random_tasks) {
            (0, 0) => Reorder::Off,
            (_, 0) => Reorder::Constant,
            (_, 1) => Reorder::Random,
            _ => Reorder::Shuffle,
        }
    }

    pub fn order(&self) -> Order {
        match self.random_offset {
            0 => Order::Sequential,
            1 => Order::Shuffled,
            _ => Order::Random,
        }
    }

    /// Whether transfers go around the page cache.
    pub fn around_cache(&self) -> bool {
        self.direct || self.cache == Policy::Direct
    }

    pub fn transfers_per_block(&self) -> u64 {
        self.block / self.transfer
    }

    /// Transfers of one task in one phase.
    pub fn transfers_per_task(&self) -> u64 {
        self.segments * self.transfers_per_block()
    }

    /// Bytes of all tasks in one phase.
    pub fn aggregate(&self) -> u64 {
        self.block.saturating_mul(self.segments).saturating_mul(self.tasks as u64)
    }

    /// With neither write nor read nor a check asked for, both write and read are done.
    pub fn complete(&mut self) {
        if !(self.write || self.read || self.check_write || self.check_read) {
            (self.write, self.read) = (true, true);
        }
    }
}
