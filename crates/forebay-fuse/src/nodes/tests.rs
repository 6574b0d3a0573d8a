use super::*;
use forebay_backing::Timestamp;

pub fn attr(ino: u64, kind: FileKind) -> Attr {
    let t = Timestamp::default();
    Attr {
        key: FileKey { ino, generation: 7 },
        kind,
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: t,
        mtime: t,
        ctime: t,
        btime: t,
    }
}

pub fn nodes(max: usize) -> Nodes {
    Nodes::new(attr(2, FileKind::Dir), max)
}

#[test]
fn a_path_follows_renames_of_its_parents() {
    let n = nodes(100);
    n.remember(ROOT, "a".as_ref(), &attr(10, FileKind::Dir), 1);
    n.remember(10, "f".as_ref(), &attr(11, FileKind::File), 1);
    n.rename((ROOT, "a".as_ref()), (ROOT, "b".as_ref()), false);
    assert_eq!(n.path(11).unwrap(), PathBuf::from("b/f"));
    assert!(n.child(ROOT, "a".as_ref()).is_none());
}

/// The kernel has one page cache for a node: bytes from another mount must not be in the one of our node.
#[test]
fn a_file_that_goes_to_another_home_and_back_is_two_nodes_of_one_number() {
    let n = nodes(100);
    let (name, of) = ("f".as_ref(), attr(11, FileKind::File));
    let near = n.remember(ROOT, name, &of, 1);
    let far = n.remember_at(Side::Far, ROOT, name, &of, 1);
    assert_ne!(near, far);
    assert_eq!(n.shown(of.key), 11);
    assert_eq!((n.key(near), n.key(far)), (Some(of.key), Some(of.key)));
    assert!(n.is_far(far) && !n.is_far(near));
    assert_eq!((n.path(near), n.path(far)), (None, Some("f".into())), "one name, one node");
    assert_eq!(n.remember(ROOT, name, &of, 1), near);
    assert_eq!((n.at("f".as_ref()), n.path(far)), (Some(near), None));
}

/// A request by the node of a removed file may be on its way while the store gives the file's number to another one.
// S-25
#[test]
fn a_number_that_is_used_again_while_the_kernel_has_its_node_gets_a_node_of_its_own() {
    let n = nodes(100);
    let (a, b) = (OsStr::new("a"), OsStr::new("b"));
    let old = attr(10, FileKind::File);
    let mut new = old;
    new.key.generation += 1;
    n.remember(ROOT, a, &old, 1);
    assert_eq!(n.id_of(new.key), None, "the node is the other file's");
    for held in [1, 2] {
        let id = n.remember(ROOT, b, &new, 1);
        assert_ne!(id, 10, "N5");
        assert_eq!((n.id_of(new.key), n.key(id)), (Some(id), Some(new.key)));
        assert_eq!((n.id_of(old.key), n.key(10)), (Some(10), Some(old.key)));
        assert_eq!((n.path(10), n.path(id)), (None, Some("b".into())), "{held}: the file is gone");
        assert_eq!((n.shown(old.key), n.shown(new.key)), (10, 10));
        assert_invariants(&n);
        n.forget(id, held);
    }
    n.unlink(ROOT, b);
    n.forget(10, 1);
    assert_invariants(&n);
    assert_eq!(n.remember(ROOT, b, &new, 1), 10, "nobody has the number");
    assert!(n.read().extra.is_empty());
}

/// Numbers are used again, by files and by directories, on a store with generations and on one without.
// S-25
#[test]
fn an_id_that_the_kernel_holds_is_never_another_files() {
    let mut random = 11_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    let n = nodes(6);
    let mut held: HashMap<u64, (FileKey, bool, u64)> = HashMap::new();
    let mut extra = 0;
    for step in 0..20_000 {
        let mut of = attr(10 + next(3), FileKind::File);
        of.key.generation = next(2);
        let is_dir = next(4) == 0;
        of.kind = if is_dir { FileKind::Dir } else { FileKind::File };
        let name = format!("n{}", next(4));
        match next(3) {
            0 => {
                let id = n.remember(ROOT, name.as_ref(), &of, 1);
                let known = held.entry(id).or_insert((of.key, is_dir, 0));
                assert_eq!((known.0, known.1), (of.key, is_dir), "N5: {step}");
                known.2 += 1;
                extra += u64::from(id >= EXTRA);
                assert_eq!(n.id_of(of.key), Some(id), "{step}");
            }
            1 => n.unlink(ROOT, name.as_ref()),
            _ => {
                if let Some(&id) = held.keys().min_by_key(|id| **id ^ step) {
                    n.forget(id, held.remove(&id).expect("it is there").2);
                }
            }
        }
        assert_invariants(&n);
    }
    assert!(extra > 1000, "{extra}");
    held.into_iter().for_each(|(id, (_, _, times))| n.forget(id, times));
    (0..4).for_each(|at| n.unlink(ROOT, format!("n{at}").as_ref()));
    assert_eq!((n.count(), n.read().extra.len()), (1, 0));
}

