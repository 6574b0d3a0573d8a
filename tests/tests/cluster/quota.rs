//! A registry whose quota is nearly, and at last wholly, used up.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use forebay_tests::cluster::{Cluster, HOLD, Member, bounded, read, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, proof, text, within};
use serde_json::{Value, json};

use crate::{is_honest, random, write};

const QUOTA: u64 = 16 << 20;

/// Puts one more version of one key, of this many bytes: history that a compaction removes. Returns whether
/// etcd accepted it.
fn put(cluster: &Cluster, bytes: usize) -> bool {
    // "fill" and "vvv...", as etcd's JSON wants them.
    let body = json!({ "key": "ZmlsbA==", "value": "dnZ2".repeat(bytes / 3) });
    let answer = cluster.registry.admin("/v3/kv/put", &body);
    answer["error"].is_null() && answer["code"].is_null()
}

fn size(cluster: &Cluster) -> u64 {
    let status = cluster.registry.admin("/v3/maintenance/status", &json!({}));
    status["dbSize"].as_str().and_then(|size| size.parse().ok()).expect("it tells its size")
}

/// The remedy of etcd's manual: compact, defragment, disarm.
fn remedy(cluster: &Cluster) {
    let status = cluster.registry.admin("/v3/maintenance/status", &json!({}));
    let revision = status["header"]["revision"].clone();
    let compact = json!({ "revision": revision, "physical": true });
    cluster.registry.admin("/v3/kv/compaction", &compact);
    within(PATIENCE, "the defragmentation makes room", || {
        cluster.registry.admin("/v3/maintenance/defragment", &json!({}));
        size(cluster) < QUOTA / 2
    });
    let alarms = cluster.registry.admin("/v3/maintenance/alarm", &json!({}));
    for alarm in alarms["alarms"].as_array().cloned().unwrap_or_default() {
        let member = alarm["memberID"].clone();
        let disarm = json!({ "action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE" });
        cluster.registry.admin("/v3/maintenance/alarm", &disarm);
    }
}

fn told(cluster: &Cluster) -> Value {
    let mnt = text(&cluster.nodes[0].mnt);
    cluster.forebay(0, &["status", "--cluster", mnt, "--json"]).ok().json()
}

fn problems(cluster: &Cluster) -> String {
    told(cluster)["registry_problems"].to_string()
}

/// The page of a node's metrics.
pub fn metrics(node: &Member) -> String {
    let run = File::open(node.tier.join("run")).unwrap();
    let dir = Path::new("/proc/self/fd").join(run.as_raw_fd().to_string());
    let mut socket = UnixStream::connect(dir.join("control.sock")).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).unwrap();
    page
}

/// A gauge of a node, by its name without `forebay_`.
fn gauge(node: &Member, name: &str) -> f64 {
    let page = metrics(node);
    let line = page.lines().find(|line| line.starts_with(&format!("forebay_{name}{{")));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {page}"))
}

