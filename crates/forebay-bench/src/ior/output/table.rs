//! The rows and columns of IOR's text and CSV.

use crate::io::Direction;
use crate::ior::measure::{Measured, Statistics};
use crate::ior::params::{Order, Params, Reorder};
use crate::ior::run::Ran;
use crate::units::{MIB, SIZES, bytes_in, human_bytes};

pub const HEAD: &str = "access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    \
wr/rd(s)   close(s)   total(s)   iter";
pub const RULE: &str = "------    ---------  ----       ----------  ---------- ---------  --------   \
--------   --------   --------   ----";
pub const CSV_HEAD: &str = "access,bw(MiB/s),IOPS,Latency,block(KiB),xfer(KiB),open(s),wr/rd(s),\
close(s),total(s),numTasks,iter";
pub const SUMMARY_HEAD: &str = "Operation   Max(MiB)   Min(MiB)  Mean(MiB)     StdDev   Max(OPs)   \
Min(OPs)  Mean(OPs)     StdDev    Mean(s) Stonewall(s) Stonewall(MiB) Test# #Tasks tPN reps fPP \
reord reordoff reordrand seed segcnt   blksiz    xsize aggs(MiB)   API RefNum";

const MIB_F: f64 = MIB as f64;

/// The `Options:` section.
pub fn options(params: &Params) -> Vec<(String, String)> {
    let random = params.reorder() == Reorder::Random || params.reorder() == Reorder::Shuffle;
    let mut lines = vec![
        ("api", params.api.name().to_owned()),
        ("apiVersion", String::new()),
        ("test filename", params.path.clone()),
        ("access", access(params).to_owned()),
        ("type", "independent".to_owned()),
        ("segments", params.segments.to_string()),
        ("ordering in a file", order(params).to_owned()),
        ("ordering inter file", reorder(params).to_owned()),
    ];
    if params.reorder() != Reorder::Off {
        lines.push(("task offset", params.task_offset.to_string()));
    }
    if random {
        lines.push(("reorder random seed", params.random_seed.to_string()));
    }
    lines.extend([
        ("nodes", "1".to_owned()),
        ("tasks", params.tasks.to_string()),
        ("clients per node", params.tasks.to_string()),
    ]);
    if let Some(memory) = params.memory {
        lines.push(("memoryPerNode", size(memory.bytes())));
    }
    lines.extend([
        ("repetitions", params.repetitions.to_string()),
        ("xfersize", size(params.transfer)),
        ("blocksize", size(params.block)),
        ("aggregate filesize", size(params.aggregate())),
    ]);
    if params.verbose > 0 {
        lines.push(("verbose", params.verbose.to_string()));
    }
    if params.deadline > 0.0 {
        lines.push(("stonewallingTime", params.deadline.to_string()));
        lines.push(("stoneWallingWearOut", u8::from(params.wear_out).to_string()));
    }
    if params.cache.name() != "keep" {
        lines.push(("cache", params.cache.name().to_owned()));
    }
    lines.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

pub fn access(params: &Params) -> &'static str {
    if params.file_per_task { "file-per-process" } else { "single-shared-file" }
}

pub fn order(params: &Params) -> &'static str {
    if params.order() == Order::Sequential { "sequential" } else { "random" }
}

pub fn reorder(params: &Params) -> &'static str {
    match params.reorder() {
        Reorder::Off => "no tasks offsets",
        Reorder::Constant => "constant task offset",
        Reorder::Random | Reorder::Shuffle => "random task offset",
    }
}

/// A size in IOR's format: GiB and MiB, else bytes.
fn size(bytes: u64) -> String {
    let units = &[&SIZES[3..5], &SIZES[6..]].concat();
    bytes_in(units, bytes)
}

/// A value in ten columns; the larger it is, the fewer decimals.
fn cell(value: f64) -> String {
    match value {
        v if v < 1.0 => format!("{v:<10.6} "),
        v if v < 3600.0 => format!("{v:<10.2} "),
        v => format!("{v:<10.0} "),
    }
}

