//! The shape of the crates, read from their sources. What is not as it should be is listed here by name; a list
//! may only shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use forebay_tests::proof;

/// The files that use each other in a circle, by crate.
const CIRCLES: &[(&str, &[&str])] = &[
    (
        "bench",
        &["flat/database", "flat/mariadb", "flat/postgres", "mounts", "nodes", "parts", "run"],
    ),
    (
        "forebay",
        &["cmd/job/check", "cmd/job/told", "config/ids", "config/rules", "node/api", "node/jobs"],
    ),
    ("forebay-backing", &["dir/attr", "dir/root", "wrap/file", "wrap/store"]),
    ("forebay-bench", &["ior/output", "ior/run", "report/table", "report/terminal", "workloads"]),
    (
        "forebay-cluster",
        &["core/holders", "core/tasks", "member/join", "member/tend", "peer/door", "peer/guest"],
    ),
    (
        "forebay-fuse",
        &[
            "reply",
            "request",
            "vfs/doubts",
            "vfs/left",
            "vfs/members",
            "vfs/serve",
            "vfs/there",
            "vfs/unsynced",
            "waits",
        ],
    ),
    ("forebay-job", &["datawarp", "nnf", "reading", "staging"]),
    ("forebay-node", &["book", "manifest", "node", "space/holders", "space/removal", "transfers"]),
    (
        "forebay-stage",
        &[
            "attributes",
            "clean",
            "directories",
            "file",
            "large",
            "links",
            "place",
            "publish",
            "queue",
            "transfer",
            "walk",
        ],
    ),
];

/// A function has at most this many lines, its signature included.
const LINES: usize = 60;

/// A function has at most this many branches: arms of a `match`, `if`, loops, `?` and `&&` or `||`.
const BRANCHES: usize = 25;

/// The functions that are longer or have more branches: the file, the function, its lines and its branches.
const LONG: &[(&str, &str, usize, usize)] = &[
    ("bench/cases/daemon", "run", 64, 22),
    ("forebay-cluster/core/mirror", "apply", 66, 28),
    ("forebay-cluster/locks/desk", "act", 71, 19),
    ("forebay-cluster/member/door", "answer", 71, 26),
    ("forebay-cluster/member/join", "join", 82, 13),
    ("forebay-cluster/member/operate", "give_up", 72, 20),
    ("forebay-cluster/member/overview", "overview", 70, 15),
    ("forebay-core/state/change", "apply", 61, 23),
    ("forebay-engine/copies/of_home", "judge", 69, 31),
    ("forebay-engine/copies/round", "begin", 82, 14),
    ("forebay-engine/engine", "start_suspended", 74, 7),
    ("forebay-engine/verbs/names", "rename_by", 86, 32),
    ("forebay-fuse/vfs/attrs", "setattr", 65, 24),
    ("forebay-fuse/vfs/names", "rename_once", 94, 47),
    ("forebay-fuse/vfs/open", "open_under", 79, 24),
    ("forebay-fuse/vfs/there", "at_home", 63, 25),
    ("forebay-fuse/vfs/there", "open_there", 74, 22),
    ("forebay-node/audit", "damaged", 27, 29),
    ("forebay-node/desk/orders", "transfer", 81, 36),
    ("forebay-tier/index", "commit", 46, 28),
    ("forebay/cli", "run", 42, 38),
    ("forebay/cmd/check", "run", 62, 9),
    ("forebay/cmd/status", "cluster", 61, 11),
    ("forebay/cmd/status", "facts", 61, 9),
    ("forebay/config/settings", "check_together", 63, 14),
    ("forebay/daemon", "begin", 75, 10),
    ("forebay/daemon/api", "route", 47, 36),
    ("forebay/node/api", "route", 62, 47),
    ("forebay/node/hands", "carry", 59, 26),
];

/// The most methods of a type, in all files of its crate.
const METHODS: &[(&str, &str, usize)] = &[
    ("forebay-fuse", "Vfs", 278),
    ("forebay-cluster", "Core", 160),
    ("forebay-cluster", "Member", 76),
    ("forebay-node", "Node", 91),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace").into()
}

/// The crates' modules by their names, such as `drain/flush`, without tests and comments.
fn crates() -> BTreeMap<String, BTreeMap<String, String>> {
    let root = workspace();
    let all = fs::read_dir(root.join("crates")).expect("the crates are here");
    let all = all.map(|entry| entry.expect("an entry").path()).chain([root.join("bench")]);
    let name = |dir: &Path| dir.file_name().expect("a name").to_str().expect("plain").to_string();
    all.map(|dir| (name(&dir), modules(&dir.join("src")))).collect()
}

