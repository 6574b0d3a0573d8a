//! IOR's JSON: the same names and nesting, with additional results beside them.

use serde_json::{Map, Value, json};

use super::table::{self, Summary};
use crate::io::Direction;
use crate::ior::measure::Measured;
use crate::ior::params::Params;
use crate::ior::place;
use crate::ior::run::Ran;
use crate::ior::settings;
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
    let mut all = settings::parameters(&ran.params);
    for (name, value) in [
        ("testID", json!(ran.id)),
        ("platform", json!(place::machine())),
        ("nodes", json!(1)),
        ("memoryPerTask", json!(0)),
        ("tasksPerNode", json!(ran.params.tasks)),
    ] {
        all.insert(name.to_owned(), value);
    }
    all.into()
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
        "numTasks": params.tasks,
        "tasksPerNode": params.tasks,
        "taskPerNodeOffset": params.task_offset,
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
    let told = settings::parameters(params);
    for name in [
        "segmentCount",
        "blockSize",
        "transferSize",
        "repetitions",
        "filePerProc",
        "reorderTasks",
        "reorderTasksRandom",
        "reorderTasksRandomSeed",
    ] {
        row[name] = told[name].clone();
    }
    if let Some((seconds, mib)) = summary.stonewall {
        row["StoneWallTime"] = json!(seconds);
        row["StoneWallbwMeanMIB"] = json!(mib / seconds.max(1e-9));
    }
    row
}