pub fn row(params: &Params, measured: &Measured) -> String {
    format!(
        "{:<10}{}{}{} {}{}{}{}{}{}{:<4}",
        measured.name(),
        cell(measured.bandwidth() / MIB_F),
        cell(measured.iops()),
        cell(measured.latency),
        cell(params.block as f64 / 1024.0),
        cell(params.transfer as f64 / 1024.0),
        cell(measured.open),
        cell(measured.transfer),
        cell(measured.close),
        cell(measured.total),
        measured.repetition
    )
}

pub fn removed(seconds: f64, repetition: usize) -> String {
    format!(
        "remove    -          -          -           -          -          -          -          \
         -          {}{repetition:<4}",
        cell(seconds)
    )
}

pub fn csv_row(params: &Params, measured: &Measured) -> String {
    format!(
        "{},{:.4},{:.4},{:.6},{:.2},{:.2},{:.6},{:.6},{:.6},{:.6},{},{}",
        measured.name(),
        measured.bandwidth() / MIB_F,
        measured.iops(),
        measured.latency,
        params.block as f64 / 1024.0,
        params.transfer as f64 / 1024.0,
        measured.open,
        measured.transfer,
        measured.close,
        measured.total,
        params.tasks,
        measured.repetition
    )
}

/// The phases of one direction.
pub fn of(phases: &[Measured], direction: Direction) -> Vec<&Measured> {
    phases.iter().filter(|measured| measured.direction == direction).collect()
}

/// `Max Write:` and `Max Read:`.
pub fn maxima(phases: &[Measured]) -> Vec<String> {
    let names = [(Direction::Write, "Max Write: "), (Direction::Read, "Max Read:  ")];
    let lines = names.into_iter().filter_map(|(direction, name)| {
        let phases = of(phases, direction);
        let best = phases.iter().map(|measured| measured.bandwidth()).fold(0.0, f64::max);
        let (mebi, mega) = (best / MIB_F, best / 1e6);
        (!phases.is_empty()).then(|| format!("{name}{mebi:.2} MiB/sec ({mega:.2} MB/sec)"))
    });
    lines.collect()
}

/// The measurements of the page cache around a phase, in words.
pub fn evidence(params: &Params, measured: &Measured) -> Option<(String, String)> {
    let bytes = human_bytes(measured.bytes);
    // O_DIRECT leaves cached pages in place, and does not use them.
    let passed = match measured.resident {
        Some(share) if share > 0.0 && params.around_cache() => ", and was passed by",
        _ => "",
    };
    let text = match (measured.resident, measured.unwritten) {
        (Some(share), _) => {
            format!("{:.1} % of {bytes} was resident before{passed}", share * 100.0)
        }
        (_, Some(share)) => {
            format!("{:.1} % of {bytes} was not on the device after", share * 100.0)
        }
        _ => return None,
    };
    let device = match (measured.device, measured.direction) {
        (Some(moved), Direction::Read) => format!("; the device read {}", human_bytes(moved)),
        (Some(moved), Direction::Write) => format!("; the device wrote {}", human_bytes(moved)),
        _ => String::new(),
    };
    Some((format!("{} {}", measured.name(), measured.repetition), text + &device))
}

/// The doubts about each phase; the same doubt about several repetitions is one line.
pub fn warnings(phases: &[Measured]) -> Vec<String> {
    let mut lines: Vec<(String, Vec<usize>)> = Vec::new();
    for measured in phases {
        for warning in &measured.warnings {
            let text = format!("{}: {warning}", measured.name());
            match lines.iter_mut().find(|(known, _)| *known == text) {
                Some((_, repetitions)) => repetitions.push(measured.repetition),
                None => lines.push((text, vec![measured.repetition])),
            }
        }
    }
    let joined =
        |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    lines.iter().map(|(text, which)| format!("{text} (iter {})", joined(which))).collect()
}

