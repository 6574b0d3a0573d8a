//! Mounts that must not exist together, and the remedies in the refusals.

use forebay_tests::cluster::{Cluster, HOLD, Registry, read, write_key};
use forebay_tests::{PATIENCE, free_port, needs_forebay, needs_tools, text, within};

use crate::write;

/// Asserts that an error has all these words.
#[track_caller]
fn says(out: &forebay_tests::Out, words: &[&str]) {
    assert_ne!(out.code, Some(0), "{out:#?}");
    assert!(out.code.is_some(), "it hangs: {out:#?}");
    for word in words {
        assert!(out.stderr.contains(word), "{word:?} is not said: {out:#?}");
    }
    assert!(out.stderr.trim().lines().count() <= 3, "one sentence: {out:#?}");
}

// S-25
#[test]
fn a_shared_store_is_not_mounted_for_writing_without_its_registry() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(1, HOLD);
    write(&cluster.at(0, "f"), b"claimed");
    cluster.flush(0);
    let alone = cluster.stranger("alone", &[]);
    for when in ["while it is mounted", "when nobody has it mounted"] {
        let out = alone.try_mount(None, &[]);
        says(&out, &["--registry"]);
        assert!(forebay_tests::images::mounted_at(&alone.mnt).is_none(), "{when}");
        if cluster.nodes[0].is_running() {
            cluster.umount(0);
        }
    }
    // Nor a directory below its root.
    std::fs::create_dir(cluster.backing.join("sub")).unwrap();
    let mut below = cluster.stranger("below", &[]);
    below.backing = cluster.backing.join("sub");
    says(&below.try_mount(None, &[]), &["--registry"]);
    let mut reader = cluster.stranger("reader", &["--read-only"]);
    reader.mount(None, &[]);
    assert_eq!(read(&reader.at("f")).unwrap(), b"claimed");
}

#[test]
fn two_nodes_of_one_name_are_refused() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    write(&cluster.at(0, "f"), b"of the first");
    let address = cluster.registry.address();
    let twin = cluster.stranger("twin", &["--registry", &address, "--node", "n1"]);
    says(&twin.try_mount(None, HOLD), &["n1", "--node"]);
    assert!(!twin.tier.exists(), "its new tier goes again");
    // The first node goes on.
    crate::append(&cluster.at(0, "f"), b" n1").unwrap();
    assert_eq!(read(&cluster.at(1, "f")).unwrap(), b"of the first n1");
    let other = cluster.stranger("other", &["--registry", &address, "--node", "n3"]);
    let out = other.try_mount(None, HOLD);
    assert_eq!(out.code, Some(0), "under a name of its own it is welcome: {out:#?}");
    forebay_tests::tool("umount", &[text(&other.mnt)]).ok();
}

/// A name belongs to the tier that the registry knows: if the tier were removed, the name could not be used any
/// more.
#[test]
fn a_new_tier_that_the_registry_knows_stays_when_its_mount_fails() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::laid(1);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let flags = ["--registry", &cluster.registry.address(), "--node", "n7"];
    let mut late = cluster.stranger("late", &flags);
    let out = late.try_mount(None, &["--metrics-listen", &address]);
    says(&out, &[&address, "stays", "run/registry.json"]);
    late.mount(None, HOLD);
    write(&late.at("f"), b"under its name");
    late.umount_dirty(None);
}

#[test]
fn only_loopback_is_served_without_a_key() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::laid(1);
    let listen = format!("0.0.0.0:{}", free_port());
    let out = cluster.nodes[0].try_mount(None, &["--peer-listen", &listen]);
    says(&out, &["cluster-key"]);
    let absent = cluster.root.join("no-such-key");
    let out = cluster.nodes[0].try_mount(None, &["--cluster-key", text(&absent)]);
    says(&out, &["no-such-key"]);
}

