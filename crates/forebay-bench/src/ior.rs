//! `forebay bench ior`: IOR's workload, options and output, without MPI.
//!
//! The order of a run: read all options ([`options`], [`script`]), refuse impossible ones
//! ([`check`]), run test after test ([`run`]), each phase by forked tasks ([`phase`]), and show
//! results as IOR does ([`output`]). Offsets are pure arithmetic ([`layout`]).

mod check;
pub(crate) mod keep;
mod layout;
mod measure;
mod options;
mod output;
mod params;
mod phase;
pub(crate) mod place;
mod probe;
mod records;
mod run;
mod script;
mod settings;

pub(crate) use measure::Statistics;

use crate::cache::{Hog, Policy};
use crate::record::{Outcome, Record};
use crate::{Error, Result, interrupt};

use output::Output;
use params::Params;
use records::Records;
use run::Ran;

/// Runs the tests in `args`. Returns 1 if verification found errors, 130 after Ctrl-C.
pub fn run(args: &[String]) -> Result<u8> {
    let Some(mut tests) = options::read(args)? else { return Ok(0) };
    check_all(&mut tests)?;
    let first = &tests[0];
    let command = format!("forebay bench ior {}", args.join(" "));
    let mut output = Output::new(first, command.trim_end())?;
    if first.dry_run {
        tests.iter().enumerate().for_each(|(id, test)| output.test_start(test, id, 0));
        return Ok(0);
    }
    let (_, ended) = conduct(&tests, args, output)?;
    ended.map(|errors| u8::from(errors > 0))
}

/// Checks a command line as [`record_in`] would run it, without writing anything.
pub(crate) fn check_in(place: &str, args: &[String]) -> Result<()> {
    located(place, args).map(drop)
}

/// Runs the tests in `args` with their files in the directory `place`, or without files if that is
/// `null`, for their record alone.
pub(crate) fn record_in(place: &str, args: &[String]) -> Result<Record> {
    let tests = located(place, args)?;
    let output = Output::nowhere(&tests[0]);
    match conduct(&tests, args, output)? {
        (record, Ok(0)) => Ok(record),
        (_, Ok(errors)) => {
            Err(Error::failed(format!("{place}: {errors} transfers had wrong bytes")))
        }
        (_, Err(error)) => Err(error),
    }
}

fn located(place: &str, args: &[String]) -> Result<Vec<Params>> {
    let Some(mut tests) = options::read(args)? else {
        return Err(Error::usage("-h among other options: ask for --help alone"));
    };
    for test in &mut tests {
        test.move_to(place)?;
        check::settings(test)?;
    }
    check_all(&mut tests)?;
    Ok(tests)
}

/// Checks everything that can be checked without writing, and finds signatures in files that are
/// only read.
fn check_all(tests: &mut [Params]) -> Result<()> {
    for test in tests {
        check::place(test)?;
        test.signature = check::signature(test)?;
    }
    Ok(())
}

/// Runs all tests. An error means that nothing ran; otherwise returns the measurements, and how the
/// run ended: the number of transfers with wrong bytes, or the error that ended it early.
fn conduct(tests: &[Params], args: &[String], mut output: Output) -> Result<(Record, Result<u64>)> {
    let mut records = Records::begin(&tests[0], args)?;
    without_effect(tests, &mut output)?;
    let (ran, failure) = all(tests, &mut output, &mut records)?;
    if interrupt::seen() {
        output.warn("interrupted; the numbers cover what was done until then");
    }
    output.finish(&ran)?;
    let (outcome, ended) = match failure {
        Some(Error::Interrupted) => (Outcome::Interrupted, Err(Error::Interrupted)),
        Some(error) => (Outcome::Failed, Err(error)),
        None if interrupt::seen() => (Outcome::Interrupted, Err(Error::Interrupted)),
        None => (Outcome::Complete, Ok(ran.iter().map(|ran| ran.errors).sum())),
    };
    Ok((records.finish(outcome)?, ended))
}

/// Runs test after test; a failure ends the run, but keeps the measurements before it.
fn all(
    tests: &[Params],
    output: &mut Output,
    records: &mut Records,
) -> Result<(Vec<Ran>, Option<Error>)> {
    let mut ran = Vec::new();
    for (id, params) in tests.iter().enumerate() {
        if interrupt::seen() {
            break;
        }
        let held = match occupy(params) {
            Ok(held) => held,
            Err(error) => return Ok((ran, Some(error))),
        };
        let (done, result) = run::test(params, id, output);
        records.test(&done)?;
        ran.push(done);
        if let Err(error) = result {
            return Ok((ran, Some(error)));
        }
        drop(held);
    }
    Ok((ran, None))
}

fn occupy(params: &Params) -> Result<Option<Hog>> {
    let amount = match params.cache {
        Policy::Hog(amount) => Some(amount),
        _ => params.memory,
    };
    amount.map(Hog::occupy).transpose()
}

/// Reports each setting without effect once.
fn without_effect(tests: &[Params], output: &mut Output) -> Result<()> {
    let mut told = std::collections::BTreeSet::new();
    for text in tests.iter().flat_map(|test| &test.ignored).filter(|text| told.insert(*text)) {
        if tests[0].warnings_as_errors {
            return Err(Error::usage(format!("--warningAsErrors: {text}")));
        }
        output.warn(text);
    }
    Ok(())
}
