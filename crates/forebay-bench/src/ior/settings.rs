//! The table of IOR's settings: the source of the options, their help, the keys of `-O` and of
//! scripts, the checks of single values and the parameters in IOR's JSON.

use std::path::PathBuf;

use forebay_base::nearest::nearest;
use serde_json::{Map, Value, json};

use super::params::{Format, Params};
use crate::args::Spec;
use crate::cache::{Amount, Policy};
use crate::io::Api;
use crate::pattern::Pattern;
use crate::team::Kind;
use crate::units::{terse_rate, terse_size, terse_text};
use crate::{Error, Result};

/// Thirty years; above, times in nanoseconds would not fit.
const MOST_SECONDS: f64 = 1e9;

pub struct Setting {
    /// The name as IOR spells it in scripts; also the long option.
    key: &'static str,
    /// Other spellings in scripts.
    also: &'static [&'static str],
    short: Option<char>,
    /// The name of the value in the help; empty for a flag.
    value: &'static str,
    /// The help text; empty for a setting that is no option.
    help: &'static str,
    /// The name among the parameters in IOR's JSON; empty for a setting that is not shown there.
    json: &'static str,
    least: u64,
    holds: Holds,
}

/// The kind of a setting and its parameter. An option without a value sets a flag, and raises a
/// number.
enum Holds {
    Flag(fn(&mut Params) -> &mut bool),
    Number(fn(&mut Params) -> &mut u64),
    Count(fn(&mut Params) -> &mut usize),
    Size(fn(&mut Params) -> &mut u64),
    Time(fn(&mut Params) -> &mut f64),
    Text(fn(&mut Params) -> &mut String),
    Path(fn(&mut Params) -> &mut Option<PathBuf>),
    Other(fn(&mut Params, &str) -> Result<()>, fn(&Params) -> Value),
    /// Published command lines and scripts have this setting, which means nothing here: it is for
    /// MPI-IO, HDF5 or Lustre. It is accepted, so that such a line runs as it is, and a value other
    /// than IOR's default is reported, with the reason.
    Nothing(&'static str, &'static str),
    /// Read before all others, from the command line only.
    Apart,
}

use Holds::{Apart, Count, Flag, Nothing, Number, Other, Path, Size, Text, Time};

/// A setting that only scripts and `-O` have.
const fn script(key: &'static str, holds: Holds) -> Setting {
    Setting { key, also: &[], short: None, value: "", help: "", json: "", least: 0, holds }
}

type Words = &'static str;

const fn long(key: Words, value: Words, help: Words, holds: Holds) -> Setting {
    Setting { value, help, ..script(key, holds) }
}

const fn option(short: char, key: Words, value: Words, help: Words, holds: Holds) -> Setting {
    Setting { short: Some(short), ..long(key, value, help, holds) }
}

impl Setting {
    const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    const fn told(self) -> Self {
        Self { json: self.key, ..self }
    }

    const fn told_as(self, json: &'static str) -> Self {
        Self { json, ..self }
    }

    const fn at_least_one(self) -> Self {
        Self { least: 1, ..self }
    }

    fn is_called(&self, key: &str) -> bool {
        self.names().any(|name| name.eq_ignore_ascii_case(key))
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.key).chain(self.also.iter().copied())
    }
}

