//! mdtest's command line, and its meaning.

use std::path::{Path, PathBuf};

use super::tree::{Tree, Whose};
use crate::args::{Parsed, Spec};
use crate::cache::Policy;
use crate::recorder::Sinks;
use crate::team::Kind;
use crate::units::human_bytes;
use crate::{Error, Result};

const EXAMPLES: &str = "\
  forebay bench mdtest -n 1000 --tasks 4 -d /data/metadata
  forebay bench mdtest -n 1000 --tasks 4 -u -F -w 4096 -e 4096 -y -i 3 -d /data/metadata
  forebay bench mdtest -I 16 -z 3 -b 4 -L --tasks 2 -d /data/metadata
  forebay bench mdtest -n 1000 -F -C -d /data/metadata   # create, and leave it
  forebay bench mdtest -n 1000 -F -T -d /data/metadata   # stat what -C left
  forebay bench mdtest -n 1000 -F -r -d /data/metadata   # remove it";

/// The phases, and the items they work on.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub tasks: usize,
    pub kind: Kind,
    pub directories: Vec<PathBuf>,
    pub tree: Tree,
    /// Items of each task.
    pub items: u64,
    pub unique: bool,
    pub files: bool,
    pub dirs: bool,
    pub selected: Selected,
    /// The distance in ranks between the creator of an item and its user, per phase.
    pub stride: usize,
    pub iterations: usize,
    pub write_bytes: usize,
    pub read_bytes: usize,
    pub sync_each: bool,
    pub sync_phase: bool,
    pub verify: bool,
    pub make_node: bool,
    pub random: Option<u64>,
    pub pre_delay: f64,
    pub deadline: f64,
    /// The file that stores the number of items of a stonewalled creation.
    pub status_file: Option<PathBuf>,
    pub signature: u32,
    pub show: Show,
    pub cache: Policy,
    pub sinks: Sinks,
}

/// The groups of phases that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selected {
    pub create: bool,
    pub stat: bool,
    pub read: bool,
    pub remove: bool,
}

