//! The worker as a process: its rights, and how it is stopped, killed and taken up.

mod bed;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

use bed::{Rng, assert_same, file, left_over, spec};
use forebay_stage::worker::{
    Action, Ending, Identity, Launch, Order, Program, Status, Worker, read_status,
};
use forebay_stage::{Outcome, Reason, Report, Spec, What};

const PATIENCE: Duration = Duration::from_secs(60);

/// A worker of the test; killed if the test fails.
struct Guard {
    worker: Worker,
    status: File,
}

impl Drop for Guard {
    fn drop(&mut self) {
        _ = self.worker.kill();
        _ = self.worker.ended(PATIENCE);
    }
}

impl Guard {
    fn start(dir: &Path, spec: &Spec, action: Action, identity: Identity) -> Guard {
        let path = dir.join("status");
        let status = File::options().create(true).append(true).open(&path).unwrap();
        let program = env!("CARGO_BIN_EXE_forebay-stage-worker").into();
        let launch = Launch {
            program: Program { path: program, args: Vec::new() },
            order: Order { action, spec: spec.clone(), every_ms: Some(10) },
            identity,
            status: status.into(),
            errors: None,
            cgroup: None,
            nice: 5,
        };
        Guard { worker: launch.start().unwrap(), status: File::open(path).unwrap() }
    }

    fn now(&mut self) -> Status {
        read_status(&mut self.status).unwrap()
    }

    fn wait_for(&mut self, what: &str, mut is: impl FnMut(&Status) -> bool) -> Status {
        let start = Instant::now();
        loop {
            let status = self.now();
            if is(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "no {what}: {status:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(mut self) -> Ending {
        assert!(self.worker.ended(PATIENCE).unwrap(), "it runs on: {:?}", self.now());
        self.now().ending.expect("a worker says how it ended")
    }

    fn report(self) -> Report {
        match self.end() {
            Ending::Report(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    /// The fields of /proc/PID/status.
    fn proc_status(&self) -> BTreeMap<String, String> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.worker.pid())).unwrap();
        let pair = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_string(), value.trim().to_string()))
        };
        text.lines().filter_map(pair).collect()
    }
}

fn root() -> Identity {
    Identity::own()
}

fn open_dir(path: &Path, owner: u32) {
    std::fs::create_dir(path).unwrap();
    chown(path, Some(owner), Some(owner)).unwrap();
}

/// A scratch directory that other users can enter.
fn scratch() -> tempfile::TempDir {
    let top = tempfile::tempdir().unwrap();
    std::fs::set_permissions(top.path(), PermissionsExt::from_mode(0o755)).unwrap();
    top
}

/// A worker that copies small files and a large one is killed again and again; published files and synced
/// pieces are not copied again.
#[test]
fn a_killed_transfer_goes_on_where_it_was() {
    let top = scratch();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    let mut rng = Rng::new(42);
    let mut size = 0;
    for number in 0..3000 {
        let len = rng.below(20_000) as usize;
        let bytes = rng.bytes(len);
        size += bytes.len() as u64;
        file(&from.join(format!("small{number}")), &bytes);
    }
    let large = 400u64 << 20;
    let bytes = rng.bytes(16 << 20);
    (0..25).for_each(|_| {
        use std::io::Write;
        let path = from.join("large");
        File::options().create(true).append(true).open(path).unwrap().write_all(&bytes).unwrap();
    });
    size += large;
    let mut spec = spec("kill", &from, &to, What::Directory);
    spec.options.threads = 2;
    spec.options.rate = 300 << 20;
    let (mut kills, mut in_the_middle) = (0, 0);
    for round in 0..6u64 {
        let mut guard = Guard::start(top.path(), &spec, Action::Run, root());
        let wanted = size * (round + 1) / 8;
        let reached = |status: &Status| {
            status.progress.as_ref().is_some_and(|p| p.bytes_done >= wanted)
                || status.ending.is_some()
        };
        let status = guard.wait_for("progress", reached);
        kills += 1;
        in_the_middle += u64::from(status.ending.is_none());
        guard.worker.kill().unwrap();
        assert!(guard.worker.ended(PATIENCE).unwrap());
    }
    assert!(in_the_middle >= 3, "{in_the_middle} of {kills} kills hit the work");
    assert!(!to.exists(), "a tree that is not whole has its name");
    let report = Guard::start(top.path(), &spec, Action::Run, root()).report();
    assert_eq!((report.outcome, report.files), (Outcome::Done, 3001), "{report:#?}");
    // At most 3/4 were done at the last kill; of those, the work in progress of two threads and one batch
    // is lost.
    assert!(report.bytes_copied < size / 4 + size / 8 + (160 << 20), "{report:#?} of {size}");
    assert_same(&from, &to);
    assert!(left_over(top.path()).is_empty());
}

