//! Programs people run, on the mount and on a plain directory: same results, same bytes, and after an
//! unmount the same tree on the backing store.
// S-1, S-12
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_tests::postgres::Postgres;
use forebay_tests::tree::{Times, Tree};
use forebay_tests::{
    Bed, Mounted, Rng, Tier, is_root, needs_tools, proof, sample, skip, sys, text, tool, tool_in,
};

/// Runs the same work in two directories: `plain`, and one on the mount. Then compares the mount
/// with the backing store, times and all.
fn on_both(tier: Tier, flags: &[&str], work: fn(&Path), check: fn(&Path, &Path)) {
    let bed = Bed::new(tier);
    let plain = bed.dir("plain/work");
    let mounted = bed.mount(flags);
    let here = mounted.at("work");
    fs::create_dir(&here).expect("a directory on the mount");
    work(&plain);
    work(&here);
    check(&plain, &here);
    same_after_umount(&bed, mounted);
    check(&plain, &bed.backing.join("work"));
}

/// The mount before an orderly unmount equals the backing store after it.
#[track_caller]
fn same_after_umount(bed: &Bed, mounted: Mounted) {
    let seen = Tree::read(&bed.mnt);
    mounted.umount();
    seen.assert_same(&Tree::read(&bed.backing), Times::Compare);
    proof!("{} files, {} bytes equal on the backing store", seen.files(), seen.bytes());
}

fn sh(dir: &Path, script: &str) -> String {
    tool_in(dir, "bash", &["-euc", script]).ok().stdout
}

