//! Statistics: the accounting identity over a real workload, windows and reset, users and
//! processes, the metrics page, and `forebay top`.
// S-10

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use forebay_tests::{
    Bed, Mounted, PATIENCE, Rng, Tier, drop_caches, finish, free_port, needs_forebay, needs_tools,
    proof, sample, sys, text, tool, within,
};
use serde_json::Value;

fn stats(mounted: &Mounted, flags: &[&str]) -> Value {
    let args = [&["stats", "--json", text(&mounted.path)], flags].concat();
    mounted.forebay(&args).ok().json()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// requests = hits + partial hits + misses + new + bypasses, and the bypasses are the sum of their
/// reasons. No read is new.
fn assert_adds_up(stats: &Value) {
    for direction in ["read", "write"] {
        let of = &stats["requests"][direction];
        let parts = ["hits", "partial_hits", "misses", "bypasses"].map(|part| count(&of[part]));
        let new = of["new"].as_u64();
        assert_eq!(new.is_some(), direction == "write", "{direction}: {of:#}");
        let sum = parts.iter().sum::<u64>() + new.unwrap_or(0);
        assert_eq!(count(&of["total"]), sum, "{direction}: {of:#}");
        let reasons = of["bypass_reasons"].as_object().expect("reasons");
        let reasons: u64 = reasons.values().map(count).sum();
        assert_eq!(count(&of["bypasses"]), reasons, "{direction}: {of:#}");
    }
}

/// Reads that the page cache does not answer.
fn direct(path: &Path) -> fs::File {
    fs::File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

fn work(mounted: &Mounted, seed: u64, rounds: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..rounds {
        let file = direct(&mounted.at(format!("f{}", rng.below(4))));
        let (offset, len) = (rng.below(200) * 4096, (1 + rng.below(16) as usize) * 4096);
        match rng.below(3) {
            0 => file.write_all_at(&rng.bytes(len), offset).unwrap(),
            _ => drop(file.read_at(&mut vec![0; len], offset).unwrap()),
        }
    }
}

#[test]
fn every_request_is_a_hit_a_partial_hit_a_miss_or_a_bypass() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    (0..4).for_each(|i| drop(sample::file(&bed.backing.join(format!("f{i}")), i, 1 << 20)));
    let mounted = bed.mount(&["--passthrough", "off", "--max-age", "1h", "--readahead", "0"]);
    std::thread::scope(|scope| {
        let mounted = &mounted;
        (0..4).for_each(|seed| drop(scope.spawn(move || work(mounted, seed, 200))));
    });
    mounted.forebay(&["flush", "--wait", text(&mounted.path)]).ok();
    mounted.evict();
    std::thread::scope(|scope| {
        let mounted = &mounted;
        (4..8).for_each(|seed| drop(scope.spawn(move || work(mounted, seed, 100))));
    });
    let mut all = stats(&mounted, &[]);
    // An answer is counted a moment after it is given.
    within(PATIENCE, "the last answers are counted", || {
        all = stats(&mounted, &[]);
        ["read", "write"]
            .iter()
            .all(|verb| all["counters"][format!("{verb}_requests")] == all["fuse"][*verb]["count"])
    });
    assert_adds_up(&all);
    let (read, write) = (&all["requests"]["read"], &all["requests"]["write"]);
    let seen = count(&read["total"]) + count(&write["total"]);
    assert!(seen >= 1200, "{seen} requests of 1200");
    for (name, of) in [("read", read), ("write", write)] {
        for part in ["hits", "partial_hits", "misses"] {
            assert!(count(&of[part]) > 0, "no {name} {part}: {of:#}");
        }
    }
    assert!(count(&all["counters"]["absorbed_bytes"]) > 0);
    assert!(all["tier_write_amplification"].as_f64().unwrap() >= 1.0, "{all:#}");
    for window in ["1min", "5min", "1h"] {
        assert_adds_up(&all["windows"][window]);
    }
    mounted.umount();
    proof!("{seen} requests add up");
}

#[test]
fn writes_around_and_a_full_tier_are_bypasses_with_their_reason() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let flags = ["--policy", "write-around", "--passthrough", "off"];
    let mounted = bed.mount(&flags);
    fs::write(mounted.at("f"), vec![1; 100_000]).unwrap();
    let all = stats(&mounted, &[]);
    assert_adds_up(&all);
    let write = &all["requests"]["write"];
    assert!(count(&write["total"]) > 0);
    assert_eq!(write["bypass_reasons"]["policy"], write["total"], "{write:#}");
    mounted.umount();

    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.backing.join("large"), 1, 48 << 20);
    sample::file(&bed.backing.join("pinned"), 2, 31 << 19);
    let flags = ["--passthrough", "off", "--tier-size", "16MiB", "--used-high", "98%"];
    let mounted = bed.mount(&flags);
    // Pinned bytes are not evicted: later bytes find no room.
    mounted.forebay(&["pin", text(&mounted.at("pinned"))]).ok();
    let before = fs::read(bed.backing.join("large")).unwrap();
    assert!(fs::read(mounted.at("large")).unwrap() == before);
    let all = stats(&mounted, &[]);
    assert_adds_up(&all);
    let reasons = &all["requests"]["read"]["bypass_reasons"];
    assert!(count(&reasons["full"]) > 0, "{reasons}");
    mounted.umount();
    proof!("reads with a full tier: {reasons}");
}