/// A removed file's inode number, and its key on a store without generations, may be used again at once.
#[test]
fn a_file_with_the_number_of_a_directory_that_is_gone_is_a_file() {
    for name in ["d", "f"] {
        let n = nodes(100);
        let dir = n.remember(ROOT, "d".as_ref(), &attr(10, FileKind::Dir), 1);
        assert_eq!(n.file_key(dir), None);
        if name == "f" {
            n.unlink(ROOT, "d".as_ref());
        }
        let file = n.remember(ROOT, name.as_ref(), &attr(10, FileKind::File), 1);
        assert!(n.file_key(file).is_some() && !n.is_dir(file), "by the name {name}");
        assert!(n.is_dir(dir), "the kernel holds it");
        assert_eq!((n.path(dir), n.path(file)), (None, Some(name.into())));
        n.forget(dir, 1);
        assert_eq!(n.key(dir), None);
    }
}

#[test]
fn a_hard_link_keeps_its_other_name() {
    let n = nodes(100);
    n.remember(ROOT, "a".as_ref(), &attr(10, FileKind::File), 1);
    n.remember(ROOT, "b".as_ref(), &attr(10, FileKind::File), 1);
    n.unlink(ROOT, "b".as_ref());
    assert_eq!(n.path(10).unwrap(), PathBuf::from("a"));
    n.unlink(ROOT, "a".as_ref());
    assert_eq!(n.path(10), None);
    n.forget(10, 2);
    assert_eq!(n.count(), 1);
}

/// Names come, move, change places and go in any order, and each is found.
// S-1
#[test]
fn the_names_of_a_file_are_those_that_it_has() {
    let names: Vec<String> = (0..5).map(|n| format!("n{n}")).collect();
    let mut model: HashMap<&str, u64> = HashMap::new();
    let n = nodes(100);
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    for step in 0..20_000 {
        let (a, b) = (&*names[next(5) as usize], &*names[next(5) as usize]);
        let id = 10 + next(2);
        match next(4) {
            0 | 1 => {
                n.remember(ROOT, a.as_ref(), &attr(id, FileKind::File), 1);
                model.insert(a, id);
            }
            2 => {
                n.unlink(ROOT, a.as_ref());
                model.remove(a);
            }
            _ if model.contains_key(a) && model.get(a) != model.get(b) => {
                let exchange = model.contains_key(b) && next(2) == 0;
                n.rename((ROOT, a.as_ref()), (ROOT, b.as_ref()), exchange);
                let (moved, other) = (model.remove(a).unwrap(), model.remove(b));
                model.insert(b, moved);
                if let (true, Some(other)) = (exchange, other) {
                    model.insert(a, other);
                }
            }
            _ => {}
        }
        for name in &names {
            let found = n.child(ROOT, name.as_ref()).map(|child| child.id);
            assert_eq!(found, model.get(&**name).copied(), "{step}: {name}");
        }
        for id in [10, 11] {
            let mut has = n.others(id, (ROOT, "".as_ref()), 9);
            has.sort();
            let mut wanted: Vec<PathBuf> =
                model.iter().filter(|(_, of)| **of == id).map(|(name, _)| name.into()).collect();
            wanted.sort();
            assert_eq!(has, wanted, "{step}: {id}");
        }
        assert_invariants(&n);
    }
}

struct NoPin;

impl Pin for NoPin {
    fn open(
        &self,
        _access: forebay_backing::Access,
    ) -> forebay_backing::Result<(Arc<dyn forebay_backing::BackingFile>, Attr)> {
        Err(forebay_backing::Error::os(libc::ENOENT, "nothing"))
    }