/// Another program takes the name of a new tree between two runs that are killed: no whole file is copied again,
/// and no partial file has a final name.
#[test]
fn a_killed_transfer_whose_name_was_taken_copies_nothing_twice() {
    const FILES: u64 = 9000;
    let top = scratch();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir_all(from.join("sub")).unwrap();
    let bytes = Rng::new(5).bytes(1000);
    let name = |number| format!("{}{number}", if number % 2 == 0 { "sub/" } else { "" });
    (0..FILES).for_each(|number| file(&from.join(name(number)), &bytes));
    let mut spec = spec("taken", &from, &to, What::Directory);
    spec.options.rate = 4 << 20;
    let killed = |files: u64| {
        let mut guard = Guard::start(top.path(), &spec, Action::Run, root());
        let reached = |status: &Status| {
            let done = status.progress.as_ref().map_or(0, |progress| progress.files_done);
            assert!(status.ending.is_none(), "too late for a kill: {status:?}");
            done >= files
        };
        guard.wait_for("progress", reached);
        guard.worker.kill().unwrap();
        assert!(guard.worker.ended(PATIENCE).unwrap());
    };
    killed(8192);
    assert!(!to.exists());
    std::fs::create_dir(&to).unwrap();
    file(&to.join("theirs"), b"theirs");
    killed(1000);
    let whole = |path: &Path| std::fs::read(path).is_ok_and(|read| read == bytes);
    let there = |number: &u64| to.join(name(*number)).exists();
    assert!((0..FILES).filter(there).all(|number| whole(&to.join(name(number)))));
    let report = Guard::start(top.path(), &spec, Action::Run, root()).report();
    assert_eq!((report.outcome, report.files), (Outcome::Done, FILES), "{report:#?}");
    assert!(report.bytes_copied <= (FILES - 8192) * 1000, "{report:#?}");
    assert!((0..FILES).all(|number| whole(&to.join(name(number)))));
    assert_eq!(std::fs::read(to.join("theirs")).unwrap(), b"theirs");
    assert!(left_over(top.path()).is_empty());
}

