//! How fast a node stages: as given, as measured from the last transfers, or assumed.

use forebay_node::records::{Direction, TransferState, When};
use serde::Serialize;

use super::sources::Counted;
use crate::node::wire::TransferView;
use crate::units::{counted, human_rate};

/// Half of what one good NVMe disk writes, and a tenth of a fast network.
const ASSUMED: u64 = 500_000_000;

/// Smaller or shorter transfers do not count: their times, in whole seconds, are too coarse.
const BYTES_MIN: u64 = 64 << 20;
const SECS_MIN: u64 = 2;
/// Only the latest transfers count.
const TRANSFERS_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rate {
    pub bytes_per_second: u64,
    pub basis: Basis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    Assumed,
    Given,
    /// The median of this many transfers of the caller, from their order to their end.
    Measured(usize),
}

/// The rates of one node.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Rates {
    pub stage_in: Rate,
    pub stage_out: Rate,
    pub files_per_second: u64,
}

impl Rates {
    pub fn of(given: Option<u64>, files_per_second: u64, done: &[TransferView]) -> Rates {
        let rate = |direction| match given {
            Some(rate) => Rate { bytes_per_second: rate.max(1), basis: Basis::Given },
            None => measured(direction, done)
                .unwrap_or(Rate { bytes_per_second: ASSUMED, basis: Basis::Assumed }),
        };
        Rates {
            stage_in: rate(Direction::In),
            stage_out: rate(Direction::Out),
            files_per_second: files_per_second.max(1),
        }
    }

    pub fn secs(&self, rate: &Rate, counted: &Counted) -> f64 {
        let bytes = counted.bytes as f64 / rate.bytes_per_second as f64;
        bytes + counted.files as f64 / self.files_per_second as f64
    }
}

impl Rate {
    pub fn shown(&self) -> String {
        let rate = human_rate(self.bytes_per_second as f64);
        match self.basis {
            Basis::Assumed => format!("{rate} (assumed)"),
            Basis::Given => rate,
            Basis::Measured(n) => {
                format!("{rate} (of your last {})", counted(n as u64, "transfer"))
            }
        }
    }
}

fn measured(direction: Direction, done: &[TransferView]) -> Option<Rate> {
    let mut all: Vec<(u64, u64)> =
        done.iter().filter(|view| view.wanted.direction == direction).filter_map(speed).collect();
    all.sort_unstable_by_key(|(created, _)| std::cmp::Reverse(*created));
    all.truncate(TRANSFERS_MAX);
    let mut rates: Vec<u64> = all.into_iter().map(|(_, rate)| rate).collect();
    rates.sort_unstable();
    let bytes_per_second = *rates.get(rates.len() / 2)?;
    Some(Rate { bytes_per_second, basis: Basis::Measured(rates.len()) })
}

/// When the transfer was ordered, and how fast it was.
fn speed(view: &TransferView) -> Option<(u64, u64)> {
    let (wanted, actual) = (&view.wanted, view.actual.as_ref()?);
    let once = wanted.attempt == 0 && wanted.when == When::Now;
    let secs = actual.since.saturating_sub(wanted.created);
    let says = actual.bytes >= BYTES_MIN && secs >= SECS_MIN;
    (once && says && actual.state == TransferState::Done)
        .then(|| (wanted.created, actual.bytes / secs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn done(created: u64, secs: u64, mib: u64, state: &str) -> TransferView {
        let view = json!({
            "id": "t", "instance": "i", "node": "n", "direction": "in", "what": "file",
            "source": "/a", "destination": "/b", "when": "now", "owner": { "uid": 1, "gid": 1 },
            "want": "done", "created": created,
            "actual": {
                "state": state, "files": 1, "bytes": mib << 20, "files_total": 1, "bytes_total": mib << 20,
                "failures": 0, "since": created + secs
            }
        });
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn the_last_transfers_say_how_fast_it_is() {
        let all = [
            done(10, 10, 1000, "done"),
            done(20, 10, 3000, "done"),
            done(30, 10, 2000, "done"),
            done(40, 10, 90_000, "failed"),
            done(50, 1, 90_000, "done"),
            done(60, 10, 1, "done"),
        ];
        let rates = Rates::of(None, 500, &all);
        assert_eq!(rates.stage_in, Rate { bytes_per_second: 200 << 20, basis: Basis::Measured(3) });
        assert_eq!(rates.stage_out, Rate { bytes_per_second: ASSUMED, basis: Basis::Assumed });
        let given = Rates::of(Some(7), 500, &all).stage_in;
        assert_eq!(given, Rate { bytes_per_second: 7, basis: Basis::Given });
    }

    #[test]
    fn old_transfers_are_forgotten() {
        let old = (0..20).map(|n| done(n, 10, 100_000, "done"));
        let new = (100..116).map(|n| done(n, 10, 1000, "done"));
        let all: Vec<_> = old.chain(new).collect();
        assert_eq!(Rates::of(None, 1, &all).stage_in.bytes_per_second, 100 << 20);
    }
}
