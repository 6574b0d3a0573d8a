//! One client of the open loop: waits for the next arrival, transfers, and counts the latency from
//! the moment when the operation was due.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::Steady;
use crate::clock;
use crate::error::{Error, Result};
use crate::io::{self, Api, Buffers, Direction, How, Null, Op, Posix, Target};
use crate::meter::Latencies;
use crate::meter::Meter;
use crate::pattern::{Filler, Pattern};
use crate::rng::Rng;
use crate::shared::Plain;
use crate::team::Task;
use crate::workloads::base::Base;
use crate::workloads::skew::{Arrivals, Picker};
use crate::workloads::work;

/// The measurements of a client besides the phase's meter.
#[repr(C)]
pub struct Own {
    pub warm_up: Meter,
    /// The delay between an arrival and its start by an idle client (O2).
    pub woken_late: Latencies,
    undone: AtomicU64,
    end: AtomicU64,
}

// SAFETY: a meter, a histogram and atomics, all of which are plain.
unsafe impl Plain for Own {}

impl Own {
    pub fn undone(&self) -> u64 {
        self.undone.load(Relaxed)
    }

    /// The time when the client stopped.
    pub fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }
}

pub struct Client {
    target: Box<dyn Target>,
    buffers: Buffers,
    filler: Filler,
    picker: Picker,
    rng: Rng,
    arrivals: Arrivals,
    plan: Steady,
    /// Writes since the last sync.
    writes: u64,
}

impl Client {
    pub fn open(plan: &Steady, base: &Base, path: &Path, rank: usize) -> Result<Self> {
        let len = plan.transfer as usize;
        let how = How { write: plan.reads < 1.0, direct: base.direct(), ..How::default() };
        let target: Box<dyn Target> = match base.api {
            Api::Null => Box::new(Null::default()),
            _ => Box::new(Posix::new(io::open(path, how)?)),
        };
        let filler = Filler::new(Pattern::Incompressible, base.seed as u32, rank, len);
        let mut buffers = Buffers::new(1, len);
        filler.fill(buffers.slice(0));
        wake_on_time();
        Ok(Self {
            target,
            buffers,
            filler,
            picker: Picker::new(plan.skew, plan.size / plan.transfer),
            rng: work::rng(base.seed, rank),
            // Independent Poisson processes add up to one of the sum of their rates.
            arrivals: Arrivals::new(plan.rate / plan.clients as f64),
            plan: plan.clone(),
            writes: 0,
        })
    }

    /// Serves arrivals until the time is up.
    pub fn serve(&mut self, task: &Task<'_>, own: &Own) -> Result<()> {
        let began = task.start()?;
        let measured = began + (self.plan.warm_up * 1e9) as u64;
        let deadline = measured + (self.plan.seconds * 1e9) as u64;
        own.warm_up.begin(began);
        task.meter().begin(measured);
        let mut free = began;
        loop {
            let due = began + self.arrivals.next(&mut self.rng);
            if due >= deadline {
                break;
            }
            let Some(start) = wait_until(due, free, task) else { break };
            if start >= deadline {
                self.leave_undone(due, began, deadline, (task.meter(), own));
                break;
            }
            let counted = counts_from(due, free, start);
            if counted != due {
                own.woken_late.record_alone(start - due);
            }
            self.operate()?;
            free = clock::now();
            let meter = if due < measured { &own.warm_up } else { task.meter() };
            meter.record(counted, free, self.plan.transfer);
        }
        own.end.store(clock::now().min(deadline), Relaxed);
        Ok(())
    }

    /// Counts the operations that were due by now with the time they have waited (O3).
    fn leave_undone(
        &mut self,
        first: u64,
        began: u64,
        deadline: u64,
        (meter, own): (&Meter, &Own),
    ) {
        let mut due = first;
        for _ in 0..UNDONE {
            meter.latency.record_alone(deadline - due);
            own.undone.fetch_add(1, Relaxed);
            due = began + self.arrivals.next(&mut self.rng);
            if due >= deadline {
                return;
            }
        }
        own.undone.fetch_add(self.arrivals.expected(deadline - due), Relaxed);
    }

