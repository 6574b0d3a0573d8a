//! Clocks that run apart, and processes that stand still in the middle of what they do.
//!
//! Each member counts its lease on a clock of its own, which began at some moment and runs at any rate within what
//! [`believed`] allows for; the registry counts by the world's time. No other clock can be wrong: the core is told no
//! time of day.
//!
//! A process that stands still (SIGSTOP, a machine that sleeps or is moved) does so right after its core has decided
//! something, and carries the decision out when it goes on, whatever has become of its lease.

use std::time::Duration;

use forebay_registry::believed;

use super::world::{Checked, FAULTS_END, LEASE, What, World};
use super::{More, Neglect};
use crate::core::Effect;

/// The slowest and fastest count of a member's clock in the registry's 1000 milliseconds.
const SLOWEST: u64 = 900;
const FASTEST: u64 = 1100;
/// The slowest count where clocks run further apart than the margin allows for.
const BEYOND: u64 = 600;

#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// The time that the clock showed at some moment, in microseconds, and its rate since.
    at: u64,
    shown: u64,
    rate: u64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { at: 0, shown: 0, rate: 1000 }
    }
}

impl Clock {
    fn micros(self, now: u64) -> u64 {
        self.shown + (now - self.at) * self.rate
    }

    pub fn is_slow(self) -> bool {
        self.rate < 1000
    }

    fn turn(&mut self, now: u64, rate: u64) {
        (self.shown, self.at, self.rate) = (self.micros(now), now, rate);
    }
}

impl World {
    fn has_clocks(&self) -> bool {
        self.plan.has(More::Clocks) || self.plan.has(More::ClocksBeyond)
    }

    pub fn clock(&self, node: usize) -> Duration {
        Duration::from_micros(self.nodes[node].clock.micros(self.now))
    }

    fn slowest(&self) -> u64 {
        match self.has_clocks() {
            _ if self.plan.has(More::ClocksBeyond) => BEYOND,
            true => SLOWEST,
            false => 1000,
        }
    }

    fn any_rate(&mut self) -> u64 {
        let slowest = self.slowest();
        match self.dice.roll(4) {
            0 | 1 => slowest,
            2 => FASTEST,
            _ => slowest + self.dice.roll(FASTEST - slowest + 1),
        }
    }

    pub fn set_clocks(&mut self) {
        for node in (0..self.plan.members).filter(|_| self.has_clocks()).collect::<Vec<_>>() {
            let (shown, rate) = (self.dice.roll(1 << 40), self.any_rate());
            self.nodes[node].clock = Clock { at: 0, shown, rate };
        }
    }

    /// The end of a lease asked for at `sent`, as the member believes by its own clock. Where all clocks agree the
    /// member counts the whole lease.
    pub fn believes(&self, sent: Duration) -> Duration {
        let lease = Duration::from_millis(LEASE);
        let is_careless = self.neglect == Some(Neglect::AllowForClocks);
        sent + if self.has_clocks() && !is_careless { believed(lease) } else { lease }
    }

    /// The longest real time that a member's count of `millis` takes; `at_least` is the shortest.
    pub fn at_most(&self, millis: u64) -> u64 {
        millis * 1000 / self.slowest()
    }

    pub fn at_least(&self, millis: u64) -> u64 {
        if self.has_clocks() { millis * 1000 / FASTEST } else { millis }
    }

    pub fn turn_clock(&mut self, node: usize) {
        let (now, rate) = (self.now, self.any_rate());
        self.nodes[node].clock.turn(now, rate);
        self.counts.more.turned += 1;
    }

    /// Returns the effects to carry out now; where the process stops here, they wait until it goes on.
    pub fn unless_it_stops(&mut self, node: usize, effects: Vec<Effect>) -> Option<Vec<Effect>> {
        if !self.has_clocks() || effects.is_empty() {
            return Some(effects);
        }
        if self.nodes[node].paused <= self.now {
            if !self.faulty() || self.dice.roll(200) > 0 {
                return Some(effects);
            }
            let until = (self.now + LEASE / 2 + self.dice.roll(3 * LEASE)).min(FAULTS_END + LEASE);
            self.nodes[node].paused = until;
            self.counts.more.stood += 1;
            self.counts.more.stood_long += u64::from(until > self.now + LEASE);
        }
        self.goes_on(node, effects);
        None
    }

    /// Queues the effects for when the process goes on, before anything else that waits for it.
    fn goes_on(&mut self, node: usize, effects: Vec<Effect>) {
        let (wait, life) = (self.nodes[node].paused - self.now - 1, self.nodes[node].life);
        self.at(wait, What::GoesOn(node, life, effects));
    }

    pub fn carry_out(&mut self, node: usize, effects: Vec<Effect>) -> Checked {
        let mut effects = effects.into_iter();
        while let Some(effect) = effects.next() {
            self.effect(node, effect)?;
            // The effect made the core decide more, and the process stopped there.
            if self.has_clocks() && self.nodes[node].paused > self.now {
                self.goes_on(node, effects.collect());
                return Ok(());
            }
        }
        Ok(())
    }

    pub fn has_gone_on(&mut self, node: usize, life: u64, effects: Vec<Effect>) -> Checked {
        if !self.lives(node, life) {
            return Ok(());
        }
        self.nodes[node].paused = self.now;
        self.carry_out(node, effects)
    }
}