/// At each write the kernel asks for privileges that have to be removed; a database writes thousands
/// of times.
#[test]
fn writes_of_ordinary_users_ask_nothing_of_the_backing_store() {
    needs_forebay!();
    needs_tools!("setpriv", "dd");
    let bed = Bed::new(Tier::Disk);
    let path = bed.backing.join("f");
    fs::write(&path, vec![1; 4 << 20]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let mounted = bed.mount(&["--passthrough", "off", "--preset", "hold"]);
    fs::read(mounted.at("f")).unwrap();
    let asked = || {
        let stats = stats(&mounted, &[]);
        let calls = |verb: &str| stats["backing"][verb]["count"].as_u64().unwrap_or(0);
        (calls("stat") + calls("xattr_get"), count(&stats["requests"]["write"]["total"]))
    };
    let before = asked();
    let mut dd = Command::new("setpriv");
    dd.args(["--reuid=65534", "--regid=65534", "--clear-groups", "dd", "if=/dev/zero", "bs=4096"]);
    dd.args(["count=1000", "conv=notrunc", "status=none"]);
    let done = dd.arg(format!("of={}", mounted.at("f").display())).current_dir("/").status();
    assert!(done.unwrap().success());
    let after = asked();
    assert!(after.1 - before.1 >= 1000, "{} writes", after.1 - before.1);
    assert!(after.0 - before.0 < 100, "{} calls for 1000 writes", after.0 - before.0);
    mounted.umount();
    proof!("{} writes, {} calls", after.1 - before.1, after.0 - before.0);
}

/// Bytes that pass the daemon by are no requests, and are shown under a name of their own.
#[test]
fn bytes_that_pass_the_daemon_by_are_told() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    let bytes = 24_u64 << 20;
    let mut file = fs::File::create(mounted.at("grows")).unwrap();
    for _ in 0..bytes >> 20 {
        file.write_all(&vec![3; 1 << 20]).unwrap();
    }
    let mut all = stats(&mounted, &[]);
    if count(&all["counters"]["passthrough_writes"]) == 0 {
        forebay_tests::say("SKIPPED: this kernel passes nothing through");
        return;
    }
    let new = |all: &Value| count(&all["counters"]["passthrough_new_bytes"]);
    within(PATIENCE, "what an open file grew by is told", || {
        all = stats(&mounted, &[]);
        new(&all) == bytes
    });
    assert_eq!(all["busiest_files"][0]["path"], "grows", "{all:#}");
    assert_eq!((count(&all["requests"]["write"]["total"]), new(&all)), (0, bytes), "{all:#}");
    // Overwritten bytes: the daemon does not see the overwrite, and does not call it new.
    file.write_all_at(&vec![4; 1 << 20], 0).unwrap();
    drop(file);
    mounted.hear_closes();
    // Shorter than the time between two looks.
    fs::write(mounted.at("quick"), vec![5; 300_000]).unwrap();
    mounted.hear_closes();
    all = stats(&mounted, &[]);
    assert_eq!(new(&all), bytes + 300_000, "{all:#}");
    assert_eq!(all["windows"]["1h"]["bytes"]["passthrough_new"], bytes + 300_000);
    let page = check_page(&get(control(&bed), "/metrics").1, &mounted);
    assert_eq!(page["forebay_passthrough_new_bytes_total"], (bytes + 300_000) as f64);
    let human = mounted.forebay(&["stats", text(&mounted.path)]).ok().stdout;
    assert!(human.contains("for writing 2; of these only"), "{human}");
    let screen = mounted.forebay(&["top", "--once", text(&mounted.path)]).ok().stdout;
    assert!(
        screen.contains("past the daemon") && !screen.contains("new         0 B/s"),
        "{screen}"
    );
    mounted.umount_with(&["--keep-dirty"]).ok();
    proof!("{bytes} and 300000 bytes");
}