/// A worker may do exactly what its user may do.
#[test]
fn a_worker_has_the_users_rights_and_nothing_else() {
    let top = scratch();
    let (from, dir) = (top.path().join("from"), top.path().join("dir"));
    std::fs::create_dir(&from).unwrap();
    open_dir(&dir, 4321);
    file(&from.join("open"), b"1");
    for (name, group) in [("by first group", 5001), ("by last group", 5020), ("closed", 0)] {
        file(&from.join(name), b"22");
        chown(from.join(name), Some(0), Some(group)).unwrap();
        std::fs::set_permissions(from.join(name), PermissionsExt::from_mode(0o640)).unwrap();
    }
    // Large enough that the test can look at the worker meanwhile.
    file(&from.join("slow"), &vec![1; 2 << 20]);
    let mut spec = spec("rights", &from, &dir.join("to"), What::Directory);
    spec.options.rate = 2 << 20;
    let groups: Vec<u32> = (5001..=5020).collect();
    let identity = Identity::numeric(4321, 4321, groups);
    let mut guard = Guard::start(top.path(), &spec, Action::Run, identity);
    guard.wait_for("progress", |status| status.progress.is_some());
    // The C library blocks all signals for a moment while it starts a thread.
    let mut seen = guard.proc_status();
    for _ in 0..100 {
        if seen["SigBlk"] == "0000000000000000" {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        seen = guard.proc_status();
    }
    let pid = guard.worker.pid();
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let fds: Vec<_> = fds
        .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
        .filter(|path| !path.starts_with(top.path()))
        .collect();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let owner = std::fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid();
    let report = guard.report();
    assert_eq!(seen["Uid"], "4321\t4321\t4321\t4321");
    assert_eq!(seen["Gid"], "4321\t4321\t4321\t4321");
    assert_eq!(seen["Groups"].split(' ').count(), 20);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(seen[set], "0000000000000000", "{set}");
    }
    assert_eq!((seen["NoNewPrivs"].as_str(), seen["SigBlk"].as_str()), ("1", "0000000000000000"));
    assert_eq!(seen["Umask"], "0077");
    assert_eq!(owner, 0, "a process that is not dumpable belongs to root");
    let foreign: Vec<_> = fds
        .iter()
        .filter(|path| {
            !path.starts_with("/dev/null") && !path.to_string_lossy().starts_with("/memfd:order")
        })
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert_eq!(environment, b"LANG=C.UTF-8\0PATH=/usr/bin:/bin\0");
    // As on a store where root is squashed: the unreadable file fails, the others are copied.
    assert_eq!((report.failed, report.files), (1, 4), "{report:#?}");
    assert_eq!(report.failures[0].path.0, Path::new("closed"));
    assert_eq!(report.failures[0].reason, Reason::Denied);
    for name in ["open", "by first group", "by last group", "slow"] {
        assert_eq!(std::fs::metadata(dir.join("to").join(name)).unwrap().uid(), 4321, "{name}");
    }
    assert!(!dir.join("to/closed").exists());
}

/// The user could attack the program in the time before it closes itself.
#[test]
fn a_worker_is_closed_to_its_user_from_the_first_moment() {
    let top = scratch();
    let status = File::create(top.path().join("status")).unwrap();
    let launch = Launch {
        program: Program { path: "/bin/sleep".into(), args: vec!["60".into()] },
        order: Order {
            action: Action::Run,
            spec: spec("s", top.path(), &top.path().join("to"), What::Directory),
            every_ms: None,
        },
        identity: Identity::numeric(4321, 4321, vec![4321]),
        status: status.try_clone().unwrap().into(),
        errors: None,
        cgroup: None,
        nice: 5,
    };
    let guard = Guard { worker: launch.start().unwrap(), status };
    let environment = format!("/proc/{}/environ", guard.worker.pid());
    assert_eq!(std::fs::metadata(environment).unwrap().uid(), 0, "it can be traced by 4321");
    assert!(guard.proc_status()["Gid"].ends_with("4321\t4321\t4321"));
}

#[test]
fn an_account_that_is_not_there_or_has_expired_is_named() {
    let error = Identity::of_account(3_999_999_999).unwrap_err().to_string();
    assert!(error.contains("3999999999") && error.contains("no account"), "{error}");
    let account = Account::add();
    let identity = Identity::of_account(account.uid).unwrap();
    assert!(identity.groups.len() >= 20, "{identity:?}");
    account.tool("chage", &["-E", "1"]);
    let error = Identity::of_account(account.uid).unwrap_err().to_string();
    assert!(error.contains("fbstagetest") && error.contains("expired"), "{error}");
}

/// An account with twenty groups, which is removed even if the test fails.
struct Account {
    uid: u32,
    groups: Vec<String>,
}

impl Account {
    fn add() -> Account {
        let groups: Vec<String> = (0..20).map(|n| format!("fbstagetest{n}")).collect();
        let mut account = Account { uid: 0, groups };
        for group in &account.groups {
            run("groupadd", &[group]);
        }
        let groups = account.groups.join(",");
        run("useradd", &["--no-create-home", "--groups", &groups, "fbstagetest"]);
        let user = forebay_base::users::User::named("fbstagetest").unwrap();
        account.uid = user.expect("it was just added").uid;
        account
    }

