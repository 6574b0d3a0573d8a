//! The attributes that a transfer copies and those it leaves, the way its bytes are copied, and the
//! rights it uses.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use forebay_tests::acl::{self, Entry};
use forebay_tests::images::{self, ImageFs, MountedFs};
use forebay_tests::node::{Node, open_dir};
use forebay_tests::squash::Squashed;
use forebay_tests::{Out, fill, needs_forebay, needs_tools, proof, sys, text};
use serde_json::Value;

const USER: u32 = 47_130;
const STRANGER: u32 = 47_131;

const LONG_AGO: i64 = 1_000_000_000;
const LATER: i64 = 1_300_000_000;

fn date(path: &Path, seconds: i64) {
    sys::utimens(path, (seconds, 0), (seconds, 0)).unwrap();
}

/// Makes a file of the user's with a given time.
fn lay(path: &Path, bytes: &[u8], time: i64) {
    fs::write(path, bytes).unwrap();
    chown(path, Some(USER), Some(USER)).unwrap();
    date(path, time);
}

/// A node with a private instance `w` of the user, and a directory of the user outside.
fn with_space(mib: u64) -> (Node, PathBuf) {
    let node = Node::start(512);
    let capacity = format!("{mib}MiB");
    node.as_user(USER, &["instance", "create", "private", "w", "--capacity", &capacity]).ok();
    let home = node.slow().join("home");
    open_dir(&home);
    (node, home)
}

/// A directory with a file of each kind: `both` has two names.
fn lay_set(set: &Path) {
    open_dir(set);
    let plain = set.join("plain");
    lay(&plain, b"plain", LONG_AGO);
    sys::set_xattr(&plain, "user.color", b"red", 0).unwrap();
    fs::set_permissions(&plain, PermissionsExt::from_mode(0o762)).unwrap();
    let listed = set.join("listed");
    lay(&listed, b"listed", LONG_AGO);
    let entries = [
        Entry::Owner(6),
        Entry::User(STRANGER, 4),
        Entry::Group(4),
        Entry::Mask(4),
        Entry::Other(0),
    ];
    sys::set_xattr(&listed, acl::ACCESS, &acl::encode(&entries), 0).unwrap();
    lay(&set.join("both"), b"both", LONG_AGO);
    fs::hard_link(set.join("both"), set.join("both.too")).unwrap();
    for name in ["plain", "listed", "both"] {
        date(&set.join(name), LONG_AGO);
    }
}

/// The attributes that were copied with the set.
fn seen(to: &Path) -> Vec<&'static str> {
    let meta = |name: &str| fs::metadata(to.join(name)).unwrap();
    let plain = meta("plain");
    let found = [
        ("mode", plain.mode() & 0o7777 == 0o762),
        ("times", plain.mtime() == LONG_AGO),
        ("owner", plain.uid() == USER),
        ("xattr", sys::get_xattr(&to.join("plain"), "user.color").is_ok()),
        ("acl", sys::get_xattr(&to.join("listed"), acl::ACCESS).is_ok()),
        ("links", meta("both").ino() == meta("both.too").ino()),
    ];
    assert!(found[0].1 || plain.mode() & 0o7777 == 0o740, "{:o}", plain.mode());
    found.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect()
}

// S-23: attributes come along as they are asked for.
#[test]
fn what_is_preserved_is_what_was_asked_for() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, home) = with_space(32);
    // By root, who may give files away.
    node.forebay(&["instance", "create", "private", "r", "--capacity", "32MiB"]).ok();
    let set = home.join("set");
    lay_set(&set);
    const ALL: &str = "mode times owner xattr acl links";
    for (list, comes) in [
        ("all", ALL),
        ("none", ""),
        ("mode", "mode"),
        ("timestamps", "times"),
        ("ownership", "owner"),
        ("xattr", "xattr"),
        ("acl", "acl"),
        ("links", "links"),
        ("links,times,mode", "mode times links"),
    ] {
        let to = node.at("r").join(list);
        let args = ["stage", "in", text(&set), text(&to), "--preserve", list];
        let said = node.forebay(&args).ok().stdout;
        assert!(said.contains("asked for: --preserve"), "{said}");
        assert_eq!(seen(&to).join(" "), comes, "--preserve {list}");
    }
    let to = node.at("r").join("default");
    let said = node.forebay(&["stage", "in", text(&set), text(&to)]).ok().stdout;
    assert!(!said.contains("asked for"), "{said}");
    assert_eq!(seen(&to).join(" "), ALL);

    // The order of a user: stored with the transfer, and carried out by another daemon.
    let to = node.at("w").join("set");
    let args = ["stage", "in", text(&set), text(&to), "--preserve", "mode,xattr", "--json"];
    let done = node.as_user(USER, &args).ok().json();
    assert_eq!(done["options"]["preserve"], serde_json::json!(["mode", "xattr"]), "{done}");
    // The user's new files are the user's anyway.
    assert_eq!(seen(&to).join(" "), "mode owner xattr");
    let shown = node.as_user(USER, &["stage", "show", done["id"].as_str().unwrap()]).ok();
    assert!(shown.stdout.contains("asked for: --preserve mode,xattr"), "{shown:?}");
    for id in ["w", "r"] {
        node.forebay(&["instance", "destroy", id]).ok();
    }
    node.assert_empty();
}