/// The settings in the order of the help.
#[rustfmt::skip]
const SETTINGS: &[Setting] = &[
    option('a', "api", "NAME", "POSIX, MMAP, URING or DUMMY",
        Other(|p, v| Api::parse(v).map(|api| p.api = api), |p| p.api.name().into())).told(),
    option('o', "testFile", "FILE", "the file; several for -F are separated by @", Text(|p| &mut p.path)).told_as("testFileName"),
    option('b', "blockSize", "SIZE", "contiguous bytes of a task in a segment",
        Size(|p| &mut p.block)).told().at_least_one(),
    option('t', "transferSize", "SIZE", "bytes of one transfer",
        Size(|p| &mut p.transfer)).told().at_least_one(),
    option('s', "segmentCount", "N", "segments", Size(|p| &mut p.segments)).told().at_least_one(),
    option('N', "numTasks", "N", "tasks", Count(|p| &mut p.tasks)).at_least_one(),
    option('F', "filePerProc", "", "a file for each task", Flag(|p| &mut p.file_per_task)).told(),
    option('u', "uniqueDir", "", "each task's file in a directory of its own",
        Flag(|p| &mut p.unique_dir)).told(),
    option('m', "multiFile", "", "a file for each repetition", Flag(|p| &mut p.multi_file)).told(),
    option('C', "reorderTasks", "", "read what the rank -Q away wrote",
        Number(|p| &mut p.constant)).also(&["reorderTasksConstant"]).told(),
    option('Q', "taskPerNodeOffset", "N", "how far away, in nodes", Count(|p| &mut p.task_offset)),
    option('Z', "reorderTasksRandom", "", "read what a random rank wrote; -ZZ each once",
        Number(|p| &mut p.random_tasks)).told(),
    option('X', "reorderTasksRandomSeed", "N", "seed of -Z; negative: new each time",
        Other(|p, v| number(v).map(|seed| p.random_seed = seed), |p| p.random_seed.into())).told(),
    option('z', "randomOffset", "", "random order in a segment; -zz random offsets",
        Number(|p| &mut p.random_offset)).told(),
    long("random-offset-seed", "N", "seed of -z",
        Number(|p| &mut p.random_offset_seed)).also(&["randomOffsetSeed"]),
    option('l', "dataPacketType", "KIND", "timestamp, offset, incompressible, random",
        Other(|p, v| Pattern::parse(v).map(|pattern| p.pattern = pattern),
            |p| p.pattern.letter().into())).told(),
    script("storeFileOffset",
        Other(|p, v| flag(v).map(|on| if on { p.pattern = Pattern::Offset }),
            |p| u8::from(p.pattern == Pattern::Offset).into())),
    option('G', "setTimeStampSignature", "N", "signature of the contents [the time]",
        Other(|p, v| number(v).map(|s| p.signature = Some(s).filter(|s| *s != 0)),
            |p| json!(p.signature))).told_as("setTimeStampSignature/incompressibleSeed"),
    long("posix.odirect", "", "O_DIRECT", Flag(|p| &mut p.direct)),
    option('B', "useO_DIRECT", "", "the same, as IOR 3 had it",
        Other(|p, v| flag(v).map(|on| p.direct = on), |p| u8::from(p.around_cache()).into())).told(),
    long("posix.rangelocks", "", "lock the range of each transfer", Flag(|p| &mut p.range_locks)),
    option('w', "writeFile", "", "write", Flag(|p| &mut p.write)).told(),
    option('r', "readFile", "", "read", Flag(|p| &mut p.read)).told(),
    option('W', "checkWrite", "", "read back and compare after writing", Flag(|p| &mut p.check_write)).told(),
    option('R', "checkRead", "", "compare what is read", Flag(|p| &mut p.check_read)).told(),
    option('e', "fsync", "", "fsync at the end of the write phase", Flag(|p| &mut p.sync)).told(),
    option('Y', "fsyncPerWrite", "", "fsync after each write",
        Flag(|p| &mut p.sync_each)).told_as("fsyncperwrite"),
    option('E', "useExistingTestFile", "", "do not remove the file before writing",
        Flag(|p| &mut p.use_existing)).told(),
    option('k', "keepFile", "", "keep the file", Flag(|p| &mut p.keep)).told(),
    option('K', "keepFileWithError", "", "keep a file in which errors were found",
        Flag(|p| &mut p.keep_with_error)).told(),
    option('i', "repetitions", "N", "repetitions", Count(|p| &mut p.repetitions)).told().at_least_one(),
    option('d', "interTestDelay", "SECONDS", "pause between repetitions", Time(|p| &mut p.delay)).told(),
    option('D', "deadlineForStonewalling", "SECONDS", "stop a phase after this time",
        Time(|p| &mut p.deadline)).told_as("deadlineForStonewall"),
    script("stoneWallingWearOut", Flag(|p| &mut p.wear_out)).told(),
    script("stoneWallingWearOutIterations", Number(|p| &mut p.wear_out_iterations)),
    script("stoneWallingStatusFile", Path(|p| &mut p.status_file)),
    script("minTimeDuration", Time(|p| &mut p.min_seconds)),
    option('T', "maxTimeDuration", "MINUTES", "begin no repetition after this time",
        Time(|p| &mut p.max_minutes)).told(),
    long("randomPrefill", "SIZE", "fill the file first, in transfers of this size",
        Size(|p| &mut p.random_prefill)),
    option('g', "intraTestBarriers", "", "barriers between open, transfers and close",
        Flag(|p| &mut p.barriers)),
    option('x', "singleXferAttempt", "", "do not continue short transfers",
        Flag(|p| &mut p.single_attempt)).told(),
    option('j', "outlierThreshold", "SECONDS", "warn of tasks so far from the mean",
        Time(|p| &mut p.outlier_seconds)).told(),
    option('M', "memoryPerNode", "SIZE", "memory to occupy: 2g or 75%",
        Other(|p, v| Amount::parse(v).map(|memory| p.memory = Some(memory).filter(|m| *m != Amount::Bytes(0))),
            |p| p.memory.map_or(0, Amount::bytes).into())).told(),
    option('A', "refNum", "N", "a number for the summary", Number(|p| &mut p.reference)).told_as("refnum"),
    option('O', "directive", "K=V,...", "settings as in scripts, e.g. summaryFormat=JSON", Apart),
    option('f', "scriptFile", "FILE", "tests from a script", Apart),
    option('v', "verbose", "", "tell more; repeatable", Number(|p| &mut p.verbose)).told(),
    option('y', "dualMount", "", "not without MPI; list directories with -o a@b",
        Other(|_, _| Err(dual_mount()), |_| Value::Null)),
    long("dryRun", "", "show what would be done", Flag(|p| &mut p.dry_run)),
    long("warningAsErrors", "", "end at the first warning", Flag(|p| &mut p.warnings_as_errors)).told(),
    script("summaryFile", Path(|p| &mut p.summary_file)),
    script("summaryFormat", Other(|p, v| format(v).map(|format| p.summary_format = format), |_| Value::Null)),
    script("saveRankPerformanceDetailsCSV", Path(|p| &mut p.rank_csv)),
    script("savePerOpDataCSV", Path(|p| &mut p.op_csv)),
    option('c', "collective", "", "taken, without effect, as are all up to -U",
        Nothing("0", "there is no collective I/O without MPI-IO")).told(),
    option('V', "useFileView", "", "MPI-IO's", Nothing("0", "there are no file views without MPI-IO")),
    option('p', "preallocate", "", "MPI-IO's", Nothing("0", "only MPI-IO preallocates")),
    option('P', "useSharedFilePointer", "", "MPI-IO's",
        Nothing("0", "there are no shared file pointers without MPI-IO")),
    option('S', "useStridedDatatype", "", "MPI-IO's", Nothing("0", "there are no data types without MPI-IO")),
    option('H', "showHints", "", "MPI-IO's", Nothing("0", "there are no hints without MPI-IO")),
    option('I', "individualDataSets", "", "HDF5's", Nothing("0", "there are no data sets without HDF5")),
    option('J', "setAlignment", "SIZE", "HDF5's", Nothing("1", "there is no alignment to set without HDF5")),
    option('n', "noFill", "", "HDF5's", Nothing("0", "there are no fill values without HDF5")),
    option('q', "quitOnError", "", "errors are counted",
        Nothing("0", "all errors are counted, and the exit code tells of them")),
    option('U', "hintsFileName", "FILE", "MPI-IO's", Nothing("", "there are no hints without MPI-IO")),
    script("lustreStripeCount", Nothing("0", "set it on the directory, with lfs setstripe")),
    script("lustreStripeSize", Nothing("0", "set it on the directory, with lfs setstripe")),
    script("lustreStartOST", Nothing("-1", "set it on the directory, with lfs setstripe")),
    script("showHelp", Nothing("0", "see --help")),
    script("debug", Nothing("", "it did nothing in IOR either")),
    script("platform", Nothing("", "this machine is the platform")),
    script("numNodes",
        Nothing("1", "all tasks run on this machine; --tasks-per-node tells -C and -Z of nodes")),
    long("threads", "", "tasks are threads, not processes",
        Other(|p, v| flag(v).map(|on| p.kind = if on { Kind::Threads } else { Kind::Processes }),
            |p| u8::from(p.kind == Kind::Threads).into())),
    long("tasks-per-node", "N", "ranks that -C and -Z count as one node",
        Count(|p| &mut p.tasks_per_node)).also(&["tasksPerNode", "numTasksPerNode"]).at_least_one(),
    long("depth", "N", "transfers in flight with -a URING",
        Count(|p| &mut p.depth)).also(&["queueDepth"]).at_least_one(),
    long("cache", "POLICY", "keep, drop, direct, fadvise, hog=75% before reading",
        Other(|p, v| Policy::parse(v).map(|cache| p.cache = cache), |p| p.cache.name().into())).told(),
    long("device-limit", "RATE", "bytes per second the device can do, to flag more",
        Other(|p, v| rate(v).map(|limit| p.device_limit = Some(limit)), |p| json!(p.device_limit))),
    long("target", "TARGET", "null: transfer nothing, measure the tool",
        Other(|p, v| target(v).map(|api| p.api = api), |_| Value::Null)),
    long("out", "FILE", "results as NDJSON, for `forebay bench report`", Path(|p| &mut p.out)),
    long("json", "[FILE]", "results as one JSON document; to stdout without FILE", Path(|p| &mut p.json)),
];

