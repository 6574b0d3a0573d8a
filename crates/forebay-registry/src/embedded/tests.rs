use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::{Event, ManualClock, believed, suite};

const PATIENCE: Duration = Duration::from_millis(200);
const TTL: Duration = Duration::from_secs(3600);

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory can be made")
}

fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, PATIENCE).expect("it can be opened")
}

fn with(dir: &Path, clock: &Arc<ManualClock>, bound: Bound) -> Embedded {
    Embedded::with(dir, PATIENCE, clock.clone(), bound).expect("it can be opened")
}

#[test]
fn the_embedded_registry_does_what_every_registry_does() {
    let dir = dir();
    let registry: Arc<dyn Registry> = Arc::new(open(dir.path()));
    suite::run(&registry);
}

#[test]
fn what_was_committed_is_there_again() {
    let dir = dir();
    let first = open(dir.path());
    let made = first.commit(&Commit::new().put("a", "1")).expect("it answers");
    let cluster = first.cluster().expect("it answers");
    drop(first);
    let again = open(dir.path());
    assert_eq!(again.cluster().expect("it answers"), cluster);
    let entry = again.get("a").expect("it answers").0.expect("R3");
    assert_eq!(Some(entry.revision), made.committed());
    let mut watch = again.watch("", Revision(0)).expect("a watch can begin");
    assert_eq!(suite::events(&mut *watch, 1), [Event::Put(entry)], "the history is there too");
    let next = again.commit(&Commit::new().put("a", "2")).expect("it answers");
    assert!(next.committed() > made.committed(), "R1");
}

#[test]
fn one_process_serves_it_and_others_are_told() {
    let dir = dir();
    let first = open(dir.path());
    let error = Embedded::open(dir.path(), PATIENCE).err().expect("it is in use");
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("another process has it open"), "{error}");
    drop(first);
    open(dir.path());
}

#[test]
fn nobody_else_can_look_into_it_or_exchange_it() {
    let dir = dir();
    let inner = dir.path().join("registry");
    drop(open(&inner));
    let mode =
        |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let file = inner.join("registry.redb");
    assert_eq!((mode(&inner), mode(&file)), (0o700, 0o600));
    let refused =
        |dir: &Path| Embedded::open(dir, PATIENCE).err().expect("it is refused").to_string();
    std::fs::rename(&file, inner.join("elsewhere")).expect("it can be renamed");
    symlink("elsewhere", &file).expect("a link can be made");
    assert!(refused(&inner).contains("symbolic link"), "{}", refused(&inner));
    let open_to_all = dir.path().join("all");
    std::fs::create_dir(&open_to_all).expect("it can be made");
    std::fs::set_permissions(&open_to_all, PermissionsExt::from_mode(0o777)).expect("it is ours");
    assert!(refused(&open_to_all.join("registry")).contains("others may write to"));
}

#[test]
fn a_watch_that_was_left_behind_is_told() {
    let dir = dir();
    let clock = Arc::new(ManualClock::default());
    let bound = Bound { commits: 10, bytes: 1 << 20 };
    let registry = with(dir.path(), &clock, bound);
    let mut slow = registry.watch("a", Revision(0)).expect("a watch can begin");
    let mut other = registry.watch("b", Revision(0)).expect("a watch can begin");
    let mut last = Revision(0);
    for i in 0..30 {
        let outcome = registry.commit(&Commit::new().put(format!("a{i}"), "")).expect("it answers");
        last = outcome.committed().expect("nothing was compared");
        assert_eq!(other.next(Duration::ZERO).expect("it goes on"), Seen::Quiet);
    }
    let Seen::Compacted(upto) = slow.next(Duration::ZERO).expect("it goes on") else {
        panic!("R4: 20 commits are forgotten")
    };
    assert_eq!(upto, Revision(last.0 - 10));
    drop(registry);
    drop((slow, other));
    let again = with(dir.path(), &clock, bound);
    let mut watch = again.watch("a", upto).expect("a watch can begin");
    assert_eq!(suite::events(&mut *watch, 10).len(), 10);
    let before = Revision(upto.0 - 1);
    let mut behind = again.watch("a", before).expect("a watch can begin");
    assert_eq!(behind.next(Duration::ZERO).expect("it goes on"), Seen::Compacted(upto));
}

#[test]
fn what_was_compacted_stays_so_after_a_restart() {
    let dir = dir();
    let registry = open(dir.path());
    let put = |_| registry.commit(&Commit::new().put("a", "")).expect("it answers").committed();
    let made: Vec<Revision> = (0..4).filter_map(put).collect();
    registry.compact(made[1]).expect("it answers");
    drop(registry);
    let again = open(dir.path());
    let mut behind = again.watch("", made[0]).expect("a watch can begin");
    assert_eq!(behind.next(Duration::ZERO).expect("it goes on"), Seen::Compacted(made[1]));
    let mut ahead = again.watch("", made[1]).expect("a watch can begin");
    let told = suite::events(&mut *ahead, 2);
    assert_eq!(told.iter().map(Event::revision).collect::<Vec<_>>(), made[2..]);
}

