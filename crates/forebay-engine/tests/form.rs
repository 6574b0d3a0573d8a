//! The form of the engine, read from its source: rooms whose arrows go one way, no circle among files,
//! an `Engine` that only puts parts together, and documents that name what exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms from the bottom up. A room may use those before it in this list, and none behind it.
const FLOORS: [&str; 20] = [
    "failpoint",
    "requester",
    "explored",
    "time",
    "pool",
    "threads",
    "core",
    "home",
    "tier",
    "recovery",
    "files",
    "room",
    "copies",
    "drain",
    "io",
    "verbs",
    "ops",
    "engine",
    "bed",
    "lib",
];

/// The parts that [`Engine`](forebay_engine::Engine) puts together, and the field in which other
/// parts hold each.
const OWNERS: [(&str, &str); 11] = [
    ("Home", "home"),
    ("Files", "files"),
    ("Names", "names"),
    ("Room", "room"),
    ("Passed", "passed"),
    ("Copies", "copies"),
    ("Outbox", "outbox"),
    ("Drain", "drain"),
    ("Io", "io"),
    ("Verbs", "verbs"),
    ("Ops", "ops"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The rooms that are crates of their own.
const CRATES: [&str; 6] = ["threads", "core", "home", "tier", "recovery", "files"];

/// Returns the engine's modules; modules of other crates have the paths that the engine has them by.
fn modules() -> BTreeMap<String, String> {
    let mut found = modules_of(&root());
    for room in CRATES {
        for (name, text) in modules_of(&root().join(format!("../../forebay-{room}/src"))) {
            let name = match name.as_str() {
                "lib" => room.to_string(),
                _ if room == "threads" => name,
                _ => format!("{room}/{name}"),
            };
            found.insert(name, text);
        }
    }
    assert!(found.len() > 150, "all of them: {}", found.len());
    found
}

/// Returns the module that `crate::path` means in a module: a room of its own crate, one of those
/// below, or the crate itself.
fn meant(modules: &BTreeMap<String, String>, by: &str, path: &str) -> Option<String> {
    let room = by.split('/').next().filter(|room| CRATES.contains(room));
    let parts: Vec<&str> = room.into_iter().chain(path.split("::")).collect();
    let longest = |parts: &[&str]| {
        (1..=parts.len())
            .rev()
            .map(|n| parts[..n].join("/"))
            .find(|name| modules.contains_key(name))
    };
    let own = longest(&parts).filter(|name| Some(name.as_str()) != room);
    let below = || longest(&parts[usize::from(room.is_some())..]);
    own.or_else(below).or_else(|| room.map(str::to_string))
}

/// Returns the modules of a crate by their names, such as `drain/flush`, without their tests and comments.
fn modules_of(root: &Path) -> BTreeMap<String, String> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("the sources are here") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let name = path.strip_prefix(root).expect("below it").with_extension("");
            let name = name.to_str().expect("plain names").trim_end_matches("/mod").to_string();
            if name.ends_with("tests") || name.contains("tests/") || name == "bed" {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source file");
            let code = text.split("#[cfg(test)]\nmod tests").next().expect("what comes before");
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            found.insert(name, lines.collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the words that follow each `before` in `text`, read as long as `fits`.
fn following<'a>(text: &'a str, before: &str, fits: impl Fn(char) -> bool) -> Vec<&'a str> {
    let places = text
        .match_indices(before)
        .filter(|(at, _)| !before.starts_with(is_word) || !text[..*at].ends_with(is_word));
    let tail = |(at, found): (usize, &str)| &text[at + found.len()..];
    places.map(tail).map(|tail| &tail[..tail.find(|c| !fits(c)).unwrap_or(tail.len())]).collect()
}

/// Returns the methods of each owner, with the module that holds them.
fn methods(modules: &BTreeMap<String, String>) -> BTreeMap<(&'static str, String), String> {
    let mut found = BTreeMap::new();
    for (module, text) in modules {
        for (owner, _) in OWNERS {
            for block in text.split(&format!("\nimpl {owner} {{\n")).skip(1) {
                let block = block.split("\n}").next().expect("what comes before its end");
                for line in
                    block.lines().filter(|line| line.starts_with("    ") && line.contains("fn "))
                {
                    let declared = !line.starts_with("     ");
                    if let (true, Some(name)) = (declared, following(line, "fn ", is_word).first())
                    {
                        found.insert((owner, name.to_string()), module.clone());
                    }
                }
            }
        }
    }
    assert!(found.len() > 200, "all of them: {}", found.len());
    found
}

/// Returns the modules that each one uses: by `use` lines and paths, and by the methods that it
/// calls on itself and on the parts that it holds.
fn arrows(modules: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let methods = methods(modules);
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, text) in modules {
        let used = arrows.entry(module.clone()).or_default();
        for path in following(text, "crate::", |c| is_word(c) || c == ':') {
            used.extend(meant(modules, module, path));
        }
        let is_of = |owner: &str| text.contains(&format!("\nimpl {owner} {{"));
        // A field of the same name in a type that is no part is another thing.
        let is_part = OWNERS.iter().any(|(owner, _)| is_of(owner));
        let joined = text.split_whitespace().collect::<String>();
        for (owner, field) in OWNERS.into_iter().filter(|_| is_part) {
            let own = is_of(owner).then_some("self.".to_string());
            for before in own.into_iter().chain([format!("self.{field}.")]) {
                for name in following(&joined, &before, is_word) {
                    used.extend(methods.get(&(owner, name.to_string())).cloned());
                }
            }
        }
        used.remove(module);
    }
    arrows
}

fn floor(module: &str) -> usize {
    let room = module.split('/').next().expect("a first part");
    FLOORS.iter().position(|it| *it == room).unwrap_or_else(|| panic!("{room} is on no floor"))
}

#[test]
fn arrows_between_rooms_go_one_way() {
    let mut wrong = Vec::new();
    for (module, used) in arrows(&modules()) {
        let upward = used.iter().filter(|used| floor(used) > floor(&module));
        wrong.extend(upward.map(|used| format!("{module} uses {used}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The compiler keeps system calls from the crate, which has no dependency for them. This test
/// finds calls through std, which the compiler does not see.
#[test]
fn what_decides_asks_nobody() {
    let asks = ["fs", "net", "process", "thread", "env"].map(|what| format!("std::{what}"));
    let asks =
        asks.iter().map(String::as_str).chain(["dyn BackingStore", "dyn BackingFile", "DirStore"]);
    let (mut seen, mut wrong) = (0, Vec::new());
    let modules = modules();
    for (module, text) in modules.iter().filter(|(module, _)| module.starts_with("core/")) {
        seen += 1;
        let found = asks.clone().filter(|what| text.contains(what));
        wrong.extend(found.map(|what| format!("{module}: {what}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen > 30, "the core is not seen: {seen}");
}

#[test]
fn no_circle_is_among_files() {
    // Modules that use no remaining module are removed, until none remains, or a circle.
    let mut left = arrows(&modules());
    assert!(left.values().map(BTreeSet::len).sum::<usize>() > 300, "the arrows are seen");
    loop {
        let free: Vec<String> = left
            .iter()
            .filter(|(_, used)| used.iter().all(|used| !left.contains_key(used)))
            .map(|(module, _)| module.clone())
            .collect();
        if free.is_empty() {
            break;
        }
        free.iter().for_each(|module| drop(left.remove(module)));
    }
    let known: BTreeSet<String> = left.keys().cloned().collect();
    let circle: BTreeMap<_, Vec<_>> =
        left.iter().map(|(module, used)| (module, used.intersection(&known).collect())).collect();
    assert!(circle.is_empty(), "{circle:#?}");
}

#[test]
fn the_engine_puts_together_and_no_more() {
    let modules = modules();
    let engine = &modules["engine"];
    let fields =
        engine.split("pub struct Engine {").nth(1).and_then(|text| text.split("\n}").next());
    assert!(!fields.expect("it is here").contains("pub(crate)"), "nobody reaches into it");
    let blocks = modules.values().flat_map(|text| text.split("\nimpl Engine {").skip(1));
    let count: usize = blocks
        .map(|block| block.split("\n}").next().expect("its end").matches("\n    pub fn ").count())
        .sum();
    assert!((2..=40).contains(&count), "{count} methods");
}

/// The fields of a part are used by its own modules, and at most by those of its room.
#[test]
fn nobody_reaches_into_a_part() {
    let modules = modules();
    let fields = |owner: &str| -> Vec<String> {
        let begin = format!("pub struct {owner} {{\n");
        let text = modules.values().find_map(|text| text.split_once(&begin)).expect("a part").1;
        let fields = text.split_once("\n}").expect("its end").0.lines().map(str::trim);
        let fields: Vec<_> =
            fields.filter(|line| line.ends_with(',')).map(str::to_string).collect();
        assert!(!fields.is_empty(), "{owner} has fields");
        fields
    };
    let open = |field: &String| field.starts_with("pub") && !field.starts_with("pub(super)");
    let found: Vec<_> = OWNERS.iter().flat_map(|(owner, _)| fields(owner)).filter(open).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// The modules that read the machine's clock: those of time, and those that measure how long the
/// tier itself takes.
const CLOCKS: [&str; 4] = ["time", "time/simulated", "tier/media", "tier/media/stock"];

#[test]
fn only_listed_modules_ask_the_machine_for_the_time() {
    let asked = [
        "Instant::now",
        "SystemTime::now",
        ".elapsed()",
        "thread::sleep",
        "lock::sleep",
        "park_timeout",
        "recv_timeout",
        "wait_timeout",
    ];
    let mut found = BTreeSet::new();
    for (module, text) in modules() {
        let asks = asked.iter().filter(|what| text.contains(**what));
        found.extend(asks.map(|what| (module.clone(), *what)));
    }
    let (own, wrong): (Vec<_>, Vec<_>) =
        found.iter().partition(|(module, _)| CLOCKS.contains(&module.as_str()));
    assert!(wrong.is_empty(), "{wrong:#?}");
    let all_do = CLOCKS.iter().all(|clock| own.iter().any(|(module, _)| module == clock));
    assert!(all_do, "one of them asks no clock any more");
}

/// Returns the parts of a file's state that are assigned to after `before`.
fn assigned<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let after = |name: &str| {
        let end = name.as_ptr() as usize - text.as_ptr() as usize + name.len();
        text[end..].trim_start().trim_start_matches(['+', '-', '|', '&', '*'])
    };
    let is_assigned = |name: &&str| {
        let after = after(name);
        after.starts_with('=') && !after.starts_with("==") && !after.starts_with("=>")
    };
    let names = following(text, before, |c| is_word(c) || c == '.');
    names.into_iter().filter(is_assigned).collect()
}

/// A file's state is changed by its room alone; other rooms report events. This test finds changes
/// that the compiler allows.
#[test]
fn a_files_state_is_changed_in_its_room_alone() {
    let befores = ["live().", "live.", "unseen.", "inner.live", "inner.clock", "inner.state"];
    let found = |text: &str| -> Vec<String> {
        let all = befores.iter().flat_map(|before| {
            assigned(text, before).into_iter().map(move |name| format!("{before}{name}"))
        });
        all.collect()
    };
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (module, text) in modules() {
        match module.split('/').next() {
            Some("files") => seen += found(&text).len(),
            _ => wrong.extend(found(&text).into_iter().map(|what| format!("{module}: {what}"))),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen > 10, "assignments are not seen: {seen}");
}

/// Names in backquotes in a document that look like a part's method or a file of the engine must exist.
#[test]
fn what_the_architecture_names_exists() {
    let text = fs::read_to_string(root().join("../../../docs/ARCHITECTURE.md")).expect("docs");
    let (modules, mut seen) = (modules(), 0);
    let methods = methods(&modules);
    for name in text.split('`').skip(1).step_by(2) {
        if let Some((owner, method)) = name.split_once("::")
            && let Some((owner, _)) = OWNERS.iter().find(|(known, _)| *known == owner)
        {
            assert!(methods.contains_key(&(owner, method.into())), "{name}: there is none");
            seen += 1;
        }
        let file = name.split_once('/').filter(|_| name.ends_with(".rs"));
        if let Some((of, path)) = file.filter(|(of, _)| *of == "engine" || CRATES.contains(of)) {
            let place = root().join(format!("../../forebay-{of}/src")).join(path);
            assert!(place.is_file(), "{name}: there is none");
            seen += 1;
        }
    }
    assert!(seen > 40, "the way of a file is told by names: {seen}");
}