#[test]
fn a_quota_is_warned_of_and_a_full_registry_stops_new_claims_alone() {
    needs_forebay!();
    needs_tools!("etcd", "curl");
    let mut cluster = Cluster::laid_with(2, &["--quota-backend-bytes", &QUOTA.to_string()]);
    cluster.mount(0, HOLD);
    cluster.mount(1, HOLD);
    write(&cluster.at(0, "f"), b"claimed");
    within(PATIENCE, "the file is claimed", || cluster.claims(1, "n1") == 1);
    assert_eq!(problems(&cluster), "[]");
    assert_eq!(gauge(&cluster.nodes[0], "cluster_claims"), 1.0);
    assert_eq!(gauge(&cluster.nodes[0], "cluster_epoch"), 1.0);
    assert!(gauge(&cluster.nodes[0], "cluster_revision") > 1.0);
    assert_eq!(gauge(&cluster.nodes[0], "cluster_grants"), 0.0);
    // Nearly full: shown in the status, once in the log, and in the metrics.
    while size(&cluster) <= QUOTA * 65 / 100 {
        assert!(put(&cluster, 1 << 20), "it takes it");
        // etcd reports its size once it has written the data, every 100 ms.
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
    assert!(problems(&cluster).contains("of its quota are used"), "{}", problems(&cluster));
    let mnt = text(&cluster.nodes[1].mnt).to_string();
    let page = cluster.forebay(1, &["status", "--cluster", &mnt]).ok().stdout;
    assert!(page.contains("WARNING") && page.contains("etcdctl defrag"), "{page}");
    let log = || cluster.nodes[0].log();
    within(PATIENCE, "the log warns", || log().contains("of its quota are used"));
    let used = gauge(&cluster.nodes[0], "registry_bytes");
    assert_eq!(gauge(&cluster.nodes[0], "registry_quota_bytes"), QUOTA as f64);
    assert!(used > QUOTA as f64 * 0.6, "{used}");
    assert!(gauge(&cluster.nodes[0], "registry_problems") >= 1.0);
    // Full.
    let fills = (0..40).position(|_| !put(&cluster, 1 << 20)).expect("the quota holds");
    within(PATIENCE, "the alarm is told", || problems(&cluster).contains("NOSPACE"));
    within(PATIENCE, "the log tells of it, too", || log().contains("alarm NOSPACE"));
    // Claimed files work, also from elsewhere, and are flushed.
    let newer = random(300_000, 1);
    write(&cluster.at(0, "f"), &newer);
    File::open(cluster.at(0, "f")).unwrap().sync_all().unwrap();
    reads(&cluster.at(1, "f"), &newer);
    cluster.flush(0);
    assert_eq!(cluster.stored("f").unwrap(), newer);
    // A new claim fails, soon, and the log has the reason.
    let new = cluster.at(1, "new");
    let (made, took) = bounded("a new file in a full registry", move || std::fs::write(new, b"x"));
    let why = made.expect_err("nothing can be agreed");
    assert!(is_honest(&why), "{why}");
    let says_why = |line: &str| {
        line.contains("refused") && line.contains("new: ") && line.contains("quota is used up")
    };
    assert!(cluster.nodes[1].log().lines().any(says_why), "the log says why");
    assert!(cluster.is_alive(0, "n1") && cluster.is_alive(0, "n2"), "leases are renewed");
    // The cluster recovers by itself once there is room.
    remedy(&cluster);
    within(PATIENCE, "new claims are made", || {
        std::fs::write(cluster.at(1, "new"), b"new").is_ok()
    });
    reads(&cluster.at(0, "new"), b"new");
    assert_eq!(read(&cluster.at(0, "f")).unwrap(), newer);
    cluster.gives_back(0);
    assert_eq!(problems(&cluster), "[]");
    within(PATIENCE, "the log says that it is over", || {
        log().contains("nothing is wrong with the registry")
    });
    assert_eq!(log().matches("of its quota are used").count(), 1, "once");
    cluster.umount(0);
    cluster.umount(1);
    proof!("full after {fills} more MiB; the new file failed after {took:?} with {why}");
}

#[test]
fn a_member_that_hears_nothing_of_the_registry_is_told_to_be_behind() {
    forebay_tests::needs_network!();
    let cluster = Cluster::networked(2, 1, HOLD);
    let behind = || {
        let told = told(&cluster);
        let revision = told["daemons"]["n2"]["revision"].as_u64();
        revision.map(|revision| told["newest"].as_u64().unwrap_or(0).saturating_sub(revision))
    };
    within(PATIENCE, "both have heard of all", || behind() == Some(0));
    cluster.cut_from_registry(1);
    write(&cluster.at(0, "f"), b"claimed meanwhile");
    // n2 is asked until its lease has run out.
    within(PATIENCE, "n2 is behind", || behind().is_some_and(|changes| changes > 0));
    let page = cluster.forebay(0, &["status", "--cluster", text(&cluster.nodes[0].mnt)]).ok();
    let of_n2 = page.stdout.lines().find(|line| line.contains("n2")).unwrap_or_default();
    assert!(of_n2.contains(" change"), "{}", page.stdout);
    cluster.mend_to_registry(1);
    within(PATIENCE, "n2 has caught up", || behind() == Some(0));
    reads(&cluster.at(1, "f"), b"claimed meanwhile");
}
