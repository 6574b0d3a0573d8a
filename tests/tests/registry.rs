//! `forebay registry check|dump` as people use it, against an etcd.

use std::path::Path;

use forebay_tests::etcd::Etcd;
use forebay_tests::node::Node;
use forebay_tests::{Out, forebay, needs_forebay, needs_tools, proof};
use serde_json::Value;

fn registry(verb: &str, args: &[&str]) -> Out {
    forebay(&[&["registry", verb], args].concat())
}

/// The problems that `check` reports, the same in words and in JSON.
#[track_caller]
fn problems(address: &str) -> Vec<String> {
    let (said, told) = (registry("check", &[address]), registry("check", &["--json", address]));
    let json = told.json();
    let problems: Vec<String> = json["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem.as_str().unwrap().into())
        .collect();
    let sound = problems.is_empty();
    assert_eq!((said.code, told.code), (Some(i32::from(!sound)), said.code), "{said:?} {told:?}");
    assert_eq!((&json["ok"], said.stdout.contains("\nsound")), (&sound.into(), sound), "{said:?}");
    // The remedy of a long one is on a line of its own.
    let lines = said.stdout.replace("\n  ", ": ");
    for problem in &problems {
        assert!(lines.contains(&format!("problem: {problem}")), "{said:?}");
    }
    problems
}

fn keys(dumped: &Value) -> Vec<&str> {
    let entries = dumped["entries"].as_array().unwrap();
    entries.iter().map(|entry| entry["key"].as_str().unwrap()).collect()
}

#[test]
fn a_registry_is_sound_or_says_what_is_wrong_and_what_to_do() {
    needs_forebay!();
    needs_tools!("etcd", "unshare", "mkfs.ext4");
    let bed = Node::laid(1);
    let etcd = Etcd::start(&bed.root);
    let address = &*etcd.address();
    assert_eq!(problems(address), [""; 0], "an empty one");
    let mut node = Node::laid(128);
    node.one_of_several("n1", address);
    node.up();
    node.forebay(&["instance", "create", "private", "w", "--capacity", "16MiB"]).ok();
    assert_eq!(problems(address), [""; 0], "one in use");
    let told = registry("check", &["--json", address]).ok().json();
    assert!(told["records"].as_u64().unwrap() >= 6, "{told}");
    assert!(told["commit_median_ms"].as_f64().unwrap() > 0.0, "{told}");

    let dumped = registry("dump", &["--prefix", "wanted/", "--json", address]).ok().json();
    assert_eq!(keys(&dumped), ["wanted/instances/w"], "{dumped}");
    let value: Value =
        serde_json::from_str(dumped["entries"][0]["value"].as_str().unwrap()).unwrap();
    assert_eq!(value["id"], "w");
    let shown = registry("dump", &[address]).ok().stdout;
    assert!(shown.lines().any(|line| line.starts_with("nodes/n1 ")), "{shown}");
    let nothing = registry("dump", &["--prefix", "nowhere/", address]).ok();
    assert!(nothing.stderr.contains("nothing begins with \"nowhere/\""), "{nothing:?}");

    // Each is reported with its key, also by the node daemon's own work, which goes on with the
    // rest.
    let grants = br#"{"grants":{"w":16777216,"gone":1048576}}"#;
    let claim = br#"{"member":"b","path":"runs/7"}"#;
    for (key, value, words) in [
        ("wanted/transfers/tbad", &b"no record at all"[..], "this version cannot read it"),
        ("manifest/n1/w/t1", b"[\xff\xfe]", "restore it from a copy, or delete it"),
        ("ledger/n9/flash", grants, "1048576 bytes are granted to instance gone"),
        ("stores/s/claims/8.0", claim, "runs/7 is claimed by b, which is no member of the store"),
        ("nodes/n9", br#"{"version":"1","pid":1,"boot":"b","since":1}"#, "hangs on no lease"),
    ] {
        etcd.put(key, value);
        let told = problems(address);
        assert!(told.len() == 1 && told[0].starts_with(key), "{key}: {told:?}");
        assert!(told[0].contains(words), "{key}: {told:?}");
        let dumped = registry("dump", &["--json", address]).ok().json();
        assert!(keys(&dumped).contains(&key), "it is there to be seen: {dumped}");
        registry("dump", &[address]).ok();
        etcd.delete(key);
        assert_eq!(problems(address), [""; 0], "{key} is gone");
        proof!("{}", told[0]);
    }
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.stop();
    assert_eq!(problems(address), [""; 0], "after all of it");
    let left = registry("dump", &["--prefix", "check/", "--json", address]).ok().json();
    assert_eq!(keys(&left), [""; 0], "what it wrote is gone");
}

#[test]
fn a_wrong_address_and_a_user_who_is_not_let_in_are_told_with_the_remedy() {
    needs_forebay!();
    needs_tools!("etcd");
    let bed = Node::laid(1);
    let etcd = Etcd::start(&bed.root);
    let file = |name: &str, password: &str| {
        let path = bed.root.join(name);
        std::fs::write(&path, password).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        path
    };
    let (right, wrong) = (file("right", "open sesame"), file("wrong", "open barley"));
    let cases = |cases: &[(String, i32, &str)]| {
        for verb in ["check", "dump"] {
            for (address, code, words) in cases {
                let out = registry(verb, &[address]).expect(*code);
                assert!(out.stderr.contains(words), "{verb} {address}: {words}: {out:?}");
            }
        }
    };
    let empty = bed.root.display().to_string();
    let port = forebay_tests::free_port();
    cases(&[
        (empty, 2, "there is no registry in it; the node daemon makes one"),
        (format!("etcd://127.0.0.1:{port}/test"), 1, "is an etcd's client port at that address"),
        ("etcd://127.0.0.1:x/test".into(), 2, "etcd://"),
        ("http://127.0.0.1:1/test".into(), 2, "etcd://"),
        (etcd.address_as("n", Path::new("/nowhere/at/all")), 1, "/nowhere/at/all"),
    ]);
    etcd.require_users("n", "open sesame");
    cases(&[
        (etcd.address(), 1, "add ?user=NAME&password-file=FILE to the address"),
        (etcd.address_as("n", &wrong), 1, "refused, as the user n: authentication failed"),
        (etcd.address_as("m", &right), 1, "refused, as the user m: authentication failed"),
    ]);
    let other = etcd.address_as("n", &right).replace("/test?", "/other?");
    cases(&[(other, 1, "etcdctl role grant-permission ROLE --prefix=true readwrite /other/")]);
    assert_eq!(problems(&etcd.address_as("n", &right)), [""; 0]);
}
