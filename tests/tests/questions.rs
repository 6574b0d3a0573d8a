//! The number of calls that each verb makes to the backing store: the table of docs/PERFORMANCE.md, kept true.
//! Each clause that is cited here is about cached answers.
// S-1

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_tests::{Bed, Mounted, PATIENCE, Tier, needs_forebay, proof, say, sys, text, within};

/// Repetitions of each verb; the table has the mean.
const TIMES: usize = 20;

/// A measured mean may exceed the table by this much, and this share of it: for a look in the background, or the
/// order of two simultaneous calls. One more call per verb is beyond it.
const SLACK: f64 = 0.2;
const SHARE: f64 = 0.15;

/// A table that claims this much more than is measured is no budget.
const CLAIMED_MAX: f64 = 0.6;

/// The calls of a verb to the store, by kind. No program waits for a close, so it does not count.
fn calls(mounted: &Mounted) -> BTreeMap<String, u64> {
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    let all = stats["backing"].as_object().expect("the meter's counts");
    let count = |of: &serde_json::Value| of["count"].as_u64().expect("a count");
    all.iter()
        .map(|(verb, of)| (verb.clone(), count(of)))
        .filter(|(verb, _)| verb != "close")
        .collect()
}

/// Directories of the store, each for some verbs, with their numbers of files. They are used in this order, the
/// reverse of their names: otherwise the daemon would ask ahead for the next ones while another verb is measured.
const DIRS: [(&str, usize); 14] = [
    ("z-first", 3),
    ("y-stat", TIMES),
    ("x-absent", TIMES),
    ("w-read", TIMES),
    ("v-append", TIMES),
    ("u-create", 0),
    ("t-mkdir", 0),
    ("s-unlink", TIMES),
    ("r-rename", TIMES),
    ("q-replace", TIMES),
    ("p-link", TIMES),
    ("o-chmod", TIMES),
    ("n-xattr", TIMES),
    ("m-list", 100),
];

fn make(dir: &Path, files: usize) {
    fs::create_dir_all(dir).unwrap();
    for at in 0..files {
        fs::write(dir.join(format!("f{at:03}")), format!("file {at}")).unwrap();
    }
}

struct Bench {
    _bed: Bed,
    mounted: Mounted,
    /// Verb, when, questions.
    measured: Vec<(String, f64, String)>,
}

impl Bench {
    fn new() -> Bench {
        let bed = Bed::new(Tier::Disk);
        // All files are made behind the mount, and before it: cached absences last long.
        DIRS.iter().for_each(|(name, files)| make(&bed.backing.join(name), *files));
        if sys::on_path("git") {
            repository(&bed.backing.join("repository"));
        }
        // Slow enough that the daemon asks for several names at once. Nothing is flushed meanwhile, and cached
        // answers stay valid: only a directory that was never looked at is cold.
        let flags = ["--throttle", "1GB,2ms", "--preset", "hold", "--trust", "60s"];
        let mounted = bed.mount(&flags);
        let bench = Bench { _bed: bed, mounted, measured: Vec::new() };
        // The daemon learns here that the store is slow.
        let _ = fs::metadata(bench.mounted.at("nowhere at all"));
        for at in 0..3 {
            fs::metadata(bench.at("z-first", at)).unwrap();
        }
        bench
    }

    fn at(&self, dir: &str, n: usize) -> PathBuf {
        self.mounted.at(dir).join(format!("f{n:03}"))
    }

    /// Measures the mean number of calls of `times` verbs.
    fn measure(&mut self, verb: &str, times: usize, mut work: impl FnMut(&Bench, usize)) {
        let before = self.at_rest();
        (0..times).for_each(|n| work(self, n));
        let after = self.at_rest();
        let more = after.iter().map(|(verb, count)| {
            (verb.as_str(), count - before.get(verb).copied().unwrap_or_default())
        });
        let more: Vec<(&str, u64)> = more.filter(|(_, count)| *count > 0).collect();
        let sum: u64 = more.iter().map(|(_, count)| count).sum();
        let kinds: Vec<String> =
            more.iter().map(|(verb, count)| format!("{verb} {count}")).collect();
        self.measured.push((verb.into(), sum as f64 / times as f64, kinds.join(", ")));
    }

