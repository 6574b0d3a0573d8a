//! A disk with one head, which serves in the order of arrival, under programs that wait for their
//! reads and a drain that has to keep up: the costs and savings of several copies at once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use forebay_engine::governor::bucket::Bucket;
use forebay_engine::governor::queue::{Place, Queue};

use crate::checks::percentile;
use crate::rng::Rng;

const PAGE: u64 = 16 << 10;
/// The disk, and the database on it.
const DISK: u64 = 512 << 20;
const DATA: u64 = 320 << 20;
/// Bytes that one call moves.
const COPY_MAX: u64 = 1 << 20;
const SYNC: f64 = 0.005;
const CLIENTS: usize = 4;
const SECS: f64 = 300.0;
/// Measurements before this time do not count.
const WARM: f64 = 30.0;

/// A program's pause between two transactions, and the work of one: it reads two pages that are not
/// in the tier, and dirties two.
const THINKS: f64 = 0.0045;
const READS: u32 = 2;
const WRITES: u32 = 2;

/// Bytes become due at this age; then this many seconds' worth of them make one batch.
const DUE: f64 = 6.75;
const BATCH_SECS: f64 = 2.0;
/// A pace that leaves nothing behind exceeds the arrival of dirty bytes by this factor.
const AHEAD: f64 = 1.1;

/// Returns the seconds to move the head, as in the throttle of the benchmarks.
fn seek(distance: u64) -> f64 {
    match distance {
        0 => 0.0,
        1..=0x1_0000 => 0.000_25,
        0x1_0001..=0x10_0000 => 0.001,
        far => 0.005 * (0.2 + 0.8 * (far as f64 * 3.0 / DISK as f64).sqrt()),
    }
}

#[derive(Default)]
struct Disk {
    head: u64,
    free: f64,
}

impl Disk {
    /// Returns when a call that comes now is over.
    fn call(&mut self, now: f64, at: u64, bytes: u64) -> f64 {
        let took = seek(at.abs_diff(self.head)) + bytes as f64 / 100e6;
        self.head = at + bytes;
        self.free = self.free.max(now) + took;
        self.free
    }
}

enum Event {
    /// A client goes on; it has this many reads left.
    Client(u32),
    Copied(Place),
    Synced,
    Look,
}

struct World {
    rng: Rng,
    disk: Disk,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: Vec<Option<Event>>,
    queue: Queue,
    pace: Bucket,
    /// Dirty pages, by the time they became dirty.
    dirty: VecDeque<(f64, u64)>,
    /// The rest of the batch, sorted.
    batch: VecDeque<(u64, u64)>,
    copying: bool,
    outcome: Outcome,
    waits: Vec<f64>,
}

#[derive(Debug, Default)]
struct Outcome {
    transactions: f64,
    read_p99_ms: f64,
    oldest: f64,
}

impl World {
    fn at(&mut self, t: f64, event: Event) {
        self.events.push(Reverse(((t * 1e9) as u64, self.what.len() as u64)));
        self.what.push(Some(event));
    }

    /// Picks a page, more likely near the beginning than near the end.
    fn page(&mut self) -> u64 {
        let place = self.rng.below(1 << 20) as f64 / f64::from(1 << 20);
        (place.powf(1.5) * (DATA / PAGE) as f64) as u64 * PAGE
    }

    fn run(mut self) -> Outcome {
        for n in 0..CLIENTS {
            self.at(n as f64 * 0.001, Event::Client(READS));
        }
        self.at(0.0, Event::Look);
        while let Some(Reverse((nanos, n))) = self.events.pop() {
            let t = nanos as f64 / 1e9;
            if t > SECS {
                break;
            }
            match self.what[n as usize].take().expect("each event comes once") {
                Event::Client(left) => self.client(t, left),
                Event::Copied(place) => {
                    self.queue.leave(place);
                    if self.batch.is_empty() && self.queue.is_empty() {
                        self.at(t + SYNC, Event::Synced);
                    }
                }
                Event::Synced => self.copying = false,
                Event::Look => self.at(t + 0.001, Event::Look),
            }
            self.drain(t);
        }
        self.outcome.transactions /= SECS - WARM;
        self.outcome.read_p99_ms = percentile(self.waits, 99.0) * 1e3;
        self.outcome
    }

