//! Three members, one of which is killed and another one stopped while all are busy: the promises for
//! an answered commit (R3), for watches (R4) and for a kept lease (R5) hold.

use std::sync::Mutex;

use serde_json::json;

use super::server::{Server, address_of, start_cluster};
use super::*;
use crate::{Compare, Lease};

const WRITERS: usize = 8;

/// A call that meets the stopped member asks the next one after half of this.
const WRITERS_PATIENCE: Duration = Duration::from_secs(6);

/// A watch whose member is silent for this long checks whether that member still hears from the others.
const WATCHES_PATIENCE: Duration = Duration::from_secs(2);

/// The time of the lease of a member of the cache.
const TTL: Duration = Duration::from_secs(10);

const LEASED: &str = "held";
const END: &str = "the-end";

/// A commit that was answered.
struct Made {
    began: Instant,
    ended: Instant,
    revision: Revision,
    puts: Vec<(String, String)>,
}

/// The activity while members come and go.
#[derive(Default)]
struct Busy {
    done: AtomicBool,
    made: AtomicUsize,
    /// When each watch last reported a change.
    heard: [Mutex<Option<Instant>>; 3],
}

/// Ends the activity, also if the test fails.
struct Ends<'b>(&'b Busy);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, SeqCst);
    }
}

impl Busy {
    /// Waits for `count` more commits.
    fn goes_on(&self, count: usize) {
        let before = self.made.load(SeqCst);
        eventually("commits go on", || self.made.load(SeqCst) >= before + count);
    }

