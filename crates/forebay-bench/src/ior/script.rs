//! IOR's script files: `IOR START`, `key=value` lines, `RUN` between tests, `IOR STOP`.
//!
//! A test inherits everything from the one before it, and the first from the command line.

use std::path::Path;

use super::params::Params;
use crate::{Error, Result};

/// The tests of a script; an error names the line.
pub fn read(path: &Path, base: &Params) -> Result<Vec<Params>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("-f {}: {error}", path.display())))?;
    parse(&text, base).map_err(|error| Error::usage(format!("-f {}: {error}", path.display())))
}

fn parse(text: &str, base: &Params) -> Result<Vec<Params>> {
    let mut tests = vec![base.clone()];
    let mut ran = false;
    let mut started = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase();
        match words.as_str() {
            "ior start" => started = true,
            "ior stop" => break,
            _ if !started => (),
            "" => (),
            "run" => ran = true,
            _ => {
                // A RUN ends a test; the next setting begins one that inherits from it.
                if std::mem::take(&mut ran) {
                    tests.extend(tests.last().cloned());
                }
                let test = tests.last_mut().expect("there is always a test");
                settings(test, line)
                    .map_err(|error| Error::usage(format!("line {}: {error}", number + 1)))?;
            }
        }
    }
    if started { Ok(tests) } else { Err(Error::usage("no line `IOR START`")) }
}

/// One or more `key=value`, separated by commas.
fn settings(test: &mut Params, line: &str) -> Result<()> {
    for part in line.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| Error::usage(format!("{part:?} is not of the form key=value")))?;
        test.set(key.trim(), value.trim())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_inherit_from_the_one_before() {
        let text = "notes before\nIOR START\n  api=POSIX # comment\n testFile=/tmp/x, blockSize=8m\n\
                    RUN\n\n filePerProc=1\nrun\nior   stop\nnonsense after";
        let tests = parse(text, &Params { repetitions: 5, ..Params::default() }).unwrap();
        assert_eq!(tests.len(), 2);
        assert_eq!((tests[0].block, tests[1].block), (8 << 20, 8 << 20));
        assert!(!tests[0].file_per_task && tests[1].file_per_task);
        assert!(tests.iter().all(|test| test.path == "/tmp/x" && test.repetitions == 5));
    }

    #[test]
    fn an_error_names_its_line() {
        let error = parse("IOR START\nblockSize=8m\nbloksize=1\n", &Params::default()).unwrap_err();
        assert!(error.to_string().starts_with("line 3: no setting \"bloksize\""), "{error}");
        assert!(parse("blockSize=8m", &Params::default()).is_err());
    }
}