/// As a package manager, or `cp` and `setcap`: the store removes the capability of a file that is
/// written.
// S-1 S-12
#[test]
fn a_capability_that_was_given_to_what_is_dirty_is_there_after_the_flush() {
    if !is_root() {
        skip!("giving capabilities takes root");
    }
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    // cap_net_raw, effective and permitted: `vfs_cap_data` of linux/capability.h, revision 2.
    let words = [0x0200_0001u32, 1 << 13, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    sample::file(&mounted.at("prog"), 1, 100_000);
    assert!(mounted.number("dirty_files") > 0, "it is not flushed by itself");
    sys::set_xattr(&mounted.at("prog"), "security.capability", &value, 0).expect("root may");
    let given = |root: &Path| sys::get_xattr(&root.join("prog"), "security.capability");
    assert_eq!(given(&mounted.path).expect("it was given"), value);
    mounted.umount();
    assert_eq!(given(&bed.backing).expect("it is there still"), value);
}

/// Asserts that both trees are equal but for times, which differ between two runs.
fn same_trees(plain: &Path, here: &Path) {
    Tree::read(plain).assert_same(&Tree::read(here), Times::Ignore);
}

const VARIANTS: [(Tier, &[&str]); 2] =
    [(Tier::Disk, &[]), (Tier::Tmpfs(1024), &["--passthrough", "off"])];

#[test]
fn a_git_repository_is_cloned_changed_packed_and_checked() {
    needs_tools!("git");
    fn work(dir: &Path) {
        sh(dir, GIT_WORK);
    }
    fn check(plain: &Path, here: &Path) {
        let head = |dir: &Path| sh(&dir.join("clone"), "git -c safe.directory='*' rev-parse HEAD");
        assert_eq!(head(plain), head(here));
        sh(&here.join("clone"), "git -c safe.directory='*' fsck --full --strict");
        assert_eq!(sh(&here.join("clone"), "git -c safe.directory='*' status --porcelain"), "");
        sh(plain, &format!("diff -r --exclude=.git clone {}/clone", here.display()));
    }
    for (tier, flags) in VARIANTS {
        on_both(tier, flags, work, check);
    }
}

const GIT_WORK: &str = r#"
export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
git -c init.defaultBranch=main init -q origin
cd origin
for round in 1 2 3 4 5; do
    for i in $(seq 60); do
        mkdir -p dir$((i % 7)); seq $((i * round)) $((i * round + 300)) > dir$((i % 7))/file$i
    done
    git add -A; git commit -qm "round $round"
done
cd ..
git clone -q --no-hardlinks origin clone
cd clone
seq 1000 > dir1/new; git mv dir2 dir2-moved; git rm -q dir3/file3; git add -A; git commit -qm changed
git checkout -q -b side HEAD~3; seq 5 > side; git add side; git commit -qm side
git checkout -q main; git merge -q --no-edit side; git gc -q --prune=now; git fsck --full --strict
"#;

#[test]
fn a_c_program_is_built_by_make_and_stays_built() {
    needs_tools!("gcc", "make");
    fn work(dir: &Path) {
        write_c_program(dir);
        sh(dir, "make -j2 -s && ./prog");
    }
    fn check(plain: &Path, here: &Path) {
        // make compares nanoseconds: a flush that changed a time would cause a rebuild.
        sh(here, "make -q");
        same_trees(plain, here);
        assert_eq!(sh(plain, "./prog"), sh(here, "./prog"));
    }
    for (tier, flags) in VARIANTS {
        on_both(tier, flags, work, check);
    }
}

fn write_c_program(dir: &Path) {
    const UNITS: usize = 30;
    let mut main = String::from("#include <stdio.h>\n");
    let mut sum = String::new();
    for i in 0..UNITS {
        let body =
            format!("#include \"common.h\"\nint f{i}(int x) {{ return x * {i} + COMMON; }}\n");
        fs::write(dir.join(format!("f{i}.c")), body).unwrap();
        main += &format!("int f{i}(int);\n");
        sum += &format!(" + f{i}({i})");
    }
    main += &format!("int main(void) {{ printf(\"%d\\n\", 0{sum}); return 0; }}\n");
    fs::write(dir.join("main.c"), main).unwrap();
    fs::write(dir.join("common.h"), "#define COMMON 7\n").unwrap();
    let objects: Vec<_> = (0..UNITS).map(|i| format!("f{i}.o")).collect();
    let make = format!(
        "OBJS = main.o {}\nprog: $(OBJS)\n\tgcc -O1 -o $@ $(OBJS)\n%.o: %.c common.h\n\tgcc -O1 -c -o $@ $<\n",
        objects.join(" ")
    );
    fs::write(dir.join("Makefile"), make).unwrap();
}

#[test]
fn sqlite_keeps_its_integrity_with_wal_and_rollback_journal() {
    needs_tools!("sqlite3");
    fn work(dir: &Path) {
        for mode in ["wal", "delete", "truncate", "persist"] {
            let mut script = format!(
                "PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;\n\
                 CREATE TABLE t(id INTEGER PRIMARY KEY, k INT, v TEXT); CREATE INDEX i ON t(k);\n"
            );
            let mut rng = Rng::new(5);
            for round in 0..40 {
                script += "BEGIN;\n";
                for _ in 0..50 {
                    let (k, v) = (rng.below(500), rng.word());
                    script += &format!("INSERT INTO t(k, v) VALUES({k}, '{v:0200}');\n");
                }
                script += &format!("DELETE FROM t WHERE k % 17 = {};\n", round % 17);
                script += &format!("UPDATE t SET v = v || 'x' WHERE k % 13 = {};\n", round % 13);
                script += if round % 9 == 8 { "ROLLBACK;\n" } else { "COMMIT;\n" };
            }
            let file = dir.join(format!("{mode}.sql"));
            fs::write(&file, script).unwrap();
            sh(dir, &format!("sqlite3 -bail {mode}.db < {mode}.sql"));
        }
    }
    fn check(plain: &Path, here: &Path) {
        for mode in ["wal", "delete", "truncate", "persist"] {
            let ask = |dir: &Path, q: &str| sh(dir, &format!("sqlite3 -bail {mode}.db '{q}'"));
            assert_eq!(ask(here, "PRAGMA integrity_check;"), "ok\n", "{mode}");
            let dump = ask(plain, ".dump");
            assert!(dump.len() > 100_000, "{} bytes of dump", dump.len());
            assert!(dump == ask(here, ".dump"), "dumps of {mode} differ");
        }
    }
    for (tier, flags) in VARIANTS {
        on_both(tier, flags, work, check);
    }
}

/// Two connections at once: the shared-memory index of WAL is a shared mapping.
#[test]
fn two_sqlite_processes_share_a_wal_database() {
    needs_tools!("sqlite3");
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    let script = r#"
        sqlite3 s.db 'PRAGMA journal_mode=wal; CREATE TABLE t(who INT, n INT);' > /dev/null
        for who in 1 2 3; do (
            for n in $(seq 40); do
                echo ".timeout 200000
                    INSERT INTO t VALUES($who, $n); SELECT count(*) FROM t;" | sqlite3 -bail s.db > /dev/null
            done ) & pids="$pids $!"
        done
        for pid in $pids; do wait $pid; done
        sqlite3 s.db 'SELECT count(*) FROM t; PRAGMA integrity_check;'"#;
    let out = sh(&mounted.path, &script.replace("$pids $!", "${pids:-} $!"));
    assert_eq!(out, "120\nok\n");
    same_after_umount(&bed, mounted);
}

#[test]
fn rsync_copies_a_tree_with_everything() {
    needs_tools!("rsync");
    for (tier, flags) in VARIANTS {
        let bed = Bed::new(tier);
        let source = bed.dir("source");
        sample::tree(&source, 11, 300);
        let mounted = bed.mount(flags);
        let (from, to) = (format!("{}/", text(&source)), format!("{}/copy/", text(&bed.mnt)));
        tool("rsync", &["-aHXS", &from, &to]).ok();
        let again = tool("rsync", &["-aHXnc", "--delete", "--itemize-changes", &from, &to]).ok();
        assert_eq!(again.stdout, "", "rsync sees differences");
        mounted.evict();
        let again = tool("rsync", &["-aHXnc", "--delete", "--itemize-changes", &from, &to]).ok();
        assert_eq!(again.stdout, "", "rsync sees differences after evicting");
        change_a_little(&source);
        tool("rsync", &["-aHX", "--inplace", "--no-whole-file", "--delete", &from, &to]).ok();
        Tree::read(&source).assert_same(&Tree::read(&mounted.at("copy")), Times::Compare);
        same_after_umount(&bed, mounted);
        Tree::read(&source).assert_same(&Tree::read(&bed.backing.join("copy")), Times::Compare);
    }
}

fn change_a_little(source: &Path) {
    let file = fs::File::options().write(true).open(source.join("sparse")).unwrap();
    file.write_all_at(b"a small change", (3 << 20) + 100).unwrap();
    fs::remove_file(source.join("broken")).unwrap();
    sample::file(&source.join("d3/new"), 3, 12_345);
    // rsync takes two times within one second for the same.
    for dir in [source.join("d3"), source.into()] {
        sys::utimens(&dir, (1_600_000_000, 1), (1_600_000_000, 1)).unwrap();
    }
}

#[test]
fn tar_goes_in_and_out() {
    needs_tools!("tar");
    for (tier, flags) in VARIANTS {
        let bed = Bed::new(tier);
        let (source, back) = (bed.dir("source"), bed.dir("back"));
        sample::tree(&source, 12, 300);
        let mounted = bed.mount(flags);
        let tar = |from: &Path, to: &Path| {
            let options = "--xattrs --xattrs-include=user.* --numeric-owner -p";
            let (from, to) = (from.display(), to.display());
            sh(
                Path::new("/"),
                &format!(
                    "set -o pipefail; tar -C {from} {options} --sparse -cf - . | tar -C {to} {options} -xf -"
                ),
            );
        };
        let here = mounted.at("copy");
        fs::create_dir(&here).unwrap();
        tar(&source, &here);
        mounted.flush();
        mounted.evict();
        tar(&here, &back);
        Tree::read(&source).assert_same(&Tree::read(&back), Times::Compare);
        Tree::read(&source).assert_same(&Tree::read(&here), Times::Compare);
        same_after_umount(&bed, mounted);
    }
}

#[test]
fn programs_that_write_through_mappings_lose_nothing() {
    if !is_root() {
        skip!("needs root");
    }
    const LEN: usize = 8 << 20;
    fn work(dir: &Path) {
        // One new file, one existing file, one that was never mapped whole.
        for (name, seed) in [("new", 1), ("old", 2), ("part", 3)] {
            let path = dir.join(name);
            if name != "new" {
                sample::file(&path, seed, LEN);
            }
            let file = sys::open(&path, libc::O_RDWR | libc::O_CREAT, 0o644).unwrap();
            file.set_len(LEN as u64).unwrap();
            let mapped = if name == "part" { LEN / 2 } else { LEN };
            let mut map = sys::Map::shared(&file, mapped, true).unwrap();
            let mut rng = Rng::new(seed * 100);
            for i in 0..2000 {
                let at = rng.below(mapped as u64 - 200) as usize;
                map.bytes()[at..at + 200].copy_from_slice(&rng.bytes(200));
                if i % 500 == 499 {
                    map.sync().unwrap();
                }
            }
        }
    }
    for (tier, flags) in VARIANTS {
        let bed = Bed::new(tier);
        let plain = bed.dir("plain");
        let mounted = bed.mount(flags);
        work(&plain);
        work(&bed.mnt);
        same_trees(&plain, &bed.mnt);
        mounted.umount();
        same_trees(&plain, &bed.backing);
        proof!("3 mapped files of {LEN} bytes equal");
    }
}

/// initdb, pgbench, a clean stop; then on the backing store without forebay: amcheck and the sums
/// that pgbench keeps equal.
#[test]
fn postgres_runs_pgbench_and_its_cluster_is_sound_on_the_backing_store() {
    needs_tools!("setpriv");
    let bed = Bed::new(Tier::Disk);
    let pg = match Postgres::find(bed.dir("s")) {
        Ok(pg) => pg,
        Err(why) => skip!("{why}"),
    };
    // The parents must let the user pass.
    pg.own(&bed.backing);
    let mounted = bed.mount(&[]);
    pg.init(&mounted.at("db"));
    let dump = pg.with_server(&mounted.at("db"), || {
        pg.ask("pgbench", &["-i", "-s", "3", "-q", "postgres"]);
        let run = pg.ask("pgbench", &["-c4", "-j2", "-t400", "postgres"]);
        assert!(run.contains("1600/1600"), "{run}");
        pg.check_sums();
        pg.dump()
    });
    same_after_umount(&bed, mounted);
    pg.with_server(&bed.backing.join("db"), || {
        pg.check_pages();
        pg.check_sums();
        assert!(pg.dump() == dump, "pg_dump differs on the backing store");
    });
    proof!("pg_dump of {} bytes equal, amcheck clean", dump.len());
}