    fn all_heard_since(&self, when: Instant) -> bool {
        let since = |heard: &Mutex<Option<Instant>>| *lock(heard) > Some(when);
        self.heard.iter().all(since)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no thread has failed")
}

#[test]
fn nothing_is_lost_or_doubled_when_a_leader_is_killed_and_the_next_is_stopped() {
    let Some(mut members) = start_cluster(3, &[]) else { return };
    let began = Instant::now();
    let open = |first: usize, patience| {
        at(&address_of(&members, first), patience).expect("the address is right")
    };
    let registries: Vec<Etcd> = (0..WRITERS).map(|w| open(w % 3, WRITERS_PATIENCE)).collect();
    let holder = open(0, crate::PATIENCE);
    let lease = holder.lease(TTL).expect("a lease is granted");
    let put = holder.commit(&Commit::new().put_leased(LEASED, "", lease.id()));
    let after = put.expect("it answers").committed().expect("nothing was compared");
    let watching: Vec<Etcd> = (0..3).map(|first| open(first, WATCHES_PATIENCE)).collect();
    let busy = Busy::default();
    let (made, told, least) = std::thread::scope(|scope| {
        let ends = Ends(&busy);
        let watches: Vec<_> = watching
            .iter()
            .zip(&busy.heard)
            .map(|(registry, heard)| {
                let busy = &busy;
                scope.spawn(move || follow(registry, after, busy, heard))
            })
            .collect();
        let writers: Vec<_> = (registries.iter().enumerate())
            .map(|(writer, registry)| {
                let busy = &busy;
                scope.spawn(move || write(registry, writer, busy))
            })
            .collect();
        let least = scope.spawn(|| least_remaining(&*lease, &busy.done));

        busy.goes_on(100);
        let killed = kill_the_leader(&mut members, &busy);
        stop_the_leader(&members, &busy);

        drop(ends);
        let made = writers.into_iter().flat_map(|w| w.join().expect("no writer fails"));
        let made: Vec<Made> = made.collect();
        let caught = made.iter().filter(|m| m.began < killed.0 && m.ended > killed.1).count();
        assert!(caught > 0, "commits were under way when the leader was killed");
        holder.commit(&Commit::new().put(END, "")).expect("it answers");
        let told = watches.into_iter().map(|w| w.join().expect("no watch fails"));
        let told: Vec<Vec<Event>> = told.collect();
        eprintln!("{} commits, {caught} of them met the kill", made.len());
        (made, told, least.join().expect("it only looks"))
    });
    let (held, _) = holder.get(LEASED).expect("it answers");
    assert_eq!(held.map(|entry| entry.revision), Some(after), "R5: the holder lives");
    assert!(!lease.is_gone() && !least.is_zero(), "R5: the holder was always sure of it");
    assert_whole(&holder, made, &told);
    eprintln!("of {TTL:?} at least {least:?} were left, {:?} in all", began.elapsed());
}

/// Kills the leader; returns two moments that enclose the kill.
fn kill_the_leader(members: &mut [Server], busy: &Busy) -> (Instant, Instant) {
    let (leader, term) = leader(members, &[0, 1, 2], None);
    let sent = Instant::now();
    members[leader].kill();
    let killed = (sent, Instant::now());
    busy.goes_on(100);
    let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
    self::leader(members, &others, Some(term));
    members[leader].run();
    until_up(&members[leader].open(""));
    killed
}

/// Stops the leader until writers and watches have gone on without it. It wakes up with requests that
/// were repeated elsewhere long ago.
fn stop_the_leader(members: &[Server], busy: &Busy) {
    let (leader, term) = leader(members, &[0, 1, 2], None);
    members[leader].stop();
    let stopped = Instant::now();
    let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
    self::leader(members, &others, Some(term));
    let elected = Instant::now();
    busy.goes_on(100);
    eventually("watches leave a member that is stopped", || busy.all_heard_since(elected));
    eprintln!("one was stopped for {:?}", stopped.elapsed());
    members[leader].signal(libc::SIGCONT);
    until_up(&members[leader].open(""));
    busy.goes_on(100);
}

/// The leader among `among`, once all of them agree on it, and its term, which is later than `before`.
/// Members report a leader before they report its term.
fn leader(members: &[Server], among: &[usize], before: Option<u64>) -> (usize, u64) {
    let mut found = None;
    eventually("there is a leader", || {
        let told: Vec<_> = among.iter().map(|member| status(&members[*member])).collect();
        let led = told.iter().position(|(id, leader, _)| id == leader);
        let agreed = told.windows(2).all(|two| two[0].1 == two[1].1 && two[0].2 == two[1].2);
        let later = |at: &usize| agreed && Some(told[*at].2) > before;
        found = led.filter(later).map(|at| (among[at], told[at].2));
        found.is_some()
    });
    found.expect("it was just found")
}

/// The id of a member, the id of its leader, and the term.
fn status(member: &Server) -> (String, String, u64) {
    let told = member.admin("/v3/maintenance/status", &json!({}));
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
    let term = text(&told["raftTerm"]).parse().expect("a term is a number");
    (text(&told["header"]["member_id"]), text(&told["leader"]), term)
}

/// Counts up, one commit after the other: a counter that is compared, then one that is only put, which
/// a late request would set back.
fn write(registry: &Etcd, writer: usize, busy: &Busy) -> Vec<Made> {
    let mut made: Vec<Made> = Vec::new();
    let mut counted = None;
    while !busy.done.load(SeqCst) {
        let n = made.len();
        let compared = n.is_multiple_of(2);
        let name = if compared { "compared" } else { "put" };
        let (key, log) = (format!("{name}/{writer}"), format!("log/{writer}-{n:05}"));
        let mut commit = Commit::new().put(&key, n.to_string()).put(&log, "");
        if compared {
            commit.compares.push(match counted {
                None => Compare::Absent(key.clone()),
                Some(revision) => Compare::Revision(key.clone(), revision),
            });
        }
        let began = Instant::now();
        let outcome = registry.commit(&commit).expect("one member is away at most");
        let revision = outcome.committed().expect("R2: nobody else changes what it compares");
        if compared {
            counted = Some(revision);
        }
        let puts = vec![(key, n.to_string()), (log, String::new())];
        made.push(Made { began, ended: Instant::now(), revision, puts });
        busy.made.fetch_add(1, SeqCst);
    }
    made
}

/// All changes that a watch reports until [`END`].
fn follow(
    registry: &Etcd,
    after: Revision,
    busy: &Busy,
    heard: &Mutex<Option<Instant>>,
) -> Vec<Event> {
    let mut watch = registry.watch("", after).expect("a watch can begin");
    let (mut ended, mut all) = (None, Vec::new());
    loop {
        if busy.done.load(SeqCst) {
            let ended = ended.get_or_insert_with(Instant::now);
            assert!(ended.elapsed() < suite::SOON, "R4: told of everything");
        }
        match watch.next(Duration::from_millis(100)) {
            Ok(Seen::Changes(events)) => all.extend(events.changes),
            Ok(Seen::Quiet) => continue,
            Ok(Seen::Compacted(upto)) => panic!("R4: nobody has compacted, but {upto} is gone"),
            Err(error) => {
                assert_eq!(error.kind(), Kind::TimedOut, "{error}");
                continue;
            }
        }
        *lock(heard) = Some(Instant::now());
        if all.last().is_some_and(|event| event.key() == END) {
            all.pop();
            return all;
        }
    }
}

/// The least remaining time that the holder was sure of.
fn least_remaining(lease: &dyn Lease, done: &AtomicBool) -> Duration {
    let mut least = TTL;
    while !done.load(SeqCst) {
        least = least.min(lease.remaining());
        std::thread::sleep(Duration::from_millis(20));
    }
    least
}

/// Every answered commit happened once, and nothing else did; watches reported exactly that, in order.
fn assert_whole(registry: &Etcd, mut made: Vec<Made>, told: &[Vec<Event>]) {
    made.sort_by_key(|made| made.revision);
    assert!(made.windows(2).all(|two| two[0].revision < two[1].revision), "R1");
    let puts = made.iter().flat_map(|made| made.puts.iter().map(|put| (put, made.revision)));
    let entry = |((key, value), revision): (&(String, String), Revision)| Entry {
        key: key.clone(),
        value: value.clone().into_bytes(),
        revision,
        lease: None,
    };
    let expected: Vec<Entry> = puts.map(entry).collect();
    for told in told {
        let mut pairs = told.iter().zip(&expected);
        let other = pairs.find(|(told, put)| **told != Event::Put((*put).clone()));
        assert_eq!(other, None, "R4: each once, in order");
        assert_eq!(told.len(), expected.len(), "R4: none is missed, and none is added");
    }
    let mut last: std::collections::BTreeMap<&str, &Entry> = std::collections::BTreeMap::new();
    last.extend(expected.iter().map(|entry| (entry.key.as_str(), entry)));
    let (mut there, _) = registry.range("").expect("it answers");
    there.retain(|entry| ![LEASED, END].contains(&entry.key.as_str()));
    assert_eq!(there.len(), last.len(), "R3: none is missing, and none is added");
    assert!(there.iter().eq(last.into_values()), "R3: each as it was last put");
}
