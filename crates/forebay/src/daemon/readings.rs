//! Statistics over time: readings of all counters, kept for the last hour. The difference of two
//! readings is what happened between them.
//!
//! Counters are never set back: a reset remembers a reading, and a window is the difference to a
//! reading of about its age. So a counter that Prometheus reads never falls.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use forebay_backing::metrics::OpCounts;
use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_engine::Requests;
use serde_json::{Map, Value, json};

pub type Ops = BTreeMap<&'static str, OpCounts>;

/// All counters at one moment, or between two.
#[derive(Debug, Clone)]
pub struct Reading {
    pub at: Instant,
    /// The time over which they were counted.
    pub span: Duration,
    pub counters: BTreeMap<&'static str, u64>,
    pub fuse: Ops,
    pub tier: Ops,
    pub backing: Ops,
    /// The reads and writes of each rule.
    pub rules: BTreeMap<String, [Requests; 2]>,
}

/// A stretch of time up to now.
pub struct Window {
    pub name: &'static str,
    pub len: Duration,
}

pub const WINDOWS: [Window; 3] = [
    Window { name: "1min", len: Duration::from_secs(60) },
    Window { name: "5min", len: Duration::from_secs(300) },
    Window { name: "1h", len: Duration::from_secs(3600) },
];

/// The pause between two readings.
pub const READ_EVERY: Duration = Duration::from_secs(5);

/// Each ring keeps a reading when its spacing has passed; a ring covers its window.
const RINGS: [(Duration, usize); 3] =
    [(READ_EVERY, 14), (Duration::from_secs(30), 12), (Duration::from_secs(300), 14)];

/// Readings of the last hour, and the one of the last reset.
pub struct History(Mutex<Kept>);

impl Default for History {
    fn default() -> History {
        History(Mutex::new(Rank::DaemonNotes, Kept::default()))
    }
}

#[derive(Default)]
struct Kept {
    rings: [VecDeque<Reading>; 3],
    reset: Option<Reading>,
}

impl History {
    #[track_caller]
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock()
    }

    pub fn keep(&self, reading: &Reading) {
        let mut kept = self.kept();
        for (ring, (spacing, len)) in kept.rings.iter_mut().zip(RINGS) {
            // A tick that comes a little early still counts, so that its slot is not skipped.
            let due = |last: &Reading| reading.at - last.at + READ_EVERY / 2 >= spacing;
            if ring.back().is_none_or(due) {
                ring.push_back(reading.clone());
                ring.drain(..ring.len().saturating_sub(len));
            }
        }
    }

    pub fn reset(&self, reading: Reading) {
        self.kept().reset = Some(reading);
    }

    pub fn since_reset(&self, now: &Reading) -> Option<Reading> {
        self.kept().reset.as_ref().map(|reset| now.since(reset))
    }

    /// The activity in the window; since the mount if that is shorter.
    pub fn window(&self, window: &Window, now: &Reading) -> Reading {
        if now.span <= window.len {
            return now.clone();
        }
        let kept = self.kept();
        let age = |reading: &Reading| now.at - reading.at;
        let slack = READ_EVERY / 2;
        let old_enough = |reading: &&Reading| age(reading) + slack >= window.len;
        let all = || kept.rings.iter().flatten();
        // The youngest reading that covers the window; otherwise the oldest reading.
        let found = all()
            .filter(old_enough)
            .min_by_key(|reading| age(reading))
            .or_else(|| all().max_by_key(|reading| age(reading)));
        found.map_or_else(|| now.clone(), |before| now.since(before))
    }
}