/// Adds the settings that are options, with their meaningful defaults.
pub fn options(spec: Spec) -> Spec {
    let mut usual = Params::default();
    SETTINGS.iter().filter(|setting| !setting.help.is_empty()).fold(spec, |spec, setting| {
        let help =
            match setting.holds.default_text(&mut usual).filter(|_| !setting.value.is_empty()) {
                Some(default) => format!("{} [{default}]", setting.help),
                None => setting.help.to_owned(),
            };
        match setting.value {
            "" => spec.flag(setting.short, setting.key, help),
            value => spec.value(setting.short, setting.key, value, help),
        }
    })
}

/// Checks the limits of all settings in `params`, by name.
pub fn check(params: &Params) -> Result<()> {
    let mut params = params.clone();
    for setting in SETTINGS {
        let name = setting.option();
        match &setting.holds {
            Count(at) if (*at(&mut params) as u64) < setting.least => (),
            Size(at) if *at(&mut params) < setting.least => (),
            Time(at) if !(0.0..=MOST_SECONDS).contains(at(&mut params)) => {
                let value = *at(&mut params);
                return Err(Error::usage(format!("{name} {value} is not a time; use 0 or more")));
            }
            _ => continue,
        }
        return Err(Error::usage(format!("{name} must be at least 1")));
    }
    Ok(())
}

