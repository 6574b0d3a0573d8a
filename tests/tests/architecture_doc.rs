//! The tables of docs/ARCHITECTURE.md say what the sources say: which crates each crate uses, and the threads
//! that the crates start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use forebay_tests::proof;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace").into()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The rows of the table below a heading, as cells.
fn rows(document: &str, heading: &str) -> Vec<Vec<String>> {
    let below = document.split_once(heading).expect("the heading is here").1;
    let section = below.split("\n## ").next().expect("what comes first");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(str::to_string).collect()).collect()
}

/// What a text has in backquotes.
fn names(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The crates of the workspace by their directories, `forebay-` left out.
fn crates() -> BTreeMap<String, PathBuf> {
    let root = workspace();
    let all = fs::read_dir(root.join("crates")).expect("the crates are here");
    let all = all.map(|entry| entry.expect("an entry").path());
    let all = all.chain([root.join("bench"), root.join("tests")]);
    all.map(|dir| (package(&read(&dir.join("Cargo.toml"))), dir)).collect()
}

/// The name of a manifest's package.
fn package(manifest: &str) -> String {
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.expect("a package has a name").to_string()
}

/// The crates of ours that a manifest names, apart from those for tests.
fn used(manifest: &str) -> BTreeSet<String> {
    let ours = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let ours = ours.split("\n[").next().expect("what comes first").lines();
    let ours = ours.filter_map(|line| line.strip_prefix("forebay-"));
    ours.map(|line| line.split(['.', ' ']).next().expect("a name").to_string()).collect()
}

/// The crates that the last column of a row names.
fn told(uses: &str) -> BTreeSet<String> {
    if matches!(uses, "nothing of ours" | "none of them" | "–") {
        return BTreeSet::new();
    }
    uses.replace(" (its types)", "").split(", ").map(str::to_string).collect()
}

#[test]
fn the_table_of_crates_names_what_each_one_uses() {
    let document = read(&workspace().join("docs/ARCHITECTURE.md"));
    let rows = rows(&document, "\n## Crates\n");
    let said: BTreeMap<_, _> = rows
        .iter()
        .filter_map(|row| Some((names(&row[0]).first()?.to_string(), told(&row[2]))))
        .collect();
    let is: BTreeMap<_, _> = crates()
        .iter()
        .map(|(name, dir)| (name.clone(), used(&read(&dir.join("Cargo.toml")))))
        .collect();
    assert_eq!(said, is);
    let arrows: usize = is.values().map(BTreeSet::len).sum();
    assert!(arrows > 40, "the manifests are read: {arrows}");
    proof!("{} crates, {arrows} arrows", is.len());
}

/// The names of threads in a source file: strings that begin with `fb-`.
fn threads(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod tests").next().expect("what comes first");
    let found = code.split("\"fb-").skip(1).map(|rest| rest.split('"').next().expect("its end"));
    found.map(|name| format!("fb-{name}")).collect()
}

#[test]
fn the_table_of_threads_names_them_all() {
    let document = read(&workspace().join("docs/ARCHITECTURE.md"));
    let rows = rows(&document, "\n## Threads\n");
    let said: BTreeSet<_> =
        rows.iter().flat_map(|row| names(&row[0])).filter(|name| name.starts_with("fb-")).collect();
    let (mut is, mut todo) = (BTreeSet::new(), vec![workspace().join("crates")]);
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            let inner = fs::read_dir(&path).expect("readable").map(|e| e.expect("an entry").path());
            todo.extend(inner.filter(|path| !path.ends_with("tests")));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            is.extend(threads(&read(&path)));
        }
    }
    assert!(said.iter().copied().eq(&is), "the document: {said:?}\nthe sources: {is:?}");
    assert!(is.len() > 20, "the sources are read: {is:?}");
    proof!("{} threads", is.len());
}
