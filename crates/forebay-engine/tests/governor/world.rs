//! The simulated mount: programs write, the gate slows them, batches are copied, synced, settled.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_engine::Tunables;
use forebay_engine::governor::age::Cohort;
use forebay_engine::governor::brake::Seen;
use forebay_engine::governor::law::Law;
use forebay_engine::governor::{
    Available, BATCH_SECS, Busy, Decision, Governor, Sample, Term, Urgent, batch_bytes,
};

use crate::disk::Disk;
use crate::load::Load;

pub const DT: f64 = 0.1;

/// The record of one tick.
#[derive(Debug, Clone, Copy)]
pub struct Tick {
    pub t: f64,
    pub wanted: f64,
    pub accepted: f64,
    pub copied: f64,
    pub dirty: f64,
    pub oldest: f64,
    /// The oldest byte in a world with the same writers and a drain that never rests.
    pub oldest_eager: f64,
    /// The time of a foreground operation on the backing store.
    pub latency: f64,
    pub integral: f64,
    pub decision: Decision,
}

/// Dirty bytes, first in first out: (first and last dirtied at, bytes).
#[derive(Debug, Default)]
struct Books(VecDeque<Slot>);

#[derive(Debug, Clone, Copy)]
struct Slot {
    first: f64,
    last: f64,
    bytes: f64,
}

impl Books {
    fn put(&mut self, t: f64, bytes: f64, width: f64) {
        match self.0.back_mut() {
            Some(slot) if t - slot.first < width && bytes > 0.0 => {
                (slot.bytes, slot.last) = (slot.bytes + bytes, t);
            }
            _ if bytes > 0.0 => self.0.push_back(Slot { first: t, last: t, bytes }),
            _ => {}
        }
    }

    /// Takes up to `bytes` that were dirtied before `until`, the oldest first.
    fn take(&mut self, bytes: f64, until: f64) -> f64 {
        let mut left = bytes;
        while let Some(slot) = self.0.front_mut().filter(|slot| slot.first <= until) {
            if slot.bytes > left + 1.0 {
                slot.first += (slot.last - slot.first) * left / slot.bytes;
                slot.bytes -= left;
                return bytes;
            }
            left = (left - slot.bytes).max(0.0);
            self.0.pop_front();
        }
        bytes - left
    }

    fn oldest(&self, t: f64) -> f64 {
        self.0.front().map_or(0.0, |slot| t - slot.first)
    }

    fn bytes(&self) -> f64 {
        self.0.iter().map(|slot| slot.bytes).sum()
    }
}

pub struct World {
    pub disk: Disk,
    pub load: Load,
    pub tunables: Tunables,
    pub tier: f64,
    law: Law,
    governor: Governor,
    decision: Decision,
    books: Books,
    eager: Books,
    /// Bytes copied and to be synced: (since when dirty, when settled, bytes).
    batch: Vec<(f64, f64)>,
    batch_left: f64,
    syncing_until: f64,
    lag: f64,
    arrived: f64,
    written: f64,
    copied: f64,
    batch_began: f64,
    hot_dirty: f64,
    pub drain_by: Option<f64>,
    /// The number of callers that wait for a flush all the time.
    pub demands: u32,
}

impl World {
    pub fn new(disk: Disk, load: Load, tier: f64, tunables: Tunables) -> World {
        let law = tunables.preset.law();
        World {
            disk,
            load,
            tunables,
            tier,
            law,
            governor: Governor::default(),
            decision: Decision::default(),
            books: Books::default(),
            eager: Books::default(),
            batch: Vec::new(),
            batch_left: 0.0,
            syncing_until: 0.0,
            lag: 0.5,
            arrived: 0.0,
            written: 0.0,
            batch_began: 0.0,
            copied: 0.0,
            hot_dirty: 0.0,
            drain_by: None,
            demands: 0,
        }
    }

    /// Uses another law than the preset's.
    pub fn under(mut self, law: Law) -> World {
        self.law = law;
        self
    }

    pub fn run(mut self, seconds: f64) -> Vec<Tick> {
        (0..(seconds / DT) as u64).map(|n| self.tick(n as f64 * DT, seconds)).collect()
    }

    fn tick(&mut self, t: f64, whole: f64) -> Tick {
        let wanted = self.load.wants(t, whole);
        let accepted = self.write(t, wanted);
        self.settle(t);
        let (copied, busy) = self.drain(t);
        let share = copied / (self.disk.rate(self.decision.depth.max(1), t) * DT).max(1.0);
        let used_depth = self.decision.depth.max(1);
        let latency = self.disk.mean(used_depth, share, t);
        let fastest = self.disk.fastest(used_depth, share, t);
        let oldest = self.oldest(t);
        self.decide(t, busy, fastest);
        Tick {
            t,
            wanted,
            accepted: accepted / DT,
            copied: copied / DT,
            dirty: self.dirty(),
            oldest,
            oldest_eager: self.eager.oldest(t),
            latency,
            integral: self.governor.integral(),
            decision: self.decision,
        }
    }

    fn unsettled(&self) -> f64 {
        self.batch.iter().map(|part| part.1).sum()
    }

    fn dirty(&self) -> f64 {
        self.books.bytes() + self.unsettled()
    }

    fn oldest(&self, t: f64) -> f64 {
        let flying = self.batch.iter().map(|part| t - part.0);
        flying.fold(self.books.oldest(t), f64::max)
    }

