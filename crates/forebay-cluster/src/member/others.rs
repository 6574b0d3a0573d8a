//! This member's notes about each other member: how it answers, which of its lives is the newest, and how far it is
//! filled.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use forebay_base::lock::{Mutex, Rank};

/// How long a member that did not answer is not asked again.
const REST: Duration = Duration::from_secs(5);

/// A partner whose copies take so much longer than they should counts as slow.
pub(super) const LAG_MIN: Duration = Duration::from_millis(200);

pub(super) struct Others(Mutex<HashMap<String, Other>>);

#[derive(Default)]
struct Other {
    /// The number of the member's fill, while it is a partner or becomes one: the number goes with every message to it.
    fill: Option<u64>,
    /// The member's newest known life, from its questions or from the registry.
    life: u64,
    lag: Lag,
    /// The member did not answer: until this time it is not asked for the store's bytes.
    rests_until: Option<Instant>,
}

/// How much longer than expected a partner takes for copies.
#[derive(Debug, Clone, Copy, Default)]
struct Lag {
    lasts: Duration,
    answered: Option<Instant>,
}

impl Lag {
    /// Notes the answer to a copy that was sent at `began`. Several copies are under way at once, one behind the
    /// other: a copy's own time begins when the one before it was answered. A quick copy halves the known lag.
    fn note(&mut self, began: Instant, ended: Instant, due: Duration) {
        let from = self.answered.map_or(began, |answered| answered.max(began));
        let lag = ended.saturating_duration_since(from).saturating_sub(due);
        self.lasts = lag.max(self.lasts / 2);
        self.answered = Some(ended.max(from));
    }
}

impl Default for Others {
    fn default() -> Others {
        Others(Mutex::new(Rank::MemberNotes, HashMap::new()))
    }
}

impl Others {
    fn with<T>(&self, member: &str, work: impl FnOnce(&mut Other) -> T) -> T {
        let mut all = self.0.lock();
        match all.get_mut(member) {
            Some(other) => work(other),
            None => work(all.entry(member.into()).or_default()),
        }
    }

    pub fn begin_fill(&self, member: &str, fill: u64) {
        self.with(member, |other| other.fill = Some(fill));
    }

    pub fn end_fill(&self, member: &str) {
        self.with(member, |other| other.fill = None);
    }

    pub fn fill_of(&self, member: &str) -> Option<u64> {
        self.with(member, |other| other.fill)
    }

    /// Whether no later life of the member than `life` has been heard of; `known` is the registry's.
    pub fn is_newest_life(&self, member: &str, known: u64, life: u64) -> bool {
        self.with(member, |other| {
            other.life = other.life.max(known).max(life);
            other.life == life
        })
    }

    /// Notes the answer to a copy that was sent at `began` and should have taken `due`.
    pub fn note_copy(&self, member: &str, began: Instant, due: Duration) {
        self.with(member, |other| other.lag.note(began, Instant::now(), due));
    }

    pub fn lag_of(&self, member: &str) -> Duration {
        self.with(member, |other| other.lag.lasts)
    }

    pub fn let_rest(&self, member: &str) {
        self.with(member, |other| other.rests_until = Some(Instant::now() + REST));
    }

    pub fn is_resting(&self, member: &str) -> bool {
        self.with(member, |other| other.rests_until.is_some_and(|until| Instant::now() < until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: Duration = Duration::from_millis(125);

    /// Three copies that share a line of 7 MiB a second, and the same while the partner stands still.
    #[test]
    fn a_partner_that_keeps_up_lags_little_however_many_copies_are_on_their_way() {
        let start = Instant::now();
        let after = |ms: u64| start + Duration::from_millis(ms);
        let mut lag = Lag::default();
        (0..30_u64)
            .for_each(|n| lag.note(after(n.saturating_sub(2) * 143), after((n + 1) * 143), MIB));
        assert!(lag.lasts < Duration::from_millis(30), "{lag:?}");
        let still = 31 * 143 + 1000;
        (0..3).for_each(|n| lag.note(after(28 * 143 + n), after(still + n), MIB));
        assert!(lag.lasts >= LAG_MIN, "three answers at once do not hide it: {lag:?}");
    }
}