/// The source files below a directory.
fn sources(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            let inner = fs::read_dir(&path).expect("readable");
            todo.extend(inner.map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn modules(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for path in sources(root) {
        let name = path.strip_prefix(root).expect("below it").with_extension("");
        let name = name.to_str().expect("plain names").trim_end_matches("/mod").to_string();
        if name.split('/').any(|part| matches!(part, "tests" | "bed" | "bin" | "sim")) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("UTF-8 source");
        let code = text.split("#[cfg(test)]\nmod tests").next().expect("what comes before");
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        found.insert(name, lines.collect::<Vec<_>>().join("\n"));
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths of a text that begin with `crate::`, `super::` or `self::`, with the lists in braces spelled out.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(root) {
            let is_inner = text[..at].ends_with(|c| is_word(c) || c == ':' || c == '$');
            if !is_inner {
                spell(root, &text[at + root.len()..], &mut found);
            }
        }
    }
    found
}

/// Reads one path, or a list of paths in braces, behind `before`; returns the number of bytes read.
fn spell(before: &str, text: &str, found: &mut Vec<String>) -> usize {
    if !text.starts_with('{') {
        let mut end = text.find(|c| !(is_word(c) || c == ':')).unwrap_or(text.len());
        let path = format!("{before}{}", &text[..end]);
        if path.ends_with("::") && text[end..].starts_with('{') {
            end += spell(&path, &text[end..], found);
        } else {
            found.push(path);
        }
        return end;
    }
    let mut at = 1;
    while let Some(next) = text[at..].find(|c: char| is_word(c) || c == '}').map(|by| at + by) {
        if text[next..].starts_with('}') {
            return next + 1;
        }
        at = next + spell(before, &text[next..], found);
        // Another name of what was read is no path.
        if let Some(rest) = text[at..].strip_prefix(" as ") {
            at += " as ".len() + rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        }
    }
    text.len()
}

/// The module that a path in module `by` means, if it is another one.
fn meant(modules: &BTreeMap<String, String>, by: &str, path: &str) -> Option<String> {
    let own: Vec<&str> =
        if by == "lib" || by == "main" { Vec::new() } else { by.split('/').collect() };
    let mut parts: Vec<&str> = Vec::new();
    let mut words = path.split("::").filter(|word| !word.is_empty());
    match words.next()? {
        "crate" => {}
        "self" => parts.extend(&own),
        _ => parts.extend(&own[..own.len().saturating_sub(1)]),
    }
    for word in words {
        match word {
            "super" => _ = parts.pop(),
            word => parts.push(word),
        }
    }
    let names = (1..=parts.len()).rev().map(|n| parts[..n].join("/"));
    names.into_iter().find(|name| modules.contains_key(name)).filter(|name| name != by)
}

/// The modules from which a way of uses leads back to themselves. A parent declares its children, and what a child
/// takes from it is the crate's or the room's own: neither counts.
fn circles(modules: &BTreeMap<String, String>) -> BTreeSet<String> {
    let used = |(module, text): (&String, &String)| {
        let used = paths(text).into_iter().filter_map(|path| meant(modules, module, &path));
        (module.clone(), used.filter(|used| !is_family(module, used)).collect::<BTreeSet<_>>())
    };
    let arrows: BTreeMap<_, _> = modules.iter().map(used).collect();
    let comes_back = |module: &String| {
        let (mut reached, mut todo) = (BTreeSet::new(), vec![module]);
        while let Some(at) = todo.pop() {
            todo.extend(arrows[at].iter().filter(|next| reached.insert(*next)));
        }
        reached.contains(module)
    };
    modules.keys().filter(|module| comes_back(module)).cloned().collect()
}

/// Whether one module is in the other.
fn is_family(one: &str, other: &str) -> bool {
    let is_in = |inner: &str, outer: &str| {
        outer == "lib"
            || outer == "main"
            || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
    };
    is_in(one, other) || is_in(other, one)
}

#[test]
fn circles_among_files_are_listed_and_grow_fewer() {
    let crates = crates();
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, modules) in &crates {
        let circle = circles(modules);
        if !circle.is_empty() {
            found.insert(name, circle);
        }
    }
    let listed: BTreeMap<_, BTreeSet<String>> = CIRCLES
        .iter()
        .map(|(name, files)| (*name, files.iter().map(|f| f.to_string()).collect()))
        .collect();
    assert_eq!(found, listed, "what is in no circle any more leaves the list");
    let files: usize = crates.values().map(BTreeMap::len).sum();
    assert!(files > 400, "the sources are read: {files}");
    proof!("{files} files, {} in circles", found.values().map(BTreeSet::len).sum::<usize>());
}

#[test]
fn circles_are_found() {
    let modules = [
        ("lib", "pub mod a;"),
        ("a", "use crate::{b::{self, B}, c::C as D};"),
        ("b", "fn f() { crate::c::g(); }"),
        ("c", "use super::a::A;"),
        ("d", "use crate::a::A;"),
        ("a/inner", "use super::A; use crate::d::D;"),
    ];
    let modules = modules.map(|(name, text)| (name.to_string(), text.to_string())).into();
    assert_eq!(circles(&modules), ["a", "b", "c"].map(str::to_string).into());
}

/// A function of the sources.
struct Function {
    name: String,
    lines: usize,
    branches: usize,
}

/// The functions of a text in rustfmt's form: from the line with `fn` to the brace of the same indentation.
fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_test = at > 0 && lines[at - 1].trim() == "#[test]";
        let Some(name) = declared(line).filter(|_| !is_test) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let (end, none) = (format!("{indent}}}"), format!("{indent};"));
        let body = lines[at..].iter();
        let body: Vec<&str> =
            body.copied().take_while(|line| **line != end && **line != none).collect();
        let is_short = line.ends_with(['}', ';'])
            || body[1..]
                .iter()
                .any(|line| line.starts_with(&format!("{indent})")) && line.ends_with(';'));
        if is_short {
            continue;
        }
        let branches = body.iter().map(|line| branches(line)).sum();
        found.push(Function { name, lines: body.len() + 1, branches });
    }
    found
}

