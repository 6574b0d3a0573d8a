//! The valve that every copy to the backing store passes: the governor's pace and depth, and the user's caps.
//!
//! While a caller waits for a flush the governor's pace and depth are lifted for all copies, so that
//! the caller does not wait behind a slow drain; the user's caps hold always.

use std::time::{Duration, Instant};

use crate::core::governor::Busy;
use crate::core::governor::bucket::Bucket;
use crate::core::governor::queue::{Place, Queue};
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};

pub(crate) struct Valve {
    time: Time,
    epoch: Instant,
    flow: Mutex<Flow>,
    changed: Condvar,
}

struct Flow {
    pace: Bucket,
    cap: Bucket,
    ops: Bucket,
    queue: Queue,
    demands: u32,
    /// Whether one of the waiting threads watches the clock.
    led: bool,
    /// Whether a copy waited for the pace, or was made without waiting, since the last call of `busy`.
    paced: bool,
    copied: bool,
}

/// One copy under way.
pub(crate) struct Pass<'a>(&'a Valve, Option<Place>);

/// Lifts the governor's pace while a caller waits for a flush.
pub(crate) struct Demanded<'a>(&'a Valve);

/// The setting of the valve.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    /// Bytes per second.
    pub pace: f64,
    /// Copies at once; of small copies more.
    pub depth: u32,
    pub depth_max: u32,
    /// The user's caps; 0 is none.
    pub rate_max: u64,
    pub ops_max: u64,
}

/// How long a thread sleeps at most before it checks whether its copy is still wanted.
const NAP: Duration = Duration::from_millis(100);

impl Valve {
    pub fn new(time: Time) -> Valve {
        let open = || Bucket::new(f64::INFINITY, Duration::ZERO);
        let flow = Flow {
            pace: Bucket::striding(f64::INFINITY, Duration::ZERO),
            cap: open(),
            ops: open(),
            queue: Queue::default(),
            demands: 0,
            led: false,
            paced: false,
            copied: false,
        };
        Valve {
            epoch: time.now(),
            time,
            flow: Mutex::new(Rank::Valve, flow),
            changed: Condvar::new(),
        }
    }

    fn flow(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock()
    }

    pub fn set(&self, setting: Setting) {
        let now = self.time.since(self.epoch);
        let capped = |cap: u64| if cap == 0 { f64::INFINITY } else { cap as f64 };
        let mut flow = self.flow();
        flow.pace.set_rate(setting.pace, now);
        flow.cap.set_rate(capped(setting.rate_max), now);
        flow.ops.set_rate(capped(setting.ops_max), now);
        flow.queue.set(setting.depth, setting.depth_max);
        drop(flow);
        self.changed.notify_all();
    }

    /// Returns the cause that held copies up since the last call.
    pub fn busy(&self) -> Busy {
        let mut flow = self.flow();
        let (paced, copied) = (flow.paced, flow.copied || !flow.queue.is_empty());
        (flow.paced, flow.copied) = (false, false);
        match (paced, copied) {
            (true, _) => Busy::Paced,
            (false, true) => Busy::Store,
            (false, false) => Busy::No,
        }
    }

    pub fn demand(&self) -> Demanded<'_> {
        self.flow().demands += 1;
        self.changed.notify_all();
        Demanded(self)
    }

    pub fn demands(&self) -> u32 {
        self.flow().demands
    }

    /// Returns the bytes that one call may move, at most `largest`.
    pub fn chunk(&self, largest: u64) -> u64 {
        let flow = self.flow();
        let capped = flow.cap.chunk(largest);
        if flow.demands > 0 { capped } else { flow.pace.chunk(capped) }
    }

    /// Waits until a copy of `bytes` may begin; `None` once it is not `wanted` any more.
    pub fn pass(&self, bytes: u64, wanted: impl Fn() -> bool) -> Option<Pass<'_>> {
        let mut leads = false;
        let (mut flow, passes) = loop {
            let is_wanted = wanted();
            let mut flow = self.flow();
            if !is_wanted {
                break (flow, false);
            }
            let now = self.time.since(self.epoch);
            let Some(wait) = flow.wait(now) else { break (flow, true) };
            // One thread watches the clock for all, or all would wake up for every copy that may begin.
            leads |= !std::mem::replace(&mut flow.led, true);
            let nap = if leads { wait.min(NAP) } else { NAP };
            drop(self.time.wait(&self.changed, flow, nap));
        };
        flow.led &= !leads;
        let pass = passes.then(|| Pass(self, Some(flow.take(bytes))));
        drop(flow);
        // The next thread may pass as well, or watches the clock from now on.
        self.changed.notify_one();
        pass
    }
}

impl Flow {
    fn wait(&mut self, now: Duration) -> Option<Duration> {
        let capped = self.cap.wait(now).max(self.ops.wait(now));
        if self.demands > 0 {
            self.paced |= capped.is_some();
            return capped;
        }
        let paced = self.pace.wait(now).max(capped);
        // A copy that goes ahead of the pace is held up by the pace, and not by the store.
        self.paced |= paced.is_some() || self.pace.is_in_debt();
        // A thread that waits for depth is woken by the end of a copy.
        paced.or((!self.queue.has_room()).then_some(NAP))
    }

    fn take(&mut self, bytes: u64) -> Place {
        if self.demands == 0 {
            self.pace.take(bytes as f64);
        }
        self.cap.take(bytes as f64);
        self.ops.take(1.0);
        self.copied = true;
        self.queue.enter(bytes)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.1.take() {
            self.0.flow().queue.leave(place);
        }
        self.0.changed.notify_one();
    }
}

impl Drop for Demanded<'_> {
    fn drop(&mut self) {
        self.0.flow().demands -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(pace: f64, rate_max: u64) -> Setting {
        Setting { pace, depth: 16, depth_max: 16, rate_max, ops_max: 0 }
    }

    #[test]
    fn a_demand_lifts_the_pace_and_not_the_cap() {
        let valve = Valve::new(Time::default());
        valve.set(setting(1.0, 0));
        drop(valve.pass(1 << 20, || true));
        let tries = std::cell::Cell::new(0);
        let twice = || {
            tries.set(tries.get() + 1);
            tries.get() < 3
        };
        assert!(valve.pass(1, twice).is_none(), "a million seconds of debt");
        let _demand = valve.demand();
        assert!(valve.pass(1, || true).is_some());
        valve.set(setting(1.0, 1));
        drop(valve.pass(1 << 20, || true));
        tries.set(0);
        assert!(valve.pass(1, twice).is_none());
    }

    #[test]
    fn the_rate_of_many_threads_together_is_the_caps() {
        let together = || {
            let valve = Valve::new(Time::default());
            valve.set(setting(f64::INFINITY, 20_000_000));
            let began = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..10).for_each(|_| drop(valve.pass(500_000, || true))));
                }
            });
            let secs = began.elapsed().as_secs_f64();
            assert!(secs >= 0.9, "20 MB at 20 MB/s in {secs} s");
            secs
        };
        // The best of a few rounds counts: a busy machine delays any single one.
        let best = (0..10).map(|_| together()).find(|secs| *secs < 2.0);
        assert!(best.is_some(), "20 MB at 20 MB/s, ten times in 2 s or more");
    }
}
