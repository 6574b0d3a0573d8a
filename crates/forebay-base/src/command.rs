//! Commands with a time limit.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::lock::sleep;
use rustix::fs::MemfdFlags;

use crate::units::human_secs;
use crate::{Error, Kind, Result};

/// How often the command is looked at: more rarely, the longer it takes.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_LAST: Duration = Duration::from_millis(50);

/// Runs a command without input and returns its output, which is kept in memory meanwhile.
///
/// # Errors
///
/// [`Kind::TimedOut`] if the command has not ended within `limit`: it is killed, and abandoned if even
/// that does not end it. An exit code other than 0 is no error.
pub fn within(command: &mut Command, limit: Duration) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e: io::Error| Error::io(e, name.clone());
    let (mut out, mut errors) = (memory().map_err(failed)?, memory().map_err(failed)?);
    command.stdin(Stdio::null());
    command.stdout(out.try_clone().map_err(failed)?).stderr(errors.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let deadline = Instant::now() + limit;
    let mut look = LOOK_FIRST;
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() < deadline => sleep(look),
            None => {
                let _ = child.kill();
                sleep(LOOK_FIRST);
                let _ = child.try_wait();
                let limit = human_secs(limit.as_secs_f64());
                return Err(Error::new(
                    Kind::TimedOut,
                    format!("{name}: it ran for {limit} and was killed"),
                ));
            }
        }
        look = (look * 2).min(LOOK_LAST);
    };
    Ok(Output {
        status,
        stdout: said(&mut out).map_err(failed)?,
        stderr: said(&mut errors).map_err(failed)?,
    })
}

/// The output of a command that has succeeded.
///
/// # Errors
///
/// As [`within`], and if the exit code is not 0: then with the last line of the output.
pub fn told_within(command: &mut Command, limit: Duration) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = within(command, limit)?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let why = match said.trim().lines().last() {
        Some(line) => format!("{}: {line}", ended.status),
        None => ended.status.to_string(),
    };
    Err(Error::new(Kind::Unavailable, format!("{name}: {why}")))
}

/// A file in memory, not a pipe: a full pipe would hold the command up, and its children would hold the
/// reader.
fn memory() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("said", MemfdFlags::CLOEXEC)?.into())
}

fn said(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn what_a_command_says_is_heard_however_much_it_is() {
        let limit = Duration::from_secs(20);
        let told = told_within(&mut shell("seq 100000; echo no >&2"), limit).unwrap();
        assert_eq!(told.lines().count(), 100_000);
        let error = told_within(&mut shell("echo first >&2; echo why >&2; exit 3"), limit);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("sh: exit status: 3: why"), "{error}");
    }

    /// A command that has gone into the background with its output is not waited for either.
    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let begun = Instant::now();
        let error = within(&mut shell("exec sleep 600"), Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), Kind::TimedOut);
        within(&mut shell("sleep 5 & exit 0"), Duration::from_secs(4)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }
}