/// A write behind the end could not have found bytes in the tier: it is no miss.
#[test]
fn a_write_of_new_bytes_is_no_miss() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.backing.join("old"), 1, 1 << 20);
    let mounted = bed.mount(&["--passthrough", "off", "--preset", "hold", "--readahead", "0"]);
    fs::write(mounted.at("fresh"), vec![1; 1 << 20]).unwrap();
    let writes = || stats(&mounted, &[])["requests"]["write"].clone();
    let (fresh, figures) = (writes(), ["hits", "partial_hits", "misses", "new"]);
    let of = |writes: &Value| figures.map(|what| count(&writes[what]));
    assert_eq!(of(&fresh), [0, 0, 0, count(&fresh["total"])], "{fresh:#}");
    assert!(count(&fresh["new"]) > 0);
    let old = direct(&mounted.at("old"));
    for (offset, wanted) in [(0, [0, 0, 1, 0]), (0, [1, 0, 0, 0]), (1 << 20, [0, 0, 0, 1])] {
        let before = of(&writes());
        old.write_all_at(&[7; 4096], offset).unwrap();
        let after = of(&writes());
        let moved: Vec<u64> = after.iter().zip(before).map(|(now, then)| now - then).collect();
        assert_eq!(moved, wanted, "at {offset}");
    }
    drop(old);
    mounted.umount();
    proof!("{} new, then a miss, a hit and a new one", fresh["new"]);
}

#[test]
fn a_reset_begins_anew_and_leaves_the_totals() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--passthrough", "off", "--max-age", "1h"]);
    let early = mounted.forebay(&["stats", "--since-reset", text(&mounted.path)]);
    assert_eq!(early.code, Some(2), "{early:#?}");
    fs::write(mounted.at("f"), vec![1; 500_000]).unwrap();
    mounted.forebay(&["stats", "--reset", text(&mounted.path)]).ok();
    let since = stats(&mounted, &["--since-reset"]);
    assert_eq!(since["counters"]["write_bytes"], 0);
    fs::write(mounted.at("g"), vec![1; 100_000]).unwrap();
    let since = stats(&mounted, &["--since-reset"]);
    assert_adds_up(&since);
    assert_eq!(since["counters"]["write_bytes"], 100_000);
    assert_eq!(stats(&mounted, &[])["counters"]["write_bytes"], 600_000);
    let window = stats(&mounted, &["--window", "1h"]);
    assert_eq!(window["counters"]["write_bytes"], 600_000, "the mount is younger");
    let out = mounted.forebay(&["stats", "--window", "1year", text(&mounted.path)]);
    assert!(out.stderr.contains("--window 1year: choose 1min, 5min or 1h"), "{out:#?}");
    assert!(out.code == Some(2) && out.stderr.contains("5min"), "{out:#?}");
    let human = mounted.forebay(&["stats", text(&mounted.path)]).ok().stdout;
    assert!(human.contains("partial") && human.contains("absorbed_bytes"), "{human}");
    let shown = fs::read_to_string(mounted.at(".forebay/stats")).unwrap();
    for line in ["counters.write_bytes 600000", "windows.5min.requests.write.total", "users.0."] {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
    mounted.umount();
    proof!("600000 bytes, 100000 of them since the reset");
}