/// The settings that IOR's JSON shows, under its names.
pub fn parameters(params: &Params) -> Map<String, Value> {
    let mut params = params.clone();
    let told = SETTINGS.iter().filter(|setting| !setting.json.is_empty());
    told.map(|setting| (setting.json.to_owned(), setting.shown(&mut params))).collect()
}

impl Setting {
    /// The setting as a command line has it: `-b`, `--depth`, `-O minTimeDuration`.
    fn option(&self) -> String {
        match self.short {
            Some(letter) => format!("-{letter}"),
            None if self.help.is_empty() => format!("-O {}", self.key),
            None => format!("--{}", self.key),
        }
    }

    fn shown(&self, params: &mut Params) -> Value {
        match &self.holds {
            Flag(at) => u8::from(*at(params)).into(),
            Number(at) | Size(at) => (*at(params)).into(),
            Count(at) => (*at(params)).into(),
            Time(at) => (*at(params)).into(),
            Text(at) => at(params).as_str().into(),
            Path(at) => json!(at(params)),
            Other(_, tell) => tell(params),
            Nothing(..) => u8::from(params.ignored.contains(&self.without_effect())).into(),
            Apart => Value::Null,
        }
    }

    fn without_effect(&self) -> String {
        let Nothing(_, why) = self.holds else { return String::new() };
        format!("{} has no effect: {why}", self.key)
    }
}

impl Holds {
    /// The default as text; a self-evident default is left out.
    fn default_text(&self, usual: &mut Params) -> Option<String> {
        match self {
            Size(at) => Some(terse_text(*at(usual))).filter(|text| text != "0"),
            Count(at) => Some(at(usual).to_string()),
            Text(at) => Some(at(usual).clone()),
            Other(_, tell) => tell(usual).as_str().map(str::to_owned),
            _ => None,
        }
    }
}

