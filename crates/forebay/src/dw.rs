//! Cray's commands `dw_wlm_cli` and `dwstat`, as Slurm's burst_buffer/datawarp calls them: links of these
//! names lead to this program.
//!
//! - C1: the work for a job is done by `forebay job ...`, run as a program: its status line decides
//!   here as it does for burst_buffer/lua.
//! - C2: standard output holds only the text that Slurm reads: JSON, or the text that becomes the
//!   job's reason.

mod call;
mod sessions;
mod show;
mod stat;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_base::{Error, Kind, Result};

use crate::ui::say_text;
use call::Call;

/// The exit code, if the process was called by one of Cray's names.
pub fn run(args: &[OsString]) -> Option<u8> {
    let (name, rest) = args.split_first()?;
    let did = match Path::new(name).file_name()?.to_str()? {
        "dw_wlm_cli" => Call::of(rest).and_then(|call| call.run()),
        "dwstat" => stat::run(rest),
        _ => return None,
    };
    Some(match did {
        Ok(text) => {
            if !text.is_empty() {
                say_text(&text);
            }
            0
        }
        Err(error) => {
            say_text(&error.to_string());
            1
        }
    })
}

/// The output of a `forebay job ...` that succeeded.
struct Told {
    /// The text behind `forebay: ok`.
    text: String,
    lines: Vec<String>,
}

/// C1.
fn job(words: &[&str]) -> Result<Told> {
    let failed = |why: String| Error::new(Kind::Unreachable, why);
    let program = std::env::current_exe().map_err(|e| Error::io(e, "this program"))?;
    let mut command = Command::new(program);
    command.arg("job").args(words).stdin(Stdio::null()).stderr(Stdio::inherit());
    let out = command.output().map_err(|e| Error::io(e, "forebay job"))?;
    let printed = String::from_utf8_lossy(&out.stdout);
    judged(&printed)
        .unwrap_or_else(|| Err(failed(format!("forebay job {}: {}", words[0], out.status))))
}

/// The result in the output of a hook; `None` without a status line: the hook was killed.
fn judged(printed: &str) -> Option<Result<Told>> {
    let mut lines: Vec<String> = printed.strip_suffix('\n')?.lines().map(String::from).collect();
    let last = lines.pop()?;
    let (word, text) = last.strip_prefix("forebay: ").map(|rest| {
        let (word, text) = rest.split_once(' ').unwrap_or((rest, ""));
        (word.to_string(), text.to_string())
    })?;
    match word.as_str() {
        "ok" | "busy" => Some(Ok(Told { text, lines })),
        "error" => {
            // The lines that `process` prints for people say more than its summary.
            let told: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("| ")).collect();
            let why = if told.is_empty() { text } else { told.join("\n") };
            Some(Err(Error::new(Kind::Usage, why)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_decides_and_a_torn_one_is_none() {
        let told = judged("17\nforebay: ok done\n").unwrap().unwrap();
        assert_eq!((told.text.as_str(), told.lines), ("done", vec!["17".to_string()]));
        let error = judged("pool=p\n| line 2: x\n|   ^\nforebay: error x\n").unwrap();
        assert_eq!(error.err().unwrap().to_string(), "line 2: x\n  ^");
        assert_eq!(judged("forebay: error x y\n").unwrap().err().unwrap().to_string(), "x y");
        for torn in ["", "17\n", "forebay: ok", "forebay: o\n", "forebay: okay\n"] {
            assert!(judged(torn).is_none(), "{torn:?}");
        }
    }

    #[test]
    fn only_cray_s_names_are_meant() {
        assert!(run(&["forebay".into(), "--function".into()]).is_none());
        assert!(run(&[]).is_none());
    }
}