#[test]
fn users_processes_files_and_ages_are_told() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--passthrough", "off", "--preset", "hold"]);
    let target = format!("of={}", text(&mounted.at("by-dd")));
    tool("dd", &["if=/dev/zero", &target, "bs=65536", "count=32"]).ok();
    within(PATIENCE, "the drain has looked at the ages", || {
        let ages = &stats(&mounted, &[])["dirty_ages"];
        ages.as_array().unwrap().last().unwrap()["bytes"] == 32 * 65536
    });
    let all = stats(&mounted, &[]);
    let processes = all["processes"].as_array().unwrap();
    let dd = processes.iter().find(|p| p["name"] == "dd").expect("dd is known");
    assert_eq!((&dd["write_bytes"], &dd["uid"]), (&(32 * 65536).into(), &0.into()), "{dd:#}");
    assert!(count(&all["users"]["0"]["write_bytes"]) >= 32 * 65536);
    assert_eq!(all["busiest_files"][0]["path"], "by-dd");
    let ages = all["dirty_ages"].as_array().unwrap();
    assert!(ages.is_sorted_by_key(|age| count(&age["bytes"])), "{ages:?}");
    mounted.umount();
    proof!("dd wrote {}", dd["write_bytes"]);
}

/// Every request of a handle is counted by the rule that decided for it, and by no other.
#[test]
fn each_rule_tells_how_its_requests_were_served() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    for name in ["in/a", "out/b", "c"] {
        sample::file(&bed.backing.join(name), 1, 1 << 20);
    }
    let mounted = bed.mount(&["--passthrough", "off", "--preset", "hold", "--readahead", "0"]);
    let mnt = text(&mounted.path);
    let add = |args: &[&str]| drop(mounted.forebay(&[&["rules", "add", mnt], args].concat()).ok());
    add(&["in", "allow", "--path", "in/**", "--quota", "64MiB"]);
    add(&["out", "deny", "--path", "out/**"]);
    let (mut page, block) = (vec![0; 8192], vec![7; 4096]);
    for name in ["in/a", "out/b", "c"] {
        let file = direct(&mounted.at(name));
        for _ in 0..2 {
            file.read_exact_at(&mut page, 0).unwrap();
        }
        file.write_all_at(&block, 0).unwrap();
        file.write_all_at(&block, 1 << 19).unwrap();
    }
    let all = stats(&mounted, &[]);
    let rules = &all["rules"];
    let requests = |rule: &str, way: &str| {
        let of = &rules[rule]["requests"][way];
        ["total", "hits", "partial_hits", "misses", "bypasses", "bytes"].map(|f| count(&of[f]))
    };
    assert_eq!(requests("in", "read"), [2, 1, 0, 1, 0, 16384], "{rules:#}");
    assert_eq!(requests("in", "write"), [2, 1, 0, 1, 0, 8192], "{rules:#}");
    assert_eq!(requests("out", "read"), [2, 0, 0, 0, 2, 16384], "{rules:#}");
    assert_eq!(requests("out", "write"), [2, 0, 0, 0, 2, 8192], "{rules:#}");
    assert_eq!(count(&rules["in"]["dirty_bytes"]), 8192);
    assert!(count(&rules["in"]["used_bytes"]) >= 16384);
    assert_eq!(count(&rules["in"]["quota_bytes"]), 64 << 20);
    assert_eq!(count(&rules["out"]["used_bytes"]), 0);
    let list = mounted.forebay(&["rules", "list", mnt, "--json"]).ok().json();
    assert_eq!(list[0]["requests"], rules["in"]["requests"]);
    let human = mounted.forebay(&["rules", "list", mnt]).ok().stdout;
    assert!(human.contains("bypasses") && human.contains("64MiB"), "{human}");
    let shown = fs::read_to_string(mounted.at(".forebay/stats")).unwrap();
    assert!(shown.contains("rules.out.requests.read.bypasses 2\n"), "{shown}");
    let page = check_page(&get(control(&bed), "/metrics").1, &mounted);
    let metric = |name: &str, labels: &str| page[&format!("forebay_rule_{name}{{{labels}}}")];
    let bypasses = "rule=\"out\",direction=\"write\",served=\"bypass\"";
    assert_eq!(metric("requests_total", bypasses), 2.0);
    assert_eq!(metric("bytes_total", "rule=\"in\",direction=\"read\""), 16384.0);
    assert_eq!(metric("quota_bytes", "rule=\"in\""), (64 << 20) as f64);
    mounted.umount();
    proof!("two rules, 4 requests each");
}