impl Selected {
    pub fn all(self) -> bool {
        self.create && self.stat && self.read && self.remove
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    Rate,
    Time,
    Both,
}

pub fn spec() -> Spec {
    let spec = Spec::new("mdtest")
        .about(
            "mdtest's metadata workload: tasks create, stat, read, rename and remove directories \
             and files; mdtest's options and summary, without MPI.",
        )
        .usage("[OPTIONS] -d DIRECTORY")
        .examples(EXAMPLES);
    behavior(items(spec))
}

fn items(spec: Spec) -> Spec {
    spec.value(Some('d'), "directory", "DIR", "where to work; several are separated by @ [out]")
        .value(None, "tasks", "N", "tasks [1]")
        .flag(None, "threads", "tasks are threads, not processes")
        .value(Some('n'), "items", "N", "items of each task")
        .value(Some('I'), "items-per-directory", "N", "items of each task in each directory")
        .value(Some('b'), "branching", "N", "branching factor of the tree [1]")
        .value(Some('z'), "depth", "N", "depth of the tree [0]")
        .flag(Some('L'), "leaf-only", "items only in the leaves of the tree")
        .flag(Some('u'), "unique-dir", "a tree for each task")
        .flag(Some('F'), "files-only", "no directories as items")
        .flag(Some('D'), "directories-only", "no files")
        .flag(Some('C'), "create-only", "create (and leave it there)")
        .flag(Some('T'), "stat-only", "stat what -C left")
        .flag(Some('E'), "read-only", "read what -C left")
        .flag(Some('r'), "remove-only", "remove what -C left")
}

fn behavior(spec: Spec) -> Spec {
    spec.value(Some('N'), "stride", "N", "use items of the task so many ranks away [0]")
        .value(Some('i'), "iterations", "N", "iterations [1]")
        .value(Some('w'), "write-bytes", "SIZE", "bytes to write to each new file [0]")
        .value(Some('e'), "read-bytes", "SIZE", "bytes to read from each file [0]")
        .flag(Some('y'), "sync-file", "fsync after writing a file")
        .flag(Some('Y'), "call-sync", "sync the file system at the end of each phase")
        .flag(Some('X'), "verify-read", "compare what is read with what was written")
        .flag(Some('k'), "make-node", "create files with mknod")
        .flag(Some('R'), "random-stat", "visit items in random order")
        .value(None, "random-seed", "N", "seed of -R [0]")
        .value(Some('p'), "pre-delay", "SECONDS", "pause before each iteration")
        .value(Some('W'), "stonewall", "SECONDS", "after this time, create only up to the fastest")
        .value(Some('x'), "status-file", "FILE", "keeps what -W came to, for -T, -E, -r later")
        .value(Some('G'), "signature", "N", "signature of the contents [0]")
        .flag(Some('Z'), "print-time", "times instead of rates")
        .flag(Some('P'), "print-both", "rates and times")
        .flag(Some('v'), "verbose", "accepted; there is nothing more to tell")
        .value(Some('V'), "verbosity", "N", "the same")
        .flag(Some('t'), "time-unique-dir", "accepted; Tree creation holds that time")
        .flag(Some('c'), "collective", "accepted; one task makes a shared tree anyway")
        .flag(Some('B'), "no-barriers", "accepted; phases have barriers")
        .value(Some('a'), "api", "NAME", "POSIX, the only one")
        .value(None, "cache", "POLICY", "keep, drop or fadvise before stat and read")
        .value(None, "out", "FILE", "results as NDJSON, for `forebay bench report`")
        .value(None, "json", "[FILE]", "results as one JSON document; to stdout without FILE")
}

/// The options of a command line, checked without looking at the directories; `None` if only help
/// was wanted, which is printed.
pub fn read(args: &[String]) -> Result<Option<Options>> {
    let parsed = spec().parse(args)?;
    if let Some(help) = parsed.help_wanted() {
        print!("{help}");
        return Ok(None);
    }
    if let [stray, ..] = parsed.rest() {
        return Err(Error::usage(format!("{stray:?} is not an option; directories go after -d")));
    }
    if parsed.get("api").is_some_and(|api| !api.eq_ignore_ascii_case("POSIX")) {
        return Err(Error::usage("-a: metadata is measured through POSIX only; leave -a out"));
    }
    meaning(&parsed).map(Some)
}

fn meaning(parsed: &Parsed) -> Result<Options> {
    let tree = Tree {
        branching: parsed.number("branching", 1)?,
        depth: parsed.number("depth", 0)?,
        leaf_only: parsed.flag("leaf-only"),
    };
    tree.check()?;
    let (only_files, only_dirs) = (parsed.flag("files-only"), parsed.flag("directories-only"));
    if only_files && only_dirs {
        return Err(Error::usage("-F and -D exclude each other: leave both out for both"));
    }
    let any = ["create-only", "stat-only", "read-only", "remove-only"].map(|o| parsed.flag(o));
    let none = !any.contains(&true);
    Ok(Options {
        tasks: parsed.number("tasks", 1)?,
        kind: if parsed.flag("threads") { Kind::Threads } else { Kind::Processes },
        directories: parsed.get("directory").unwrap_or("out").split('@').map(Into::into).collect(),
        items: items_per_task(parsed, &tree)?,
        tree,
        unique: parsed.flag("unique-dir"),
        files: !only_dirs,
        dirs: !only_files,
        selected: Selected {
            create: any[0] || none,
            stat: any[1] || none,
            read: any[2] || none,
            remove: any[3] || none,
        },
        stride: parsed.number("stride", 0)?,
        iterations: parsed.number("iterations", 1)?,
        write_bytes: parsed.size("write-bytes", 0)? as usize,
        read_bytes: parsed.size("read-bytes", 0)? as usize,
        sync_each: parsed.flag("sync-file"),
        sync_phase: parsed.flag("call-sync"),
        verify: parsed.flag("verify-read"),
        make_node: parsed.flag("make-node"),
        random: match parsed.flag("random-stat") {
            true => Some(parsed.number("random-seed", 0)?),
            false => None,
        },
        pre_delay: parsed.seconds("pre-delay", 0.0)?,
        deadline: parsed.seconds("stonewall", 0.0)?,
        status_file: parsed.get("status-file").map(Into::into),
        signature: parsed.number("signature", 0)?,
        show: match (parsed.flag("print-time"), parsed.flag("print-both")) {
            (_, true) => Show::Both,
            (true, false) => Show::Time,
            (false, false) => Show::Rate,
        },
        cache: Policy::parse(parsed.get("cache").unwrap_or("keep"))?,
        sinks: Sinks::of(parsed),
    })
}

/// The number of items from `-n` (rounded down to fill all directories alike, as mdtest does) or
/// from `-I`.
fn items_per_task(parsed: &Parsed, tree: &Tree) -> Result<u64> {
    let homes = tree.homes();
    match (parsed.get("items"), parsed.get("items-per-directory")) {
        (Some(_), Some(_)) => Err(Error::usage("-n and -I exclude each other: give one")),
        (None, None) => Err(Error::usage("-n or -I is missing: how many items?")),
        (None, Some(_)) => Ok(parsed.number("items-per-directory", 0)? * homes),
        (Some(_), None) => {
            let items: u64 = parsed.number("items", 0)?;
            if items < homes {
                return Err(Error::usage(format!(
                    "-n {items} is less than one item for each of the {homes} directories that \
                     -b and -z make"
                )));
            }
            Ok(items / homes * homes)
        }
    }
}

/// Refuses impossible options before anything is made.
pub fn check(options: &Options) -> Result<()> {
    if options.tasks == 0 || options.items == 0 || options.iterations == 0 {
        return Err(Error::usage("--tasks, -n or -I, and -i must be at least 1"));
    }
    if options.read_bytes > options.write_bytes && options.selected.create {
        return Err(Error::usage("-e is larger than -w: there would be nothing to read"));
    }
    if options.status_file.is_some() && options.files && options.dirs {
        return Err(Error::usage("-x keeps one number: add -F or -D"));
    }
    if options.verify && options.read_bytes == 0 {
        return Err(Error::usage("-X compares what -e reads: add -w and -e"));
    }
    if options.selected.read && !options.selected.all() && !options.files {
        return Err(Error::usage("-E reads files, but -D makes only directories"));
    }
    if matches!(options.cache, Policy::Direct | Policy::Hog(_)) {
        return Err(Error::usage("--cache: metadata knows keep, drop and fadvise"));
    }
    options.cache.check()?;
    space(options)?;
    for directory in &options.directories {
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        if !directory.is_dir() && !parent.unwrap_or(Path::new(".")).is_dir() {
            return Err(Error::usage(format!(
                "-d {}: there is no directory to make it in",
                directory.display()
            )));
        }
    }
    leftovers(options)
}

impl Options {
    /// The users of the tree that a rank works in.
    pub fn whose(&self, rank: usize) -> Whose {
        if self.unique { Whose::Rank(rank) } else { Whose::All }
    }

