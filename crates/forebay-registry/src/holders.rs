//! Leases whose holder is stopped or killed, in each registry: R5.
//!
//! The holder is a process of its own: this test program, told by a variable to act as the holder.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::etcd::tests::server;
use crate::suite::eventually;
use crate::{Commit, Registry, open};

const VARIABLE: &str = "FOREBAY_TEST_HOLDS";

const TTL: Duration = Duration::from_secs(4);

const KEY: &str = "holder";

/// Takes a lease, puts a key with it, and answers each line of input with its view of the lease.
#[test]
#[ignore = "the process that other tests start"]
fn hold() {
    let address = std::env::var(VARIABLE).expect("a test has started it");
    let registry = open(&address).expect("it is there");
    let lease = registry.lease(TTL).expect("a lease is granted");
    let commit = Commit::new().put_leased(KEY, "", lease.id());
    registry.commit(&commit).expect("it answers");
    say("held");
    for _ in std::io::stdin().lock().lines() {
        let left = lease.remaining();
        let there = registry.get(KEY).expect("it answers").0.is_some();
        let mut before = left;
        eventually("it is renewed, or gone", || {
            let now = lease.remaining();
            let rises = now > std::mem::replace(&mut before, now);
            rises || lease.is_gone()
        });
        say(&format!("left {} there {there} gone {}", left.as_millis(), lease.is_gone()));
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {line}").and_then(|()| out.flush()).expect("the test listens");
}

struct Holder {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Holder {
    fn start(address: &str) -> Holder {
        let child = Command::new(std::env::current_exe().expect("this is a program"))
            .args(["holders::hold", "--exact", "--ignored", "--nocapture"])
            .env(VARIABLE, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("it can be started");
        let to = child.stdin.take().expect("it is piped");
        let from = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut holder = Holder { child, to, from };
        assert_eq!(holder.hear(), "held");
        holder
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        while self.from.read_line(&mut line).expect("it can be read") > 0 {
            if let Some(told) = line.strip_prefix("> ") {
                return told.trim().to_string();
            }
            line.clear();
        }
        panic!("the holder has died");
    }

    fn ask(&mut self) -> String {
        writeln!(self.to).expect("it listens");
        self.hear()
    }

    fn signal(&self, signal: libc::c_int) {
        let id = i32::try_from(self.child.id()).expect("a pid");
        // SAFETY: sends a signal to a child of this process that was not waited for.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0, "the signal arrives");
    }

    fn kill(&mut self) {
        let _ = self.child.kill(); // The child may have died.
        let _ = self.child.wait();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_there(registry: &dyn Registry) -> bool {
    registry.get(KEY).expect("it answers").0.is_some()
}

/// The answer of a holder that was stopped for longer than its lease.
fn assert_gone(told: &str) {
    assert_eq!(told, "left 0 there false gone true", "R5");
}

fn assert_held(told: &str) {
    assert!(!told.starts_with("left 0 ") && told.ends_with("there true gone false"), "{told}");
}

#[test]
fn a_holder_of_etcd_that_is_stopped_has_lost_its_keys_and_knows_it() {
    let Some(server) = server::start(&[]) else { return };
    let registry = server.registry();
    let mut holder = Holder::start(&server.address(""));
    assert_held(&holder.ask());
    holder.signal(libc::SIGSTOP);
    let stopped = Instant::now();
    assert!(is_there(&*registry), "R5: not before its time");
    eventually("the keys vanish", || !is_there(&*registry));
    sleep((TTL + TTL / 4).saturating_sub(stopped.elapsed()));
    holder.signal(libc::SIGCONT);
    assert_gone(&holder.ask());
}

#[test]
fn a_holder_of_etcd_that_is_stopped_for_a_moment_keeps_its_keys() {
    let Some(server) = server::start(&[]) else { return };
    let mut holder = Holder::start(&server.address(""));
    holder.signal(libc::SIGSTOP);
    sleep(TTL / 8);
    holder.signal(libc::SIGCONT);
    assert_held(&holder.ask());
    sleep(TTL * 3 / 2);
    assert_held(&holder.ask());
}

#[test]
fn the_keys_of_a_holder_of_etcd_that_was_killed_vanish() {
    let Some(server) = server::start(&[]) else { return };
    let registry = server.registry();
    let mut holder = Holder::start(&server.address(""));
    holder.kill();
    assert!(is_there(&*registry), "R5: not before its time");
    eventually("the keys vanish", || !is_there(&*registry));
}

/// The process serves the registry itself: the stop of the holder stopped the registry, too.
#[test]
fn a_process_with_a_registry_that_was_stopped_has_lost_its_leases_and_knows_it() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let mut holder = Holder::start(&dir.path().display().to_string());
    assert_held(&holder.ask());
    holder.signal(libc::SIGSTOP);
    sleep(TTL + TTL / 4);
    holder.signal(libc::SIGCONT);
    assert_gone(&holder.ask());
}

/// R3, too: answered commits are there, and nothing blocks the next process.
#[test]
fn the_keys_of_a_process_with_a_registry_that_was_killed_vanish() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let address = dir.path().display().to_string();
    let mut holder = Holder::start(&address);
    holder.kill();
    let opened = Instant::now();
    let registry = open(&address).expect("it can be opened again");
    let there = is_there(&*registry);
    assert!(there || opened.elapsed() >= TTL, "R3: it was answered");
    eventually("the keys vanish", || !is_there(&*registry));
    assert!(opened.elapsed() >= TTL, "it had its whole time again");
}