    fn tool(&self, tool: &str, args: &[&str]) {
        let mut args = args.to_vec();
        args.push("fbstagetest");
        run(tool, &args);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let quiet = |tool: &str, name: &str| {
            _ = std::process::Command::new(tool).arg(name).output();
        };
        quiet("userdel", "fbstagetest");
        self.groups.iter().for_each(|group| quiet("groupdel", group));
    }
}

fn run(tool: &str, args: &[&str]) {
    let output = std::process::Command::new(tool).args(args).output().unwrap();
    assert!(output.status.success(), "{tool} {args:?}: {output:?}");
}

/// After a stop no partial file has a final name; after a clean nothing is left at all.
#[test]
fn a_cancelled_transfer_leaves_nothing_behind() {
    for existing in [false, true] {
        let top = scratch();
        let (from, to) = (top.path().join("from"), top.path().join("to"));
        std::fs::create_dir_all(from.join("sub")).unwrap();
        if existing {
            std::fs::create_dir_all(to.join("sub")).unwrap();
        }
        for number in 0..200 {
            file(&from.join(format!("sub/{number}")), &[7; 100_000]);
        }
        file(&from.join("large"), &Rng::new(1).bytes(100 << 20));
        let mut spec = spec("cancel", &from, &to, What::Directory);
        spec.options.rate = 40 << 20;
        let mut guard = Guard::start(top.path(), &spec, Action::Run, root());
        let some =
            |status: &Status| status.progress.as_ref().is_some_and(|p| p.bytes_done > 9 << 20);
        guard.wait_for("progress", some);
        let adopted = Worker::find(guard.worker.pid(), guard.worker.began()).unwrap();
        adopted.expect("it runs").stop().unwrap();
        let report = guard.report();
        assert_eq!(report.outcome, Outcome::Stopped, "{report:#?}");
        assert!(report.left_files > 0 && report.left_bytes > 50 << 20, "{report:#?}");
        let listed: u64 = report.left.iter().map(|left| left.bytes).sum();
        assert_eq!((report.left.len() as u64, listed), (report.left_files, report.left_bytes));
        assert!(!left_over(top.path()).is_empty(), "a run could go on");
        let ending = Guard::start(top.path(), &spec, Action::Clean, root()).end();
        assert_eq!(ending, Ending::Cleaned);
        assert!(left_over(top.path()).is_empty(), "{:?}", left_over(top.path()));
        assert_eq!(to.exists(), existing);
    }
}

/// A user who may not write to the destination gets the reason and a remedy; the error does not name the journal.
#[test]
fn a_destination_that_is_not_writable_is_told_with_the_remedy() {
    let top = scratch();
    let (from, closed) = (top.path().join("from"), top.path().join("closed"));
    open_dir(&from, 4321);
    open_dir(&closed, 0);
    file(&from.join("f"), b"1");
    for (source, what) in [(from.clone(), What::Directory), (from.join("f"), What::File)] {
        let spec = spec("denied", &source, &closed.join("to"), what);
        let identity = Identity::numeric(4321, 4321, Vec::new());
        let ending = Guard::start(top.path(), &spec, Action::Run, identity).end();
        let Ending::Error(_, text) = ending else { panic!("{ending:?}") };
        let directory = format!("directory {} is not writable for user 4321", closed.display());
        assert!(text.contains(&directory) && text.contains("setfacl"), "{text}");
        assert!(!text.contains("journal"), "{text}");
    }
}

#[test]
fn an_order_that_cannot_be_is_refused_with_its_reason() {
    let top = scratch();
    let mut none = spec("none", &top.path().join("no/from"), &top.path().join("to"), What::File);
    let ending = Guard::start(top.path(), &none, Action::Run, root()).end();
    let Ending::Error(1, text) = ending else { panic!("{ending:?}") };
    assert!(text.contains("no") && text.contains("No such file"), "{text}");
    none.options.threads = 0;
    let status = File::create(top.path().join("other")).unwrap();
    let launch = Launch {
        program: Program::this(&[]),
        order: Order { action: Action::Run, spec: none, every_ms: None },
        identity: root(),
        status: status.into(),
        errors: None,
        cgroup: None,
        nice: 0,
    };
    assert!(launch.start().unwrap_err().to_string().contains("threads"));
}
