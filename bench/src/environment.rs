//! The conditions a number was measured under.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

#[derive(Serialize)]
pub struct Environment {
    pub commit: String,
    pub forebay: String,
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
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

/// What the run decides and the environment repeats.
pub struct Choices<'a> {
    pub disk: &'a Path,
    pub tmpfs: &'a Path,
    pub forebay: Option<&'a Path>,
    pub rounds: usize,
    pub quick: bool,
}

impl Environment {
    pub fn observe(choices: &Choices) -> Environment {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Environment {
            commit: commit(),
            forebay: choices
                .forebay
                .map_or("none".into(), |path| output(&path.to_string_lossy(), &["--version"])),
            kernel: output("uname", &["-srm"]),
            cpu: field("/proc/cpuinfo", "model name"),
            cpus,
            memory_total_mib: memory("MemTotal"),
            memory_available_mib: memory("MemAvailable"),
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

/// The commit of the tree this binary was built in, else of the one we are called from.
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

fn field(file: &str, key: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(key));
    let value = line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
    value.unwrap_or("unknown").to_owned()
}

fn memory(key: &str) -> u64 {
    let kib = field("/proc/meminfo", key);
    kib.trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib / 1024)
}

/// Device, type and options of the mount that holds `path`.
fn mount_of(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let holder = mounts
        .lines()
        .filter(|line| line.split(' ').nth(4).is_some_and(|at| path.starts_with(at)))
        .max_by_key(|line| line.split(' ').nth(4).map(str::len));
    let Some((_, tail)) = holder.and_then(|line| line.split_once(" - ")) else {
        return "unknown".into();
    };
    let mut parts = tail.split(' ');
    let (kind, source) = (parts.next().unwrap_or("?"), parts.next().unwrap_or("?"));
    format!("{kind} on {source} ({})", parts.next().unwrap_or(""))
}
