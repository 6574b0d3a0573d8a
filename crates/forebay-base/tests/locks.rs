//! Tests that read the source: locks go through their module, in every crate, and their order is written once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates for measurements, which do not serve users' bytes.
const BEDS: [&str; 1] = ["forebay-bench"];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("the sources are here");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
}

/// Source files by their paths below `crates`, without tests and comments.
fn sources() -> BTreeMap<PathBuf, String> {
    let names = fs::read_dir(crates()).expect("the crates are here");
    let names = names.map(|entry| entry.expect("an entry").file_name());
    let names = names.filter(|name| !BEDS.iter().any(|bed| name == bed));
    let roots = names.map(|name| crates().join(name).join("src"));
    let files = roots.flat_map(|root| below(&root));
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file");
        (path.strip_prefix(crates()).expect("below it").to_path_buf(), text)
    };
    let mut all: BTreeMap<PathBuf, String> = files.map(read).collect();
    let tests: Vec<PathBuf> =
        all.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    all.retain(|path, _| !tests.iter().any(|test| path.with_extension("").starts_with(test)));
    all.values_mut().for_each(|text| *text = code(text));
    assert!(all.len() > 300 && tests.len() > 20, "all of them: {}, {}", all.len(), tests.len());
    all
}

/// Whether the item that follows is for tests alone.
fn is_for_tests(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("#[cfg(test)]")
        || line.starts_with("#[cfg(any(test,")
        || line.starts_with("#[cfg(all(test,")
}

/// The modules in files of their own that are for tests alone.
fn test_modules(path: &Path, text: &str) -> Vec<PathBuf> {
    let is_top =
        ["lib", "main", "mod"].iter().any(|top| path.file_stem().is_some_and(|it| it == *top));
    let dir = if is_top {
        path.parent().expect("a directory").to_path_buf()
    } else {
        path.with_extension("")
    };
    let lines: Vec<&str> = text.lines().collect();
    let marked = lines.windows(2).filter(|pair| is_for_tests(pair[0]) && pair[1].ends_with(';'));
    let named = marked.filter_map(|pair| pair[1].split_once("mod "));
    named.map(|(_, name)| dir.join(name.trim_end_matches(';'))).collect()
}

/// A file without comments, and without items for tests alone.
fn code(text: &str) -> String {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if is_for_tests(line) && !line.starts_with(' ') {
            // An item ends with its first line, or at its brace.
            let first = lines.find(|line| !line.starts_with("#[")).unwrap_or_default();
            if first.ends_with('{') {
                lines.find(|line| *line == "}");
            }
        } else if !line.trim_start().starts_with("//") {
            kept.push(line);
        }
    }
    kept.join("\n")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text without blanks, except between two words.
fn joined(text: &str) -> String {
    let mut joined = String::new();
    for part in text.split_whitespace() {
        if joined.ends_with(is_word) && part.starts_with(is_word) {
            joined.push(' ');
        }
        joined.push_str(part);
    }
    joined
}

/// The names that the text uses behind a module of the standard library, one or a list of them, renamed or not; `*`
/// for all of it, and for a renamed module, whose uses cannot be seen.
fn behind(module: &str, text: &str) -> BTreeSet<String> {
    let joined = joined(text);
    let path = format!("{module}::");
    let places = joined.match_indices(&path).map(|(at, found)| &joined[at + found.len()..]);
    let fits = |c: char| is_word(c) || "{},:* ".contains(c);
    let lists = places.map(|tail| &tail[..tail.find(|c| !fits(c)).unwrap_or(tail.len())]);
    let words = lists.flat_map(|list| list.split(|c| !is_word(c) && c != '*'));
    words.chain(is_renamed(module, &joined).then_some("*")).map(str::to_string).collect()
}

/// Whether an import gives a module another name.
fn is_renamed(module: &str, joined: &str) -> bool {
    let items = joined.split(';').filter_map(|item| item.rsplit_once("use "));
    let mut imports = items.filter(|(before, _)| !before.ends_with(is_word));
    let names = [format!("{module} as "), format!("{module}::{{self as ")];
    imports.any(|(_, import)| names.iter().any(|name| import.contains(name)))
}

