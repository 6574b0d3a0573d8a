//! The meaning of every option, whether it came from the command line, from `-O`, or from a script.
//!
//! Knows keys and values only; [`super::options`] reads command lines, [`super::script`] scripts.

use super::params::{Format, Params};
use crate::cache::{Amount, Policy};
use crate::io::Api;
use crate::pattern::Pattern;
use crate::team::Kind;
use crate::units::{terse_rate, terse_size};
use crate::{Error, Result};

/// Every key, as IOR spells it in scripts; for suggestions.
pub const KEYS: &[&str] = &[
    "api",
    "refNum",
    "blockSize",
    "transferSize",
    "segmentCount",
    "numTasks",
    "numTasksPerNode",
    "threads",
    "queueDepth",
    "posix.odirect",
    "useO_DIRECT",
    "posix.rangelocks",
    "filePerProc",
    "uniqueDir",
    "multiFile",
    "reorderTasks",
    "reorderTasksConstant",
    "reorderTasksRandom",
    "reorderTasksRandomSeed",
    "taskPerNodeOffset",
    "randomOffset",
    "random-offset-seed",
    "fsync",
    "fsyncPerWrite",
    "writeFile",
    "readFile",
    "checkWrite",
    "checkRead",
    "setTimeStampSignature",
    "dataPacketType",
    "storeFileOffset",
    "keepFile",
    "keepFileWithError",
    "useExistingTestFile",
    "repetitions",
    "interTestDelay",
    "deadlineForStonewalling",
    "stoneWallingWearOut",
    "stoneWallingWearOutIterations",
    "stoneWallingStatusFile",
    "minTimeDuration",
    "maxTimeDuration",
    "memoryPerNode",
    "intraTestBarriers",
    "singleXferAttempt",
    "outlierThreshold",
    "randomPrefill",
    "dualMount",
    "testFile",
    "verbose",
    "dryRun",
    "warningAsErrors",
    "summaryFile",
    "summaryFormat",
    "saveRankPerformanceDetailsCSV",
    "savePerOpDataCSV",
    "cache",
    "device-limit",
    "target",
    "out",
    "json",
];

impl Params {
    /// Applies one `key=value`; keys are not sensitive to case, as in IOR's scripts.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key.to_ascii_lowercase().as_str() {
            "api" => self.api = Api::parse(value)?,
            "refnum" => self.reference = number(value)?,
            "blocksize" => self.block = size(value)?,
            "transfersize" => self.transfer = size(value)?,
            "segmentcount" => self.segments = size(value)?,
            "numtasks" => self.tasks = number(value)?,
            "tasks-per-node" | "taskspernode" | "numtaskspernode" => {
                self.tasks_per_node = number(value)?
            }
            "threads" => {
                self.kind = if flag(value)? { Kind::Threads } else { Kind::Processes };
            }
            "depth" | "queuedepth" => self.depth = number(value)?,
            "posix.odirect" | "useo_direct" => self.direct = flag(value)?,
            "posix.rangelocks" => self.range_locks = flag(value)?,
            "fileperproc" => self.file_per_task = flag(value)?,
            "uniquedir" => self.unique_dir = flag(value)?,
            "multifile" => self.multi_file = flag(value)?,
            "reordertasks" | "reordertasksconstant" => self.constant = number(value)?,
            "reordertasksrandom" => self.random_tasks = number(value)?,
            "reordertasksrandomseed" => self.random_seed = number(value)?,
            "taskpernodeoffset" => self.task_offset = number(value)?,
            "randomoffset" => self.random_offset = number(value)?,
            "random-offset-seed" | "randomoffsetseed" => self.random_offset_seed = number(value)?,
            "fsync" => self.sync = flag(value)?,
            "fsyncperwrite" => self.sync_each = flag(value)?,
            "writefile" => self.write = flag(value)?,
            "readfile" => self.read = flag(value)?,
            "checkwrite" => self.check_write = flag(value)?,
            "checkread" => self.check_read = flag(value)?,
            // 0 is IOR's default: the time.
            "settimestampsignature" => self.signature = Some(number(value)?).filter(|s| *s != 0),
            "datapackettype" => self.pattern = Pattern::parse(value)?,
            "storefileoffset" if flag(value)? => self.pattern = Pattern::Offset,
            "storefileoffset" => (),
            "keepfile" => self.keep = flag(value)?,
            "keepfilewitherror" => self.keep_with_error = flag(value)?,
            "useexistingtestfile" => self.use_existing = flag(value)?,
            "repetitions" => self.repetitions = number(value)?,
            "intertestdelay" => self.delay = number(value)?,
            "deadlineforstonewalling" => self.deadline = number(value)?,
            "stonewallingwearout" => self.wear_out = flag(value)?,
            "stonewallingwearoutiterations" => self.wear_out_iterations = number(value)?,
            "stonewallingstatusfile" => self.status_file = Some(value.into()),
            "mintimeduration" => self.min_seconds = number(value)?,
            "maxtimeduration" => self.max_minutes = number(value)?,
            "memorypernode" => self.memory = Some(Amount::parse(value)?),
            "intratestbarriers" => self.barriers = flag(value)?,
            "singlexferattempt" => self.single_attempt = flag(value)?,
            "outlierthreshold" => self.outlier_seconds = number(value)?,
            "randomprefill" => self.random_prefill = size(value)?,
            "dualmount" => return Err(dual_mount()),
            "testfile" => self.path = value.to_owned(),
            "verbose" => self.verbose = number(value)?,
            "dryrun" => self.dry_run = flag(value)?,
            "warningaserrors" => self.warnings_as_errors = flag(value)?,
            "summaryfile" => self.summary_file = Some(value.into()),
            "summaryformat" => self.summary_format = format(value)?,
            "saverankperformancedetailscsv" => self.rank_csv = Some(value.into()),
            "saveperopdatacsv" => self.op_csv = Some(value.into()),
            "cache" => self.cache = Policy::parse(value)?,
            "device-limit" => self.device_limit = Some(terse_rate(value).map_err(Error::usage)?),
            "target" => self.api = target(value)?,
            "out" => self.out = Some(value.into()),
            "json" => self.json = Some(value.into()),
            _ => {
                let told = super::ignored::find(key, value).ok_or_else(|| unknown(key))?;
                self.ignored.extend(told);
            }
        }
        Ok(())
    }
}

fn size(text: &str) -> Result<u64> {
    terse_size(text).map_err(Error::usage)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| Error::usage(format!("{text:?} is not a number it takes")))
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
    let near = KEYS.iter().copied().chain(super::ignored::keys());
    let near = crate::args::nearest(key, near.map(str::to_owned));
    let hint = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
    Error::usage(format!("no setting {key:?}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that suggestions name must be one that `set` takes.
    #[test]
    fn every_listed_key_is_known() {
        for key in KEYS.iter().filter(|key| **key != "dualMount") {
            let tried = ["1", "null", "POSIX", "t", "JSON", "keep"]
                .map(|value| Params::default().set(key, value));
            assert!(tried.iter().any(Result::is_ok), "{key}: {tried:?}");
        }
    }

    #[test]
    fn a_mistyped_key_gets_a_suggestion() {
        let error = Params::default().set("blocksise", "1").unwrap_err().to_string();
        assert!(error.contains("did you mean blockSize"), "{error}");
    }
}
