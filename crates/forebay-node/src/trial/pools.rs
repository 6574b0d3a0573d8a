//! The offers of pools, and their grants.

use super::*;

#[test]
fn an_image_holds_xfs_where_all_its_nodes_have_it() {
    let bed = Bed::new();
    let (one, two) = (bed.node("n1"), bed.node("n2"));
    let offers = |node: &str, systems: &[&str]| {
        let key = keys::pool(node, "p");
        let told: crate::records::PoolRecord = one.book.read(&key).unwrap().unwrap();
        let systems = systems.iter().map(ToString::to_string).collect();
        let (means, capacity) = (vec!["image".into()], 8 << 30);
        let told = crate::records::PoolRecord { means, systems, capacity, ..told };
        one.book.put(&key, &told).unwrap();
    };
    let made = |name: &str, nodes: &[&str], bytes: u64| {
        let asked = NewInstance { bytes, ..wish(name, Mode::Private, nodes) };
        let made = one.desk().create(&asked).unwrap();
        let again = one.desk().create(&asked).unwrap();
        assert_eq!(again.space, made.space, "the same words mean the same");
        (made.space.unwrap().fs.unwrap(), made.bytes)
    };
    offers("n1", &["xfs", "ext4"]);
    offers("n2", &["xfs", "ext4"]);
    let (fs, xfs) = made("a", &["n1", "n2"], 1 << 30);
    assert_eq!(fs, "xfs");
    assert_eq!(made("small", &["n1"], 64 << 20).0, "ext4", "too small for XFS");
    offers("n2", &["ext4"]);
    let (fs, ext4) = made("b", &["n1", "n2"], 1 << 30);
    assert_eq!(fs, "ext4", "n2 has no XFS");
    assert_ne!(xfs, ext4, "the room is that of the file system");
    // An older node daemon does not announce file systems.
    offers("n2", &[]);
    assert_eq!(made("c", &["n2"], 1 << 30).0, "ext4");
    // Only ext4 has an exact number of inodes.
    let counted = Some(SpaceWish { inodes: Some(1000), ..SpaceWish::default() });
    let asked = NewInstance { space: counted, bytes: 1 << 30, ..wish("e", Mode::Private, &["n1"]) };
    assert_eq!(one.desk().create(&asked).unwrap().space.unwrap().fs.unwrap(), "ext4");
    offers("n2", &["xfs"]);
    let asked = NewInstance { bytes: 64 << 20, ..wish("f", Mode::Private, &["n2"]) };
    let refused = one.desk().create(&asked).unwrap_err().to_string();
    assert!(refused.contains("no images of ext4"), "{refused}");
    let named = Some(SpaceWish { fs: Some("ext4".into()), ..SpaceWish::default() });
    let asked = NewInstance { space: named, bytes: 1 << 30, ..wish("d", Mode::Private, &["n1"]) };
    assert_eq!(one.desk().create(&asked).unwrap().space.unwrap().fs.unwrap(), "ext4");
    // The pool's choice is written down: a node that could use other means later does not.
    let asked = NewInstance { bytes: 1 << 30, ..wish("g", Mode::Private, &["n1"]) };
    assert_eq!(one.desk().create(&asked).unwrap().space.unwrap().means.unwrap(), "image");
    let key = keys::pool("n2", "p");
    let told: crate::records::PoolRecord = one.book.read(&key).unwrap().unwrap();
    let means = vec!["project-quota".into(), "image".into()];
    one.book.put(&key, &crate::records::PoolRecord { means, ..told }).unwrap();
    let asked = NewInstance { bytes: 1 << 30, ..wish("h", Mode::Private, &["n1", "n2"]) };
    let refused = one.desk().create(&asked).unwrap_err().to_string();
    assert!(refused.contains("--means image|project-quota"), "{refused}");
    drop(two);
}

/// A commit has at most 120 compares.
#[test]
fn an_instance_may_be_on_a_hundred_nodes() {
    let bed = Bed::new();
    let node = bed.node("n0");
    let pool: crate::records::PoolRecord = node.book.read(&keys::pool("n0", "p")).unwrap().unwrap();
    let names: Vec<String> = (0..111).map(|number| format!("n{number}")).collect();
    for name in &names {
        node.book.put(&keys::node(name), &record(now())).unwrap();
        node.book.put(&keys::pool(name, "p"), &pool).unwrap();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let made = node.desk().create(&wish("many", Mode::Private, &names[..110])).unwrap();
    assert_eq!(made.nodes.len(), 110);
    let refused = node.desk().create(&wish("more", Mode::Private, &names)).unwrap_err().to_string();
    assert!(refused.contains("at most 110"), "{refused}");
}

#[test]
fn a_bad_pool_costs_only_itself_and_is_told() {
    let bed = Bed::new();
    let text = |dir: &str| {
        let more = format!("[[pool]]\nname = \"bad\"\ndir = \"{dir}\"\ncapacity = \"1GiB\"\n");
        bed.config("n1", &more)
    };
    let bad = bed.dir.path().join("not/there");
    let node = bed.node_of(text(bad.to_str().unwrap()));
    let mut asked = wish("w", Mode::Private, &["n1"]);
    asked.pool = Some("p".into());
    node.desk().create(&asked).unwrap();
    let error = node.pools.get("bad").err().unwrap().to_string();
    assert!(error.contains("/not"), "{error}");
    // Once the directory exists the pool is used; when it is gone again, nothing is granted from it.
    std::fs::create_dir_all(bad.parent().unwrap()).unwrap();
    node.open_pools().unwrap();
    let named =
        |name: &str| NewInstance { pool: Some("bad".into()), ..wish(name, Mode::Cache, &["n1"]) };
    node.desk().create(&named("x")).unwrap();
    let key = keys::pool("n1", "bad");
    let told: crate::records::PoolRecord = node.book.read(&key).unwrap().unwrap();
    assert_eq!((told.fault.clone(), told.capacity), (None, 1 << 30));
    let fault = Some("it answers EIO".to_string());
    node.book.put(&key, &crate::records::PoolRecord { fault, ..told }).unwrap();
    let refused = node.desk().create(&named("y")).unwrap_err().to_string();
    assert!(refused.contains("cannot be used now: it answers EIO"), "{refused}");
    assert!(
        Node::open(text("/proc/none"), bed.registry.clone(), bed.hands.clone()).is_err(),
        "one state"
    );
}
