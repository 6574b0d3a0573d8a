//! The parameters of one IOR test, with IOR's defaults; [`super::settings`] names them.

use std::path::{Path, PathBuf};

use crate::cache::{Amount, Policy};
use crate::io::Api;
use crate::pattern::Pattern;
use crate::recorder::Sinks;
use crate::team::Kind;
use crate::units::MIB;
use crate::{Error, Result};

/// The rank whose data a task reads.
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

/// The order in which a task visits the transfers of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    Sequential,
    /// Each once, in random order within its segment (`-z`).
    Shuffled,
    /// At random, so some transfers twice and some never (`-zz`).
    Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    #[default]
    Default,
    Json,
    Csv,
}

macro_rules! params {
    ($($(#[$about:meta])* $field:ident: $kind:ty = $usual:expr,)*) => {
        /// One test. Repeatable flags of IOR's are kept as numbers, since that is how scripts write
        /// them and how the summary prints them.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Params {
            $($(#[$about])* pub $field: $kind,)*
        }

        impl Default for Params {
            fn default() -> Self {
                Self { $($field: $usual,)* }
            }
        }
    };
}

params! {
    api: Api = Api::Posix,
    reference: u64 = 0,
    block: u64 = MIB,
    transfer: u64 = 256 << 10,
    segments: u64 = 1,
    tasks: usize = 1,
    tasks_per_node: usize = 1,
    kind: Kind = Kind::Processes,
    depth: usize = 32,
    direct: bool = false,
    range_locks: bool = false,
    file_per_task: bool = false,
    unique_dir: bool = false,
    multi_file: bool = false,
    constant: u64 = 0,
    random_tasks: u64 = 0,
    task_offset: usize = 1,
    random_seed: i64 = 0,
    random_offset: u64 = 0,
    random_offset_seed: u64 = 0,
    sync: bool = false,
    sync_each: bool = false,
    write: bool = false,
    read: bool = false,
    check_write: bool = false,
    check_read: bool = false,
    signature: Option<u32> = None,
    pattern: Pattern = Pattern::Timestamp,
    keep: bool = false,
    keep_with_error: bool = false,
    use_existing: bool = false,
    repetitions: usize = 1,
    delay: f64 = 0.0,
    deadline: f64 = 0.0,
    wear_out: bool = false,
    wear_out_iterations: u64 = 0,
    status_file: Option<PathBuf> = None,
    min_seconds: f64 = 0.0,
    max_minutes: f64 = 0.0,
    memory: Option<Amount> = None,
    barriers: bool = false,
    single_attempt: bool = false,
    outlier_seconds: f64 = 0.0,
    random_prefill: u64 = 0,
    /// Messages about settings without effect.
    ignored: Vec<String> = Vec::new(),
    path: String = "testFile".to_owned(),
    verbose: u64 = 0,
    dry_run: bool = false,
    warnings_as_errors: bool = false,
    summary_file: Option<PathBuf> = None,
    summary_format: Format = Format::Default,
    rank_csv: Option<PathBuf> = None,
    op_csv: Option<PathBuf> = None,
    cache: Policy = Policy::Keep,
    device_limit: Option<f64> = None,
    out: Option<PathBuf> = None,
    json: Option<PathBuf> = None,
}

impl Params {
    pub fn sinks(&self) -> Sinks {
        Sinks { ndjson: self.out.clone(), json: self.json.clone() }
    }

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
