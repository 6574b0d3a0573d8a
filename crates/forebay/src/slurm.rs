//! Slurm's facts about a job, read by Slurm's own commands: without a shell, within a time limit, and
//! field by field, since a job's name may look like any other field.

use std::process::Command;
use std::str::SplitWhitespace;
use std::time::{Duration, Instant};

use forebay_base::command::told_within;
use forebay_base::lock::sleep;
use forebay_base::{Error, Kind, Result};

/// The time limit of one Slurm command. Without an answer by then slurmctld is away, or busy.
const ANSWER: Duration = Duration::from_secs(30);

/// The pause between two looks at a job that is ending.
const LOOK: Duration = Duration::from_millis(300);

/// The facts that a plan needs beside the script.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Before the job has its nodes, the number that it gets at least.
    pub nodes_least: Option<u32>,
    pub user: Option<String>,
    pub name: Option<String>,
    pub work_dir: Option<String>,
    /// The number of the array, and the index in it.
    pub array: Option<(String, String)>,
}

/// The facts about a job; none for a job that Slurm does not show. An error only if Slurm cannot be asked.
pub fn facts(id: &str) -> Result<Facts> {
    let Some(plain) = squeue(id, "%D|%F|%K|%u")? else { return Ok(Facts::default()) };
    let facts = facts_in(&plain);
    Ok(Facts { name: squeue(id, "%j")?, work_dir: squeue(id, "%Z")?, ..facts })
}

fn facts_in(line: &str) -> Facts {
    let mut fields = line.split('|');
    let mut next = || fields.next().filter(|field| !field.is_empty() && *field != "N/A");
    let (nodes, master, index, user) = (next(), next(), next(), next());
    Facts {
        // The count may be a range.
        nodes_least: nodes.and_then(|nodes| nodes.split('-').next()?.parse().ok()),
        array: master.zip(index).map(|(master, index)| (master.into(), index.into())),
        user: user.map(String::from),
        ..Facts::default()
    }
}

/// The names of a job's nodes.
pub fn nodes(id: &str) -> Result<Vec<String>> {
    let Some(list) = squeue(id, "%N")? else { return Ok(Vec::new()) };
    let names = output("scontrol", &["show", "hostnames", &list])?;
    Ok(names.split_whitespace().map(String::from).collect())
}

/// The script of a batch job. If a directive has a `%`, Slurm hands hooks another file in its place, which
/// has only Slurm's own directives, without the symbols that Slurm does not know. A job of salloc has only
/// that file: `None`. Slurm alone can tell the two cases apart, so it is asked again until it answers.
pub fn script(id: &str, patience: Duration) -> Result<Option<String>> {
    let deadline = Instant::now() + patience;
    loop {
        match batch_script(id) {
            Err(_) if Instant::now() < deadline => sleep(LOOK),
            told => return told,
        }
    }
}

fn batch_script(id: &str) -> Result<Option<String>> {
    let told = ask(id, "--Format=jobid:16,batchflag:16")?;
    if words_of(id, &told).and_then(|mut words| words.next()) == Some("0") {
        return Ok(None);
    }
    let text = output("scontrol", &["write", "batch_script", id, "-"])?;
    match text.is_empty() {
        true => Err(Error::new(Kind::Unavailable, "scontrol: the job's script is empty")),
        false => Ok(Some(text)),
    }
}

/// The exit code of a job, as soon as all its nodes have reported its end: before, the code is not known.
/// `None` if it is not known within `patience`; never 0 for a job that is run again.
pub fn exit_code(id: &str, patience: Duration) -> Option<i32> {
    let deadline = Instant::now() + patience;
    loop {
        let said = match ask(id, "--Format=jobid:16,exit_code:16,statecompact:16,timeleft:24") {
            Ok(told) => judged(words_of(id, &told)?, || accounted(id))?,
            // No answer from the scheduler does not mean that the job is unknown.
            Err(_) => Said::Later,
        };
        match said {
            Said::Code(code) => return Some(code),
            Said::Later if Instant::now() < deadline => sleep(LOOK),
            Said::Later | Said::Nothing => return None,
        }
    }
}

/// Slurm's answer about a job's end.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Code(i32),
    /// Slurm will know more later.
    Later,
    /// Slurm knows nothing, and will not later.
    Nothing,
}

/// Judges by exit code, state and time left; `None` if these are missing. A program may end with 0 because
/// it was told to end: only a completed job has succeeded. During the stage-out the state shows only `SO`,
/// so accounting is asked; without accounting only the time left tells.
fn judged<'t>(
    mut words: impl Iterator<Item = &'t str>,
    accounted: impl FnOnce() -> Result<Option<String>>,
) -> Option<Said> {
    let status: i32 = words.next()?.parse().ok()?;
    let (state, left) = (words.next()?, words.next());
    Some(match (state, status) {
        ("PD", _) => Said::Code(FAILED),
        ("CD", _) | (_, 1..) => Said::Code(code_of(status)),
        ("CG" | "R", _) => Said::Later,
        ("SO", _) => match accounted().as_ref().map(Option::as_deref) {
            Ok(Some("COMPLETED")) => Said::Code(0),
            Ok(Some("" | "PENDING" | "RUNNING" | "SUSPENDED" | "RESIZING" | "REQUEUED")) => {
                Said::Later
            }
            Ok(Some(_)) => Said::Code(FAILED),
            // The job may have ended by itself in its last moment.
            Ok(None) if matches!(left, Some("0:00" | "INVALID")) => Said::Nothing,
            Ok(None) => Said::Code(0),
            Err(_) => Said::Later,
        },
        _ => Said::Code(FAILED),
    })
}

