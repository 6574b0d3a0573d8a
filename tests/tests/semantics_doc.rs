//! The contract and its tests agree: every clause of docs/SEMANTICS.md is cited by a test as `//
//! S-n`, and no test cites a clause that does not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use forebay_tests::proof;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace").into()
}

/// The number of `S-7` or `S7` at the start of a word.
fn clause_number(word: &str) -> Option<u32> {
    let rest = word.strip_prefix('S')?;
    let digits: String =
        rest.strip_prefix('-').unwrap_or(rest).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// A clause is defined where a line begins with its number, after any markup.
fn defined(document: &str) -> BTreeSet<u32> {
    let starts =
        document.lines().map(|line| line.trim_start_matches(['#', '*', '-', '|', ' ', '`', '<']));
    starts.filter(|line| line.starts_with('S')).filter_map(clause_number).collect()
}

/// The clauses that a source file cites in comments of the form `// S-1, S-2`.
fn cited(source: &str) -> BTreeSet<u32> {
    let comments = source.lines().filter_map(|line| line.trim_start().strip_prefix("// S-"));
    comments
        .flat_map(|rest| {
            rest.split([',', ' ', ':', '.']).map(|w| w.trim_start_matches("S-").parse())
        })
        .flatten()
        .collect()
}

fn citations(root: &Path) -> BTreeMap<u32, Vec<PathBuf>> {
    let mut found: BTreeMap<u32, Vec<PathBuf>> = BTreeMap::new();
    let mut todo = vec![root.join("crates"), root.join("tests"), root.join("bench")];
    while let Some(path) = todo.pop() {
        if path.is_dir() && !path.ends_with("target") {
            todo.extend(fs::read_dir(&path).expect("readable").map(|e| e.expect("entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).expect("UTF-8 source");
            for clause in cited(&source) {
                found.entry(clause).or_default().push(path.clone());
            }
        }
    }
    found
}

#[test]
fn every_clause_is_tested_and_every_citation_exists() {
    let root = workspace();
    let path = root.join("docs/SEMANTICS.md");
    let document = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let defined = defined(&document);
    let cited = citations(&root);
    assert!(defined.iter().copied().eq(1..=25), "S-1 to S-25 are defined: {defined:?}");
    let untested: Vec<_> = defined.iter().filter(|n| !cited.contains_key(n)).collect();
    assert!(untested.is_empty(), "clauses without a test: {untested:?}");
    let unknown: Vec<_> = cited.iter().filter(|(n, _)| !defined.contains(n)).collect();
    assert!(unknown.is_empty(), "citations of clauses that do not exist: {unknown:?}");
    let places: usize = cited.values().map(Vec::len).sum();
    proof!("{} clauses, cited in {places} places", defined.len());
}

#[test]
fn clauses_and_citations_are_recognized() {
    let document = "# Contract\n- **S-1** A read...\n| S-2 | x |\n### S3: y\nText about S-9.\n";
    assert_eq!(defined(document), [1, 2, 3].into());
    assert_eq!(cited("    // S-4, S-5\n// not S-6\n// S-7: why\n"), [4, 5, 7].into());
}
