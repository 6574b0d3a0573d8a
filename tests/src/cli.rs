//! Running the `forebay` command, and other tools, with a time limit.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::procs::Proc;

/// A command that takes longer counts as hung.
const LONGEST: Duration = Duration::from_secs(300);

/// The result of a command that ended.
#[derive(Debug, Clone)]
pub struct Out {
    pub command: String,
    /// The exit code; `None` when a signal or the time limit ended the command.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Out {
    #[track_caller]
    pub fn ok(self) -> Out {
        self.expect(0)
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Out {
        assert_eq!(self.code, Some(code), "exit code of {self:#?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("not JSON ({e}): {self:#?}"))
    }

    /// Both streams, for looking for words.
    pub fn text(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

/// The `forebay` binary under test.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(find_binary)
}

fn find_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("FOREBAY_BIN") {
        return path.into();
    }
    let here = std::env::current_exe().expect("a test knows its own path");
    let found = here.ancestors().nth(2).expect("target/PROFILE/deps/test").join("forebay");
    assert!(found.exists(), "no {}: build it (cargo build), or set FOREBAY_BIN", found.display());
    found
}

/// Whether the binary contains a string: how a test learns that a hook it needs is built in.
pub fn binary_mentions(what: &str) -> bool {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| std::fs::read(binary()).expect("the binary is readable"));
    bytes.windows(what.len()).any(|window| window == what.as_bytes())
}

/// Runs `forebay ARGS` for at most five minutes.
#[track_caller]
pub fn forebay(args: &[&str]) -> Out {
    forebay_env(args, &[])
}

#[track_caller]
pub fn forebay_env(args: &[&str], env: &[(String, String)]) -> Out {
    let mut command = Command::new(binary());
    command.args(args).envs(env.iter().map(|(k, v)| (k, v)));
    finish(&mut command, LONGEST)
}

/// Runs another program for at most five minutes.
#[track_caller]
pub fn tool(program: &str, args: &[&str]) -> Out {
    finish(Command::new(program).args(args), LONGEST)
}

#[track_caller]
pub fn tool_in(dir: &Path, program: &str, args: &[&str]) -> Out {
    finish(Command::new(program).args(args).current_dir(dir), LONGEST)
}

/// Runs a command to its end. Output goes through files: a daemon that inherits a pipe would keep
/// it open, and the reader would wait for the daemon.
#[track_caller]
pub fn finish(command: &mut Command, limit: Duration) -> Out {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = format!("fbt-out-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let paths = ["out", "err"].map(|s| std::env::temp_dir().join(format!("{id}.{s}")));
    let files = paths.each_ref().map(|p| std::fs::File::create(p).expect("temporary file"));
    let [stdout, stderr] = files;
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let status = Proc::spawn(command).wait(limit);
    let [stdout, stderr] = paths.map(|path| {
        let text = std::fs::read(&path).unwrap_or_default();
        let _ = std::fs::remove_file(&path);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut line = format!("{command:?}");
    if status.is_none() {
        line += &format!(" (killed: still running after {limit:?})");
    }
    Out { command: line, code: status.and_then(|s| s.code()), stdout, stderr }
}
