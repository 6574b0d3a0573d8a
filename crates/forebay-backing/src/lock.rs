//! Locks that a dying process may still hold: a killed process keeps its descriptors until its last
//! system call has ended, and a forked child has copies of them until it execs.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How long a holder may take to die.
const DYING: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// Takes a lock of a whole file, without blocking (`how` says so), as soon as a dying holder has
/// released it.
///
/// # Errors
///
/// [`Errno::WOULDBLOCK`] if a living process holds the lock.
pub fn outlive(fd: impl AsFd, how: FlockOperation) -> rustix::io::Result<()> {
    past(Errno::WOULDBLOCK, || flock(&fd, how))
}

/// Repeats `take` while it returns `held`, for as long as a holder may be dying.
pub(crate) fn past<T>(
    held: Errno,
    mut take: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    let began = Instant::now();
    loop {
        match take() {
            Err(errno) if errno == held && began.elapsed() < DYING => sleep(LOOK),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::TempDir;

    #[test]
    fn a_lock_is_taken_once_its_holder_is_gone_and_refused_while_it_stays() {
        let dir = TempDir::new();
        let open = || std::fs::File::create(dir.path().join("lock")).expect("it can be made");
        let how = FlockOperation::NonBlockingLockExclusive;
        let (first, second) = (open(), open());
        outlive(&first, how).expect("nobody has it");
        assert_eq!(outlive(&second, how), Err(Errno::WOULDBLOCK));
        let dying = std::thread::spawn(move || {
            sleep(LOOK * 2);
            drop(first);
        });
        outlive(&second, how).expect("the holder died");
        dying.join().expect("it only sleeps");
    }
}
