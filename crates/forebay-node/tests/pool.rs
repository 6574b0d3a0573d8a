//! Pools: which directories may be pools, what they lie on, and what happens when they are full.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use forebay_base::Kind as Error;
use forebay_node::space::{Choice, Means, Owner, Pool, Settings, SpaceSpec, State};
use support::{ALICE, Kind, MIB, Place, id, mode_and_owner, run_as};

fn refusal(dir: &Path) -> String {
    let error = Pool::open(dir, Settings::default()).unwrap_err();
    assert_eq!(error.kind(), Error::Usage, "{error}");
    error.to_string()
}

#[test]
fn what_cannot_be_a_pool_is_refused_with_the_remedy() {
    let place = Place::new();
    fs::create_dir(place.at("other")).unwrap();
    fs::write(place.at("other/thesis.tex"), "").unwrap();
    let error = refusal(&place.at("other"));
    assert!(error.contains("thesis.tex") && error.contains("empty directory"), "{error}");
    assert_eq!(fs::read_dir(place.at("other")).unwrap().count(), 1, "nothing was made in it");

    fs::create_dir(place.at("hers")).unwrap();
    std::os::unix::fs::chown(place.at("hers"), Some(ALICE.uid), None).unwrap();
    let error = refusal(&place.at("hers"));
    assert!(error.contains("belongs to uid 61001") && error.contains("choose"), "{error}");

    fs::create_dir_all(place.at("open/pool")).unwrap();
    fs::set_permissions(place.at("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let error = refusal(&place.at("open/pool"));
    assert!(error.contains("others may write to"), "{error}");

    fs::write(place.at("file"), "").unwrap();
    Pool::open(&place.at("file"), Settings::default()).unwrap_err();
    std::os::unix::fs::symlink("/", place.at("hers/link")).unwrap();
    Pool::open(&place.at("hers/link"), Settings::default()).unwrap_err();
}

#[test]
fn a_pool_is_one_daemons_and_keeps_its_name() {
    let place = Place::new();
    let pool = place.pool();
    assert_eq!(mode_and_owner(&place.at("pool")), (0o700, 0, 0));
    let error = Pool::open(&place.at("pool"), Settings::default()).unwrap_err();
    assert_eq!(error.kind(), Error::WrongTier);
    assert!(error.to_string().contains("in use by another"), "{error}");
    let name = pool.id().to_string();
    assert_eq!(name.len(), 16);
    drop(pool);
    fs::set_permissions(place.at("pool"), fs::Permissions::from_mode(0o755)).unwrap();
    let pool = place.pool();
    assert_eq!(pool.id(), name);
    assert_eq!(mode_and_owner(&place.at("pool")).0, 0o700, "it is closed to others again");
    assert!(!run_as(ALICE, &format!("ls {}", place.at("pool").display())).status.success());
    drop(pool);
    let mark = place.at("pool/forebay-pool.json");
    let text = fs::read_to_string(&mark).unwrap();
    fs::write(&mark, text.replace("\"format\":1", "\"format\":2")).unwrap();
    let error = place.try_pool().unwrap_err();
    assert_eq!(error.kind(), Error::WrongTier);
    assert!(error.to_string().contains("newer forebay"), "{error}");
    fs::write(&mark, "no JSON").unwrap();
    let error = place.try_pool().unwrap_err();
    assert!(error.kind() == Error::Corrupt && error.to_string().contains("mark"), "{error}");
}

#[test]
fn a_record_that_nobody_can_read_is_told_and_not_taken_for_none() {
    let place = Place::new();
    let pool = place.pool();
    fs::write(place.at("pool/state/a.json"), "{").unwrap();
    let error = pool.make(&place.spec("a", Kind::Ext4, 32)).unwrap_err();
    assert!(error.kind() == Error::Corrupt && error.to_string().contains("a.json"), "{error}");
    fs::remove_file(place.at("pool/state/a.json")).unwrap();
    place.assert_empty(&pool);
}

/// The small tier is an image of another pool.
fn small(place: &Place, kind: Kind, mib: u64) -> (Pool, Pool) {
    let outer = place.pool();
    let spec = SpaceSpec { owner: Owner::ROOT, ..place.spec("tier", kind, mib) };
    outer.make(&spec).unwrap();
    let inner = Pool::open(&spec.mount_at.join("pool"), Settings::default()).unwrap();
    (outer, inner)
}

fn image(place: &Place, name: &str, bytes: u64) -> SpaceSpec {
    let mut spec = SpaceSpec::new(id(name), bytes, ALICE, place.mount_at(name));
    spec.means = Choice::Exactly(Means::Image);
    spec
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn a_full_pool_says_so_and_nothing_is_left() {
    let place = Place::new();
    let (outer, inner) = small(&place, Kind::Ext4, 512);
    inner.make(&image(&place, "one", 128 * MIB)).unwrap();
    let error = inner.make(&image(&place, "two", 1024 * MIB)).unwrap_err();
    assert!(error.is(libc::ENOSPC) && error.to_string().contains("ask for less"), "{error}");
    // This image seems to just fit, until the tier's file system needs blocks for itself.
    let free = inner.free().unwrap();
    let mut spec = image(&place, "three", free / 2);
    while inner.room(&spec).unwrap() <= free - 2 * MIB {
        spec.capacity += MIB;
    }
    let filler = place.mount_at("tier").join("filler");
    let file = fs::File::create(&filler).unwrap();
    let room = inner.room(&spec).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free - room - 4096 * 2)
        .unwrap();
    match inner.make(&spec) {
        Ok(_) => drop(inner.remove(&id("three")).unwrap()),
        Err(e) => assert!(e.is(libc::ENOSPC) && e.to_string().contains("pool"), "{e}"),
    }
    inner.sweep().unwrap();
    for folder in ["state", "spaces"] {
        let at = place.mount_at("tier").join("pool").join(folder);
        assert_eq!(count(&at), 1, "{folder}: only the first is there");
    }
    assert_eq!(count(&place.mount_at("tier").join("pool/trash")), 0);
    assert_eq!(count(&place.at("mnt")), 2);
    drop(file);
    fs::remove_file(filler).unwrap();
    inner.make(&image(&place, "four", 64 * MIB)).unwrap();
    for name in ["one", "four"] {
        inner.remove(&id(name)).unwrap();
    }
    while !inner.sweep().unwrap().left.is_empty() {}
    drop(inner);
    outer.remove(&id("tier")).unwrap();
    place.assert_empty(&outer);
}

/// An image is allocated while the tier fills up: the check of the free room came too early.
#[test]
fn a_tier_that_fills_up_meanwhile_leaves_nothing() {
    let place = Place::new();
    let (outer, inner) = small(&place, Kind::Ext4, 512);
    let filler = place.mount_at("tier").join("filler");
    let mut refused = 0;
    for round in 0..20u32 {
        let spec = image(&place, "a", 200 * MIB);
        let other = std::thread::scope(|scope| {
            let made = scope.spawn(|| inner.make(&spec));
            std::thread::sleep(std::time::Duration::from_millis(u64::from(round) / 4));
            let file = fs::File::create(&filler).unwrap();
            let all = rustix::fs::FallocateFlags::empty();
            let _ = rustix::fs::fallocate(&file, all, 0, inner.free().unwrap_or(0).max(1));
            made.join().unwrap()
        });
        match other {
            Ok(_) => drop(inner.remove(&id("a")).unwrap()),
            Err(e) => {
                refused += 1;
                assert!(e.is(libc::ENOSPC), "{e}");
            }
        }
        fs::remove_file(&filler).unwrap();
        while !inner.sweep().unwrap().left.is_empty() {}
        let pool = place.mount_at("tier").join("pool");
        assert_eq!((count(&pool.join("state")), count(&pool.join("spaces"))), (0, 0));
    }
    println!("refused in {refused} of 20 rounds");
    drop(inner);
    outer.remove(&id("tier")).unwrap();
    place.assert_empty(&outer);
}

#[test]
fn a_pool_in_memory_gives_memory() {
    let place = Place::new();
    let (outer, inner) = small(&place, Kind::Tmpfs, 64);
    let offers = inner.probe();
    let image = offers.iter().find(|offer| offer.means == Means::Image).unwrap();
    assert!(image.missing.as_ref().unwrap().contains("in memory"));
    let mut spec = self::image(&place, "a", 8 * MIB);
    spec.means = Choice::Auto;
    assert_eq!(inner.make(&spec).unwrap().means, Means::Tmpfs);
    inner.remove(&id("a")).unwrap();
    spec.capacity = 1 << 50;
    let error = inner.make(&spec).unwrap_err().to_string();
    assert!(error.contains("in memory") && error.contains("ask for less"), "{error}");
    drop(inner);
    outer.remove(&id("tier")).unwrap();
    place.assert_empty(&outer);
}

#[test]
fn other_words_for_the_same_id_are_refused() {
    let place = Place::new();
    let pool = place.pool();
    let spec = place.spec("a", Kind::Ext4, 32);
    pool.make(&spec).unwrap();
    let error = pool.make(&SpaceSpec { capacity: 64 * MIB, ..spec.clone() }).unwrap_err();
    assert!(error.to_string().contains("other words"), "{error}");
    let error = pool.tier_dir(&id("a"), Owner::ROOT, MIB).unwrap_err();
    assert!(error.to_string().contains("no cache"), "{error}");
    let error = pool.swap_on(&id("a"), 4 * MIB, None).unwrap_err();
    assert!(error.to_string().contains("no swap"), "{error}");
    let other = SpaceSpec { id: id("b"), ..spec.clone() };
    let error = pool.make(&other).unwrap_err();
    assert!(error.to_string().contains("is mounted there"), "{error}");
    assert_eq!(pool.adopt(&id("b")).unwrap(), State::Absent);
    assert!(matches!(pool.adopt(&id("a")).unwrap(), State::Ready(_)));
    pool.remove(&id("a")).unwrap();
    place.assert_empty(&pool);
}

#[test]
fn a_tier_is_made_confirmed_and_removed() {
    let place = Place::new();
    let pool = place.pool();
    let tier = pool.tier_dir(&id("cache"), Owner::ROOT, 64 * MIB).unwrap();
    assert_eq!(tier, place.at("pool/tiers/cache"));
    assert_eq!(mode_and_owner(&tier), (0o700, 0, 0));
    fs::create_dir(tier.join("shadow")).unwrap();
    fs::write(tier.join("shadow/1"), "bytes").unwrap();
    assert_eq!(pool.tier_dir(&id("cache"), Owner::ROOT, 64 * MIB).unwrap(), tier);
    assert!(tier.join("shadow/1").exists());
    assert_eq!(pool.ids().unwrap(), [id("cache")]);
    pool.remove(&id("cache")).unwrap();
    assert!(!tier.exists());
    pool.tier_dir(&id("lost"), Owner::ROOT, 64 * MIB).unwrap();
    fs::remove_dir(place.at("pool/tiers/lost")).unwrap();
    let error = pool.tier_dir(&id("lost"), Owner::ROOT, 64 * MIB).unwrap_err();
    assert!(error.to_string().contains("is gone"), "an empty one is not put in its place: {error}");
    pool.remove(&id("lost")).unwrap();
    place.assert_empty(&pool);
}
