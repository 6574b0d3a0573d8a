//! The life of an instance whose node daemon dies at one step of it, and is replaced by another.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::node::Node;
use crate::wait::within;

const PATIENCE: Duration = Duration::from_secs(60);

/// A kind of instance, and the failpoints that its daemon passes.
pub struct Life {
    /// The words of `instance create` before its name.
    pub mode: &'static str,
    /// The words after the name.
    pub more: Vec<String>,
    pub making: &'static [&'static str],
    pub leaving: &'static [&'static str],
}

/// A test's checks beside the ledger.
pub trait Witness {
    /// Whether the instance exists and can be used: mounted, or on.
    fn is_there(&self, node: &Node) -> bool;

    /// Uses the instance, as a job does.
    fn used(&self, _: &Node) {}

    /// Checks the state after the instance is gone.
    fn gone(&self, _: &Node) {}
}

impl Life {
    /// Kills the daemon at each step; the next daemon completes a wanted instance, and removes an unwanted
    /// one. Returns the number of steps.
    pub fn killed_at_each_step(&self, laid: impl Fn() -> Node, witness: &dyn Witness) -> usize {
        for step in self.making {
            for wanted in [true, false] {
                self.dies_making(&mut laid(), step, wanted, witness);
            }
        }
        for step in self.leaving {
            self.dies_leaving(&mut laid(), step, witness);
        }
        self.making.len() * 2 + self.leaving.len()
    }

    /// Kills one daemon after the other at the next step of one life, each of which continues from where the
    /// last one stopped. `between` checks the instance that was made. Returns the number of steps.
    pub fn killed_on_its_way(
        &self,
        node: &mut Node,
        witness: &dyn Witness,
        between: impl FnOnce(&Node),
    ) -> usize {
        node.env("FOREBAY_FAILPOINTS", self.making[0]);
        node.up();
        self.create(node);
        node.died();
        self.making[1..].iter().for_each(|step| node.dies_at(step));
        node.env("FOREBAY_FAILPOINTS", self.leaving[0]);
        node.up();
        within(PATIENCE, self.mode, || witness.is_there(node));
        witness.used(node);
        between(node);
        node.forebay(&["instance", "destroy", "w", "--no-wait"]);
        node.died();
        self.leaving[1..].iter().for_each(|step| node.dies_at(step));
        node.env("FOREBAY_FAILPOINTS", "");
        node.up();
        node.assert_empty();
        witness.gone(node);
        self.making.len() + self.leaving.len()
    }

    fn create(&self, node: &Node) {
        let more: Vec<&str> = self.more.iter().map(String::as_str).collect();
        let args = ["instance", "create", self.mode, "w", "--no-wait"];
        node.forebay(&[&args[..], &more].concat());
    }

    fn dies_making(&self, node: &mut Node, step: &str, wanted: bool, witness: &dyn Witness) {
        node.env("FOREBAY_FAILPOINTS", step);
        node.up();
        self.create(node);
        node.died();
        node.env("FOREBAY_FAILPOINTS", "");
        node.up();
        let what = format!("{} killed at {step}", self.mode);
        if wanted {
            within(PATIENCE, &what, || state(node) == "ready" && witness.is_there(node));
            assert_sums(node, &what);
            witness.used(node);
        }
        destroyed(node, &what, witness);
    }

    fn dies_leaving(&self, node: &mut Node, step: &str, witness: &dyn Witness) {
        let what = format!("{} killed at {step}", self.mode);
        node.env("FOREBAY_FAILPOINTS", step);
        node.up();
        self.create(node);
        within(PATIENCE, &what, || state(node) == "ready" && witness.is_there(node));
        witness.used(node);
        node.forebay(&["instance", "destroy", "w", "--no-wait"]);
        node.died();
        node.env("FOREBAY_FAILPOINTS", "");
        node.up();
        destroyed(node, &what, witness);
    }
}

fn state(node: &Node) -> String {
    let shown = node.forebay(&["instance", "show", "w", "--json"]).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
    shown["actual"][&node.name]["state"].as_str().unwrap_or_default().to_string()
}

/// Asks once more and waits; room is free only when nothing takes it any more.
fn destroyed(node: &Node, what: &str, witness: &dyn Witness) {
    // The instance may be gone by now.
    node.forebay(&["instance", "destroy", "w", "--no-wait"]);
    within(PATIENCE, what, || {
        let pool = assert_sums(node, what);
        let gone = pool["granted"] == 0;
        let left = if gone { node.in_pool() } else { Vec::new() };
        assert!(left.is_empty(), "{what}: its room is free, and {left:?} are there");
        gone
    });
    node.assert_empty();
    witness.gone(node);
}

#[track_caller]
fn assert_sums(node: &Node, what: &str) -> Value {
    let pool = node.json(&["pools"])[0].clone();
    let bytes = |key: &str| pool[key].as_u64().unwrap();
    assert_eq!(bytes("granted") + bytes("free"), bytes("capacity"), "{what}: {pool}");
    pool
}

/// An instance that is mounted at its place.
pub struct Mounted;

impl Witness for Mounted {
    fn is_there(&self, node: &Node) -> bool {
        crate::images::mounted_at(&node.at("w")).is_some()
    }

    fn used(&self, node: &Node) {
        std::fs::write(node.at("w").join("file"), "bytes").expect("it can be written to");
    }
}

/// A mounted cache, whose bytes are on its backing store when it is gone.
pub struct Cache(pub PathBuf);

impl Witness for Cache {
    fn is_there(&self, node: &Node) -> bool {
        Mounted.is_there(node)
    }

    fn used(&self, node: &Node) {
        Mounted.used(node);
        std::fs::write(node.root.join("used"), "").expect("it is ours");
    }

    fn gone(&self, node: &Node) {
        if node.root.join("used").exists() {
            let home = std::fs::read(self.0.join("file"));
            assert_eq!(home.expect("it is home"), b"bytes");
        }
    }
}

/// An instance in use as swap.
pub struct Swap;

impl Swap {
    pub fn is_on(below: &Path) -> bool {
        let table = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        table.contains(crate::text(below))
    }
}

impl Witness for Swap {
    fn is_there(&self, node: &Node) -> bool {
        Swap::is_on(&node.root)
    }

    fn gone(&self, node: &Node) {
        assert!(!Swap::is_on(&node.root), "it was left on");
    }
}

pub fn swap() -> Life {
    Life {
        mode: "swap",
        more: ["--capacity", "8MiB"].map(String::from).to_vec(),
        making: &["swap-recorded", "swap-allocated", "swap-header", "swap-on", "tend-made"],
        leaving: &["swap-off", "remove-marked", "remove-forgotten", "tend-removed"],
    }
}