#[test]
fn the_history_is_bounded_in_bytes_too() {
    let dir = dir();
    let clock = Arc::new(ManualClock::default());
    let registry = with(dir.path(), &clock, Bound { commits: 1000, bytes: 64 << 10 });
    for _ in 0..20 {
        registry.commit(&Commit::new().put("a", vec![0; 16 << 10])).expect("it answers");
    }
    let mut watch = registry.watch("a", Revision(0)).expect("a watch can begin");
    assert!(matches!(watch.next(Duration::ZERO).expect("it goes on"), Seen::Compacted(_)));
}

#[test]
fn a_lease_runs_out_by_the_clock_and_cannot_be_renewed_then() {
    let dir = dir();
    let clock = Arc::new(ManualClock::default());
    let registry = with(dir.path(), &clock, BOUND);
    let lease = registry.lease(TTL).expect("a lease is granted");
    registry.commit(&Commit::new().put_leased("a", "", lease.id())).expect("it answers");
    let moment = Duration::from_millis(1);
    clock.advance(believed(TTL) - moment);
    assert_eq!(lease.remaining(), moment);
    clock.advance(moment);
    assert_eq!(lease.remaining(), Duration::ZERO, "K2");
    clock.advance(TTL - believed(TTL) - moment);
    assert!(registry.get("a").expect("it answers").0.is_some(), "R5");
    clock.advance(moment);
    assert_eq!(registry.inner.renew(lease.id()).expect("it answers"), None, "E1");
    let late = registry.commit(&Commit::new().put_leased("b", "", lease.id()));
    assert_eq!(late.expect_err("E1").kind(), Kind::Lapsed);
    assert!(registry.get("a").expect("it answers").0.is_none(), "R5");
}

/// E1: also while another thread is ending the lease, and before that is durable.
#[test]
fn nobody_sees_a_key_of_a_lease_that_ran_out() {
    let dir = dir();
    let clock = Arc::new(ManualClock::default());
    let registry = with(dir.path(), &clock, BOUND);
    for round in 0..20 {
        let lease = registry.lease(TTL).expect("a lease is granted");
        let key = format!("a{round}");
        registry.commit(&Commit::new().put_leased(&key, "", lease.id())).expect("it answers");
        clock.advance(TTL);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(registry.get(&key).expect("it answers").0, None, "E1"));
            }
        });
    }
}

/// The thread that ends leases works without any request.
#[test]
fn a_watch_is_told_of_a_lease_that_ran_out() {
    let dir = dir();
    let clock = Arc::new(ManualClock::default());
    let registry = with(dir.path(), &clock, BOUND);
    let lease = registry.lease(TTL).expect("a lease is granted");
    let outcome =
        registry.commit(&Commit::new().put_leased("a", "", lease.id())).expect("it answers");
    let mut watch = registry.watch("", outcome.committed().expect("it was")).expect("it can begin");
    clock.advance(TTL);
    let told = suite::events(&mut *watch, 1);
    assert!(matches!(&told[0], Event::Deleted { key, .. } if key == "a"));
}

/// The holder may live: its lease has its whole time again. The keys of a dead holder do not stay.
#[test]
fn leases_have_their_time_again_after_a_restart() {
    let dir = dir();
    let clock = Arc::new(ManualClock::default());
    let registry = with(dir.path(), &clock, BOUND);
    let lease = registry.lease(TTL).expect("a lease is granted");
    registry.commit(&Commit::new().put_leased("a", "", lease.id())).expect("it answers");
    std::mem::forget(lease); // As if killed: nothing is revoked.
    let copy = dir.path().join("copy");
    std::fs::create_dir(&copy).expect("it can be made");
    std::fs::copy(dir.path().join("registry.redb"), copy.join("registry.redb")).expect("a copy");
    clock.advance(TTL / 2);
    let again = with(&copy, &clock, BOUND);
    clock.advance(TTL - Duration::from_millis(1));
    assert!(again.get("a").expect("it answers").0.is_some());
    clock.advance(Duration::from_millis(1));
    assert!(again.get("a").expect("it answers").0.is_none(), "R5");
}

#[test]
fn a_file_of_something_else_is_refused() {
    let dir = dir();
    std::fs::write(dir.path().join("registry.redb"), vec![7; 8192]).expect("it can be written");
    let error = Embedded::open(dir.path(), PATIENCE).err().expect("it is no registry");
    assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
}

/// After a downgrade: the meaning of a newer format is unknown, and nothing in the file is changed.
#[test]
fn a_file_of_a_newer_format_is_refused_with_the_remedy() {
    use redb::{Database, ReadableDatabase, TableDefinition};
    const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
    let dir = dir();
    drop(open(dir.path()));
    let file = dir.path().join("registry.redb");
    let db = Database::open(&file).expect("it was closed");
    let txn = db.begin_write().expect("it can be written");
    txn.open_table(NUMBERS).expect("it is there").insert("format", 2).expect("it can be written");
    txn.commit().expect("it can be written");
    drop(db);
    for _ in 0..2 {
        let error = Embedded::open(dir.path(), Duration::from_secs(1)).err().expect("it is newer");
        assert_eq!(error.kind(), Kind::Usage);
        let text = error.to_string();
        assert!(
            text.contains("format 2") && text.contains("use the version that wrote it"),
            "{text}"
        );
    }
    let db = Database::open(&file).expect("it was left alone");
    let read = db.begin_read().expect("it can be read");
    let format =
        read.open_table(NUMBERS).expect("it is there").get("format").expect("it can be read");
    assert_eq!(format.map(|format| format.value()), Some(2));
}
