//! A test's own machine: Linux as a program on this one (user-mode-linux), for features that this machine's
//! kernel lacks, such as quotas.
//!
//! Its root is this machine's, read-only; `/run` is its own. It runs one program, whose output and exit
//! status are in a directory that both machines see, and ends when that program has ended or is late.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::procs::Proc;
use crate::{sys, text};

/// The path, in the machine, of the directory that it shares with this one.
pub const BED: &str = "/run/host";

/// Set in the environment of programs in such a machine.
pub const TOP: &str = "FBT_INSIDE";

const PROGRAM: &str = "linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";

/// Booting takes a second or two.
const BOOT: Duration = Duration::from_secs(30);

/// The job of a machine.
#[derive(Debug)]
pub struct Job {
    pub program: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Modules of the machine's kernel, such as `fs/fuse/fuse`, in the order of loading.
    pub modules: Vec<String>,
    pub seconds: u64,
}

/// The result of a job.
#[derive(Debug)]
pub struct Report {
    /// The end of the program, such as `exit status: 0`.
    pub ended: String,
    pub out: String,
    pub err: String,
}

/// Whether this program runs in such a machine.
pub fn is_inside() -> bool {
    std::env::var_os(TOP).is_some()
}

impl Job {
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    fn write(&self, bed: &Path) {
        let job = json!({
            "program": self.program, "args": self.args, "env": self.env,
            "modules": self.modules, "seconds": self.seconds,
        });
        std::fs::write(bed.join("job"), job.to_string()).expect("the test directory is writable");
    }

    /// Reads the job, in the machine.
    pub fn read(bed: &Path) -> Result<Job, String> {
        let text = std::fs::read(bed.join("job")).map_err(|e| format!("the job: {e}"))?;
        let job: Value = serde_json::from_slice(&text).map_err(|e| format!("the job: {e}"))?;
        let words = |key: &str| -> Vec<String> {
            let list = job[key].as_array().into_iter().flatten();
            list.filter_map(|word| word.as_str().map(str::to_string)).collect()
        };
        let env = job["env"].as_object().into_iter().flatten();
        Ok(Job {
            program: job["program"].as_str().unwrap_or_default().into(),
            args: words("args"),
            env: env.map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().into())).collect(),
            modules: words("modules"),
            seconds: job["seconds"].as_u64().unwrap_or(1),
        })
    }
}

/// Runs a job in a new machine, whose disks are these files; `guest` is `env!("CARGO_BIN_EXE_guest")`.
///
/// # Errors
///
/// If no such machine can be had here, with the reason.
pub fn run(guest: &str, bed: &Path, disks: &[PathBuf], mut job: Job) -> Result<Report, String> {
    if !sys::on_path(PROGRAM) {
        return Err("user-mode-linux is not installed (see tests/packages.txt)".into());
    }
    job.modules = job.modules.iter().map(|name| module(name)).collect::<Result<_, _>>()?;
    job.write(bed);
    let read = |name: &str| std::fs::read_to_string(bed.join(name)).unwrap_or_default();
    let status = boot(guest, bed, disks, job.limit()).wait(job.limit() + 2 * BOOT);
    if !bed.join("up").exists() {
        let (why, said) = (read("ended"), read("console"));
        let said: Vec<&str> = said.lines().rev().take(3).collect();
        return Err(format!("no machine came up: {why} {status:?}: {}", said.join(" | ")));
    }
    Ok(Report { ended: read("ended"), out: read("out"), err: read("err") })
}

fn module(name: &str) -> Result<String, String> {
    let kernels = std::fs::read_dir(MODULES).map_err(|e| format!("{MODULES}: {e}"))?;
    let mut found = kernels.flatten().map(|kernel| kernel.path().join(format!("kernel/{name}.ko")));
    let found = found.find(|path| path.exists());
    Ok(text(&found.ok_or(format!("{MODULES}: no {name}.ko"))?).into())
}

/// Boots a machine. All its processes are in a namespace that ends with this process, or when the machine
/// is late.
fn boot(guest: &str, bed: &Path, disks: &[PathBuf], limit: Duration) -> Proc {
    let late = (limit + BOOT).as_secs().to_string();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "timeout", "--signal", "KILL", &late]);
    command.args([PROGRAM, "mem=640M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"]);
    command.args(["con=null", "con0=null,fd:1", "umid=fbt", &format!("uml_dir={}", text(bed))]);
    command.arg(format!("init={guest}")).arg(format!("FBT_BED={}", text(bed)));
    for (number, disk) in disks.iter().enumerate() {
        command.arg(format!("ubd{number}={}", text(disk)));
    }
    let console = std::fs::File::create(bed.join("console")).expect("it is writable");
    let errors = console.try_clone().expect("a descriptor");
    command.stdin(Stdio::null()).stdout(console).stderr(errors);
    Proc::spawn(&mut command)
}
