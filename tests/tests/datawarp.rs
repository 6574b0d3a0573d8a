//! libdatawarp as C programs use it: `tests/c/datawarp.c`, compiled here, against a node daemon.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_tests::images::MountedFs;
use forebay_tests::node::{Node, open_dir};
use forebay_tests::{Out, binary, fill, finish, needs_forebay, needs_tools, proof, text, within};

const USER: u32 = 47_112;

const PATIENCE: Duration = Duration::from_secs(240);

/// A node with a user's instance `w`, a directory of the user outside, and the program.
struct Bed {
    node: Node,
    program: PathBuf,
}

impl Bed {
    fn lay() -> Bed {
        let node = Node::start(768);
        let program = compiled(&node.root);
        node.as_user(USER, &["instance", "create", "private", "w", "--capacity", "256MiB"]).ok();
        Bed { node, program }
    }

    fn dw(&self) -> PathBuf {
        self.node.at("w")
    }

    /// Makes a directory of the user outside.
    fn pfs(&self, name: &str) -> PathBuf {
        let dir = self.node.slow().join(name);
        open_dir(&dir);
        dir
    }

    /// Runs one part of the program as the user; the program checks, and the library prints nothing.
    #[track_caller]
    fn run(&self, part: &str, paths: &[&Path]) -> Out {
        let id = USER.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(&self.program);
        command
            .arg(part)
            .args(paths)
            .env("FOREBAY_NODE_SOCKET", self.node.root.join("run/node.sock"));
        let out = finish(&mut command, PATIENCE);
        assert_eq!(out.code, Some(0), "{out:#?}\n{}", self.node.log());
        assert_eq!(out.stderr, "", "the library never writes: {out:#?}");
        out
    }

    /// Writes bytes as the user.
    fn write(&self, path: &Path, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(&mut bytes, len as u64, 0);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &bytes).unwrap();
        for made in [path.parent().unwrap(), path] {
            std::os::unix::fs::chown(made, Some(USER), Some(USER)).unwrap();
        }
        bytes
    }

    /// Destroys the instance, which leaves nothing: no ended or abandoned stage holds it.
    fn end(self) {
        self.node.as_user(USER, &["instance", "destroy", "w"]).ok();
        self.node.assert_empty();
    }
}

/// The library that belongs to the binary under test.
fn library() -> PathBuf {
    let beside = binary().with_file_name("libdatawarp.so");
    assert!(beside.exists(), "{}: build it: cargo build -p forebay-datawarp", beside.display());
    beside
}

fn compiled(dir: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (program, library) = (dir.join("datawarp"), library());
    let libraries = library.parent().unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result", "-pthread"]);
    cc.arg("-I").arg(here.join("../contrib/datawarp")).arg(here.join("c/datawarp.c"));
    cc.arg("-o").arg(&program).arg("-L").arg(libraries).arg("-ldatawarp");
    cc.arg(format!("-Wl,-rpath,{}", text(libraries)));
    finish(&mut cc, PATIENCE).ok();
    program
}

#[test]
fn files_directories_and_lists_are_staged_put_off_taken_back_and_begun() {
    needs_forebay!();
    needs_tools!("cc", "setpriv", "mkfs.ext4");
    let bed = Bed::lay();
    let said = bed.run("stages", &[&bed.dw(), &bed.pfs("p")]);
    proof!("{}", said.stdout.trim());
    bed.end();
}

#[test]
fn what_cannot_be_is_refused_with_its_errno() {
    needs_forebay!();
    needs_tools!("cc", "setpriv", "mkfs.ext4");
    let bed = Bed::lay();
    bed.run("refusals", &[&bed.dw(), &bed.pfs("p")]);
    let said = bed.run("answers", &[&bed.dw()]);
    let accounts = said.stdout.lines().next().unwrap();
    let accounts: serde_json::Value = serde_json::from_str(accounts).unwrap();
    let fragment = &accounts["realm"]["fragments"][0];
    assert_eq!(fragment["server name"], "n1", "{accounts}");
    assert!(fragment["lower filesystem capacity"].as_u64().unwrap() > 200 << 20, "{accounts}");
    bed.end();
}

