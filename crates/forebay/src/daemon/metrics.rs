//! `/metrics`: the figures of status and stats as Prometheus text (version 0.0.4). Names end in
//! their base unit, counters in `_total` behind it; every sample names its mount.
//! docs/OPERATING.md lists them.

use std::fmt::Write;
use std::path::Path;

use forebay_cluster::member::Member;
use forebay_engine::{AgeBucket, Attachment, RuleUse, Status};
use forebay_fuse::Used;
use forebay_registry::Health;
use serde_json::json;

use super::Daemon;
use super::readings::{Ops, Reading};
use crate::http::{Reply, Request};
use crate::registry_problems::problems_of;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counters that are reported with labels.
const LABELED: [&str; 2] = ["read_", "write_"];
const LABELED_WHAT: [&str; 5] = ["requests", "hits", "partial_hits", "misses", "new"];

impl Daemon {
    /// Answers on the TCP port, which serves the metrics alone.
    pub fn answer_metrics(&self, request: &Request) -> Reply {
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/metrics") => Reply::text(CONTENT_TYPE, self.metrics()),
            _ => Reply::new(404, json!({ "error": "only GET /metrics is served here" })),
        }
    }

    pub fn metrics(&self) -> String {
        let mut page = Page::of(&self.places.mountpoint);
        page.build_info();
        let status = self.engine.ops.status();
        page.levels(&status);
        let marks = self.engine.files.tunables().marks(status.tier_bytes);
        let marks = [("low", marks.low), ("high", marks.high), ("hard", marks.hard)];
        page.family("dirty_mark_bytes", "gauge", "Watermarks of dirty bytes");
        marks.iter().for_each(|(mark, bytes)| {
            page.sample("dirty_mark_bytes", &[("mark", mark)], *bytes as f64)
        });
        page.ages(&self.engine.drain.dirty_ages());
        let running = self.jobs.views().iter().filter(|job| job.exit_code.is_none()).count();
        page.gauge("jobs_running", "Jobs under way", running as f64);
        let reading = self.reading();
        page.gauge("uptime_seconds", "Time since the mount", reading.span.as_secs_f64());
        page.requests(&reading);
        page.counters(&reading);
        page.gauge(
            "tier_write_amplification_ratio",
            "Bytes written to the fast tier for each byte it took in",
            reading.write_amplification(),
        );
        page.operations(&[
            ("fuse", &reading.fuse),
            ("tier", &reading.tier),
            ("backing", &reading.backing),
        ]);
        if let Some(member) = &self.member {
            let (wanted, in_sync) = member.copies();
            let behind = self.engine.outbox.behind().behind;
            let bytes: u64 = behind.iter().map(|file| file.bytes).sum();
            page.gauge(
                "copies_wanted",
                "Members that are to have what is acknowledged",
                wanted.into(),
            );
            page.gauge("copies_in_sync", "Members that have it", in_sync as f64);
            page.gauge(
                "uncopied_files",
                "Files of which they have not the newest",
                behind.len() as f64,
            );
            page.gauge("uncopied_bytes", "Dirty bytes that they do not have", bytes as f64);
            page.gauge("cluster_fit", "0 while nothing may be served", f64::from(member.is_fit()));
            page.membership(member);
            if let Some(health) = self.registry.newest() {
                page.registry(&health);
            }
        }
        page.rules(&self.engine.room.rules());
        if let Some(mount) = self.mount.get() {
            page.users(mount.users().iter());
        }
        page.text
    }
}

/// The text so far.
struct Page {
    text: String,
    mountpoint: String,
}

/// The suffix of counters in microseconds, the suffix of the metric in seconds, and the factor between them.
const MICROSECONDS: (&str, &str, f64) = ("_us", "_seconds", 1e6);

impl Page {
    fn of(mountpoint: &Path) -> Page {
        Page { text: String::new(), mountpoint: mountpoint.to_string_lossy().into_owned() }
    }

