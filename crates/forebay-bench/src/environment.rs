//! The conditions of a measurement: machine, kernel, memory, and the storage of the target.
//!
//! Everything is read from the kernel at the start of a run. Facts that cannot be found out stay
//! empty rather than failing the run.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_base::mounts;

use crate::cache::meminfo;
use crate::error::{Error, Result};
use crate::record::{FORMAT, Header, Host, Place, VERSION};

/// A header with everything but the workload's own part.
pub fn header(workload: &str, args: &[String], targets: &[PathBuf]) -> Header {
    let mut command = vec!["forebay".to_owned(), "bench".to_owned(), workload.to_owned()];
    command.extend(args.iter().cloned());
    Header {
        format: FORMAT.into(),
        version: VERSION,
        tool: concat!("forebay-bench ", env!("CARGO_PKG_VERSION")).into(),
        workload: workload.into(),
        command,
        began: rfc3339(SystemTime::now()),
        host: host(),
        targets: targets.iter().map(|path| place(path)).collect(),
        ..Header::default()
    }
}

/// The present state of the machine.
pub fn host() -> Host {
    let name = rustix::system::uname();
    let cpus = read("/proc/cpuinfo");
    let field = |key: &str| meminfo(key).unwrap_or(0);
    Host {
        kernel: format!(
            "{} {} {}",
            name.sysname().to_string_lossy(),
            name.release().to_string_lossy(),
            name.machine().to_string_lossy()
        ),
        cpu: cpu_model(&cpus).unwrap_or_default().to_owned(),
        cpus: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        memory_bytes: field("MemTotal"),
        free_bytes: field("MemFree"),
        cached_bytes: field("Cached"),
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn cpu_model(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// The storage under a path, or under the nearest parent of it that exists.
pub fn place(path: &Path) -> Place {
    let mut place = Place { path: path.display().to_string(), ..Place::default() };
    let Some(real) = nearest(path) else {
        return place;
    };
    if let Ok(space) = rustix::fs::statvfs(&real) {
        place.size_bytes = space.f_blocks * space.f_frsize;
        place.free_bytes = space.f_bavail * space.f_frsize;
    }
    if let Some(mount) = mounts::holding(&mounts::read().unwrap_or_default(), &real) {
        place.file_system = mount.file_system.clone();
        place.source = mount.source.to_string_lossy().into_owned();
        place.mount_options = merged(&mount.options, &mount.system_options);
        disk(&mount.device, &mut place);
    }
    place
}

/// The path `path`, which `option` gave, within the directory `place`; a usage error for a path that
/// would leave it.
pub fn inside(place: &str, option: &str, path: &Path) -> Result<PathBuf> {
    if !Path::new(place).is_dir() {
        return Err(Error::usage(format!("{place}: is not a directory")));
    }
    let stays = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if !path.components().all(stays) {
        return Err(Error::usage(format!(
            "{option} {}: give a name only, it is put into each of the two directories",
            path.display()
        )));
    }
    Ok(Path::new(place).join(path))
}

/// The path itself or its nearest parent that exists, without symbolic links.
fn nearest(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.ancestors().find_map(|path| path.canonicalize().ok())
}

/// Options of the mount and of the file system, each once.
fn merged(mount: &str, system: &str) -> String {
    let mut all: Vec<&str> = mount.split(',').collect();
    let more: Vec<&str> = system.split(',').filter(|option| !all.contains(option)).collect();
    all.extend(more);
    all.join(",")
}

/// Asks sysfs about a device by its numbers; a partition's queue belongs to its parent.
fn disk(device: &str, place: &mut Place) {
    let Ok(node) = fs::canonicalize(format!("/sys/dev/block/{device}")) else {
        return;
    };
    for directory in [Some(node.as_path()), node.parent()].into_iter().flatten() {
        match read(directory.join("queue/rotational")).trim() {
            "" => continue,
            text => place.rotational = Some(text == "1"),
        }
        place.model = read(directory.join("device/model")).trim().to_owned();
        return;
    }
}

/// `2026-01-31T23:59:59Z`
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Days since 1970 to year, month, day. Counts years from March, so that the leap day is a year's
/// last; 146,097 days are 400 years.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_as_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn options_are_told_once() {
        assert_eq!(merged("rw,noatime", "rw,size=1k"), "rw,noatime,size=1k");
    }

    #[test]
    fn this_machine_has_memory_a_kernel_and_a_root() {
        let host = host();
        assert!(host.memory_bytes > 0 && host.kernel.starts_with("Linux") && host.cpus > 0);
        let place = place(Path::new("/does/not/exist/yet"));
        assert!(place.size_bytes > 0 && !place.file_system.is_empty());
    }
}