/// A node with another key gets no byte, and an error that says why.
#[test]
fn a_node_with_another_key_reads_nothing_of_the_others() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::laid(2);
    for (node, name) in ["key1", "key2"].iter().enumerate() {
        let key = cluster.root.join(name);
        write_key(&key, node as u64);
        cluster.nodes[node].set_flag("--cluster-key", text(&key));
    }
    cluster.mount(0, HOLD);
    write(&cluster.at(0, "f"), b"secret");
    let out = cluster.nodes[1].try_mount(None, HOLD);
    if out.code == Some(0) {
        let why = read(&cluster.at(1, "f")).expect_err("it has another key");
        assert!(cluster.nodes[1].log().contains("key"), "{why}: {}", cluster.nodes[1].log());
        forebay_tests::tool("umount", &[text(&cluster.nodes[1].mnt)]).ok();
    } else {
        says(&out, &["key"]);
    }
    // With the right key it is a member.
    let right = cluster.root.join("key1");
    cluster.nodes[1].set_flag("--cluster-key", text(&right));
    cluster.mount(1, HOLD);
    assert_eq!(read(&cluster.at(1, "f")).unwrap(), b"secret");
}

#[test]
fn a_store_of_one_registry_is_refused_under_another() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(1, HOLD);
    write(&cluster.at(0, "f"), b"claimed");
    let dir = cluster.root.join("elsewhere");
    std::fs::create_dir(&dir).unwrap();
    let other = Registry::local(&dir, "test");
    let flags = ["--registry", &other.address(), "--node", "n2"];
    let out = cluster.stranger("stray", &flags).try_mount(None, HOLD);
    says(&out, &["registry"]);
    // Nor under another prefix of the same registry.
    let prefix = cluster.registry.address().replace("/test", "/another");
    let flags = ["--registry", &prefix, "--node", "n2"];
    let out = cluster.stranger("stray2", &flags).try_mount(None, HOLD);
    says(&out, &["registry"]);
    crate::append(&cluster.at(0, "f"), b" still").unwrap();
}

#[test]
fn a_tier_that_holds_claims_is_not_mounted_without_its_registry() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(1, HOLD);
    write(&cluster.at(0, "f"), b"dirty");
    cluster.nodes[0].crash();
    let mut alone = cluster.stranger("alone", &[]);
    alone.tier = cluster.nodes[0].tier.clone();
    says(&alone.try_mount(None, HOLD), &["--registry"]);
    cluster.mount(0, HOLD);
    assert_eq!(read(&cluster.at(0, "f")).unwrap(), b"dirty");
}

/// Another node may have taken the tier's files over: only a mount can ask.
// S-25
#[test]
fn a_tier_of_a_shared_store_is_recovered_to_another_directory_alone() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(1, HOLD);
    write(&cluster.at(0, "f"), b"dirty");
    cluster.nodes[0].crash();
    let tier = text(&cluster.nodes[0].tier).to_string();
    says(&cluster.forebay(0, &["recover", &tier]), &["--registry", "--to"]);
    assert_eq!(cluster.stored("f").unwrap(), b"", "nothing is flushed past the members");
    let saved = cluster.root.join("saved");
    cluster.forebay(0, &["recover", &tier, "--to", text(&saved)]).ok();
    assert_eq!(std::fs::read(saved.join("f")).unwrap(), b"dirty");
    cluster.mount(0, HOLD);
    assert_eq!(read(&cluster.at(0, "f")).unwrap(), b"dirty");
}

#[test]
fn a_registry_that_does_not_answer_is_told_with_its_address() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::laid(1);
    let address = cluster.registry.address();
    cluster.registry_dies();
    let out = cluster.nodes[0].try_mount(None, HOLD);
    let host = address.trim_start_matches("etcd://").split('/').next().unwrap().to_string();
    says(&out, &[&host]);
    let wrong = cluster.stranger("wrong", &["--registry", "http://127.0.0.1:1/x", "--node", "n9"]);
    let out = wrong.try_mount(None, HOLD);
    says(&out, &["etcd://"]);
    assert_eq!(out.code, Some(2), "{out:#?}");
}

