//! A process is killed at each failpoint, and the call repeated: what was begun is completed, or gone
//! without a trace.

mod support;

use std::fs;
use std::path::PathBuf;

use forebay_node::space::{Owner, State};
use support::{Kind, MIB, Place, die_at, id, is_ready, run_as};

const MAKING_IMAGE: [&str; 8] = [
    "space-recorded",
    "space-allocated",
    "space-formatted",
    "space-image",
    "space-attached",
    "space-handed-over",
    "space-mounted",
    "space-ready",
];

const MAKING_TMPFS: [&str; 3] = ["space-recorded", "space-mounted", "space-ready"];

const MAKING_DIRECTORY: [&str; 4] =
    ["space-recorded", "space-directory", "space-mounted", "space-ready"];

const REMOVING: [&str; 6] = [
    "remove-marked",
    "remove-unmounted",
    "remove-renamed",
    "remove-forgotten",
    "sweep-deleted",
    "sweep-forgotten",
];

fn making(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Ext4 | Kind::Xfs => &MAKING_IMAGE,
        Kind::Tmpfs => &MAKING_TMPFS,
        Kind::Directory => &MAKING_DIRECTORY,
    }
}

/// The process that dies: `make Ext4`, `remove Ext4`, `tier`, `untier`.
#[test]
#[ignore = "started by the others"]
fn dies_here() {
    let dir = PathBuf::from(std::env::var("FOREBAY_TEST_DIR").unwrap());
    let how = std::env::var("FOREBAY_TEST_HOW").unwrap();
    let settings = forebay_node::space::Settings {
        enforce: forebay_node::space::Enforce::No,
        ..Default::default()
    };
    let pool = forebay_node::space::Pool::open(&dir.join("pool"), settings).unwrap();
    match how.split_once(' ') {
        Some(("make", kind)) => {
            let spec: forebay_node::space::SpaceSpec =
                serde_json::from_slice(&fs::read(dir.join(kind)).unwrap()).unwrap();
            pool.make(&spec).unwrap();
        }
        None if how == "tier" => {
            pool.tier_dir(&id("a"), Owner::ROOT, MIB).unwrap();
        }
        _ => {
            pool.remove(&id("a")).unwrap();
            // Work in the background ends here at the latest.
            while !pool.sweep().unwrap().left.is_empty() {}
        }
    }
    panic!("no failpoint was passed by {how}");
}

fn dies(place: &Place, point: &str, how: &str) {
    die_at(point, "dies_here", place.dir.path(), how);
}

/// Hands the specification of a space to the process that dies.
fn hand_over(place: &Place, kind: Kind) {
    let spec = serde_json::to_vec(&place.spec("a", kind, kind.mib())).unwrap();
    fs::write(place.at(&format!("{kind:?}")), spec).unwrap();
}

#[test]
fn making_is_completed_by_the_next_call() {
    for kind in Kind::ALL {
        for point in making(kind) {
            let place = Place::new();
            hand_over(&place, kind);
            dies(&place, point, &format!("make {kind:?}"));
            let pool = place.pool();
            let state = pool.adopt(&id("a")).unwrap();
            let ready = matches!(state, State::Ready(_));
            assert_eq!(ready, *point == "space-ready", "{kind:?} at {point}: {state:?}");
            let spec = place.spec("a", kind, kind.mib());
            pool.make(&spec).unwrap();
            assert!(is_ready(&pool, "a"), "{kind:?} at {point}");
            assert_eq!(place.mounts().len(), 1, "{kind:?} at {point}: mounted once");
            let line = format!("echo > {}/file", spec.mount_at.display());
            assert!(run_as(spec.owner, &line).status.success(), "{kind:?} at {point}");
            pool.remove(&id("a")).unwrap();
            place.assert_empty(&pool);
        }
    }
}

#[test]
fn what_was_half_made_is_removed() {
    for kind in Kind::ALL {
        for point in making(kind) {
            let place = Place::new();
            hand_over(&place, kind);
            dies(&place, point, &format!("make {kind:?}"));
            let pool = place.pool();
            pool.remove(&id("a")).unwrap();
            assert_eq!(pool.adopt(&id("a")).unwrap(), State::Absent, "{kind:?} at {point}");
            place.assert_empty(&pool);
        }
    }
}

#[test]
fn removing_is_completed_by_a_sweep_or_the_next_call() {
    for (kind, point) in Kind::ALL.into_iter().flat_map(|k| REMOVING.map(|point| (k, point))) {
        for again in ["sweep", "remove"] {
            let place = Place::new();
            let pool = place.pool();
            let spec = place.spec("a", kind, kind.mib());
            pool.make(&spec).unwrap();
            fs::create_dir(spec.mount_at.join("dir")).unwrap();
            fs::write(spec.mount_at.join("dir/file"), "bytes").unwrap();
            drop(pool);
            dies(&place, point, &format!("remove {kind:?}"));
            let pool = place.pool();
            let left = pool.leftovers().unwrap();
            let known = left.len() == 1 && left[0].room >= spec.capacity;
            assert_eq!(known, point != "sweep-forgotten", "{kind:?} at {point}: {left:?}");
            let state = pool.adopt(&id("a")).unwrap();
            if state == State::Removing {
                let error = pool.make(&spec).unwrap_err();
                assert!(error.is(libc::EBUSY), "{kind:?} at {point}: {error}");
            } else {
                assert_eq!(state, State::Absent, "{kind:?} at {point}");
            }
            match again {
                "sweep" => drop(pool.sweep().unwrap()),
                _ => drop(pool.remove(&id("a")).unwrap()),
            }
            assert!(!spec.mount_at.exists(), "{kind:?} at {point}");
            place.assert_empty(&pool);
        }
    }
}

#[test]
fn a_tier_is_completed_or_removed() {
    for point in ["tier-recorded", "tier-directory"] {
        let place = Place::new();
        dies(&place, point, "tier");
        let pool = place.pool();
        let tier = pool.tier_dir(&id("a"), Owner::ROOT, MIB).unwrap();
        assert!(tier.is_dir(), "{point}");
        pool.remove(&id("a")).unwrap();
        place.assert_empty(&pool);
        dies_after(pool, &place, point, "tier");
    }
    for point in REMOVING {
        let place = Place::new();
        let pool = place.pool();
        let tier = pool.tier_dir(&id("a"), Owner::ROOT, MIB).unwrap();
        fs::write(tier.join("file"), "bytes").unwrap();
        drop(pool);
        dies(&place, point, "untier");
        let pool = place.pool();
        pool.sweep().unwrap();
        assert!(!tier.exists(), "{point}");
        place.assert_empty(&pool);
    }
}

/// The process dies once more, and the space is removed without being completed.
fn dies_after(pool: forebay_node::space::Pool, place: &Place, point: &str, how: &str) {
    drop(pool);
    drop(place.pool());
    dies(place, point, how);
    let pool = place.pool();
    pool.remove(&id("a")).unwrap();
    place.assert_empty(&pool);
}
