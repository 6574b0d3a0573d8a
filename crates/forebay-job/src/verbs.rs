//! The table of all directives with the words they take: for reading, for nearest words, and for
//! the test that the documentation names them all.

use crate::script::Prefix;

#[derive(Debug)]
pub struct Verb {
    pub prefix: Prefix,
    pub name: &'static str,
    /// Words with a value: `WORD=VALUE`.
    pub takes: &'static [&'static str],
    /// Words without a value.
    pub flags: &'static [&'static str],
    /// `WORD=VALUE` of other burst buffers, ignored here.
    pub ignores: &'static [&'static str],
    pub bare: Bare,
}

/// A value without a word before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bare {
    None,
    /// Such as `2GiB` of swap.
    Size,
}

const fn verb(
    prefix: Prefix,
    name: &'static str,
    takes: &'static [&'static str],
    flags: &'static [&'static str],
    ignores: &'static [&'static str],
) -> Verb {
    Verb { prefix, name, takes, flags, ignores, bare: Bare::None }
}

/// DataWarp's tuning words.
const TUNING: &[&str] = &[
    "optimization_strategy",
    "modified_threshold",
    "read_ahead",
    "sync_on_close",
    "sync_to_pfs",
    "profile",
];
const NNF: &[&str] = &["profile"];

/// The words in parentheses after an access mode.
pub const MODIFIERS: &[&str] =
    &["MFS", "MFC", "client_cache", "write_window_length", "write_window_multiplier"];

const STAGE: &[&str] = &["type", "source", "destination"];

pub const VERBS: &[Verb] = &[
    verb(
        Prefix::Dw,
        "jobdw",
        &["capacity", "access_mode", "access", "type", "pool", "pfs", "name", "requires"],
        &[],
        TUNING,
    ),
    verb(Prefix::Dw, "persistentdw", &["name", "requires"], &[], &[]),
    Verb { bare: Bare::Size, ..verb(Prefix::Dw, "swap", &["pool"], &[], &[]) },
    verb(Prefix::Dw, "stage_in", STAGE, &[], &[]),
    verb(Prefix::Dw, "stage_out", STAGE, &[], &[]),
    verb(Prefix::Dw, "copy_in", &["source", "destination"], &[], NNF),
    verb(Prefix::Dw, "copy_out", &["source", "destination"], &[], NNF),
    verb(
        Prefix::Bb,
        "create_persistent",
        &["name", "capacity", "access", "access_mode", "pool", "type", "pfs"],
        &[],
        TUNING,
    ),
    verb(Prefix::Bb, "destroy_persistent", &["name"], &["hurry"], &[]),
    verb(Prefix::Fb, "private", &["capacity", "name", "pool", "fs", "tmpdir"], &[], &[]),
    verb(Prefix::Fb, "cache", &["backing", "capacity", "name", "pool", "set"], &[], &[]),
    Verb { bare: Bare::Size, ..verb(Prefix::Fb, "swap", &["name", "pool"], &[], &[]) },
    verb(Prefix::Fb, "use", &["name"], &[], &[]),
    verb(
        Prefix::Fb,
        "create",
        &["name", "mode", "capacity", "nodes", "expires", "pool", "backing"],
        &[],
        &[],
    ),
    verb(Prefix::Fb, "destroy", &["name"], &["hurry"], &[]),
    verb(Prefix::Fb, "stage_in", &["source", "destination", "type", "nodes"], &["checksum"], &[]),
    verb(
        Prefix::Fb,
        "stage_out",
        &["source", "destination", "type", "on", "last"],
        &["checksum"],
        &[],
    ),
];

/// Verbs that are refused, with the reason and the remedy.
pub const REFUSED: &[(Prefix, &str, &str, &str)] = &[
    (
        Prefix::Dw,
        "create_persistent",
        "Slurm refuses to create persistent instances by #DW",
        "write #BB create_persistent name=NAME capacity=SIZE, or #FB create name=NAME mode=private capacity=SIZE",
    ),
    (
        Prefix::Dw,
        "destroy_persistent",
        "Slurm refuses to destroy persistent instances by #DW",
        "write #BB destroy_persistent name=NAME, or #FB destroy name=NAME",
    ),
    (
        Prefix::Dw,
        "container",
        "there are no nodes here that run containers beside the job",
        "start the container in the job's script, with the variable of the instance",
    ),
];

pub fn find(prefix: Prefix, name: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.prefix == prefix && verb.name == name)
}

pub fn is_known(name: &str) -> bool {
    let refused = REFUSED.iter().any(|(_, refused, ..)| *refused == name);
    refused || VERBS.iter().any(|verb| verb.name == name)
}

pub fn shown(prefix: Prefix) -> &'static str {
    match prefix {
        Prefix::Dw => "#DW",
        Prefix::Bb => "#BB",
        Prefix::Lua => "#BB_LUA",
        Prefix::Fb => "#FB",
        Prefix::Sbatch => "#SBATCH",
    }
}