    fn build_info(&mut self) {
        self.family("build_info", "gauge", "1, with what is running");
        self.sample("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.text, "# HELP forebay_{name} {help}\n# TYPE forebay_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let mount = [("mountpoint", self.mountpoint.as_str())];
        let labels = mount.iter().chain(labels);
        let labels: Vec<String> =
            labels.map(|(label, text)| format!("{label}=\"{}\"", escaped(text))).collect();
        let _ = writeln!(self.text, "forebay_{name}{{{}}} {value}", labels.join(","));
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn membership(&mut self, member: &Member) {
        let (claims, grants) = member.counts();
        let amounts = [
            ("cluster_epoch", "How often the member has begun", member.epoch()),
            (
                "cluster_claims",
                "Files of which it may have newer bytes than the store",
                claims as u64,
            ),
            ("cluster_grants", "1 while it opens unclaimed files without asking", grants as u64),
            (
                "cluster_revision",
                "How far it has followed the registry; one that is lower than others' lags",
                member.followed(),
            ),
        ];
        for (name, help, value) in amounts {
            self.gauge(name, help, value as f64);
        }
    }

    fn registry(&mut self, health: &Health) {
        self.gauge("registry_bytes", "What the registry stores", health.bytes as f64);
        if let Some(quota) = health.quota {
            self.gauge("registry_quota_bytes", "Where it takes nothing more", quota as f64);
        }
        let problems = problems_of(health).len();
        self.gauge("registry_problems", "What is wrong with it", problems as f64);
    }

    fn levels(&mut self, s: &Status) {
        let amounts = [
            ("tier_bytes", "What the fast tier may hold", s.tier_bytes),
            ("used_bytes", "What it holds", s.used_bytes),
            ("clean_bytes", "Of these, bytes that are on the backing store", s.clean_bytes),
            ("dirty_bytes", "Of these, bytes that are not", s.dirty_bytes),
            ("flushing_bytes", "Dirty bytes in batches under way", s.flushing_bytes),
            ("pinned_bytes", "Bytes that are not evicted", s.pinned_bytes),
            ("files", "Files with anything in the tier", s.files),
            ("dirty_files", "Files with dirty bytes", s.dirty_files),
            ("failed_files", "Dirty files whose last flush failed", s.failed_files),
            ("conflicted_files", "Files that wait for resolve", s.conflicted_files),
            ("open_files", "Files that are open", s.open_files),
            (
                "passthrough_writers",
                "Descriptors that write past the daemon",
                s.passthrough_writers,
            ),
            ("arrival_bytes_per_second", "Bytes that become dirty", s.arrival_bytes_per_sec),
            ("drain_bytes_per_second", "Bytes that the drain copies", s.drain_bytes_per_sec),
            (
                "service_bytes_per_second",
                "Bytes that the backing store takes at most",
                s.service_bytes_per_sec,
            ),
            ("backing_available", "1 while the backing store answers", s.backing_available.into()),
            (
                "attached",
                "1 while the fast tier takes part, 0 while it is detached",
                (s.attachment == Attachment::Attached).into(),
            ),
        ];
        for (name, help, value) in amounts {
            self.gauge(name, help, value as f64);
        }
        self.gauge(
            "oldest_dirty_age_seconds",
            "Age of the oldest dirty byte",
            s.oldest_dirty_age_secs,
        );
        self.family("governor", "gauge", "1 for the term of the governor that rules now");
        self.sample("governor", &[("term", &s.governor)], 1.0);
        self.family("limited_by", "gauge", "1 for what holds the drain back now");
        self.sample("limited_by", &[("what", &s.limited_by)], 1.0);
    }

    fn ages(&mut self, ages: &[AgeBucket]) {
        self.family("dirty_age_bytes", "gauge", "Dirty bytes that are younger than this");
        for bucket in ages {
            let bound = bucket.up_to_secs.map_or_else(|| "+Inf".into(), |secs| secs.to_string());
            self.sample(
                "dirty_age_bytes",
                &[("younger_than_seconds", &bound)],
                bucket.bytes as f64,
            );
        }
    }

    fn requests(&mut self, reading: &Reading) {
        self.family(
            "requests_total",
            "counter",
            "Requests that came to the daemon, by how they were served",
        );
        for direction in ["read", "write"] {
            let mut tell = |served: &str, count: u64| {
                self.sample(
                    "requests_total",
                    &[("direction", direction), ("served", served)],
                    count as f64,
                );
            };
            tell("hit", reading.counter(&format!("{direction}_hits")));
            tell("partial-hit", reading.counter(&format!("{direction}_partial_hits")));
            tell("miss", reading.counter(&format!("{direction}_misses")));
            if direction == "write" {
                tell("new", reading.counter("write_new"));
            }
            tell("bypass", reading.bypasses(direction).iter().map(|(_, count)| count).sum());
        }
        self.family("bypasses_total", "counter", "Requests past the fast tier, by the reason");
        for direction in ["read", "write"] {
            for (reason, count) in reading.bypasses(direction) {
                self.sample(
                    "bypasses_total",
                    &[("direction", direction), ("reason", &reason)],
                    count as f64,
                );
            }
        }
    }

    fn counters(&mut self, reading: &Reading) {
        for (name, value) in reading.counters.iter().filter(|(name, _)| !is_labeled(name)) {
            let (suffix, unit, parts) = MICROSECONDS;
            let (name, value) = match name.strip_suffix(suffix) {
                Some(stem) => (format!("{stem}{unit}_total"), *value as f64 / parts),
                None => (format!("{name}_total"), *value as f64),
            };
            self.family(&name, "counter", "See the counter of this name in docs/OPERATING.md");
            self.sample(&name, &[], value);
        }
    }

    fn operations(&mut self, sides: &[(&str, &Ops)]) {
        let all = || {
            sides
                .iter()
                .flat_map(|(side, ops)| ops.iter().map(move |(op, counts)| (*side, *op, counts)))
        };
        let parts = MICROSECONDS.2;
        let help = "Time of an operation: fuse is what programs see";
        self.family("operation_duration_seconds", "histogram", help);
        for (side, op, counts) in all().filter(|(_, _, counts)| counts.count() > 0) {
            let labels = [("side", side), ("op", op)];
            for (bound, count) in counts.cumulative() {
                let bound = (bound as f64 / parts).to_string();
                self.sample(
                    "operation_duration_seconds_bucket",
                    &[&labels[..], &[("le", &bound)]].concat(),
                    count as f64,
                );
            }
            let total = counts.count() as f64;
            let last = [&labels[..], &[("le", "+Inf")]].concat();
            self.sample("operation_duration_seconds_bucket", &last, total);
            self.sample(
                "operation_duration_seconds_sum",
                &labels,
                counts.total_us() as f64 / parts,
            );
            self.sample("operation_duration_seconds_count", &labels, total);
        }
        self.family("operation_errors_total", "counter", "Operations that failed");
        for (side, op, counts) in all() {
            self.sample(
                "operation_errors_total",
                &[("side", side), ("op", op)],
                counts.errors as f64,
            );
        }
        self.family("operation_bytes_total", "counter", "Bytes that operations moved");
        for (side, op, counts) in all() {
            self.sample(
                "operation_bytes_total",
                &[("side", side), ("op", op)],
                counts.bytes as f64,
            );
        }
    }

    fn rules(&mut self, rules: &[RuleUse]) {
        type Get = fn(&RuleUse) -> Option<u64>;
        let amounts: [(&str, &str, Get); 3] = [
            ("rule_used_bytes", "What a rule's files take of the tier", |used| {
                Some(used.used_bytes)
            }),
            ("rule_dirty_bytes", "Of these, bytes that are dirty", |used| Some(used.dirty_bytes)),
            ("rule_quota_bytes", "What they may take", |used| used.rule.quota),
        ];
        for (name, help, get) in amounts {
            self.family(name, "gauge", help);
            for used in rules {
                if let Some(bytes) = get(used) {
                    self.sample(name, &[("rule", &used.rule.name)], bytes as f64);
                }
            }
        }
        let all = || {
            rules.iter().flat_map(|used| {
                let name = used.rule.name.as_str();
                [(name, "read", used.reads), (name, "write", used.writes)]
            })
        };
        self.family(
            "rule_requests_total",
            "counter",
            "Requests of handles that a rule decided for",
        );
        for (rule, direction, of) in all() {
            let served = [
                ("hit", of.hits),
                ("partial-hit", of.partial_hits),
                ("miss", of.misses),
                ("new", of.new),
                ("bypass", of.bypasses),
            ];
            for (served, count) in served {
                let labels = [("rule", rule), ("direction", direction), ("served", served)];
                self.sample("rule_requests_total", &labels, count as f64);
            }
        }
        self.family("rule_bytes_total", "counter", "Bytes that these requests moved");
        for (rule, direction, of) in all() {
            let labels = [("rule", rule), ("direction", direction)];
            self.sample("rule_bytes_total", &labels, of.bytes as f64);
        }
    }

    fn users<'a>(&mut self, users: impl Iterator<Item = (&'a u32, &'a Used)> + Clone) {
        type Get = fn(&Used) -> u64;
        let figures: [(&str, &str, Get); 4] = [
            ("user_reads_total", "Reads of a user", |used| used.sums.reads),
            ("user_read_bytes_total", "Bytes read by a user", |used| used.sums.read_bytes),
            ("user_writes_total", "Writes of a user", |used| used.sums.writes),
            ("user_write_bytes_total", "Bytes written by a user", |used| used.sums.write_bytes),
        ];
        for (name, help, get) in figures {
            self.family(name, "counter", help);
            for (uid, used) in users.clone() {
                self.sample(name, &[("uid", &uid.to_string())], get(used) as f64);
            }
        }
    }
}

fn is_labeled(name: &str) -> bool {
    let rest = LABELED.iter().find_map(|direction| name.strip_prefix(direction));
    rest.is_some_and(|rest| LABELED_WHAT.contains(&rest) || rest.starts_with("bypass_"))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_request_counters_told_once() {
        let mut page = Page::of(Path::new("/a\"b\\c\nd"));
        page.sample("x_bytes", &[("x", "y")], 1.5);
        let wanted = "forebay_x_bytes{mountpoint=\"/a\\\"b\\\\c\\nd\",x=\"y\"} 1.5\n";
        assert_eq!(page.text, wanted);
        for name in ["read_hits", "write_requests", "read_bypass_full"] {
            assert!(is_labeled(name), "{name}");
        }
        assert!(!is_labeled("read_bytes") && !is_labeled("writers_slowed"));
    }
}