    fn write(&mut self, t: f64, wanted: f64) -> f64 {
        let level = self.books.bytes();
        let writers = self.load.writers;
        let each = wanted / f64::from(writers);
        let rate = self.decision.gate.rate(level as u64, 1);
        let slowed = if each > rate / f64::from(writers) { writers } else { 1 };
        let let_in = each.min(self.decision.gate.rate(level as u64, slowed));
        let bytes = (let_in * f64::from(writers) * DT).min(self.tier - self.dirty()).max(0.0);
        let fresh = self.fresh(bytes);
        let slot = self.tunables.max_age.as_secs_f64() / 32.0;
        self.books.put(t, fresh, slot);
        self.eager.put(t, fresh, slot);
        self.arrived += fresh;
        self.written += bytes;
        bytes
    }

    /// Returns how many of the written bytes were not dirty before.
    fn fresh(&mut self, bytes: f64) -> f64 {
        if self.load.hot_bytes == 0.0 {
            return bytes;
        }
        let fresh = bytes / 2.0 * (1.0 + (1.0 - self.hot_dirty / self.load.hot_bytes).max(0.0));
        self.hot_dirty += fresh - bytes / 2.0;
        fresh
    }

    fn drain(&mut self, t: f64) -> (f64, Busy) {
        self.eager.take(self.disk.rate(16, t) * DT * 0.7, t);
        if t < self.syncing_until {
            return (0.0, Busy::Store);
        }
        // A caller that waits for a flush flushes by itself.
        let rests = self.decision.rate <= 0.0 || self.decision.term == Term::Demand;
        if rests || !self.disk.is_there(t) {
            self.begin_sync(t);
            return (0.0, Busy::No);
        }
        if self.batch_left <= 0.0 {
            let marks = self.tunables.marks(self.tier as u64);
            self.batch_left = batch_bytes(&self.decision, &marks) as f64;
        }
        if self.batch.is_empty() {
            self.batch_began = t;
        }
        let can = self.disk.rate(self.decision.depth, t) * DT;
        let told = self.decision.rate * DT;
        let since = self.books.0.front().map_or(t, |slot| slot.first);
        let until = t - self.decision.from_age.as_secs_f64();
        let copied = self.books.take(can.min(told).min(self.batch_left), until);
        self.copied += copied;
        self.batch_left -= copied;
        if copied > 0.0 {
            self.batch.push((since, copied));
        }
        let began_sync = self.batch_left <= 0.0
            || t - self.batch_began >= BATCH_SECS
            || copied < can.min(told) * 0.5;
        if began_sync {
            self.begin_sync(t);
        }
        let busy = if told < can { Busy::Paced } else { Busy::Store };
        (copied, if copied < can.min(told) * 0.5 { Busy::No } else { busy })
    }

    fn begin_sync(&mut self, t: f64) {
        if !self.batch.is_empty() {
            self.batch_left = 0.0;
            self.syncing_until = t + self.disk.sync;
            self.lag = self.lag * 0.7 + 0.3 * (self.syncing_until - self.batch_began);
        }
    }

    fn settle(&mut self, t: f64) {
        if self.batch_left <= 0.0 && t >= self.syncing_until {
            let all = self.dirty().max(1.0);
            let done: f64 = self.batch.drain(..).map(|part| part.1).sum();
            self.hot_dirty *= 1.0 - done / all;
        }
    }

    fn decide(&mut self, t: f64, busy: Busy, fastest: f64) {
        let cohorts: Vec<Cohort> = self
            .books
            .0
            .iter()
            .map(|slot| Cohort {
                age: secs(t - slot.first),
                youngest: secs(t - slot.last),
                bytes: slot.bytes as u64,
            })
            .collect();
        let settle = self.tunables.settle.as_secs_f64();
        let settled = self
            .books
            .0
            .iter()
            .filter(|slot| t - slot.first > settle)
            .map(|s| s.bytes)
            .sum::<f64>();
        let reads = (self.load.reads * DT) as u32;
        let dirty = self.dirty();
        let sample = Sample {
            now: secs(t),
            tier_bytes: self.tier as u64,
            used_bytes: dirty as u64,
            dirty_bytes: dirty as u64,
            unsettled_bytes: self.unsettled() as u64,
            arrived: self.arrived as u64,
            written: self.written as u64,
            copied: self.copied as u64,
            cohorts: &cohorts,
            // Picked bytes are copied at once in this world.
            flying: &[],
            hot: &[],
            settled_bytes: settled as u64,
            tier: Seen::default(),
            backing: Seen { count: reads, fastest: secs(fastest) },
            idle_for: if reads > 0 { Duration::ZERO } else { secs(t) },
            busy,
            lag: secs(self.lag),
            backing_available: match self.disk.is_there(t) {
                true => Available::Yes,
                false => Available::No,
            },
            urgent: match self.tier - dirty < 1.0 {
                true => Urgent::Yes,
                false => Urgent::No,
            },
            demands: self.demands,
            drain_by: self.drain_by.map(|at| secs((at - t).max(0.0))),
            minute: 0,
        };
        self.decision = self.governor.tick_by(self.law, &sample, &self.tunables);
        debug_assert!(self.decision.rate >= 0.0 && !self.decision.rate.is_nan());
        let demanded = self.decision.term == Term::Demand;
        assert!(!demanded || self.demands > 0, "nobody waits for a flush here");
    }
}

fn secs(t: f64) -> Duration {
    Duration::from_secs_f64(t.max(0.0))
}