    /// The calls so far, once the calls made ahead have been answered.
    fn at_rest(&self) -> BTreeMap<String, u64> {
        let mut last = calls(&self.mounted);
        within(PATIENCE, "the store is asked no more", || {
            std::thread::sleep(Duration::from_millis(50));
            let before = std::mem::replace(&mut last, calls(&self.mounted));
            before == last
        });
        last
    }

    fn each(&mut self, verb: &str, work: impl FnMut(&Bench, usize)) {
        self.measure(verb, TIMES, work);
    }
}

fn files(bench: &mut Bench) {
    bench.each("stat, cold", |b, n| assert!(fs::metadata(b.at("y-stat", n)).is_ok()));
    bench.each("stat, warm", |b, n| assert!(fs::metadata(b.at("y-stat", n)).is_ok()));
    let nowhere = |b: &Bench, n: usize| {
        assert!(fs::metadata(b.mounted.at(format!("x-absent/none{n}"))).is_err());
    };
    bench.each("look for a name that is nowhere, cold", nowhere);
    bench.each("look for a name that is nowhere, warm", nowhere);
    bench.each("open, read, close, not cached", |b, n| drop(fs::read(b.at("w-read", n)).unwrap()));
    bench.each("open, read, close, cached", |b, n| drop(fs::read(b.at("w-read", n)).unwrap()));
    let append = |b: &Bench, n: usize| {
        let mut file = OpenOptions::new().append(true).open(b.at("v-append", n)).unwrap();
        file.write_all(b"more").unwrap();
    };
    bench.each("append to a file, cold", append);
    bench.each("append to a file, warm", append);
}

fn names(bench: &mut Bench) {
    let create = |b: &Bench, n: usize| fs::write(b.at("u-create", n), b"new").unwrap();
    bench.each("create, write, close", create);
    bench.each("mkdir", |b, n| fs::create_dir(b.at("t-mkdir", n)).unwrap());
    bench.each("rmdir", |b, n| fs::remove_dir(b.at("t-mkdir", n)).unwrap());
    bench.each("unlink, cold", |b, n| fs::remove_file(b.at("s-unlink", n)).unwrap());
    bench.each("unlink of a new file", |b, n| fs::remove_file(b.at("u-create", n)).unwrap());
    bench.each("rename, cold", |b, n| {
        fs::rename(b.at("r-rename", n), b.mounted.at(format!("r-rename/to{n}"))).unwrap();
    });
    bench.each("write to a temporary name, rename over the file", |b, n| {
        let temporary = b.mounted.at(format!("q-replace/.f{n:03}.tmp"));
        fs::write(&temporary, b"new").unwrap();
        fs::rename(&temporary, b.at("q-replace", n)).unwrap();
    });
    bench.each("link, cold", |b, n| {
        fs::hard_link(b.at("p-link", n), b.mounted.at(format!("p-link/to{n}"))).unwrap();
    });
}

fn attributes(bench: &mut Bench) {
    let chmod = |mode| {
        move |b: &Bench, n: usize| {
            fs::set_permissions(b.at("o-chmod", n), Permissions::from_mode(mode)).unwrap();
        }
    };
    bench.each("chmod, cold", chmod(0o600));
    bench.each("chmod, warm", chmod(0o640));
    bench.each("chmod of a cached file", |b, n| {
        fs::set_permissions(b.at("w-read", n), Permissions::from_mode(0o600)).unwrap();
    });
    bench.each("set an extended attribute", |b, n| {
        sys::set_xattr(&b.at("n-xattr", n), "user.a", b"1", 0).unwrap();
    });
    bench.each("list the extended attributes", |b, n| {
        sys::list_xattr(&b.at("n-xattr", n)).unwrap();
    });
    bench.each("read an extended attribute that is there", |b, n| {
        sys::get_xattr(&b.at("n-xattr", n), "user.a").unwrap();
    });
    bench.each("read an extended attribute that is not", |b, n| {
        sys::get_xattr(&b.at("n-xattr", n), "user.b").unwrap_err();
    });
}

fn directories(bench: &mut Bench) {
    let list = |b: &Bench, _: usize| {
        let listed =
            Command::new("ls").args(["-l", text(&b.mounted.at("m-list"))]).output().unwrap();
        assert_eq!(listed.stdout.iter().filter(|byte| **byte == b'\n').count(), 101);
    };
    bench.measure("ls -l of 100 names, cold", 1, list);
    bench.measure("ls -l of 100 names, warm", 1, list);
}

