//! Jobs as a scheduler's hooks order them: what happens while one of their steps is under way.

use std::cell::RefCell;

use forebay_job::plan::{Plan, Space};

use super::*;
use crate::job::{Eyes, Jobs, NewJob};

/// Runs an action while a backing store is looked at.
struct Meanwhile<'a>(RefCell<Option<Box<dyn FnOnce() + 'a>>>);

impl<'a> Meanwhile<'a> {
    fn nothing() -> Meanwhile<'a> {
        Meanwhile(RefCell::default())
    }
}

impl Eyes for Meanwhile<'_> {
    fn source(&self, _: Owner, _: &Path) -> std::io::Result<()> {
        Ok(())
    }

    fn backing(&self, _: Owner, path: &Path, _: &BTreeMap<String, String>) -> Result<Backing> {
        if let Some(happens) = self.0.take() {
            happens();
        }
        let on = FileSystem { kind: "x".into(), source: "x".into(), at: "/".into() };
        Ok(Backing { path: path.into(), on, settings: BTreeMap::new() })
    }
}

impl Bed {
    /// A node that a scheduler's hooks ask.
    fn scheduling(&self) -> Arc<Node> {
        let at = |what: &str| self.dir.path().join(what).display().to_string();
        let table = format!(
            "[scheduler]\ncluster = \"c\"\nuser = \"root\"\nspool = \"{}\"\nlogs = \"{}\"\n",
            at("spool"),
            at("logs")
        );
        self.node_of(self.config("n1", &table))
    }
}

fn jobs<'a>(node: &'a Node, desk: &'a crate::desk::Desk, eyes: &'a dyn Eyes) -> Jobs<'a> {
    Jobs { book: node.book(), desk, scheduler: &node.scheduler().unwrap().config, eyes }
}

fn with_a_cache(id: &str) -> NewJob {
    let cache = Space {
        name: "cache".into(),
        mode: Mode::Cache,
        pool: None,
        bytes: 8 << 20,
        total: None,
        backing: Some("/pfs".into()),
        settings: BTreeMap::new(),
        fs: None,
        variables: Vec::new(),
        line: 1,
    };
    let plan = Plan { instances: vec![cache], ..Plan::default() };
    NewJob { id: id.into(), owner: Owner { uid: USER.uid, gid: USER.gid }, plan, pool: None }
}

fn key(id: &str) -> JobKey {
    JobKey { cluster: "c".into(), id: id.into(), incarnation: 1 }
}

/// Method: the job is cancelled, and forgotten, while its pre-run looks at the backing store.
#[test]
fn a_pre_run_that_was_overtaken_makes_nothing() {
    for forgotten in [false, true] {
        let bed = Bed::new();
        let node = bed.scheduling();
        let desk = node.desk();
        let nothing = Meanwhile::nothing();
        let others = jobs(&node, &desk, &nothing);
        let cancel = || {
            others.tear_down("17", Hurry::No).unwrap();
            if forgotten {
                tidy(node.book(), &desk, node.scheduler().unwrap()).unwrap();
                assert_eq!(others.find("17").unwrap(), None);
            }
        };
        let eyes = Meanwhile(RefCell::new(Some(Box::new(cancel))));
        let hooks = jobs(&node, &desk, &eyes);
        assert!(matches!(hooks.set_up(&with_a_cache("17")), Ok(Answer::Done(_))));
        let refused = hooks.pre_run("17", &["n1".into()]).unwrap_err().to_string();
        assert!(refused.contains("job 17"), "{refused}");
        assert_eq!(desk.instances().unwrap(), [], "forgotten: {forgotten}");
    }
}

#[test]
fn a_job_that_is_being_ended_is_ordered_nothing_for_its_run() {
    let bed = Bed::new();
    let node = bed.scheduling();
    let (desk, eyes) = (node.desk(), Meanwhile::nothing());
    let hooks = jobs(&node, &desk, &eyes);
    hooks.set_up(&with_a_cache("17")).unwrap();
    let waits = hooks.pre_run("17", &["n1".into()]).unwrap();
    assert!(matches!(waits, Answer::Wait(_)), "{waits:?}");
    let made = desk.instance("job-17-cache").unwrap();
    let out = |when| {
        let of_job = Some(OfJob { job: key("17"), id: format!("job-17-t{when:?}") });
        let source = made.mountpoint.as_ref().unwrap().join("r");
        NewTransfer { of_job, source, when, ..out_of(&made, "r") }
    };
    let record = keys::job(&key("17"));
    let open: Job = node.book().read(&record).unwrap().unwrap();
    // As the first step of a teardown, which then calls off the orders.
    node.book().put(&record, &Job { ending: Some(now()), ..open }).unwrap();
    desk.destroy(&made.id, ROOT, Want::Gone).unwrap();
    let refused = desk.transfer(&out(When::AtEnd), USER).unwrap_err().to_string();
    assert!(refused.contains("has ended"), "{refused}");
    desk.transfer(&out(When::Now), USER).expect("what is brought home when a job has ended");
    hooks.set_up(&with_a_cache("17")).unwrap();
    let again = hooks.find("17").unwrap().unwrap();
    assert_eq!((again.key.incarnation, again.phase), (2, Phase::SetUp), "a run of its own");
    hooks.tear_down("17", Hurry::No).unwrap();
    let ended = hooks.find("17").unwrap().unwrap();
    assert!(ended.ending.is_some(), "{ended:?}");
}

#[test]
fn an_instance_of_a_job_that_nobody_knows_goes_and_no_other() {
    let bed = Bed::new();
    let node = bed.scheduling();
    let (desk, eyes) = (node.desk(), Meanwhile::nothing());
    let hooks = jobs(&node, &desk, &eyes);
    for id in ["17", "18"] {
        hooks.set_up(&with_a_cache(id)).unwrap();
        hooks.pre_run(id, &["n1".into()]).unwrap();
    }
    let made = desk.instance("job-17-cache").unwrap();
    let elsewhere = JobKey { cluster: "d".into(), ..key("19") };
    let theirs = Instance { id: "job-19-x".into(), life: Life::Job(elsewhere), ..made.clone() };
    node.book().put(&keys::wanted_instance(&theirs.id), &theirs).unwrap();
    node.book().delete(&keys::job(&key("17"))).unwrap();
    tidy(node.book(), &desk, node.scheduler().unwrap()).unwrap();
    let wanted = |id: &str| node.wanted(id).unwrap().want;
    let all = ["job-17-cache", "job-18-cache", "job-19-x"].map(wanted);
    assert_eq!(all, [Want::Gone, Want::Here, Want::Here]);
}

/// A job's epilog is waited for as long as configured, whatever the clock does meanwhile.
#[test]
fn no_job_is_taken_for_released_by_a_clock_that_has_jumped() {
    let bed = Bed::new();
    let node = bed.scheduling();
    let (desk, eyes) = (node.desk(), Meanwhile::nothing());
    let hooks = jobs(&node, &desk, &eyes);
    hooks.set_up(&with_a_cache("17")).unwrap();
    hooks.pre_run("17", &["n1".into()]).unwrap();
    let ended = || hooks.post_run("17", crate::job::Ended::Success).unwrap();
    let waits = Answer::Wait("for the epilog of node n1".into());
    assert_eq!(ended(), waits);
    node.clock.jumped.store(7 * 24 * 60 * 60, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(ended(), waits);
}
