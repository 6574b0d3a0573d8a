//! How long a request is waited for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use super::*;
use crate::reply::Fail;
use crate::request::{Do, SETTLE_MAX, Shared};

const LIMIT: Duration = Duration::from_millis(200);

/// Sends the error of a request's answer; 0 if the request is done, EIO if it is never answered.
struct Heard(Option<Sender<i32>>);

impl Fail for Heard {
    fn fail(mut self, errno: i32) {
        let _ = self.0.take().map(|tells| tells.send(errno));
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        let _ = self.0.take().map(|tells| tells.send(libc::EIO));
    }
}

pub fn asked(shared: &Arc<Shared>, work: impl FnOnce(&Vfs) + Send + 'static) -> Receiver<i32> {
    let (tells, told) = channel();
    let work = move |vfs: &Vfs| {
        work(vfs);
        Ok(())
    };
    let done = |_: &Shared, reply: Heard, ()| reply.fail(0);
    Do::with(|v| &v.open, Heard(Some(tells)), work, done).run(shared);
    told
}

/// Looks as the watchdog does until there is an answer.
pub fn watched(shared: &Arc<Shared>, told: &Receiver<i32>) -> i32 {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        shared.expire();
        if let Ok(errno) = told.recv_timeout(Duration::from_millis(10)) {
            return errno;
        }
    }
    panic!("it is not answered");
}

/// A request that waits for the heir of a dead home is not told that the store is away, however short a call to the
/// store may take.
#[test]
fn a_request_that_waits_for_a_member_does_not_hang_in_the_store() {
    let bed = Bed::new(0);
    let vfs = Bed::vfs(&bed.root, "a", Passthrough::Off);
    let tunables = Tunables { backing_timeout: LIMIT, ..vfs.engine.files.tunables() };
    vfs.engine.ops.set_tunables(tunables).expect("it is valid");
    let engine = vfs.engine.clone();
    let shared = Arc::new(Shared::new(vfs, 1, Duration::ZERO));
    let waits = |_: &Vfs| std::thread::sleep(LIMIT * 4);
    assert_eq!(watched(&shared, &asked(&shared, waits)), libc::ETIMEDOUT, "there is nobody");
    shared.vfs.set_cluster(Box::new(Played { net: bed.net.clone(), name: "a".into() }));
    assert_eq!(watched(&shared, &asked(&shared, waits)), 0);
    let hangs = |vfs: &Vfs| {
        let _ = vfs.engine.names.ask(|_| {
            std::thread::sleep(LIMIT * 4);
            Ok(())
        });
    };
    assert_eq!(watched(&shared, &asked(&shared, hangs)), libc::ETIMEDOUT);
    shared.settle();
    engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
}

/// However many requests hang in the store, those that need no store are answered.
// S-10
#[test]
fn requests_that_hang_leave_room_for_those_that_do_not() {
    let bed = Bed::new(0);
    let vfs = Bed::vfs(&bed.root, "a", Passthrough::Off);
    let tunables = Tunables { backing_timeout: LIMIT, ..vfs.engine.files.tunables() };
    vfs.engine.ops.set_tunables(tunables).expect("it is valid");
    let engine = vfs.engine.clone();
    let shared = Arc::new(Shared::new(vfs, 1, Duration::ZERO));
    let (back, gone) = channel::<()>();
    let gone = Arc::new(std::sync::Mutex::new(gone));
    let hang = || {
        let gone = gone.clone();
        asked(&shared, move |_| _ = gone.lock().expect("no panic inside").recv())
    };
    // More than there are threads for: some are answered before they have begun.
    let hanging: Vec<_> = (0..100).map(|_| hang()).collect();
    for told in &hanging {
        assert_eq!(watched(&shared, told), libc::ETIMEDOUT);
    }
    let quick = (0..3).map(|_| watched(&shared, &asked(&shared, |_| ())));
    assert_eq!(quick.collect::<Vec<_>>(), [0, 0, 0], "those that hang are in nobody's way");
    drop(back);
    shared.settle();
    engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
}

/// A bug costs its request alone, wherever the request runs.
#[test]
fn a_request_that_panics_is_answered_and_is_not_under_way_any_more() {
    let bed = Bed::new(0);
    for seats in [1, 2] {
        let shared = Arc::new(Shared::new(
            Bed::vfs(&bed.root, "a", Passthrough::Off),
            seats,
            Duration::ZERO,
        ));
        let (tells, told) = channel();
        let work = |_: &Vfs| -> Result<()> { panic!("a bug") };
        let done = |_: &Shared, reply: Heard, ()| reply.fail(0);
        let request = Do::with(|v| &v.open, Heard(Some(tells)), work, done).patient();
        let _ = catch_unwind(AssertUnwindSafe(|| request.run(&shared)));
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(libc::EIO), "{seats} threads");
        let began = Instant::now();
        shared.settle();
        assert!(began.elapsed() < SETTLE_MAX, "nothing is under way");
        shared.vfs.engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
    }
}
