//! Looking out for the next request before a session thread sleeps.
//!
//! Waking a sleeping thread costs more than most requests do, above all in a virtual machine, where a
//! halted processor is woken through the host. So a thread that has answered looks out for the next
//! request for some microseconds, as a socket does with `SO_BUSY_POLL` (socket(7)), and yields its
//! processor between two looks. One thread at a time looks, and only while looking finds requests.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How many more looks may find nothing than find a request before looking rests.
const LUCK: u32 = 8;
/// Requests without a look during a rest.
const REST: u32 = 64;

/// The lookout for requests, which does nothing until it knows the device.
#[derive(Default)]
pub struct BusyPoll {
    device: OnceLock<(OwnedFd, Duration)>,
    /// Whether a thread is looking. Only that thread uses the next two fields.
    looking: AtomicBool,
    luck: AtomicU32,
    rested: AtomicU32,
}

impl BusyPoll {
    /// From now on looks out for at most `window` for requests on `device`, /dev/fuse.
    pub fn begin(&self, device: OwnedFd, window: Duration) {
        self.luck.store(LUCK, Ordering::Relaxed);
        let _ = self.device.set((device, window));
    }

    /// Called by a session thread that has answered a request and is about to take the next.
    pub fn look_out(&self) {
        let Some((device, window)) = self.device.get() else { return };
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error, such as that of a mount that is gone, counts as a request: the reader sees it.
        let ready = || {
            let mut device = [PollFd::new(device, PollFlags::IN)];
            !matches!(poll(&mut device, Some(&nothing)), Ok(0))
        };
        self.look(*window, ready);
    }

    fn look(&self, window: Duration, mut ready: impl FnMut() -> bool) {
        if self.looking.swap(true, Ordering::Acquire) {
            return;
        }
        if self.is_worth_it() {
            let until = Instant::now() + window;
            let found = loop {
                if ready() {
                    break true;
                }
                if Instant::now() >= until {
                    break false;
                }
                std::thread::yield_now();
            };
            self.learn(found);
        }
        self.looking.store(false, Ordering::Release);
    }

    fn is_worth_it(&self) -> bool {
        let rested = self.rested.load(Ordering::Relaxed) + 1;
        let again = self.luck.load(Ordering::Relaxed) > 0 || rested > REST;
        self.rested.store(if again { 0 } else { rested }, Ordering::Relaxed);
        again
    }

    fn learn(&self, found: bool) {
        let luck = self.luck.load(Ordering::Relaxed);
        let luck = if found { LUCK.min(luck + 1) } else { luck.saturating_sub(1) };
        self.luck.store(luck, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lucky() -> BusyPoll {
        let polls = BusyPoll::default();
        polls.luck.store(LUCK, Ordering::Relaxed);
        polls
    }

    /// How many of `requests` were followed by a look that finds what `found` says.
    fn looks(polls: &BusyPoll, requests: u32, found: bool) -> u32 {
        let mut looks = 0;
        for _ in 0..requests {
            polls.look(Duration::ZERO, || {
                looks += 1;
                found
            });
        }
        looks
    }

    #[test]
    fn a_poller_that_finds_nothing_rests_and_tries_again() {
        let polls = lucky();
        assert_eq!(looks(&polls, 1000, true), 1000);
        let idle = looks(&polls, 8 + 10 * (REST + 1), false);
        assert_eq!(idle, 8 + 10, "a look in {REST} requests while it rests");
        // Requests that come again are noticed, and looked for from then on.
        let rest = REST + 1;
        assert_eq!(looks(&polls, rest, true), 1);
        assert_eq!(looks(&polls, 100, true), 100);
    }

    #[test]
    fn one_thread_looks_at_a_time() {
        let polls = lucky();
        let mut inner = 0;
        polls.look(Duration::ZERO, || {
            inner += looks(&polls, 10, true);
            true
        });
        assert_eq!(inner, 0);
        assert_eq!(looks(&polls, 10, true), 10, "it is free again");
    }

    #[test]
    fn a_poll_ends_when_there_is_something_and_not_before() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let polls = BusyPoll::default();
        polls.look_out(); // Without a device: returns.
        polls.begin(reader.into(), Duration::from_secs(600));
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            writer.write_all(b"x").unwrap();
            writer
        });
        let began = Instant::now();
        polls.look_out();
        assert!(began.elapsed() >= Duration::from_millis(40));
        let _writer = late.join().unwrap();
        polls.look_out();
    }
}
