//! Tests of the check on waits under locks in debug builds, and of locks whose holder has panicked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forebay_base::lock::{Condvar, Mutex, Rank};
#[cfg(debug_assertions)]
use forebay_base::lock::{asks_a_member, asks_the_registry, sleep};

/// The complaint about `act`, if it panics.
fn complaint(act: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(act)).err()?;
    Some(*panic.downcast::<String>().expect("it says what is wrong"))
}

#[cfg(debug_assertions)]
#[test]
fn members_and_the_registry_are_asked_under_what_lasts_alone() {
    let core = Mutex::new(Rank::Core, ());
    for (ask, said) in [
        (asks_a_member as fn(), "a member is asked under the lock Core, taken at "),
        (asks_the_registry, "the registry is asked under the lock Core, taken at "),
        (|| sleep(Duration::ZERO), "a thread sleeps under the lock Core, taken at "),
    ] {
        for lasting in [Rank::Leaving, Rank::Tree, Rank::NodeLease, Rank::Marks] {
            let lasting = Mutex::new(lasting, ());
            let _held = lasting.lock();
            assert_eq!(complaint(ask), None);
        }
        let _held = core.lock();
        let complaint = complaint(ask).expect("others need the core");
        assert!(complaint.starts_with(said), "{complaint}");
    }
}

/// The log may be written under any lock.
#[cfg(debug_assertions)]
#[test]
fn the_log_is_written_under_any_lock_and_leads_to_none() {
    let [leaf, time, log] = [Rank::Etcd, Rank::Time, Rank::Diary].map(|rank| Mutex::new(rank, ()));
    let under = |held: &Mutex<()>, wanted: &Mutex<()>| {
        complaint(|| {
            let _held = held.lock();
            drop(wanted.lock());
        })
    };
    assert_eq!([under(&leaf, &log), under(&time, &log)], [None, None]);
    assert!(under(&log, &time).is_some() && under(&log, &leaf).is_some());
}

#[cfg(debug_assertions)]
#[test]
fn a_condition_is_waited_for_without_other_locks() {
    let (core, leaf, condition) =
        (Mutex::new(Rank::Core, ()), Mutex::new(Rank::Tasks, ()), Condvar::new());
    let _core = core.lock();
    let complaint = complaint(|| drop(condition.wait(leaf.lock())));
    assert!(
        complaint.is_some_and(|it| it.starts_with("a condition is waited for under the lock Core"))
    );
}

#[test]
fn a_waiting_thread_is_woken_by_a_notification() {
    let (is_so, changed) = (Mutex::new(Rank::Tasks, false), Condvar::new());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut held = is_so.lock();
            while !*held {
                held = changed.wait(held);
            }
        });
        *is_so.lock() = true;
        changed.notify_all();
        waits.join().expect("it was woken");
    });
}

#[test]
fn what_no_panic_leaves_half_changed_is_had_again() {
    let turn = Mutex::new(Rank::Leaving, 7);
    let panicked = complaint(|| {
        let _turn = turn.lock();
        panic!("{}", "under the lock");
    });
    assert!(panicked.is_some());
    assert!(turn.try_lock().is_none() && complaint(|| drop(turn.lock())).is_some(), "it is lost");
    assert_eq!(*turn.lock_anyway(), 7);
    assert_eq!(turn.try_lock_anyway().as_deref(), Some(&7));
    let held = turn.lock_anyway();
    assert!(turn.try_lock_anyway().is_none(), "somebody has it");
    let moment = Duration::from_millis(1);
    let (held, is_late) = Condvar::new().wait_timeout_while_anyway(held, moment, |_| true);
    assert_eq!((*held, is_late), (7, true), "it is had again after a wait");
    drop(held);
}