/// A lock that is made otherwise is outside the order, and its waits are not checked.
#[test]
fn locks_go_through_their_module() {
    let kinds = ["Mutex", "RwLock", "Condvar", "ReentrantLock", "Barrier", "*"];
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (path, text) in sources() {
        let names = behind("sync", &text);
        // Threads that answer requests must not wait for the initializer of a shared value either.
        let rooms = ["engine", "fuse", "threads", "core", "home", "tier", "recovery", "files"];
        let rooms = rooms.map(|room| format!("forebay-{room}"));
        let serves = rooms.iter().any(|it| path.starts_with(it));
        let made_once = ["Once", "LazyLock"].iter().filter(|_| serves);
        let used = kinds.iter().chain(made_once).filter(|kind| names.contains(**kind));
        let foreign = text.contains("parking_lot").then_some(&"parking_lot");
        match path.with_extension("").starts_with("forebay-base/src/lock") {
            true => seen += used.count(),
            false => {
                wrong.extend(used.chain(foreign).map(|it| format!("{} names {it}", path.display())))
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen >= 3, "the module of locks is not seen: {seen}");
}

/// A sleep that does not go through the module is not checked for locks that others need.
#[test]
fn sleeps_go_through_the_module_of_locks() {
    let sources = sources();
    let sleeps = sources.iter().filter(|(_, text)| {
        let names = behind("thread", text);
        ["sleep", "sleep_ms", "sleep_until", "park_timeout", "*"]
            .iter()
            .any(|it| names.contains(*it))
    });
    let places: Vec<&Path> = sleeps.map(|(path, _)| path.as_path()).collect();
    assert_eq!(places, [Path::new("forebay-base/src/lock.rs")]);
}

/// The order of locks is written once, in the source. The document names that place, and does not repeat the order.
#[test]
fn the_order_of_locks_is_written_once() {
    let sources = sources();
    let ranks = &sources[Path::new("forebay-base/src/lock.rs")];
    let ranks = ranks.split("pub enum Rank {").nth(1).and_then(|text| text.split('}').next());
    let ranks = ranks.expect("it is here").split(',').map(str::trim);
    let ranks: Vec<&str> = ranks.filter(|rank| !rank.is_empty()).collect();
    assert!(ranks.len() > 20, "{ranks:?}");
    let unused: Vec<&&str> = ranks
        .iter()
        .filter(|rank| !sources.values().any(|text| text.contains(&format!("Rank::{rank},"))))
        .collect();
    assert!(unused.is_empty(), "no lock has the rank {unused:?}");
    let text = fs::read_to_string(crates().join("../docs/ARCHITECTURE.md")).expect("docs");
    let section = text.split("## Locks, in order").nth(1).expect("a section on them");
    let section = section.split("\n## ").next().expect("its end");
    assert!(section.contains("`Rank` in `base/lock.rs`"));
    let is_numbered = |line: &str| line.starts_with(|c: char| c.is_ascii_digit());
    assert!(!section.lines().any(is_numbered), "a second list");
    for name in section.split('`').skip(1).step_by(2) {
        let is_rank = name.starts_with(char::is_uppercase) && name.chars().all(is_word);
        assert!(!is_rank || name == "Rank" || ranks.contains(&name), "{name}: there is none");
    }
}

#[test]
fn what_is_of_tests_is_left_out_and_no_more() {
    let text =
        "use a;\n#[cfg(test)]\nmod tests {\n    use b;\n}\n#[cfg(test)]\nmod beds;\nfn c() {\n}\n";
    assert_eq!(code(text), "use a;\nfn c() {\n}");
    let found = test_modules(Path::new("x/src/y.rs"), text);
    assert_eq!(found, [PathBuf::from("x/src/y/beds")]);
}

/// Method: each spelling by which a lock can be named.
#[test]
fn a_lock_is_seen_by_whatever_name() {
    for text in [
        "use std::sync::{\n    Arc, Mutex,\n};",
        "use std::sync::{Arc, atomic::{AtomicBool, Ordering::SeqCst}, Mutex};",
        "use std::sync::Mutex as Other;",
        "use std::sync::{Arc, Mutex as Other};",
        "use std::{io, sync::{\n    Mutex as Other\n}};",
        "let lock = std::sync :: Mutex::new(());",
    ] {
        assert!(behind("sync", text).contains("Mutex"), "{text}");
    }
    for text in [
        "use std::sync::*;",
        "use std::sync as other;",
        "use std::sync::{self as other, Arc};",
        "fn a() {}\nuse std::{io, sync::{self as other}};",
        "use std::{io, sync as other};",
    ] {
        assert!(behind("sync", text).contains("*"), "{text}");
    }
    let text = "use std::sync::{self, Arc}; use base::lock::{Mutex as Other}; a = b * sync::c(d * e); in_sync as u64";
    let names = behind("sync", text);
    assert!(names.contains("Arc") && !names.contains("Mutex") && !names.contains("*"), "{names:?}");
}