/// An operator has restored a copy: later claims are forgotten, and another node could claim the same files.
// S-25
#[test]
fn a_registry_that_is_older_than_the_tier_has_seen_is_refused() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(1, HOLD);
    let data = cluster.registry.data(0);
    let copy = cluster.root.join("copy");
    let swap = |cluster: &mut Cluster, from: &std::path::Path, to: &std::path::Path| {
        cluster.registry.kill_all();
        let _ = std::fs::remove_dir_all(to);
        forebay_tests::tool("cp", &["-a", text(from), text(to)]).ok();
        cluster.registry.up(None);
    };
    cluster.umount(0);
    swap(&mut cluster, &data, &copy);
    cluster.mount(0, HOLD);
    write(&cluster.at(0, "f"), b"claimed since");
    cluster.nodes[0].umount_dirty(None);
    // The node has noted the registry's state by the next start at the latest.
    cluster.mount(0, HOLD);
    cluster.nodes[0].umount_dirty(None);
    swap(&mut cluster, &copy, &data);
    says(
        &cluster.nodes[0].try_mount(None, HOLD),
        &["restored from an older copy", "registry.json"],
    );
    // The remedy of the message.
    let noted = cluster.nodes[0].tier.join("run/registry.json");
    std::fs::remove_file(&noted).unwrap();
    cluster.mount(0, HOLD);
    within(PATIENCE, "it is kept aside", || cluster.status(0)["conflicted_files"] == 1);
    cluster.forebay(0, &["resolve", text(&cluster.at(0, "f")), "--keep", "ours"]).ok();
    assert_eq!(read(&cluster.at(0, "f")).unwrap(), b"claimed since");
}

/// A certificate for this machine's members, and its key, signed by `ca` (by itself, if `name` is `ca`).
fn certify(dir: &std::path::Path, name: &str) {
    let own = |end: &str| dir.join(format!("{name}.{end}")).display().to_string();
    let ca = |end: &str| dir.join(format!("ca.{end}")).display().to_string();
    let openssl = |args: &[&str]| {
        forebay_tests::tool("openssl", args).ok();
    };
    let new = ["req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=forebay", "-keyout"];
    if name == "ca" {
        let more = ["-x509", "-days", "2", "-out"];
        return openssl(&[&new[..], &[&own("key")], &more, &[&own("pem")]].concat());
    }
    openssl(&[&new[..], &[&own("key"), "-out", &own("csr")]].concat());
    std::fs::write(own("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    let (csr, pem, names) = (own("csr"), own("pem"), own("names"));
    let signed = ["-CA", &ca("pem"), "-CAkey", &ca("key"), "-CAcreateserial", "-days", "2"];
    let made = ["x509", "-req", "-in", &csr, "-extfile", &names, "-out", &pem];
    openssl(&[&made[..], &signed].concat());
}

#[test]
fn members_with_certificates_take_none_without() {
    needs_forebay!();
    needs_tools!("etcd", "openssl");
    let mut cluster = Cluster::laid(3);
    let dir = cluster.root.join("certificates");
    std::fs::create_dir(&dir).unwrap();
    for name in ["ca", "n1", "n2"] {
        certify(&dir, name);
    }
    let file = |name: &str| dir.join(name).display().to_string();
    let flags = |name: &str| {
        let own = |end: &str| file(&format!("{name}.{end}"));
        let given = [own("pem"), own("key"), file("ca.pem")];
        let names = ["--peer-cert", "--peer-cert-key", "--peer-ca"];
        names.iter().zip(given).flat_map(|(name, it)| [name.to_string(), it]).collect::<Vec<_>>()
    };
    for (at, name) in ["n1", "n2"].into_iter().enumerate() {
        let flags = flags(name);
        let flags: Vec<&str> =
            flags.iter().map(String::as_str).chain(HOLD.iter().copied()).collect();
        cluster.mount(at, &flags);
    }
    let bytes = crate::random(3 << 20, 5);
    write(&cluster.at(0, "f"), &bytes);
    assert!(read(&cluster.at(1, "f")).unwrap() == bytes, "they speak to each other");
    crate::append(&cluster.at(1, "f"), b"more").unwrap();
    assert!(read(&cluster.at(0, "f")).unwrap().ends_with(b"more"));

    says(&cluster.nodes[2].try_mount(None, HOLD), &["speaks TLS", "--peer-cert"]);
    let cert = file("n1.pem");
    let half = [&["--peer-cert", &cert], HOLD].concat();
    says(&cluster.nodes[2].try_mount(None, &half), &["peer-cert-key", "peer-ca"]);
    cluster.umount(0);
    cluster.umount(1);
    cluster.mount(2, HOLD);
    let flags = flags("n1");
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(HOLD.iter().copied()).collect();
    says(&cluster.nodes[0].try_mount(None, &flags), &["n3", "does not speak TLS"]);
}