fn words(dir: &Path, names: &[&str]) -> String {
    let read = |name: &&str| fs::read_to_string(dir.join(name)).unwrap_or_else(|_| "-".into());
    names.iter().map(read).collect::<Vec<_>>().join(" ")
}

// S-23: what is there already becomes what was asked for.
#[test]
fn what_is_there_is_replaced_or_stays_as_it_was_asked_for() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, home) = with_space(32);
    let set = home.join("set");
    open_dir(&set);
    lay(&set.join("younger"), b"new", LATER + 1);
    lay(&set.join("older"), b"new", LONG_AGO);
    lay(&set.join("missing"), b"new", LONG_AGO);
    let names = ["younger", "older", "missing", "other"];
    for (what, code, there, kept) in [
        (None, 0, "new new new old", 0),
        (Some("overwrite"), 0, "new new new old", 0),
        (Some("newer"), 0, "new old new old", 1),
        (Some("keep"), 0, "old old new old", 2),
        (Some("fail"), 1, "old old new old", 0),
        (Some("replace"), 0, "new new new -", 0),
    ] {
        let to = node.at("w").join(what.unwrap_or("default"));
        open_dir(&to);
        chown(&to, Some(USER), Some(USER)).unwrap();
        for name in ["younger", "older", "other"] {
            lay(&to.join(name), b"old", LATER);
        }
        let existing = what.map(|what| ["--existing", what]);
        let options = existing.as_ref().map_or(&[][..], |both| &both[..]);
        let args = ["stage", "in", text(&set), text(&to), "--json"];
        let done = node.as_user(USER, &[&args[..], options].concat()).expect(code).json();
        assert_eq!(words(&to, &names), there, "{what:?}: {done}");
        assert_eq!(done["actual"]["how"]["kept_files"].as_u64().unwrap_or(0), kept, "{done}");
        if code == 1 {
            let failed = done["actual"]["failed"].as_array().unwrap();
            let why = failed[0]["why"].as_str().unwrap();
            assert!(failed.len() == 2 && why.contains("another file has the name"), "{done}");
        }
        let shown = node.forebay(&["stage", "show", done["id"].as_str().unwrap()]).ok();
        let asked = what.filter(|what| *what != "overwrite");
        let asked = asked.map(|what| format!("asked for: --existing {what}"));
        assert_eq!(shown.stdout.contains("asked for"), asked.is_some(), "{shown:?}");
        assert!(asked.is_none_or(|asked| shown.stdout.contains(&asked)), "{shown:?}");
    }
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.assert_empty();
}

#[test]
fn words_that_mean_nothing_are_refused_with_those_that_do() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, home) = with_space(32);
    let (inside, outside) = (node.at("w").join("d"), home.join("d"));
    open_dir(&outside);
    let args = |more: &[&'static str]| {
        let args = ["stage", "in", text(&outside), text(&inside)];
        node.as_user(USER, &[&args[..], more].concat()).expect(2).stderr
    };
    for (more, told) in [
        (
            ["--preserve", "mood"],
            "--preserve <LIST>': \"mood\" is not known: give all, none, or some of mode",
        ),
        (["--preserve", "mode,,acl"], "\"\" is not known"),
        (["--preserve", "mode,owner"], "--preserve owner: only root may give files to others"),
        (["--existing", "maybe"], "possible values: overwrite, newer, keep, fail, replace"),
    ] {
        let said = args(&more);
        assert!(said.contains(told), "{told}: {said}");
    }
    let top = node.at("w");
    let args = ["stage", "in", text(&outside), text(&top), "--existing", "replace"];
    let said = node.as_user(USER, &args).expect(2).stderr;
    assert!(said.contains("name a directory in it"), "{said}");
    let help = node.forebay(&["stage", "out", "--help"]).ok().stdout;
    // The help is as wide as the terminal.
    let help = help.replace('\\', " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("--preserve mode,times --existing newer"), "{help}");
    assert!(help.contains("some of mode, times, owner, xattr, acl, links"), "{help}");
    assert_eq!(node.json(&["stage", "list"]), Value::Array(Vec::new()));
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.assert_empty();
}