/// Connects to the control socket. The bed's path may be too long for a socket address.
fn control(bed: &Bed) -> UnixStream {
    let run = fs::File::open(bed.tier.join("run")).unwrap();
    let dir = Path::new("/proc/self/fd").join(run.as_raw_fd().to_string());
    UnixStream::connect(dir.join("control.sock")).unwrap()
}

/// The body of `GET /metrics`.
fn get(mut stream: impl Read + Write, path: &str) -> (String, String) {
    let request = format!("GET {path} HTTP/1.0\r\nHost: forebay\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_string(), body.to_string())
}

#[test]
fn the_metrics_page_is_sound_on_the_socket_and_on_loopback() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let refused = bed.try_mount(&["--metrics-listen", "0.0.0.0:9464"]).expect(2);
    assert!(refused.stderr.contains("127.0.0.1"), "{}", refused.stderr);
    let free = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let flags = ["--passthrough", "off", "--max-age", "1h", "--metrics-listen"];
    let mounted = bed.mount(&[&flags[..], &[&free.to_string()]].concat());
    fs::write(mounted.at("f"), vec![1; 300_000]).unwrap();
    drop_caches();
    fs::read(mounted.at("f")).unwrap();
    let (head, page) = get(control(&bed), "/metrics");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let first = check_page(&page, &mounted);
    let written = first["forebay_write_bytes_total"];
    assert_eq!(written, 300_000.0);
    fs::write(mounted.at("g"), vec![1; 1000]).unwrap();
    let (_, page) = get(TcpStream::connect(free).unwrap(), "/metrics");
    let second = check_page(&page, &mounted);
    assert_eq!(second["forebay_write_bytes_total"], written + 1000.0);
    for (name, value) in &first {
        let falls = second.get(name).is_some_and(|later| later < value);
        let counter = name.split('{').next().unwrap().ends_with("_total");
        assert!(!(counter && falls), "{name} fell");
    }
    let (head, _) = get(TcpStream::connect(free).unwrap(), "/v1/status");
    assert!(head.contains("404"), "only the metrics: {head}");
    let documented = include_str!("../../docs/OPERATING.md");
    for name in page.lines().filter_map(|l| l.strip_prefix("# TYPE forebay_")) {
        let name = name.split(' ').next().unwrap();
        let plain = name.trim_end_matches("_total").trim_end_matches("_seconds");
        assert!(documented.contains(plain), "{name} is not in docs/OPERATING.md");
    }
    mounted.umount();
    proof!("{} series", second.len());
}

