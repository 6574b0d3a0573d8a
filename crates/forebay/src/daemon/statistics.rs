//! The daemon's figures: totals, windows, since the last reset, by user and process.

use std::sync::Arc;
use std::time::Instant;

use forebay_backing::{Error, Kind, Result};
use forebay_base::lock::sleep;
use forebay_engine::RuleUse;
use serde_json::{Map, Value, json};

use super::Daemon;
use super::readings::{READ_EVERY, Reading, WINDOWS, rule_requests};

/// The number of processes and files that are listed: the busiest.
const SHOWN: usize = 20;

/// The room of a rule's files in the tier, and how the requests of its handles were served.
pub fn rule_figures(used: &RuleUse) -> Value {
    json!({
        "used_bytes": used.used_bytes,
        "dirty_bytes": used.dirty_bytes,
        "quota_bytes": used.rule.quota,
        "requests": rule_requests(&used.reads, &used.writes)["requests"],
    })
}

impl Daemon {
    /// Takes a reading every few seconds, for the windows.
    pub fn keep_readings(self: &Arc<Daemon>) {
        let daemon = Arc::downgrade(self);
        super::spawn("statistics", move || {
            while let Some(daemon) = daemon.upgrade() {
                daemon.history.keep(&daemon.reading());
                drop(daemon);
                sleep(READ_EVERY);
            }
        });
    }

    pub fn reading(&self) -> Reading {
        let mut stats = self.engine.ops.stats();
        if let Some(moved) = self.device.moved() {
            stats.counters.insert("tier_device_read_bytes", moved.read);
            stats.counters.insert("tier_device_written_bytes", moved.written);
        }
        let fuse = self.mount.get().map(|mount| mount.op_counts()).unwrap_or_default();
        let rules = self.engine.room.rules().into_iter();
        Reading {
            at: Instant::now(),
            span: self.started.elapsed(),
            counters: stats.counters,
            fuse,
            tier: stats.tier,
            backing: self.meter.op_counts(),
            rules: rules.map(|used| (used.rule.name, [used.reads, used.writes])).collect(),
        }
    }

    /// All figures: the totals, and those of the windows.
    pub fn stats_json(&self) -> Value {
        let now = self.reading();
        let mut json = now.to_json();
        let windows = WINDOWS
            .iter()
            .map(|window| (window.name.to_string(), self.history.window(window, &now).to_json()));
        let windows: Map<String, Value> = windows.collect();
        json["uptime_secs"] = json!(self.started.elapsed().as_secs_f64());
        json["windows"] = Value::Object(windows);
        json["dirty_ages"] = json!(self.engine.drain.dirty_ages());
        json["users"] = json!(self.mount.get().map(|mount| mount.users()).unwrap_or_default());
        json["processes"] = self.processes_json();
        json["busiest_files"] = self.files_by_rate();
        let rules = self.engine.room.rules().into_iter();
        let rules = rules.map(|used| (used.rule.name.clone(), rule_figures(&used)));
        json["rules"] = Value::Object(rules.collect());
        json
    }

    /// `GET /v1/stats`: the totals, or the part of them that the query asks for.
    pub fn stats_of(&self, query: &[(String, String)]) -> Result<Value> {
        let asked = |name: &str| query.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let now = self.reading();
        match (asked("since"), asked("window")) {
            (None, None) => Ok(self.stats_json()),
            (Some("reset"), None) => {
                let never = "there was no reset since the mount: `forebay stats --reset` makes one";
                let never = || Error::new(Kind::Usage, never);
                self.history.since_reset(&now).map(|part| part.to_json()).ok_or_else(never)
            }
            (None, Some(name)) if let Some(window) = WINDOWS.iter().find(|w| w.name == name) => {
                Ok(self.history.window(window, &now).to_json())
            }
            (None, Some(name)) => {
                let [first, second, third] = WINDOWS.map(|window| window.name);
                let message = format!("--window {name}: choose {first}, {second} or {third}");
                Err(Error::new(Kind::Usage, message))
            }
            _ => Err(Error::new(Kind::Usage, "query: since=reset alone, or window= alone")),
        }
    }

    /// Restarts the counts of `since=reset`; the totals go on.
    pub fn reset_stats(&self) -> Value {
        self.history.reset(self.reading());
        json!({})
    }

    /// The figures of `forebay top`.
    pub fn top_json(&self) -> Value {
        let now = self.reading();
        let tunables = self.engine.files.tunables();
        let status = self.status_json();
        let marks = tunables.marks(status["tier_bytes"].as_u64().unwrap_or(0));
        json!({
            "marks": { "low": marks.low, "high": marks.high, "hard": marks.hard, "full": marks.full },
            "max_age_secs": tunables.max_age.as_secs_f64(),
            "status": status,
            "now": now.to_json(),
            "minute": self.history.window(&WINDOWS[0], &now).to_json(),
            "processes": self.processes_json(),
            "busiest_files": self.files_by_rate(),
            "jobs": self.jobs.views().iter().filter(|job| job.exit_code.is_none()).count(),
        })
    }

    fn processes_json(&self) -> Value {
        json!(self.mount.get().map(|mount| mount.processes(SHOWN)).unwrap_or_default())
    }

    fn files_by_rate(&self) -> Value {
        let files = self.engine.ops.busiest(SHOWN).into_iter();
        // JSON holds no path that is not UTF-8; a lossy path is good enough for people to read.
        let shown = files.map(|file| {
            json!({ "path": file.path.to_string_lossy(), "bytes_per_sec": file.bytes_per_sec })
        });
        shown.collect()
    }
}