/// Statistics of one operation over the repetitions of a test.
pub struct Summary {
    pub operation: &'static str,
    pub bandwidth: Statistics,
    pub ops: Statistics,
    pub seconds: f64,
    pub stonewall: Option<(f64, f64)>,
    pub bytes: u64,
}

pub fn summaries(ran: &Ran) -> Vec<Summary> {
    let transfer = ran.params.transfer as f64;
    let one = |direction| {
        let phases = of(&ran.phases, direction);
        let first = phases.first()?;
        let walls: Vec<_> = phases.iter().filter_map(|measured| measured.stonewall).collect();
        let count = walls.len().max(1) as f64;
        Some(Summary {
            operation: first.name(),
            bandwidth: Statistics::of(phases.iter().map(|m| m.bandwidth() / MIB_F)),
            ops: Statistics::of(phases.iter().map(|m| m.bandwidth() / transfer)),
            seconds: phases.iter().map(|m| m.total).sum::<f64>() / phases.len() as f64,
            stonewall: (!walls.is_empty()).then(|| {
                let seconds: f64 = walls.iter().map(|wall| wall.seconds).sum();
                let bytes: f64 = walls.iter().map(|wall| wall.bytes as f64).sum();
                (seconds / count, bytes / count / MIB_F)
            }),
            bytes: first.bytes,
        })
    };
    [Direction::Write, Direction::Read].into_iter().filter_map(one).collect()
}

/// A row per operation of the summary of all tests.
pub fn summary(ran: &Ran) -> Vec<String> {
    summaries(ran).iter().map(|summary| summary_row(ran, summary)).collect()
}

fn summary_row(ran: &Ran, summary: &Summary) -> String {
    let Summary { bandwidth, ops, .. } = summary;
    let (wall_seconds, wall_mib) = match summary.stonewall {
        Some((seconds, mib)) => (format!("{seconds:.2}"), format!("{mib:.2}")),
        None => ("NA".to_owned(), "NA".to_owned()),
    };
    let mut row = format!("{:<9} ", summary.operation);
    for value in [bandwidth, ops].into_iter().flat_map(|s| [s.max, s.min, s.mean, s.deviation]) {
        row += &format!("{value:>10.2} ");
    }
    let params = &ran.params;
    row += &format!("{:>10.5} {wall_seconds:>10} {wall_mib:>13} ", summary.seconds);
    row += &format!("{:>5} {:>6} {:>3} ", ran.id, params.tasks, params.tasks);
    row += &format!("{:>4} {:>3} ", params.repetitions, u8::from(params.file_per_task));
    row += &format!("{:>5} {:>8} ", u64::from(params.constant > 0), params.task_offset);
    row += &format!("{:>9} {:>4} ", params.random_tasks, params.random_seed);
    row += &format!("{:>6} {:>8} {:>8} ", params.segments, params.block, params.transfer);
    let megas = summary.bytes as f64 / MIB_F;
    row + &format!("{megas:>9.1} {:>3} {:>6}", params.api.name(), params.reference)
}

/// Both shares of a phase under the names the JSON carries.
pub fn shares(measured: &Measured) -> [(&'static str, Option<f64>); 2] {
    [("residentShare", measured.resident), ("unwrittenShare", measured.unwritten)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_and_sizes_look_as_ior_prints_them() {
        assert_eq!(cell(0.000_505), "0.000505   ");
        assert_eq!(cell(443.652), "443.65     ");
        assert_eq!(cell(15033.4), "15033      ");
        assert_eq!(size(262_144), "262144 bytes");
        assert_eq!(size(1 << 20), "1 MiB");
        assert_eq!(size(2_684_354_560), "2.50 GiB");
        let removal = "remove    -          -          -           -          -          -          \
                       -          -          0.006066   0   ";
        assert_eq!(removed(0.006_066, 0), removal);
    }

    #[test]
    fn heads_are_as_wide_as_their_rules() {
        assert_eq!(HEAD.len(), RULE.len());
        assert_eq!(HEAD.split_whitespace().count(), RULE.split_whitespace().count());
    }
}