/// Checks the text format: a TYPE before the samples of each family, sound names and labels, no
/// series twice, histograms that add up, names with base units, and the mount in every sample.
/// Returns the series, without the label of the mount.
fn check_page(page: &str, mounted: &Mounted) -> BTreeMap<String, f64> {
    assert!(page.ends_with('\n'));
    check_by_promtool(page);
    let mount = format!("mountpoint=\"{}\"", mounted.path.display());
    let page = &without_mount(page, &mount);
    let mut types: HashMap<&str, &str> = HashMap::new();
    let mut helped = HashSet::new();
    let mut series = BTreeMap::new();
    let sound = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(helped.insert(rest.split(' ').next().unwrap()), "helped twice: {line}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(types.insert(name, kind).is_none(), "typed twice: {line}");
            assert_base_units(name);
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        let value: f64 = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
        let (family, labels) = name.split_once('{').unwrap_or((name, "}"));
        let labels = labels.strip_suffix('}').expect("labels end");
        assert!(sound(family) && family.starts_with("forebay_"), "{line}");
        for label in labels.split("\",").filter(|label| !label.is_empty()) {
            let (label, text) = label.split_once("=\"").unwrap_or_else(|| panic!("label: {line}"));
            assert!(sound(label) && !text.contains('\n'), "{line}");
        }
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| family.strip_suffix(s));
        let histogram = base.filter(|base| types.get(base) == Some(&"histogram"));
        let kind = types.get(histogram.unwrap_or(family)).copied();
        assert!(kind.is_some(), "a sample without a TYPE: {line}");
        assert_eq!(kind == Some("counter"), family.ends_with("_total"), "{line}");
        assert!(kind != Some("counter") || value >= 0.0, "{line}");
        assert!(series.insert(name.to_string(), value).is_none(), "twice: {line}");
    }
    assert_eq!(types.len(), helped.len());
    assert!(series.keys().any(|name| name.starts_with("forebay_build_info{version=")));
    check_histograms(page, &series);
    series
}

/// The page with the label of the mount removed.
fn without_mount(page: &str, mount: &str) -> String {
    let line = |line: &str| match line.starts_with('#') {
        true => format!("{line}\n"),
        false => {
            assert!(line.contains(&format!("{{{mount}")), "no {mount} in {line}");
            let rest = line.replacen(&format!("{mount},"), "", 1);
            format!("{}\n", rest.replacen(&format!("{{{mount}}}"), "", 1))
        }
    };
    page.lines().map(line).collect()
}

/// Prometheus knows seconds and bytes; `_count` and `_sum` belong to histograms.
fn assert_base_units(name: &str) {
    let words: Vec<&str> = name.split('_').collect();
    for wrong in ["us", "ms", "ns", "sec", "secs", "msec", "min", "kb", "kib", "mb", "mib", "count"]
    {
        assert!(!words.contains(&wrong), "{name}: {wrong}");
    }
    let of = name.trim_end_matches("_total");
    let unit = |unit: &str| !words.contains(&unit) || of.ends_with(unit);
    assert!(unit("bytes") || of.ends_with("bytes_per_second"), "{name}: the unit is last");
    assert!(unit("seconds"), "{name}: the unit is last");
}

/// promtool, where it is installed, finds no fault.
fn check_by_promtool(page: &str) {
    if !sys::on_path("promtool") {
        return;
    }
    // Tests run beside each other in one process.
    let name = format!("fbt-metrics-{}-{}", std::process::id(), forebay_tests::test_name());
    let file = std::env::temp_dir().join(name);
    fs::write(&file, page).unwrap();
    let line = format!("promtool check metrics <{}", file.display());
    let out = tool("sh", &["-c", &line]);
    fs::remove_file(&file).unwrap();
    assert!(out.code == Some(0) && out.text().trim().is_empty(), "{out:#?}");
}