    fn operate(&mut self) -> Result<()> {
        let offset = self.picker.pick(&mut self.rng) * self.plan.transfer;
        let read = self.plan.reads > 0.0 && self.rng.unit() < self.plan.reads;
        let direction = if read { Direction::Read } else { Direction::Write };
        let op = Op { direction, offset, len: self.plan.transfer as usize };
        if !read {
            self.filler.stamp(self.buffers.slice(0), offset);
        }
        let failed = |e: &std::io::Error| {
            Error::failed(format!("cannot {direction:?} at offset {offset}: {e}").to_lowercase())
        };
        let moved = self.transfer(op).map_err(|e| failed(&e))?;
        if moved != op.len {
            return Err(Error::failed(format!(
                "only {moved} bytes at offset {offset} of the file"
            )));
        }
        self.writes += u64::from(!read);
        if !read && self.plan.fsync > 0 && self.writes.is_multiple_of(self.plan.fsync) {
            self.target.sync().map_err(|e| failed(&e))?;
        }
        Ok(())
    }

    fn transfer(&mut self, op: Op) -> std::io::Result<usize> {
        // SAFETY: the one buffer holds a whole transfer and is not touched before `wait` returns.
        unsafe { self.target.start(0, op, self.buffers.pointer(0)) };
        self.target.wait().result
    }
}

/// The moment from which an operation's latency counts: due at `due`, begun at `start`, its client
/// free since `free` (O1, O2).
fn counts_from(due: u64, free: u64, start: u64) -> u64 {
    if free > due { due } else { start }
}

/// Asks the kernel not to delay this thread's timers to save power.
fn wake_on_time() {
    // SAFETY: changes the timer slack of this thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// This many operations that were not begun are counted one by one; they suffice as evidence, and
/// the rest is estimated.
const UNDONE: usize = 1_000_000;

/// The longest time between two checks for a stop.
const GLANCE: Duration = Duration::from_millis(50);

/// Waits for the operation due at `due`; returns its beginning: `free`, the end of the previous
/// operation, if it is due then; else the moment it is due. `None` if the phase was stopped
/// meanwhile.
fn wait_until(due: u64, free: u64, task: &Task<'_>) -> Option<u64> {
    let mut now = free;
    while now < due {
        if task.stopping() {
            return None;
        }
        std::thread::sleep(Duration::from_nanos(due - now).min(GLANCE));
        now = clock::now();
    }
    (!task.stopping()).then_some(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stall of 100 ms with an arrival every 10 ms: all ten delayed operations show it (O1).
    #[test]
    fn a_stall_is_seen_by_all_it_delayed() {
        const MS: u64 = 1_000_000;
        let mut free = 0;
        let mut latencies = Vec::new();
        for arrival in 0..20u64 {
            let due = arrival * 10 * MS;
            let start = due.max(free);
            let took = if arrival == 5 { 100 * MS } else { MS };
            let counted = counts_from(due, free, start);
            free = start + took;
            latencies.push((free - counted) / MS);
        }
        assert_eq!(latencies[4..8], [1, 100, 91, 82]);
        assert_eq!(latencies.iter().filter(|ms| **ms > 1).count(), 11);
    }

    /// A client that is behind goes on without asking the clock; a client that is ahead never
    /// begins early.
    #[test]
    fn the_end_of_one_operation_is_the_beginning_of_the_next_that_is_due() {
        let outcome = crate::team::Team::new(1, crate::team::Kind::Threads).run(
            |task: &Task<'_>, (): &()| {
                assert_eq!(wait_until(1000, 1000, task), Some(1000));
                assert_eq!(wait_until(1000, 5000, task), Some(5000));
                let due = clock::now() + 2_000_000;
                assert!(wait_until(due, due - 3_000_000, task).is_some_and(|now| now >= due));
                task.stop_all();
                assert_eq!(wait_until(1000, 5000, task), None);
                Ok(())
            },
        );
        assert_eq!(outcome.check(), Ok(()));
    }

    #[test]
    fn waking_late_is_not_blamed_on_the_target() {
        assert_eq!(counts_from(1000, 900, 1070), 1070);
        assert_eq!(counts_from(1000, 1000, 1070), 1070);
        assert_eq!(counts_from(1000, 1001, 1070), 1000);
    }
}