/// A long stage: found active, ended, waited for under signals, and across a restart of the daemon.
#[test]
fn a_stage_that_is_active_can_be_ended_and_waited_for() {
    needs_forebay!();
    needs_tools!("cc", "setpriv", "mkfs.ext4");
    let mut bed = Bed::lay();
    let (slow, pfs) = (bed.dw().join("tree/slow"), bed.pfs("p"));
    let bytes = bed.write(&slow, 24 << 20);
    let args = ["stage", "out", text(&slow), text(&pfs), "--rate-max", "1MiB/s", "--no-wait"];
    bed.node.as_user(USER, &args).ok();
    within(Duration::from_secs(20), "it runs", || {
        bed.node.json(&["stage", "list"])[0]["actual"]["state"] == "running"
    });
    bed.run("slow", &[&bed.dw(), &pfs]);
    assert_eq!(std::fs::read(pfs.join("s")).unwrap(), bytes);

    let (slow, home) = (bed.dw().join("slow"), pfs.join("waited"));
    let bytes = bed.write(&slow, 8 << 20);
    let args = ["stage", "out", text(&slow), text(&home), "--rate-max", "1MiB/s", "--no-wait"];
    bed.node.as_user(USER, &args).ok();
    std::thread::scope(|scope| {
        let (program, dw) = (bed.program.clone(), bed.dw());
        let socket = bed.node.root.join("run/node.sock");
        let waits = scope.spawn(move || {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "47112", "--regid", "47112", "--clear-groups"]);
            command.arg(program).arg("waits").arg(dw).env("FOREBAY_NODE_SOCKET", socket);
            finish(&mut command, PATIENCE)
        });
        let waiting = bed.dw().join("waiting");
        within(Duration::from_secs(20), "the program waits", || waiting.exists());
        bed.node.stop();
        bed.node.up();
        let out = waits.join().unwrap();
        assert_eq!((out.code, out.stderr.as_str()), (Some(0), ""), "{out:#?}");
    });
    assert_eq!(std::fs::read(&home).unwrap(), bytes);
    bed.node.stop();
    bed.run("away", &[&bed.dw()]);
    bed.node.up();
    bed.end();
}

#[test]
fn failed_stages_are_listed_with_their_errno_until_they_are_renewed_or_given_up() {
    needs_forebay!();
    needs_tools!("cc", "setpriv", "mkfs.ext4");
    let bed = Bed::lay();
    let (dw, pfs) = (bed.dw(), bed.pfs("p"));
    let full = MountedFs::tmpfs(&bed.node.slow().join("full"), 4);
    open_dir(full.path());
    bed.write(&dw.join("big"), 10 << 20);
    for (dir, files) in
        [(dw.join("mixed"), ["1", "2", "shut"]), (pfs.join("set"), ["1", "2", "shut"])]
    {
        for name in files {
            bed.write(&dir.join(name), 1000);
        }
        let shut = std::os::unix::fs::PermissionsExt::from_mode(0o0);
        std::fs::set_permissions(dir.join("shut"), shut).unwrap();
    }
    bed.run("failing", &[&dw, full.path(), &pfs]);
    bed.end();
}

#[test]
fn threads_and_a_child_use_it_at_once() {
    needs_forebay!();
    needs_tools!("cc", "setpriv", "mkfs.ext4");
    let bed = Bed::lay();
    bed.run("crowd", &[&bed.dw(), &bed.pfs("p")]);
    bed.end();
}

/// The orders of calls of AXL, libhio, and Ioss and SPARTA.
#[test]
fn programs_that_speak_datawarp_find_what_they_expect() {
    needs_forebay!();
    needs_tools!("cc", "setpriv", "mkfs.ext4");
    let bed = Bed::lay();
    let pfs = bed.pfs("p");
    for caller in ["axl", "hio", "ioss"] {
        bed.run(caller, &[&bed.dw(), &pfs]);
    }
    // The last dataset was deferred: it is staged out when the instance is destroyed, and the
    // earlier ones are not.
    let element = |id: u32| pfs.join(format!("ctx.hio/set/{id}/element"));
    assert!(!element(3).exists(), "it is put off");
    bed.node.as_user(USER, &["instance", "destroy", "w"]).ok();
    assert_eq!(std::fs::read_to_string(element(3)).unwrap(), text(&bed.dw().join("ctx.hio/set/3")));
    assert!(!element(2).exists(), "it was revoked");
    bed.node.assert_empty();
}

#[test]
fn a_file_of_a_cache_is_waited_for_until_it_is_home() {
    needs_forebay!();
    needs_tools!("cc", "setpriv", "mkfs.ext4");
    let bed = Bed::lay();
    let store = bed.pfs("store");
    std::os::unix::fs::chown(&store, Some(USER), Some(USER)).unwrap();
    let args = ["instance", "create", "cache", "c", "--backing", text(&store)];
    let more = ["--capacity", "64MiB", "--set", "max-age=1h"];
    let made = bed.node.as_user(USER, &[&args[..], &more].concat()).ok();
    bed.run("cache", &[Path::new(made.stdout.trim()), &store]);
    bed.node.as_user(USER, &["instance", "destroy", "c"]).ok();
    bed.end();
}