fn run(command: &mut Command) {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn git(dir: &Path, args: &[&str]) {
    let name = ["-c", "user.name=n", "-c", "user.email=e", "-c", "core.fsmonitor=false"];
    run(Command::new("git").arg("-C").arg(dir).args(name).args(args));
}

/// A repository of 300 files in 30 directories.
fn repository(dir: &Path) {
    for n in 0..300 {
        let path = dir.join(format!("d{:02}/f{n:03}", n / 10));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("file {n}")).unwrap();
    }
    git(dir, &["init", "-q"]);
    git(dir, &["add", "."]);
    git(dir, &["commit", "-q", "-m", "all"]);
    // The index is not written again for files as young as itself.
    let old = std::time::SystemTime::now() - Duration::from_secs(3600);
    for n in 0..300 {
        let file = File::options().write(true).open(dir.join(format!("d{:02}/f{n:03}", n / 10)));
        file.unwrap().set_modified(old).unwrap();
    }
    git(dir, &["status"]);
}

fn programs(bench: &mut Bench) {
    if sys::on_path("git") {
        let status = |b: &Bench, _: usize| git(&b.mounted.at("repository"), &["status"]);
        bench.measure("git status of 300 files in 30 directories, cold", 1, status);
        bench.measure("git status of 300 files in 30 directories, warm", 1, status);
    }
    if sys::on_path("sqlite3") {
        let database = bench.mounted.at("db");
        run(Command::new("sqlite3")
            .arg(&database)
            .arg("create table t(a); insert into t values(1);"));
        let commits = "insert into t values(2);".repeat(TIMES);
        let before = bench.measured.len();
        bench.measure("SQLite commit, rollback journal", 1, |_, _| {
            run(Command::new("sqlite3").arg(&database).arg(&commits));
        });
        bench.measured[before].1 /= TIMES as f64;
    }
}

fn table() -> BTreeMap<String, f64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/PERFORMANCE.md");
    let document = fs::read_to_string(path).unwrap();
    let from = document.find("## Questions to the store").expect("the section of the budget");
    let section = document[from..].split("\n## ").next().expect("a section");
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let cells = rows.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let budget = cells.filter_map(|row| Some((row.get(1)?.to_string(), row.get(2)?.parse().ok()?)));
    budget.collect()
}

/// Goal: no change makes a verb call the slow side more often without a change of the table. Method: the meter's
/// counts before and after each verb, against the table of docs/PERFORMANCE.md, both ways.
#[test]
fn each_verb_asks_the_store_as_often_as_its_budget_says() {
    needs_forebay!();
    let mut bench = Bench::new();
    files(&mut bench);
    names(&mut bench);
    attributes(&mut bench);
    directories(&mut bench);
    programs(&mut bench);
    bench.mounted.forebay(&["set", text(&bench.mounted.path), "preset=governor"]);
    let budget = table();
    let mut wrong = Vec::new();
    for (verb, asked, kinds) in &bench.measured {
        let says = budget.get(verb);
        say(&format!(
            "| {verb} | {asked:.1} | {} | {kinds}",
            says.map_or("-".into(), f64::to_string)
        ));
        match says {
            None => wrong.push(format!("{verb}: {asked:.2} questions, and no budget")),
            Some(says) if *asked > says * (1.0 + SHARE) + SLACK => {
                wrong.push(format!("{verb}: {asked:.2} questions of {says}: {kinds}"));
            }
            Some(says) if asked + SLACK < says * CLAIMED_MAX => {
                wrong.push(format!("{verb}: {asked:.2} questions, and the table claims {says}"));
            }
            Some(_) => {}
        }
    }
    assert!(bench.measured.len() > 20 && bench.measured.iter().any(|(_, asked, _)| *asked > 1.0));
    for verb in budget.keys() {
        let is_program = verb.contains("git") || verb.contains("SQLite");
        let is_measured = bench.measured.iter().any(|(measured, ..)| measured == verb);
        if !is_measured && !is_program {
            wrong.push(format!("{verb}: in the table, and not measured"));
        }
    }
    bench.mounted.umount();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    proof!("{} verbs within their budgets", budget.len());
}
