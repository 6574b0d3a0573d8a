//! The workload that two targets are compared by: one of forebay's own, IOR's, or mdtest's.

use forebay_base::nearest::nearest;

use crate::error::{Error, Result};
use crate::record::Record;
use crate::workloads::{self, WORKLOADS, Workload};
use crate::{ior, mdtest};

/// A command that can be run for its record, with its files in a directory of the caller's.
#[derive(Clone, Copy)]
pub enum Subject {
    Ours(&'static Workload),
    Ior,
    Mdtest,
}

impl Subject {
    fn all() -> impl Iterator<Item = Self> {
        WORKLOADS
            .iter()
            .map(|workload| Subject::Ours(workload))
            .chain([Subject::Ior, Subject::Mdtest])
    }

    /// The subject of this name; a usage error shows the nearest name and all names.
    pub fn named(name: &str) -> Result<Self> {
        Self::all().find(|subject| subject.name() == name).ok_or_else(|| unknown(name))
    }

    pub fn name(self) -> &'static str {
        match self {
            Subject::Ours(workload) => workload.name,
            Subject::Ior => "ior",
            Subject::Mdtest => "mdtest",
        }
    }

    /// Prints the subject's own options.
    pub fn help(self) -> Result<u8> {
        let help = ["--help".to_owned()];
        match self {
            Subject::Ours(workload) => workloads::run(workload, &help),
            Subject::Ior => ior::run(&help),
            Subject::Mdtest => mdtest::run(&help),
        }
    }

    /// Checks whether the subject could run on `target`, as far as possible without writing.
    pub fn check(self, target: &str, options: &[String]) -> Result<()> {
        match self {
            Subject::Ours(workload) => workloads::check(workload, &on(target, options)),
            Subject::Ior => ior::check_in(target, options),
            Subject::Mdtest => mdtest::check_in(target, options),
        }
    }

    /// Runs the subject on `target`.
    pub fn record(self, target: &str, options: &[String]) -> Result<Record> {
        match self {
            Subject::Ours(workload) => workloads::record(workload, &on(target, options)),
            Subject::Ior => ior::record_in(target, options),
            Subject::Mdtest => mdtest::record_in(target, options),
        }
    }
}

fn on(target: &str, options: &[String]) -> Vec<String> {
    [&["--target".to_owned(), target.to_owned()], options].concat()
}

fn unknown(name: &str) -> Error {
    let names: Vec<&str> = Subject::all().map(Subject::name).collect();
    let near = nearest(name, names.iter().copied());
    let hint = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
    let names = names.join(", ");
    Error::usage(format!("compare: no workload named {name:?}{hint} (there are {names})"))
}
