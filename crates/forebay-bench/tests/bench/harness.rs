//! Runs the benchmark as a child process, as users do: the test executable starts itself again and
//! hands the arguments to the library's entry.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const ARGUMENTS: &str = "FOREBAY_BENCH_TEST_ARGUMENTS";
/// The test that is none: it becomes the benchmark when arguments are given in the environment.
const ENTRY: &str = "benchmark_entry";

/// To be called by the test named [`ENTRY`].
pub fn entry() {
    if let Ok(line) = std::env::var(ARGUMENTS) {
        let args = line.split('\x1f').map(Into::into).collect();
        std::process::exit(forebay_bench::run(args).into());
    }
}

fn command(line: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a running test has a path"));
    let words: Vec<&str> = line.split_whitespace().collect();
    // One thread, so that tasks are forked from a process without others; output is not captured.
    command.args([ENTRY, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ARGUMENTS, words.join("\x1f")).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The output of a run, and its exit code.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs `line` (all that would follow `forebay bench`) in `directory`.
pub fn bench(line: &str, directory: &Path) -> Run {
    finished(command(line, directory).output().expect("the test executable starts"))
}

/// Starts a run without waiting for it.
pub fn start(line: &str, directory: &Path) -> Child {
    command(line, directory).spawn().expect("the test executable starts")
}

pub fn finished(output: Output) -> Run {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Run {
        code: output.status.code().unwrap_or(-1),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

impl Run {
    /// Fails the test with the whole output of the run unless it ended with `code`.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// The rows of the result table that begin with `access`, split into columns.
    pub fn rows(&self, access: &str) -> Vec<Vec<String>> {
        let table = self.out.split("Results:").nth(1).unwrap_or_default();
        let table = table.split("Max ").next().unwrap_or_default();
        table
            .lines()
            .filter(|line| line.starts_with(access))
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect()
    }
}

/// Names in a directory, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("the test's directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