/// The exit code for a job that Slurm has ended, whatever code its program gave.
const FAILED: i32 = 1;

/// The job's state in accounting; `None` if there is no accounting.
fn accounted(id: &str) -> Result<Option<String>> {
    let fields = "--format=JobIDRaw,State";
    match output("sacct", &["--noheader", "--allocations", "--parsable2", fields, "--jobs", id]) {
        Ok(told) => Ok(Some(state_in(id, &told).to_string())),
        Err(error) if is_nowhere(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of an array stands for all its tasks, and a job that was resized has a line for each size.
fn state_in<'t>(id: &str, told: &'t str) -> &'t str {
    let mut lines = told.lines().rev();
    let state = lines.find_map(|line| line.strip_prefix(id)?.strip_prefix('|'));
    state.unwrap_or_default().trim()
}

/// Whether there is no accounting, as opposed to accounting that does not answer.
fn is_nowhere(error: &Error) -> bool {
    let said = error.to_string();
    error.is(libc::ENOENT) || said.contains("accounting storage is disabled")
}

/// The words behind a job's number.
fn words_of<'t>(id: &str, told: &'t str) -> Option<SplitWhitespace<'t>> {
    let mut lines = told.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(id)).then_some(words))
}

/// The exit code in a status of wait(2), which Slurm keeps.
fn code_of(status: i32) -> i32 {
    match status & 0x7f {
        0 => (status >> 8) & 0xff,
        signal => 128 + signal,
    }
}

/// Fields of the job itself: the number of an array would stand for all its tasks. `None` if they are empty.
fn squeue(id: &str, fields: &str) -> Result<Option<String>> {
    let told = ask(id, &format!("--format=%A|{fields}"))?;
    Ok(line_of(id, &told))
}

fn line_of(id: &str, told: &str) -> Option<String> {
    let mut lines = told.lines();
    let line = lines.find_map(|line| line.strip_prefix(id)?.strip_prefix('|'))?;
    // A name or a directory with a newline in it counts as empty.
    let is_whole = lines.next().is_none_or(|next| next.starts_with(|c: char| c.is_ascii_digit()));
    (is_whole && !line.is_empty()).then(|| line.to_string())
}

fn ask(id: &str, format: &str) -> Result<String> {
    output("squeue", &["--noheader", "--states=all", "--jobs", id, format])
}

fn output(program: &str, args: &[&str]) -> Result<String> {
    told_within(Command::new(program).args(args), ANSWER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_squeue_writes_them() {
        let facts = facts_in("2|4|1|nobody");
        assert_eq!((facts.nodes_least, facts.user.as_deref()), (Some(2), Some("nobody")));
        assert_eq!(facts.array, Some(("4".into(), "1".into())));
        let plain = facts_in("1-3|17|N/A|eva");
        assert_eq!((plain.nodes_least, plain.array), (Some(1), None));
        assert_eq!(facts_in(""), Facts::default());
    }

    #[test]
    fn the_line_of_the_job_itself_is_read() {
        let told = "5|1|4|1|eva\n4|1|4|2|eva\n";
        assert_eq!(line_of("4", told).as_deref(), Some("1|4|2|eva"));
        assert_eq!(line_of("17", told), None);
        assert_eq!(line_of("4", "4|a\nb\n"), None);
        assert_eq!(line_of("4", "4|a|b\n").as_deref(), Some("a|b"));
        assert_eq!(line_of("4", "4|\n"), None);
    }

    #[test]
    fn only_a_job_that_has_completed_has_succeeded() {
        let said = |told: &str, accounted: Option<&str>| {
            judged(told.split_whitespace(), || Ok(accounted.map(|state| state.trim().into())))
        };
        for (told, accounted, expected) in [
            ("0 CD 5:00", None, Said::Code(0)),
            ("768 F 5:00", None, Said::Code(3)),
            ("0 PD 5:00", None, Said::Code(1)),
            ("0 CG 5:00", None, Said::Later),
            ("0 SO 5:00", Some("COMPLETED\n"), Said::Code(0)),
            ("0 SO 5:00", Some("CANCELLED by 1000\n"), Said::Code(1)),
            ("0 SO INVALID", Some("TIMEOUT\n"), Said::Code(1)),
            ("0 SO 5:00", Some("RUNNING\n"), Said::Later),
            ("0 SO 5:00", None, Said::Code(0)),
            ("768 SO INVALID", None, Said::Code(3)),
            ("0 SO INVALID", None, Said::Nothing),
            ("0 SO 0:00", None, Said::Nothing),
        ] {
            assert_eq!(said(told, accounted), Some(expected), "{told} {accounted:?}");
        }
        let away = || Err(Error::new(Kind::Unavailable, "sacct: no answer"));
        assert_eq!(judged("0 SO 5:00".split_whitespace(), away), Some(Said::Later));
        for state in ["TO", "CA", "NF", "PR", "OOM", "DL", "BF", "F"] {
            assert_eq!(said(&format!("0 {state} 5:00"), None), Some(Said::Code(1)), "{state}");
        }
    }

    #[test]
    fn accounting_is_read_of_the_job_itself() {
        let array = "1235|CANCELLED by 1000\n1234|COMPLETED\n1236|FAILED\n";
        assert_eq!(state_in("1234", array), "COMPLETED");
        assert_eq!(state_in("1235", array), "CANCELLED by 1000");
        assert_eq!(state_in("7", "7|RESIZING\n7|COMPLETED\n"), "COMPLETED");
        assert_eq!(state_in("7", "77|FAILED\n"), "");
    }

    #[test]
    fn an_exit_code_is_what_a_shell_would_say() {
        assert_eq!((code_of(0), code_of(768), code_of(15)), (0, 3, 143));
    }
}