/// The name of the function that a line declares.
fn declared(line: &str) -> Option<String> {
    let (before, after) = line.split_once("fn ")?;
    let words = ["pub", "const", "unsafe", "async", "extern", "\"C\"", "\"C-unwind\""];
    let is_word_of_it = |word: &str| words.contains(&word) || word.starts_with("pub(");
    let is_declared =
        before.split_whitespace().all(|word| is_word_of_it(word) || word.ends_with(')'));
    let name: String = after.chars().take_while(|c| is_word(*c)).collect();
    (is_declared && !name.is_empty()).then_some(name)
}

fn branches(line: &str) -> usize {
    let counted = [" => ", "if ", "while ", "for ", "loop {", "?;", "?.", "?)", " && ", " || "];
    counted.iter().map(|what| line.matches(what).count()).sum()
}

#[test]
fn long_functions_are_listed_and_grow_shorter() {
    let (mut found, mut seen) = (BTreeMap::new(), 0);
    for (name, modules) in crates() {
        for (module, text) in modules {
            for function in functions(&text) {
                seen += 1;
                if function.lines > LINES || function.branches > BRANCHES {
                    let key = (format!("{name}/{module}"), function.name);
                    found.insert(key, (function.lines, function.branches));
                }
            }
        }
    }
    let listed: BTreeMap<_, _> = LONG
        .iter()
        .map(|(file, name, lines, branches)| {
            ((file.to_string(), name.to_string()), (*lines, *branches))
        })
        .collect();
    let mut wrong = Vec::new();
    for ((file, name), (lines, branches)) in &found {
        let key = (file.clone(), name.clone());
        let is_known = listed.get(&key).is_some_and(|(l, b)| lines <= l && branches <= b);
        if !is_known {
            wrong.push(format!("(\"{file}\", \"{name}\", {lines}, {branches}),"));
        }
    }
    let done: Vec<_> = listed.keys().filter(|key| !found.contains_key(key)).collect();
    assert!(
        wrong.is_empty(),
        "longer than {LINES} lines or {BRANCHES} branches:\n{}",
        wrong.join("\n")
    );
    assert!(done.is_empty(), "short by now, to be taken off the list: {done:?}");
    assert!(seen > 5000, "the sources are read: {seen}");
    proof!("{seen} functions, {} of them long", found.len());
}

/// The words with which no name of a test begins.
const SUBJECTLESS: &[&str] = &["who_", "it_", "they_", "that_"];

/// A test that fails is reported by its name alone: the name has a noun for a subject.
#[test]
fn names_of_tests_have_a_subject() {
    let mut seen = 0;
    let root = workspace();
    for path in ["crates", "tests", "bench"].iter().flat_map(|dir| sources(&root.join(dir))) {
        let text = fs::read_to_string(&path).expect("UTF-8 source");
        let names: Vec<String> = text.lines().filter_map(declared).collect();
        let has_none = |name: &&String| SUBJECTLESS.iter().any(|word| name.starts_with(word));
        let wrong = names.iter().find(has_none);
        assert_eq!(wrong, None, "in {}", path.display());
        seen += names.len();
    }
    assert!(seen > 10_000, "the sources are read: {seen}");
    proof!("{seen} names");
}

/// The number of methods of a type in its crate's `impl` blocks.
fn methods(modules: &BTreeMap<String, String>, of: &str) -> usize {
    let begins = format!("\nimpl {of} {{\n");
    let blocks = modules.values().flat_map(|text| text.split(&begins).skip(1).collect::<Vec<_>>());
    let inner = blocks.map(|block| block.split("\n}").next().expect("what comes before its end"));
    let lines = inner
        .flat_map(str::lines)
        .filter(|line| line.starts_with("    ") && !line.starts_with("     "));
    lines.filter(|line| declared(line).is_some()).count()
}

#[test]
fn types_that_do_too_much_get_no_more_methods() {
    let crates = crates();
    let mut counts = Vec::new();
    for (name, of, most) in METHODS {
        let count = methods(&crates[*name], of);
        counts.push(format!("{of}: {count}"));
        assert!(count <= *most, "{of} of {name} has {count} methods, and had {most}");
        assert!(
            count + 5 > *most,
            "{of} of {name} has {count} methods: lower the bound from {most}"
        );
    }
    assert!(!counts.is_empty(), "types are counted");
    proof!("{}", counts.join(", "));
}
