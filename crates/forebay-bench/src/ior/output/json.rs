//! IOR's JSON: the same names and nesting, with our findings beside them.

use serde_json::{Map, Value, json};

use super::table::{self, Summary};
use crate::io::Direction;
use crate::ior::measure::Measured;
use crate::ior::params::Params;
use crate::ior::place;
use crate::ior::run::Ran;
use crate::recorder;
use crate::units::MIB;

const MIB_F: f64 = MIB as f64;

pub fn phase(params: &Params, measured: &Measured) -> Value {
    let latency = recorder::latency(&measured.meters.latency);
    let mut value = json!({
        "access": measured.name(),
        "bwMiB": measured.bandwidth() / MIB_F,
        "blockKiB": params.block as f64 / 1024.0,
        "xferKiB": params.transfer as f64 / 1024.0,
        "iops": measured.iops(),
        "latency": measured.latency,
        "openTime": measured.open,
        "wrRdTime": measured.transfer,
        "closeTime": measured.close,
        "totalTime": measured.total,
        "bytes": measured.bytes,
        "transfers": measured.transfers,
        "errors": measured.errors,
        "latencyNs": {
            "p50": latency.p50_ns,
            "p95": latency.p95_ns,
            "p99": latency.p99_ns,
            "p99.9": latency.p999_ns,
            "max": latency.max_ns,
        },
        "deviceBytes": measured.device,
        "warnings": measured.warnings,
    });
    for (name, share) in table::shares(measured) {
        value[name] = json!(share);
    }
    value
}

pub fn removed(seconds: f64) -> Value {
    json!({ "access": "remove", "totalTime": seconds })
}

pub fn test(ran: &Ran, started: &str, results: Vec<Value>) -> Value {
    let params = &ran.params;
    let path = crate::ior::layout::file(params, 0, 0);
    let options = table::options(params).into_iter().map(|(key, value)| {
        let number = value.parse::<u64>().map(Value::from);
        (key, number.unwrap_or(Value::from(value)))
    });
    json!({
        "TestID": ran.id,
        "StartTime": started,
        "Path": path.display().to_string(),
        "FS": place::usage(&path).map(place::Usage::line).unwrap_or_default(),
        "Parameters": parameters(ran),
        "Options": options.collect::<Map<_, _>>(),
        "Results": results,
        "max": maxima(ran),
    })
}

fn maxima(ran: &Ran) -> Value {
    let mut max = Map::new();
    for (direction, name) in [(Direction::Write, "write"), (Direction::Read, "read")] {
        let phases = table::of(&ran.phases, direction);
        if !phases.is_empty() {
            let best = phases.iter().map(|measured| measured.bandwidth()).fold(0.0, f64::max);
            max.insert(format!("{name}MiB"), json!(best / MIB_F));
            max.insert(format!("{name}MB"), json!(best / 1e6));
        }
    }
    max.into()
}

fn parameters(ran: &Ran) -> Value {
    let params = &ran.params;
    let mut all = course(ran);
    let layout = layout(params);
    all.as_object_mut().expect("an object").extend(layout.as_object().expect("one too").clone());
    all
}

fn course(ran: &Ran) -> Value {
    let params = &ran.params;
    json!({
        "testID": ran.id,
        "refnum": params.reference,
        "api": params.api.name(),
        "platform": place::machine(),
        "testFileName": params.path,
        "deadlineForStonewall": params.deadline,
        "stoneWallingWearOut": u8::from(params.wear_out),
        "maxTimeDuration": params.max_minutes,
        "outlierThreshold": params.outlier_seconds,
        "nodes": 1,
        "memoryPerTask": 0,
        "memoryPerNode": params.memory.map_or(0, crate::cache::Amount::bytes),
        "tasksPerNode": params.tasks,
        "repetitions": params.repetitions,
        "multiFile": u8::from(params.multi_file),
        "interTestDelay": params.delay,
        "fsync": u8::from(params.sync),
        "fsyncperwrite": u8::from(params.sync_each),
        "useExistingTestFile": u8::from(params.use_existing),
        "uniqueDir": u8::from(params.unique_dir),
        "singleXferAttempt": u8::from(params.single_attempt),
        "keepFile": u8::from(params.keep),
        "keepFileWithError": u8::from(params.keep_with_error),
        "warningAsErrors": u8::from(params.warnings_as_errors),
        "verbose": params.verbose,
    })
}

fn layout(params: &Params) -> Value {
    json!({
        "readFile": u8::from(params.read),
        "writeFile": u8::from(params.write),
        "filePerProc": u8::from(params.file_per_task),
        "reorderTasks": u8::from(params.constant > 0),
        "reorderTasksRandom": params.random_tasks,
        "reorderTasksRandomSeed": params.random_seed,
        "randomOffset": params.random_offset,
        "checkWrite": u8::from(params.check_write),
        "checkRead": u8::from(params.check_read),
        "dataPacketType": params.pattern.letter(),
        "setTimeStampSignature/incompressibleSeed": params.signature,
        "collective": u8::from(params.ignored.iter().any(|told| told.starts_with("collective "))),
        "segmentCount": params.segments,
        "transferSize": params.transfer,
        "blockSize": params.block,
        "useO_DIRECT": u8::from(params.around_cache()),
        "cache": params.cache.name(),
    })
}

/// The rows of the summary of all tests.
pub fn summary(ran: &Ran) -> Vec<Value> {
    table::summaries(ran).iter().map(|summary| summary_row(ran, summary)).collect()
}

fn summary_row(ran: &Ran, summary: &Summary) -> Value {
    let (params, Summary { bandwidth, ops, .. }) = (&ran.params, summary);
    let mut row = json!({
        "operation": summary.operation,
        "API": params.api.name(),
        "TestID": ran.id,
        "ReferenceNumber": params.reference,
        "segmentCount": params.segments,
        "blockSize": params.block,
        "transferSize": params.transfer,
        "numTasks": params.tasks,
        "tasksPerNode": params.tasks,
        "repetitions": params.repetitions,
        "filePerProc": u8::from(params.file_per_task),
        "reorderTasks": u8::from(params.constant > 0),
        "taskPerNodeOffset": params.task_offset,
        "reorderTasksRandom": params.random_tasks,
        "reorderTasksRandomSeed": params.random_seed,
        "bwMaxMIB": bandwidth.max,
        "bwMinMIB": bandwidth.min,
        "bwMeanMIB": bandwidth.mean,
        "bwStdMIB": bandwidth.deviation,
        "OPsMax": ops.max,
        "OPsMin": ops.min,
        "OPsMean": ops.mean,
        "OPsSD": ops.deviation,
        "MeanTime": summary.seconds,
        "xsizeMiB": summary.bytes as f64 / MIB_F,
    });
    if let Some((seconds, mib)) = summary.stonewall {
        row["StoneWallTime"] = json!(seconds);
        row["StoneWallbwMeanMIB"] = json!(mib / seconds.max(1e-9));
    }
    row
}