/// A pool of directories on a file system of its own, which has room outside the pool, too.
struct Ground {
    node: Node,
    _pool: MountedFs,
    disk: MountedFs,
}

impl Ground {
    fn of(fs: ImageFs) -> Ground {
        let mut node = Node::laid(256);
        let image = node.root.join("image");
        images::make(&image, fs, 768);
        let disk = MountedFs::image(&image, &node.root.join("disk"));
        let (own, shown) = (disk.path().join("pool"), node.root.join("pool"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&shown).unwrap();
        let pool = MountedFs::bind(&own, &shown);
        node.pool_key("enforce = false");
        node.up();
        let make = ["instance", "create", "private", "w", "--capacity", "128MiB"];
        node.forebay(&[&make[..], &["--means", "directory"]].concat()).ok();
        Ground { node, _pool: pool, disk }
    }

    /// Stages the files in `from`; returns the transfer's statement of how the bytes were copied.
    fn stage(&self, way: &str, from: &Path, to: &Path, more: &[&str]) -> How {
        let args = ["stage", way, text(from), text(to), "--json"];
        let done = self.node.forebay(&[&args[..], more].concat()).ok().json();
        let told = |key: &str| done["actual"]["how"][key].as_u64().unwrap_or(0);
        How {
            cloned: told("cloned_bytes"),
            in_kernel: told("in_kernel_bytes"),
            copied: told("copied_bytes"),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct How {
    cloned: u64,
    in_kernel: u64,
    copied: u64,
}

const MIB: u64 = 1 << 20;

/// A file that is copied in pieces, smaller ones, and one with holes: their names, sizes and data.
const FILES: [(&str, u64, u64); 4] = [
    ("large", 70 * MIB, 70 * MIB),
    ("middle", 3 * MIB, 3 * MIB),
    ("small", 4096, 4096),
    ("holes", 48 * MIB, 2 * MIB),
];

fn lay_files(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for (seed, (name, size, data)) in FILES.into_iter().enumerate() {
        let file = File::create(dir.join(name)).unwrap();
        file.set_len(size).unwrap();
        let mut bytes = vec![0; data as usize];
        fill(&mut bytes, seed as u64, 0);
        file.write_all_at(&bytes, size - data).unwrap();
        file.sync_all().unwrap();
    }
}

fn assert_alike(from: &Path, to: &Path) {
    for (name, _, data) in FILES {
        let same = fs::read(from.join(name)).unwrap() == fs::read(to.join(name)).unwrap();
        assert!(same, "{name}");
        let blocks = fs::metadata(to.join(name)).unwrap().blocks() * 512;
        assert!(blocks <= data + MIB, "{name} takes {blocks} bytes for {data}");
    }
}

fn sum(of: impl Fn(&(&str, u64, u64)) -> u64) -> u64 {
    FILES.iter().map(of).sum()
}

// S-23: blocks are shared where the file system can, else the kernel copies, else the worker does.
#[test]
fn bytes_go_by_the_cheapest_way_there_is() {
    needs_forebay!();
    needs_tools!("mkfs.xfs", "mkfs.ext4");
    let data = sum(|(.., data)| *data);
    for (fs, way) in [(ImageFs::Xfs, "shared"), (ImageFs::Ext4, "in the kernel")] {
        let ground = Ground::of(fs);
        let from = ground.disk.path().join("from");
        lay_files(&from);
        let to = ground.node.at("w").join("to");
        let how = ground.stage("in", &from, &to, &[]);
        assert_alike(&from, &to);
        let shared = FILES.map(|(name, ..)| sys::shared_extents(&to.join(name)).unwrap());
        if fs == ImageFs::Xfs {
            let cloned = sum(|(_, size, _)| *size);
            assert_eq!(how, How { cloned, in_kernel: 0, copied: 0 });
            assert!(shared.iter().all(|(shared, all)| *all > 0 && shared == all), "{shared:?}");
        } else {
            // Small files are read and written: two calls less.
            assert_eq!(how, How { cloned: 0, in_kernel: data - 4096, copied: 4096 });
            assert!(shared.iter().all(|(shared, all)| *all > 0 && *shared == 0), "{shared:?}");
        }
        proof!("{}: {way}: {how:?}, {shared:?}", fs.name());
        // Bytes that are to be read back are read, and written.
        let read = ground.node.at("w").join("read");
        let how = ground.stage("in", &from.join("middle"), &read, &["--checksum"]);
        assert_eq!(how, How { cloned: 0, in_kernel: 0, copied: 3 * MIB });
        // No such way leads to another file system.
        let out = ground.node.slow().join("out");
        let how = ground.stage("out", &to, &out, &[]);
        assert_alike(&from, &out);
        assert_eq!(how, How { cloned: 0, in_kernel: 0, copied: data });
        ground.node.forebay(&["instance", "destroy", "w"]).ok();
        ground.node.assert_empty();
        let Ground { mut node, _pool, disk } = ground;
        node.stop();
        drop((_pool, disk));
    }
}

/// Stages one file; returns the exit code and the output.
fn staged(node: &Node, who: u32, way: &str, from: &Path, to: &Path) -> Out {
    let args = ["stage", way, text(from), text(to)];
    match who {
        0 => node.forebay(&args),
        uid => node.as_user(uid, &args),
    }
}

// S-23: a transfer has its owner's rights, where root has none, and where root has all.
#[test]
fn a_store_that_squashes_root_is_read_and_written_with_the_users_rights() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, home) = with_space(32);
    let stranger = ["instance", "create", "private", "v", "--capacity", "32MiB"];
    node.as_user(STRANGER, &stranger).ok();
    node.forebay(&["instance", "create", "private", "r", "--capacity", "32MiB"]).ok();
    let (export, far) = (node.root.join("export"), node.root.join("far"));
    open_dir(&export);
    let store = Squashed::export(&export, &far);
    for (kind, at) in [("squashed", &far), ("plain", &home)] {
        let mine = at.join("mine");
        let real = if kind == "plain" { mine.clone() } else { export.join("mine") };
        fs::create_dir(&real).unwrap();
        chown(&real, Some(USER), Some(USER)).unwrap();
        fs::set_permissions(&real, PermissionsExt::from_mode(0o700)).unwrap();
        let before = store.refused_root();
        let root_may = fs::read_dir(&mine).is_ok();
        assert_eq!(root_may, kind == "plain", "{kind}");
        assert_eq!(store.refused_root() > before, kind == "squashed");

        // Out of the user's instance and into it.
        let results = node.at("w").join(kind);
        lay(&results, b"result", LONG_AGO);
        staged(&node, USER, "out", &results, &mine.join("r")).ok();
        let there = fs::metadata(real.join("r")).unwrap();
        assert_eq!((there.uid(), there.mtime()), (USER, LONG_AGO), "{kind}");
        assert_eq!(fs::read(real.join("r")).unwrap(), b"result", "{kind}");
        let back = node.at("w").join(format!("{kind}.back"));
        staged(&node, USER, "in", &mine.join("r"), &back).ok();
        assert_eq!(fs::read(&back).unwrap(), b"result", "{kind}");
        // A new tree is made beside its place.
        let tree = node.at("w").join(format!("{kind}.tree"));
        fs::create_dir(&tree).unwrap();
        chown(&tree, Some(USER), Some(USER)).unwrap();
        lay(&tree.join("file"), b"in a tree", LONG_AGO);
        staged(&node, USER, "out", &tree, &mine.join("tree")).ok();
        assert_eq!(fs::read(real.join("tree/file")).unwrap(), b"in a tree", "{kind}");

        // A user without rights there gets none of root's.
        let mut without = vec![(STRANGER, "v")];
        without.extend((kind == "squashed").then_some((0, "r")));
        for (who, instance) in without {
            let inside = node.at(instance).join(kind);
            fs::write(&inside, b"of somebody else").unwrap();
            chown(&inside, Some(who), Some(who)).unwrap();
            let out = staged(&node, who, "out", &inside, &mine.join("x"));
            let stolen = node.at(instance).join("stolen");
            let into = staged(&node, who, "in", &mine.join("r"), &stolen);
            for failed in [out, into] {
                assert!(matches!(failed.code, Some(1 | 2)), "{kind} {who}: {failed:?}");
                assert!(failed.stderr.contains("ermission denied"), "{kind} {who}: {failed:?}");
                assert!(failed.stderr.contains(text(&mine)), "{kind} {who}: {failed:?}");
            }
            assert!(!real.join("x").exists() && !stolen.exists(), "{kind} {who}");
        }
    }
    proof!("{} calls of root were refused", store.refused_root());
    for line in node.json(&["manifest"]).as_array().unwrap() {
        node.forebay(&["stage", "revoke", line["transfer"].as_str().unwrap()]).ok();
    }
    for id in ["w", "v", "r"] {
        node.forebay(&["instance", "destroy", id]).ok();
    }
    node.assert_empty();
}