impl Reading {
    pub fn since(&self, before: &Reading) -> Reading {
        let ops = |now: &Ops, before: &Ops| -> Ops {
            let since = |(name, counts): (&&'static str, &OpCounts)| {
                (*name, before.get(name).map_or_else(|| counts.clone(), |b| counts.since(b)))
            };
            now.iter().map(since).filter(|(_, counts)| counts.count() > 0).collect()
        };
        let counted = |(name, count): (&&'static str, &u64)| {
            (*name, count.saturating_sub(before.counters.get(name).copied().unwrap_or(0)))
        };
        let of_rule = |(name, now): (&String, &[Requests; 2])| {
            let before = before.rules.get(name).copied().unwrap_or_default();
            (name.clone(), [0, 1].map(|way| now[way].since(&before[way])))
        };
        Reading {
            at: self.at,
            span: self.at - before.at,
            rules: self.rules.iter().map(of_rule).collect(),
            counters: self.counters.iter().map(counted).collect(),
            fuse: ops(&self.fuse, &before.fuse),
            tier: ops(&self.tier, &before.tier),
            backing: ops(&self.backing, &before.backing),
        }
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Bypasses of a direction (`read`, `write`) with their reasons.
    pub fn bypasses(&self, direction: &str) -> Vec<(String, u64)> {
        let prefix = format!("{direction}_bypass_");
        let named = |(name, count): (&&'static str, &u64)| {
            Some((name.strip_prefix(&prefix)?.replace('_', "-"), *count))
        };
        self.counters.iter().filter_map(named).collect()
    }

    /// Bytes written to the fast tier for each byte that it took in; 0 before the first.
    pub fn write_amplification(&self) -> f64 {
        let written =
            self.counter("write_bytes").saturating_sub(self.counter("write_around_bytes"));
        let taken = written + self.counter("fill_bytes");
        let written = self.tier.get("write").map_or(0, |op| op.bytes);
        if taken == 0 { 0.0 } else { (written as f64 / taken as f64 * 1000.0).round() / 1000.0 }
    }

    pub fn to_json(&self) -> Value {
        let ops = |ops: &Ops| -> Map<String, Value> {
            let used = ops.iter().filter(|(_, counts)| counts.count() > 0);
            used.map(|(name, counts)| (name.to_string(), json!(counts.summary()))).collect()
        };
        let rules: Map<String, Value> = self
            .rules
            .iter()
            .map(|(name, [reads, writes])| (name.clone(), rule_requests(reads, writes)))
            .collect();
        json!({
            "rules": rules,
            "span_secs": (self.span.as_secs_f64() * 10.0).round() / 10.0,
            "requests": { "read": self.requests("read"), "write": self.requests("write") },
            "bytes": {
                "to_programs": self.counter("read_bytes") + self.counter("read_uncached_bytes"),
                "from_programs": self.counter("write_bytes"),
                "passthrough_new": self.counter("passthrough_new_bytes"),
                "tier_device_read": self.counters.get("tier_device_read_bytes"),
                "tier_device_written": self.counters.get("tier_device_written_bytes"),
                "from_backing": self.backing.get("read_at").map_or(0, |op| op.bytes),
                "to_backing": self.backing.get("write_at").map_or(0, |op| op.bytes),
                "from_tier": self.tier.get("read").map_or(0, |op| op.bytes),
                "to_tier": self.tier.get("write").map_or(0, |op| op.bytes),
            },
            "tier_write_amplification": self.write_amplification(),
            "counters": self.counters,
            "fuse": ops(&self.fuse),
            "tier": ops(&self.tier),
            "backing": ops(&self.backing),
        })
    }

    fn requests(&self, direction: &str) -> Value {
        let count = |what: &str| self.counter(&format!("{direction}_{what}"));
        let reasons = self.bypasses(direction);
        let total: u64 = reasons.iter().map(|(_, count)| count).sum();
        let reasons: Map<String, Value> =
            reasons.into_iter().map(|(reason, count)| (reason, json!(count))).collect();
        let mut requests = json!({
            "total": count("requests"),
            "hits": count("hits"),
            "partial_hits": count("partial_hits"),
            "misses": count("misses"),
            "bypasses": total,
            "bypass_reasons": reasons,
        });
        if direction == "write" {
            requests["new"] = json!(count("new"));
        }
        requests
    }
}

pub fn rule_requests(reads: &Requests, writes: &Requests) -> Value {
    json!({ "requests": { "read": reads, "write": writes } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(start: Instant, secs: u64) -> Reading {
        let at = start + Duration::from_secs(secs);
        let counters = [("write_bytes", secs * 10), ("read_bypass_full", secs)].into();
        let (fuse, tier, backing) = Default::default();
        // The rule was removed and added again after an hour.
        let total = if secs < 3600 { secs * 3 } else { secs - 3600 };
        let rules = [("logs".into(), [Requests { total, ..Requests::default() }; 2])].into();
        Reading { at, span: at - start, counters, fuse, tier, backing, rules }
    }

    #[test]
    fn windows_are_as_long_as_they_say_and_the_rings_bounded() {
        let (history, start) = (History::default(), Instant::now());
        for secs in (0..10_000).step_by(5) {
            history.keep(&reading(start, secs));
        }
        let kept: usize = history.kept().rings.iter().map(VecDeque::len).sum();
        assert_eq!(kept, RINGS.iter().map(|(_, len)| len).sum::<usize>());
        let now = reading(start, 9_998);
        for (window, spacing) in WINDOWS.iter().zip([5.0, 30.0, 300.0]) {
            let found = history.window(window, &now);
            let (span, wanted) = (found.span.as_secs_f64(), window.len.as_secs_f64());
            assert!((wanted - 3.0..=wanted + spacing).contains(&span), "{}: {span}", window.name);
            assert_eq!(found.counter("write_bytes") as f64, span * 10.0);
        }
    }

    #[test]
    fn a_young_mount_has_no_more_than_it_has() {
        let (history, start) = (History::default(), Instant::now());
        let now = reading(start, 12);
        assert_eq!(history.window(&WINDOWS[0], &now).counter("write_bytes"), 120);
        assert!(history.since_reset(&now).is_none());
        history.reset(now);
        let later = history.since_reset(&reading(start, 20)).unwrap();
        assert_eq!((later.counter("write_bytes"), later.span.as_secs()), (80, 8));
        assert_eq!(later.bypasses("read"), [("full".to_string(), 8)]);
        assert_eq!(later.to_json()["requests"]["read"]["bypasses"], 8);
        assert_eq!(later.to_json()["rules"]["logs"]["requests"]["write"]["total"], 24);
        let another = history.since_reset(&reading(start, 3610)).unwrap();
        assert_eq!(another.rules["logs"][0].total, 10, "of the rule that has the name now");
    }
}