    /// Items of a task in each directory that holds some.
    pub fn per_directory(&self) -> u64 {
        self.items / self.tree.homes()
    }
}

/// The directory of an iteration.
pub fn top(home: &Path, iteration: usize) -> PathBuf {
    home.join(format!("test-dir.{iteration}-0"))
}

/// Checks that items to be created do not exist yet, and that items that are only used do.
fn leftovers(options: &Options) -> Result<()> {
    let homes = options.directories.iter().take(options.tasks);
    for top in homes.flat_map(|home| (0..options.iterations).map(|number| top(home, number))) {
        match (options.selected.create, top.exists()) {
            (true, true) => {
                return Err(Error::usage(format!(
                    "-d: {} is left from an earlier run; remove it, or run with -r",
                    top.display()
                )));
            }
            (false, false) => {
                return Err(Error::usage(format!(
                    "-T, -E and -r need what -C left, but there is no {}; run with -C first",
                    top.display()
                )));
            }
            _ => (),
        }
    }
    Ok(())
}

/// Checks that space and inodes suffice for all items. With `-W` the run is not refused, as the
/// deadline may be meant to cut an impossible number.
fn space(options: &Options) -> Result<()> {
    if !options.selected.create || options.deadline > 0.0 {
        return Ok(());
    }
    let found = crate::ior::place::usage(&options.directories[0])?;
    let items = options.items.saturating_mul(options.tasks as u64);
    let bytes = items.saturating_mul(options.write_bytes as u64);
    if options.files && bytes > found.free {
        return Err(Error::usage(format!(
            "-n and -w make {}, but {} has only {} free; lower them",
            human_bytes(bytes),
            options.directories[0].display(),
            human_bytes(found.free)
        )));
    }
    // A file system that makes inodes on demand counts none.
    if found.inodes > 0 && items > found.inodes_free {
        return Err(Error::usage(format!(
            "-n makes {items} items, but {} has only {} inodes free; lower it",
            options.directories[0].display(),
            found.inodes_free
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let options = read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())?;
        let options = options.expect("not help");
        check(&options).map(|()| options)
    }

    #[test]
    fn lines_mean_what_they_mean_in_mdtest() {
        let options = parse("-n 100 -F -u -z 2 -b 3 -i 4 -w 4k -e 4k -N 1").unwrap();
        // 13 directories, 7 items in each.
        assert_eq!((options.items, options.iterations, options.stride), (91, 4, 1));
        assert!(options.files && !options.dirs && options.unique && options.selected.all());
        let leaves = parse("-I 5 -z 2 -b 3 -L -C -T").unwrap();
        assert_eq!(leaves.items, 45);
        assert!(leaves.selected.create && leaves.selected.stat && !leaves.selected.remove);
    }

    #[test]
    fn impossible_lines_are_refused_by_name() {
        for (line, word) in [
            ("", "-n"),
            ("-n 5 -I 5", "-I"),
            ("-n 5 -F -D", "-F"),
            ("-n 5 -z 3 -b 3", "-z"),
            ("-n 5 -e 10", "-e"),
            ("-n 5 -X", "-X"),
            ("-n 5 -a MPIIO", "-a"),
            ("-n 5 -d /no/such/place", "-d"),
            ("-n 5 --tasks 0", "--tasks"),
            ("-n 5 --task 2", "--tasks"),
            ("-n 5 -z 9 -b 99", "-z"),
            ("-n 5000000 -w 1g -d .", "-w"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(word), "{line}: {error}");
        }
    }
}
