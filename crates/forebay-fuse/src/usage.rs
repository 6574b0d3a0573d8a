//! The usage of the mount: requests and bytes of each user and process, as far as they come to the
//! daemon. Bytes from the kernel's page cache, or passed through to a shadow file, are not counted.
//!
//! Bounded: a new thread takes the place of the thread that was silent longest, whose sums are kept
//! with its user.

use std::collections::BTreeMap;
use std::time::Instant;

use forebay_base::lock::{Mutex, Rank};
use hashbrown::HashMap;
use serde::Serialize;

/// Threads of programs known at once, in each of [`SHARDS`].
const THREADS_MAX: usize = 256;

const SHARDS: usize = 16;

/// The time after which a byte counts half in the rate.
const HALF_LIFE_SECS: f64 = 8.0;

/// The kind of a request, and its bytes.
#[derive(Debug, Clone, Copy)]
pub enum Moved {
    Opened,
    Read(u64),
    Written(u64),
}

/// The user and the calling thread of a request, as the kernel reports them.
#[derive(Debug, Clone, Copy)]
pub struct Who {
    pub uid: u32,
    pub thread: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sums {
    pub opens: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
}

/// The usage of a user or a process so far.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Used {
    #[serde(flatten)]
    pub sums: Sums,
    /// Bytes read and written, over the last seconds.
    pub bytes_per_sec: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Process {
    pub pid: u32,
    pub uid: u32,
    pub name: String,
    #[serde(flatten)]
    pub used: Used,
}

pub struct Usage {
    began: Instant,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    threads: HashMap<u32, Thread>,
    /// The sums of threads that made room, by user.
    gone: HashMap<u32, Sums>,
}

struct Thread {
    pid: u32,
    uid: u32,
    name: String,
    sums: Sums,
    heat: f64,
    heard_secs: f64,
}

impl Default for Usage {
    fn default() -> Usage {
        let shard = |_| Mutex::new(Rank::Usage, Shard::default());
        Usage { began: Instant::now(), shards: std::array::from_fn(shard) }
    }
}

impl Usage {
    pub fn note(&self, who: Who, moved: Moved) {
        let now = self.began.elapsed().as_secs_f64();
        let shard = &self.shards[who.thread as usize % SHARDS];
        let mut shard = shard.lock();
        // A known thread number with another user is that of a new program's thread.
        if shard.threads.get(&who.thread).is_none_or(|thread| thread.uid != who.uid) {
            shard.enter(who, now);
        }
        let thread = shard.threads.get_mut(&who.thread).expect("entered above");
        thread.add(moved, now);
    }

    pub fn users(&self) -> BTreeMap<u32, Used> {
        let now = self.began.elapsed().as_secs_f64();
        let mut users: BTreeMap<u32, Used> = BTreeMap::new();
        for shard in &self.shards {
            let shard = shard.lock();
            for (uid, sums) in &shard.gone {
                users.entry(*uid).or_default().sums.add(*sums);
            }
            for thread in shard.threads.values() {
                thread.add_to(users.entry(thread.uid).or_default(), now);
            }
        }
        users
    }

