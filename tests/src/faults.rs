//! The rules file of the fault wrapper around a backing store (`--fault FILE`).

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::bed::Bed;

pub struct Faults(PathBuf);

impl Faults {
    pub fn none(bed: &Bed) -> Faults {
        let faults = Faults(bed.root.join("faults.json"));
        faults.clear();
        faults
    }

    /// The flag for `forebay mount`.
    pub fn path(&self) -> &str {
        self.0.to_str().expect("plain path")
    }

    pub fn set(&self, rules: Value) {
        let text = json!({ "rules": rules }).to_string();
        // Written aside and renamed: the daemon never reads half a file.
        let aside = self.0.with_extension("new");
        std::fs::write(&aside, text).expect("rules file");
        std::fs::rename(&aside, &self.0).expect("rules file");
    }

    pub fn clear(&self) {
        self.set(json!([]));
    }

    /// The store does not answer any call.
    pub fn gone(&self) {
        self.set(json!([{ "op": "any", "fail": "gone" }]));
    }

    /// Every call waits for an hour, or until the rules change.
    pub fn stalled(&self) {
        self.set(json!([{ "op": "any", "stall_ms": 3_600_000 }]));
    }

    /// One operation fails with an errno.
    pub fn fail(&self, op: &str, errno: &str) {
        self.set(json!([{ "op": op, "fail": errno }]));
    }
}
