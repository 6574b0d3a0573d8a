//! The conditions a number was measured under.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_base::mounts::{self, Mount};
use forebay_bench::{cache::meminfo, environment::host};
use serde::Serialize;

#[derive(Serialize)]
pub struct Environment {
    pub commit: String,
    pub forebay: String,
    pub kernel: String,
    pub cpu: String,
    pub cpus: u32,
    pub memory_total_mib: u64,
    pub memory_available_mib: u64,
    pub load_average: f64,
    pub disk: String,
    pub tmpfs: String,
    pub rounds: usize,
    pub quick: bool,
    pub root: bool,
    pub unix_time_secs: u64,
}

/// The run's choices, which the environment repeats.
pub struct Choices<'a> {
    pub disk: &'a Path,
    pub tmpfs: &'a Path,
    pub forebay: Option<&'a Path>,
    pub rounds: usize,
    pub quick: bool,
}

impl Environment {
    pub fn observe(choices: &Choices) -> Environment {
        let host = host();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Environment {
            commit: commit(),
            forebay: choices
                .forebay
                .map_or("none".into(), |path| output(&path.to_string_lossy(), &["--version"])),
            kernel: host.kernel,
            cpu: host.cpu,
            cpus: host.cpus,
            memory_total_mib: host.memory_bytes >> 20,
            memory_available_mib: meminfo("MemAvailable").unwrap_or(0) >> 20,
            load_average: load_average(),
            disk: mount_of(choices.disk),
            tmpfs: mount_of(choices.tmpfs),
            rounds: choices.rounds,
            quick: choices.quick,
            // SAFETY: geteuid only returns a number.
            root: unsafe { libc::geteuid() } == 0,
            unix_time_secs: now.as_secs(),
        }
    }

    fn pairs(&self) -> Vec<(&'static str, String)> {
        vec![
            ("commit", self.commit.clone()),
            ("forebay", self.forebay.clone()),
            ("kernel", self.kernel.clone()),
            ("CPU", format!("{} x {}", self.cpus, self.cpu)),
            (
                "memory",
                format!("{} MiB, {} free", self.memory_total_mib, self.memory_available_mib),
            ),
            ("load at the start", format!("{:.2}", self.load_average)),
            ("disk", self.disk.clone()),
            ("tmpfs", self.tmpfs.clone()),
            ("rounds", format!("{}{}", self.rounds, if self.quick { " (quick run)" } else { "" })),
        ]
    }

    pub fn text(&self) -> String {
        self.pairs().iter().fold(String::new(), |mut text, (key, value)| {
            let _ = writeln!(text, "{key:<18} {value}");
            text
        })
    }

    pub fn markdown(&self) -> String {
        self.pairs().iter().fold(String::new(), |mut text, (key, value)| {
            let _ = writeln!(text, "- {key}: {value}");
            text
        })
    }
}

/// The commit of the tree this binary was built in, or of the current directory's.
fn commit() -> String {
    let binary = std::env::current_exe().unwrap_or_default();
    let built_in = binary.parent().unwrap_or(Path::new(".")).to_string_lossy().into_owned();
    let describe = |dir| output("git", &["-C", dir, "describe", "--always", "--dirty"]);
    match describe(&built_in).as_str() {
        "unknown" => describe("."),
        commit => commit.to_owned(),
    }
}

/// Runnable tasks over the last minute; well above 1 at the start means a disturbed run.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

fn output(program: &str, arguments: &[&str]) -> String {
    let result = Command::new(program).args(arguments).output();
    match result {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".into(),
    }
}

/// Device, type and options of the mount that holds `path`.
fn mount_of(path: &Path) -> String {
    match mounts::holding(&mounts::read().unwrap_or_default(), path) {
        Some(Mount { file_system, source, system_options, .. }) => {
            format!("{file_system} on {} ({system_options})", source.display())
        }
        None => "unknown".into(),
    }
}
