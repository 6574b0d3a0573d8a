//! Settings of which the value is one of a few words: what each word stands for, in one table for both
//! directions.

use forebay_engine::governor::law::Preset;
use forebay_engine::{Eviction, WritePolicy};
use forebay_fuse::{Locks, Passthrough, Transport};

/// The words of a setting, and what they stand for.
pub type Words<T, const N: usize> = [(&'static str, T); N];

pub const POLICY: Words<WritePolicy, 3> = [
    ("write-back", WritePolicy::WriteBack),
    ("write-through", WritePolicy::WriteThrough),
    ("write-around", WritePolicy::WriteAround),
];
pub const EVICTION: Words<Eviction, 2> = [("s3-fifo", Eviction::S3Fifo), ("fifo", Eviction::Fifo)];
pub const PRESET: Words<Preset, 5> = [
    (Preset::Governor.name(), Preset::Governor),
    (Preset::Threshold.name(), Preset::Threshold),
    (Preset::Age.name(), Preset::Age),
    (Preset::Idle.name(), Preset::Idle),
    (Preset::Hold.name(), Preset::Hold),
];
pub const PASSTHROUGH: Words<Passthrough, 5> = [
    ("auto", Passthrough::Auto),
    ("new", Passthrough::New),
    ("read", Passthrough::ReadOnly),
    ("always", Passthrough::Always),
    ("off", Passthrough::Off),
];
pub const TRANSPORT: Words<Transport, 3> =
    [("auto", Transport::Auto), ("dev", Transport::Dev), ("io-uring", Transport::IoUring)];
pub const LOCKS: Words<Locks, 2> = [("cluster", Locks::Cluster), ("node", Locks::Node)];
/// Whether a write waits for the copies.
pub const COPIES_AT_WRITE: Words<bool, 2> = [("fsync", false), ("write", true)];
/// Whether an fsync fails that reaches too few members.
pub const COPIES_OR_FAIL: Words<bool, 2> = [("go-on", false), ("fail", true)];
/// Whether the log is JSON.
pub const LOG_IS_JSON: Words<bool, 2> = [("text", false), ("json", true)];

/// Returns the words alone.
pub const fn words_of<T, const N: usize>(table: &Words<T, N>) -> [&'static str; N] {
    let mut words = [""; N];
    let mut at = 0;
    while at < N {
        words[at] = table[at].0;
        at += 1;
    }
    words
}

/// Returns what the word stands for.
///
/// # Panics
///
/// On a word that the table lacks: the type of the key is made of the table.
pub fn meaning<T: Copy, const N: usize>(table: &Words<T, N>, word: &str) -> T {
    let found = table.iter().find(|(known, _)| *known == word);
    found.unwrap_or_else(|| panic!("{word} is not in the table")).1
}

/// Returns the word for it.
///
/// # Panics
///
/// If the table has none.
pub fn word_for<T: Copy + PartialEq, const N: usize>(table: &Words<T, N>, it: T) -> &'static str {
    table.iter().find(|(_, meant)| *meant == it).expect("each has a word").0
}