    fn xattr_get(&self, _name: &OsStr) -> forebay_backing::Result<Vec<u8>> {
        Err(forebay_backing::Error::os(libc::ENODATA, "nothing"))
    }
}

/// Checks the invariants N2 to N4, and that each extra id is in use.
fn assert_invariants(n: &Nodes) {
    let table = n.read();
    let listed: usize = table.nodes.values().map(|node| node.names.iter().count()).sum();
    assert_eq!(table.names.len(), listed, "N2");
    for (name, link) in &table.names {
        let mut of_node = table.nodes[&link.id].names.iter();
        assert!(of_node.any(|known| known == name), "N2: {name:?}");
    }
    for (id, node) in table.nodes.iter().filter(|(id, _)| **id != ROOT) {
        let is_forgotten = node.lookups == 0 && !node.names.is_empty();
        assert_eq!(node.queued.is_some(), is_forgotten, "N3: {id}");
        assert!(node.queued.is_none_or(|place| table.forgotten[&place] == *id), "N3: {id}");
        assert!(node.lookups > 0 || !node.names.is_empty(), "N4: {id}");
        assert!(node.pin.is_none() || node.lookups > 0, "N4: {id}");
    }
    let queued = table.nodes.values().filter(|node| node.queued.is_some()).count();
    assert_eq!(table.forgotten.len(), queued, "N3");
    for ((key, _), id) in &table.extra {
        assert!(*id >= EXTRA && table.nodes[id].key == *key, "{id}");
    }
}

/// Every order of a file's events: a lookup, a forget, a hold whose removal fails, and a hold with a
/// removal.
// S-1
#[test]
fn a_removed_file_is_held_as_long_as_the_kernel_knows_it_and_no_longer() {
    let (name, file) = ("f".as_ref(), attr(10, FileKind::File));
    for order in 0..4_u32.pow(7) {
        let n = nodes(100);
        for step in (0..7).map(|at| order / 4_u32.pow(at) % 4) {
            let held = n.read().nodes.get(&10).map_or(0, |node| node.lookups);
            match step {
                0 => drop(n.remember(ROOT, name, &file, 1)),
                1 => n.forget(10, held.min(1)),
                2 => drop(n.hold(10, Arc::new(NoPin))),
                _ => {
                    let _hold = n.hold(10, Arc::new(NoPin));
                    n.unlink(ROOT, name);
                    let is_known = n.read().nodes.get(&10).is_some_and(|n| n.lookups > 0);
                    assert_eq!(n.pin(10).is_some(), is_known, "{order}");
                }
            }
            assert_invariants(&n);
        }
        n.unlink(ROOT, name);
        n.forget(10, 100);
        assert_eq!((n.count(), Arc::strong_count(&n.pins)), (1, 1), "{order}");
        assert!(n.read().forgotten.is_empty(), "{order}");
    }
}

#[test]
fn at_most_so_many_removed_files_are_held() {
    let n = nodes(10 * PINS_MAX);
    let mut held = Vec::new();
    for ino in 10..10 + 2 * PINS_MAX as u64 {
        let name = format!("{ino}");
        held.push(n.remember(ROOT, name.as_ref(), &attr(ino, FileKind::File), 1));
        let _hold = n.may_hold(ino).then(|| n.hold(ino, Arc::new(NoPin)));
        n.unlink(ROOT, name.as_ref());
    }
    assert_eq!(Arc::strong_count(&n.pins) - 1, PINS_MAX);
    held.into_iter().for_each(|id| n.forget(id, 1));
    assert_eq!((n.count(), Arc::strong_count(&n.pins)), (1, 1));
}

#[test]
fn forgotten_names_are_dropped_only_beyond_the_limit() {
    let n = nodes(4);
    for ino in 10..20 {
        n.remember(ROOT, format!("{ino}").as_ref(), &attr(ino, FileKind::File), 1);
    }
    assert_eq!(n.count(), 11, "N1: what the kernel holds stays");
    for ino in 10..20 {
        n.forget(ino, 1);
    }
    assert_eq!(n.count(), 4);
    assert_eq!(n.path(19).unwrap(), PathBuf::from("19"));
    assert_eq!(n.path(10), None);
}