impl Params {
    /// Applies one `key=value`; keys are not sensitive to case, as in IOR's scripts.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let setting = SETTINGS.iter().find(|setting| setting.is_called(key));
        let setting = setting.filter(|s| !matches!(s.holds, Apart)).ok_or_else(|| unknown(key))?;
        match &setting.holds {
            Flag(at) => *at(self) = flag(value)?,
            Number(at) => *at(self) = number(value)?,
            Count(at) => *at(self) = number(value)?,
            Size(at) => *at(self) = terse_size(value).map_err(Error::usage)?,
            Time(at) => *at(self) = number(value)?,
            Text(at) => *at(self) = value.to_owned(),
            Path(at) => *at(self) = Some(value.into()),
            Other(set, _) => set(self, value)?,
            Nothing(default, _) if value == *default => (),
            Nothing(..) => self.ignored.push(setting.without_effect()),
            Apart => (),
        }
        Ok(())
    }

    /// Applies an option that was given without a value.
    pub fn raise(&mut self, key: &str) -> Result<()> {
        let at = SETTINGS.iter().find_map(|setting| match setting.holds {
            Number(at) if setting.key == key => Some(at),
            _ => None,
        });
        match at {
            Some(at) => *at(self) += 1,
            None => self.set(key, "1")?,
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| Error::usage(format!("{text:?} is not a number it takes")))
}

fn rate(text: &str) -> Result<f64> {
    terse_rate(text).map_err(Error::usage)
}

fn flag(text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err(Error::usage(format!("{text:?} is not 0 or 1"))),
    }
}

fn format(text: &str) -> Result<Format> {
    match text.to_ascii_lowercase().as_str() {
        "default" => Ok(Format::Default),
        "json" => Ok(Format::Json),
        "csv" => Ok(Format::Csv),
        _ => Err(Error::usage(format!("{text:?} is not a format; use default, JSON or CSV"))),
    }
}

fn target(text: &str) -> Result<Api> {
    match text {
        "null" => Ok(Api::Null),
        "file" => Ok(Api::Posix),
        _ => Err(Error::usage(format!("{text:?} is no target; use file (with -o) or null"))),
    }
}

fn dual_mount() -> Error {
    Error::usage(
        "-y alternates mounts between MPI nodes; here, list the directories: -F -o /a/file@/b/file",
    )
}

fn unknown(key: &str) -> Error {
    let known = SETTINGS.iter().filter(|setting| !matches!(setting.holds, Apart));
    let near = nearest(key, known.flat_map(Setting::names));
    let hint = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
    Error::usage(format!("no setting {key:?}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each setting accepts its own printed value, and its default changes nothing.
    #[test]
    fn every_setting_takes_its_default() {
        for setting in SETTINGS {
            let mut params = Params::default();
            let value = match (&setting.holds, setting.shown(&mut params)) {
                (Nothing(default, _), _) => (*default).to_owned(),
                (_, Value::Null) => continue,
                (_, Value::String(text)) => text,
                (_, other) => other.to_string(),
            };
            for name in setting.names() {
                params.set(&name.to_ascii_uppercase(), &value).unwrap();
                assert_eq!(params, Params::default(), "{name}={value}");
            }
        }
    }

    #[test]
    fn no_name_is_given_twice() {
        let mut names: Vec<String> =
            SETTINGS.iter().flat_map(Setting::names).map(str::to_lowercase).collect();
        let letters = SETTINGS.iter().filter_map(|setting| setting.short).map(String::from);
        names.extend(letters);
        names.sort();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }

    #[test]
    fn a_mistyped_key_gets_a_suggestion() {
        let error = Params::default().set("blocksise", "1").unwrap_err().to_string();
        assert!(error.contains("did you mean blockSize"), "{error}");
    }

    #[test]
    fn what_has_no_effect_is_told_unless_it_is_the_default() {
        let told = |key: &str, value: &str| {
            let mut params = Params::default();
            params.set(key, value).unwrap();
            params.ignored
        };
        assert!(told("COLLECTIVE", "0").is_empty());
        assert!(told("collective", "1")[0].starts_with("collective has no effect"));
        assert!(told("setAlignment", "1").is_empty());
        assert!(!told("hintsFileName", "hints").is_empty());
    }
}
