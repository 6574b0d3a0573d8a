//! The output of `forebay status --cluster`.

use forebay_tests::cluster::{Cluster, HOLD};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, text, within};
use serde_json::Value;

use crate::write;

/// The overview of one node.
fn told(cluster: &Cluster, node: usize) -> Value {
    let mnt = text(&cluster.nodes[node].mnt);
    cluster.forebay(node, &["status", "--cluster", mnt, "--json"]).ok().json()
}

#[test]
fn status_cluster_tells_all_members_alike_on_each_node() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(3, HOLD);
    std::fs::create_dir(cluster.at(0, "d")).unwrap();
    (0..3).for_each(|n| write(&cluster.at(0, format!("d/f{n}")), b"claimed by n1"));
    write(&cluster.at(1, "g"), b"claimed by n2");
    within(PATIENCE, "the claims are made", || {
        (cluster.claims(2, "n1"), cluster.claims(2, "n2")) == (3, 1)
    });
    within(PATIENCE, "nobody makes files any more", || {
        (1..=3).all(|n| cluster.told(0, &format!("n{n}"))["creates"] == 0)
    });
    let id = std::fs::read_to_string(cluster.backing.join(".forebay/id")).unwrap();
    let mut members = Vec::new();
    for node in 0..3 {
        let told = told(&cluster, node);
        assert_eq!(told["member"], format!("n{}", node + 1), "{told:#}");
        assert_eq!(told["registry"], cluster.registry.address(), "{told:#}");
        let store = told["store"].as_str().expect("a text");
        assert!(store.len() > 8 && id.contains(store), "{store} is not in the mark: {id}");
        assert!(told["revision"].as_u64().expect("a number") > 1, "{told:#}");
        assert!(told["registry_bytes"].as_u64().expect("a number") > 0, "{told:#}");
        assert_eq!(told["gate"], Value::Null, "{told:#}");
        members.push(told["members"].clone());
    }
    assert_eq!(members[0], members[1]);
    assert_eq!(members[0], members[2]);
    let all = members[0].as_array().expect("a list");
    let names: Vec<&str> = all.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["n1", "n2", "n3"]);
    for (one, claims) in all.iter().zip([3, 1, 0]) {
        let (address, epoch) = (one["address"].as_str(), one["epoch"].as_u64());
        let is_address = address.is_some_and(|at| at.parse::<std::net::SocketAddr>().is_ok());
        assert!(is_address && epoch == Some(1), "{one:#}");
        assert_eq!((&one["alive"], &one["claims"]), (&Value::Bool(true), &claims.into()));
    }
    // The text for people names the same nodes.
    let mnt = text(&cluster.nodes[2].mnt).to_string();
    let page = cluster.forebay(2, &["status", "--cluster", &mnt]).ok().stdout;
    for name in names {
        assert!(page.lines().any(|line| line.contains(name) && !line.contains("DEAD")), "{page}");
    }
    cluster.nodes[0].kill9();
    within(PATIENCE, "n1 is told to be dead", || !cluster.is_alive(2, "n1"));
    let told = told(&cluster, 1);
    let dead = told["members"].as_array().expect("a list")[0].clone();
    assert_eq!(
        (&dead["name"], &dead["alive"], &dead["claims"]),
        (&"n1".into(), &false.into(), &3.into())
    );
    let page = cluster.forebay(2, &["status", "--cluster", &mnt]).ok().stdout;
    assert!(page.lines().any(|line| line.contains("n1") && line.contains("DEAD")), "{page}");
    cluster.umount(2);
    within(PATIENCE, "who has unmounted is not alive", || !cluster.is_alive(1, "n3"));
    // A member that has left holds nothing, and is not shown as one that died with claims.
    let mnt = text(&cluster.nodes[1].mnt).to_string();
    let page = cluster.forebay(1, &["status", "--cluster", &mnt]).ok().stdout;
    let line = |name: &str| page.lines().find(|line| line.starts_with(name)).unwrap().to_string();
    assert!(line("n3").contains("left") && line("n3").contains("0 B"), "{page}");
    assert!(line("n1").contains("DEAD") && !line("n3").contains('?'), "{page}");
}

#[test]
fn status_cluster_of_a_mount_without_a_registry_says_what_is_missing() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::laid(1);
    cluster.know_nothing_of_each_other();
    cluster.mount(0, HOLD);
    let mnt = text(&cluster.nodes[0].mnt).to_string();
    for more in [None, Some("--json")] {
        let mut args = vec!["status", "--cluster", mnt.as_str()];
        args.extend(more);
        let out = cluster.forebay(0, &args);
        assert!(out.code.is_some_and(|code| code != 0), "{out:#?}");
        assert!(out.stderr.contains("registry"), "{out:#?}");
        assert!(out.stderr.contains(&mnt), "it names the mount: {out:#?}");
    }
}