    fn client(&mut self, t: f64, left: u32) {
        let thinks = THINKS * (0.5 + self.rng.below(1000) as f64 / 1000.0);
        if left > 0 {
            let page = self.page();
            let read = self.disk.call(t, page, PAGE);
            if t > WARM {
                self.waits.push(read - t);
            }
            return self.at(read + thinks, Event::Client(left - 1));
        }
        for _ in 0..WRITES {
            let page = self.page();
            self.dirty.push_back((t, page));
        }
        self.outcome.transactions += if t > WARM { 1.0 } else { 0.0 };
        self.at(t + thinks, Event::Client(READS));
    }

    fn drain(&mut self, t: f64) {
        let now = Duration::from_secs_f64(t);
        if !self.copying {
            self.next_batch(t, now);
        }
        while !self.batch.is_empty() && self.queue.has_room() && self.pace.wait(now).is_none() {
            let (at, bytes) = self.batch.pop_front().expect("not empty");
            let rest = bytes.saturating_sub(COPY_MAX);
            if rest > 0 {
                self.batch.push_front((at + bytes - rest, rest));
            }
            self.pace.take((bytes - rest) as f64);
            let place = self.queue.enter(bytes - rest);
            let done = self.disk.call(t, at, bytes - rest);
            self.at(done, Event::Copied(place));
        }
    }

    fn next_batch(&mut self, t: f64, now: Duration) {
        let Some((oldest, _)) = self.dirty.front() else { return };
        if t - oldest < DUE {
            return;
        }
        self.outcome.oldest = self.outcome.oldest.max(t - oldest);
        let recent = self.dirty.len() as f64 / self.dirty.back().map_or(1.0, |b| b.0 - oldest);
        self.pace.set_rate(recent * PAGE as f64 * AHEAD, now);
        let count = ((recent * BATCH_SECS) as usize).clamp(1, self.dirty.len());
        let pages: BTreeSet<u64> = self.dirty.drain(..count).map(|(_, page)| page).collect();
        for page in pages {
            match self.batch.back_mut() {
                Some((at, bytes)) if *at + *bytes == page => *bytes += PAGE,
                _ => self.batch.push_back((page, PAGE)),
            }
        }
        self.copying = true;
    }
}

/// Runs with `depth` whole copies at once, and `depth_max` of any size.
fn database(depth: u32, depth_max: u32) -> Outcome {
    let mut queue = Queue::default();
    queue.set(depth, depth_max);
    let world = World {
        rng: Rng::new(7).fork(),
        disk: Disk::default(),
        events: BinaryHeap::new(),
        what: Vec::new(),
        queue,
        pace: Bucket::striding(f64::INFINITY, Duration::ZERO),
        dirty: VecDeque::new(),
        batch: VecDeque::new(),
        copying: false,
        outcome: Outcome::default(),
        waits: Vec::new(),
    };
    world.run()
}

/// A governor that is in time keeps to three whole copies at once.
#[test]
fn many_small_copies_at_once_serve_programs_better_than_few() {
    let [one, three, by_weight, many] =
        [(1, 1), (3, 3), (3, 16), (64, 64)].map(|(depth, most)| database(depth, most));
    println!("one {one:?}\nthree {three:?}\nby weight {by_weight:?}\nmany {many:?}");
    assert!(by_weight.transactions > three.transactions * 1.15);
    assert!(by_weight.transactions > many.transactions * 0.93);
    assert!(by_weight.read_p99_ms < three.read_p99_ms * 1.5, "what it costs");
    assert!(by_weight.read_p99_ms < many.read_p99_ms * 0.75);
    assert!(by_weight.oldest < DUE + 1.0, "it keeps up");
    assert!(three.oldest > DUE + 3.0 && one.oldest > 60.0, "which few copies do not");
}