/// Buckets rise, and the last is the count.
fn check_histograms(page: &str, series: &BTreeMap<String, f64>) {
    let mut checked = 0;
    let mut last: (String, f64) = Default::default();
    for line in page.lines().filter(|line| line.contains("_bucket{")) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (which, bound) = name.split_once(",le=\"").expect("a bucket has a bound");
        let value: f64 = value.parse().unwrap();
        assert!(last.0 != which || value >= last.1, "{line} falls");
        last = (which.to_string(), value);
        if bound == "+Inf\"}" {
            let total = format!("{}}}", which.replacen("_bucket", "_count", 1));
            assert_eq!(series[&total], value, "{line}");
            checked += 1;
        }
    }
    assert!(checked > 3, "only {checked} histograms");
}

#[test]
fn top_draws_one_screen_as_text() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--passthrough", "off", "--max-age", "1h"]);
    let mut screen = String::new();
    // The first look of a daemon that has just started has nothing to compare with.
    within(PATIENCE, "top sees the writing", || {
        fs::write(mounted.at("busy-file"), vec![1; 2 << 20]).unwrap();
        screen = mounted.forebay(&["top", "--once", text(&mounted.path)]).ok().stdout;
        screen.contains("MiB/s")
    });
    for wanted in ["dirty [", "governor", "busy-file", "p99", "MiB/s", "oldest dirty"] {
        assert!(screen.contains(wanted), "{wanted:?} is not in\n{screen}");
    }
    assert!(screen.lines().count() <= 24 && screen.lines().all(|l| l.chars().count() <= 80));
    assert!(
        mounted.forebay(&["top", "--json", text(&mounted.path)]).ok().json()["marks"].is_object()
    );
    let out = mounted.forebay(&["top", text(&mounted.path)]);
    assert!(out.code == Some(2) && out.stderr.contains("--once"), "{out:#?}");
    mounted.umount();
    proof!("{} lines", screen.lines().count());
}

/// In a terminal: it refreshes, and leaves the terminal as it was.
#[test]
fn top_refreshes_in_a_terminal_and_leaves_it_sane() {
    needs_forebay!();
    needs_tools!("tmux");
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--passthrough", "off", "--max-age", "1h"]);
    let socket = bed.root.join("tmux");
    let tmux = |args: &[&str]| {
        let mut command = Command::new("tmux");
        command.args(["-f", "/dev/null", "-S", text(&socket)]).args(args);
        finish(&mut command, PATIENCE)
    };
    let shell = "env PS1='ready> ' sh";
    tmux(&["new-session", "-d", "-x", "80", "-y", "24", shell]).ok();
    let screen = || tmux(&["capture-pane", "-p"]).stdout;
    let shows = |word: &str| {
        within(PATIENCE, &format!("the terminal shows {word}"), || screen().contains(word));
    };
    // The prompt must be at the end: earlier input has a prompt in front, too, and input to a
    // terminal that is about to be restored is lost.
    let asks = || within(PATIENCE, "the shell asks", || screen().trim_end().ends_with("ready>"));
    asks();
    for (n, key) in ["q", "C-c"].into_iter().enumerate() {
        let top = format!("{} top {}", forebay_tests::binary().display(), text(&mounted.path));
        tmux(&["send-keys", &top, "Enter"]).ok();
        shows("oldest dirty");
        let name = format!("seen-{}", key.to_lowercase());
        fs::write(mounted.at(&name), vec![1; 1 << 20]).unwrap();
        shows(&name);
        tmux(&["send-keys", key]).ok();
        asks();
        // The number of the turn, and the number of times that the terminal reports a disabled echo.
        let sane = format!("clear; echo sane-$((40+{n}))-$(stty -a | grep -cwe -echo)");
        tmux(&["send-keys", &sane, "Enter"]).ok();
        shows(&format!("sane-{}-0", 40 + n));
    }
    tmux(&["kill-server"]);
    mounted.umount();
    proof!("q and Ctrl-C");
}