    /// Returns at most `count` processes, the busiest first.
    pub fn processes(&self, count: usize) -> Vec<Process> {
        let now = self.began.elapsed().as_secs_f64();
        let mut found: HashMap<(u32, u32), Process> = HashMap::new();
        for shard in &self.shards {
            for thread in shard.lock().threads.values() {
                let (pid, uid) = (thread.pid, thread.uid);
                let new = || Process { pid, uid, name: thread.name.clone(), used: Used::default() };
                thread.add_to(&mut found.entry((pid, uid)).or_insert_with(new).used, now);
            }
        }
        let mut all: Vec<Process> = found.into_values().collect();
        let rank = |process: &Process| {
            let sums = process.used.sums;
            (process.used.bytes_per_sec, sums.read_bytes + sums.write_bytes, process.pid)
        };
        all.sort_by_key(|process| std::cmp::Reverse(rank(process)));
        all.truncate(count);
        all
    }
}

impl Shard {
    fn enter(&mut self, who: Who, now: f64) {
        let oldest = || {
            let by_age = |(_, a): &(&u32, &Thread), (_, b): &(&u32, &Thread)| {
                a.heard_secs.total_cmp(&b.heard_secs)
            };
            self.threads.iter().min_by(by_age).map(|(thread, _)| *thread)
        };
        let full = self.threads.len() >= THREADS_MAX;
        let leaves = if full { oldest() } else { Some(who.thread) };
        if let Some(left) = leaves.and_then(|thread| self.threads.remove(&thread)) {
            self.gone.entry(left.uid).or_default().add(left.sums);
        }
        let (pid, name) = process_of(who.thread);
        let sums = Sums::default();
        let thread = Thread { pid, uid: who.uid, name, sums, heat: 0.0, heard_secs: now };
        self.threads.insert(who.thread, thread);
    }
}

impl Thread {
    fn add(&mut self, moved: Moved, now: f64) {
        self.heat = self.heat_at(now);
        self.heard_secs = now;
        let sums = &mut self.sums;
        match moved {
            Moved::Opened => sums.opens += 1,
            Moved::Read(bytes) => {
                sums.reads += 1;
                sums.read_bytes += bytes;
                self.heat += bytes as f64;
            }
            Moved::Written(bytes) => {
                sums.writes += 1;
                sums.write_bytes += bytes;
                self.heat += bytes as f64;
            }
        }
    }

    fn heat_at(&self, now: f64) -> f64 {
        self.heat * (-(now - self.heard_secs) / HALF_LIFE_SECS).exp2()
    }

    fn add_to(&self, used: &mut Used, now: f64) {
        used.sums.add(self.sums);
        // At a steady rate, heat is the rate times the half-life divided by ln 2.
        let rate = self.heat_at(now) * std::f64::consts::LN_2 / HALF_LIFE_SECS;
        used.bytes_per_sec += rate as u64;
    }
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.opens += other.opens;
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
    }
}

/// The process of a thread, and its name. Thread 0 is the kernel itself, which writes pages back.
fn process_of(thread: u32) -> (u32, String) {
    if thread == 0 {
        return (0, "(kernel)".into());
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_string())
    };
    let pid = field("Tgid:").and_then(|pid| pid.parse().ok()).unwrap_or(thread);
    let leader = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let name = leader.map(|name| name.trim_end().to_string()).or_else(|| field("Name:"));
    (pid, name.unwrap_or_else(|| "(ended)".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_to_their_process_and_user() {
        let usage = Usage::default();
        let me = std::process::id();
        let who = Who { uid: 7, thread: me };
        usage.note(who, Moved::Opened);
        usage.note(who, Moved::Written(100));
        usage.note(Who { uid: 8, thread: 0 }, Moved::Read(50));
        let here = std::thread::spawn(move || {
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            usage.note(Who { uid: 7, thread }, Moved::Read(1 << 20));
            (usage, thread)
        });
        let (usage, _) = here.join().unwrap();
        let users = usage.users();
        assert_eq!(
            users[&7].sums,
            Sums { opens: 1, reads: 1, read_bytes: 1 << 20, writes: 1, write_bytes: 100 }
        );
        assert_eq!(users[&8].sums.read_bytes, 50);
        let processes = usage.processes(10);
        assert_eq!((processes[0].pid, processes[0].used.sums.reads), (me, 1), "{processes:?}");
        assert!(processes[0].used.bytes_per_sec > 10_000);
        assert_eq!(processes[1].name, "(kernel)");
        assert_eq!(usage.processes(1).len(), 1);
    }

    #[test]
    fn the_table_stays_bounded_and_no_byte_is_lost() {
        let usage = Usage::default();
        let count = 2 * (THREADS_MAX * SHARDS) as u32;
        // These numbers are beyond the largest thread number: no such threads exist.
        (0..count).for_each(|n| usage.note(Who { uid: 1, thread: (1 << 30) + n }, Moved::Read(3)));
        assert!(usage.processes(usize::MAX).len() <= THREADS_MAX * SHARDS);
        assert_eq!(usage.users()[&1].sums.read_bytes, 3 * u64::from(count));
    }
}
