//! The transport over io_uring (Linux 6.14): requests and answers without a system call for each.
//!
//! The kernel has a queue for each processor, and each queue has *entries*: places for one request
//! and its answer. A request goes to an idle entry of the queue of the processor its program runs
//! on. A thread serves one entry, bound to that processor. Since verbs block, and hang when the
//! backing store hangs, there is always one entry more than requests at work: the thread that takes
//! the last idle entry of a queue has another made.
//!
//! A request that finds no idle entry waits until an entry is *committed*. A new entry does not look
//! for waiting requests. So its thread sends its queue a request (a *poke*), and the commit of the
//! poke finds a waiting request. If a poke finds one while other entries are idle, it is repeated.
//!
//! When the watchdog answers a request that hangs, another thread goes on with the entry
//! ([`Crew::adopt`]). Its commit looks for waiting requests, too.

mod abi;
mod buffer;
mod headers;
mod reply;
mod uring;
mod worker;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use forebay_base::lock::sleep;
use forebay_engine::Pool;
use forebay_engine::time::Time;
use rustix::thread::CpuSet;

use self::reply::Seat;
use self::uring::Uring;
use self::worker::{Start, Worker, is_end};
use crate::dev::Device;
use crate::request::{Shared, settles};

/// The number of entries of a queue at the start, and the most.
const ENTRIES_MIN: usize = 2;
const ENTRIES_MAX: usize = 512;

/// The remedy where the kernel refuses io_uring.
pub const REMEDY: &str = "Linux 6.14 or newer is needed, and as root: \
                          echo Y >/sys/module/fuse/parameters/enable_uring";

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether requests could come over io_uring here; else why not.
pub fn possible() -> Result<(), String> {
    match std::fs::read_to_string(SWITCH) {
        Ok(word) if word.trim() == "Y" => {}
        Ok(_) => return Err(format!("{SWITCH} is N")),
        Err(_) => return Err("this kernel does not know it".into()),
    }
    Uring::new().map_err(|e| format!("no io_uring can be made: {e}"))?;
    let queues = queues().map_err(|e| format!("the processors are not known: {e}"))?;
    // A thread that may not run on a processor cannot poke the queue of that processor.
    let trial = std::thread::spawn(move || {
        online().into_iter().filter(|cpu| *cpu < queues).all(|cpu| bind(cpu as u16).is_ok())
    });
    match trial.join() {
        Ok(true) => Ok(()),
        _ => Err("this process may not run on all processors".into()),
    }
}

/// The number of the kernel's queues: one for each processor that there can be.
fn queues() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = numbers(&text).last();
    last.map(|last| last + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn online() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    numbers(&text).collect()
}

/// The numbers of a list such as `0-3,8`.
fn numbers(text: &str) -> impl Iterator<Item = usize> {
    text.trim().split(',').filter_map(range).flatten()
}

fn range(part: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn bind(cpu: u16) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    if usize::from(cpu) >= CpuSet::MAX_CPU {
        return Err(rustix::io::Errno::INVAL);
    }
    set.set(cpu.into());
    rustix::thread::sched_setaffinity(None, &set)
}

struct Queue {
    /// Entries without a request, as far as their threads know.
    idle: AtomicUsize,
    entries: AtomicUsize,
    /// Whether an entry is being made.
    growing: AtomicBool,
}

/// The entries of a mount and the threads that serve them.
pub struct Crew {
    shared: Arc<Shared>,
    device: Arc<Device>,
    queues: Vec<Queue>,
    threads: Pool,
    /// The thread that looks up the file which pokes ask for.
    learner: Pool,
    known: Known,
    /// The node of a file that was opened lately.
    recent: AtomicU64,
    pokes: AtomicU64,
    /// Requests being worked on.
    working: AtomicUsize,
    /// Whether the mount is gone.
    ended: AtomicBool,
}

type Registered = SyncSender<io::Result<()>>;

impl Crew {
    /// Registers the first entries of every queue. The kernel sends requests here as soon as each
    /// queue has an entry: if a later entry is refused, the mount must go.
    pub fn start(
        shared: Arc<Shared>,
        device: Arc<Device>,
        mountpoint: &Path,
    ) -> io::Result<Arc<Crew>> {
        let (path, node) = shared.vfs.some_control_file().ok_or(io::ErrorKind::NotFound)?;
        let count = queues()?;
        let new = || Queue {
            idle: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            growing: AtomicBool::new(false),
        };
        let crew = Arc::new(Crew {
            shared,
            device,
            queues: std::iter::repeat_with(new).take(count).collect(),
            // Bounded by the entries, and by the threads that hang while others serve their entries.
            threads: Pool::new("fb-ring", usize::MAX, Time::default()),
            learner: Pool::new("fb-poke", 1, Time::default()),
            recent: AtomicU64::new(0),
            known: Known { path: mountpoint.join(path), node },
            pokes: AtomicU64::new(0),
            working: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let online = online();
        let (told, registered) = sync_channel(count * ENTRIES_MIN);
        let mut wanted = 0;
        for queue in 0..count {
            // One entry is enough for a processor that may come later.
            let entries = if online.contains(&queue) { ENTRIES_MIN } else { 1 };
            wanted += entries;
            (0..entries).for_each(|_| crew.start_entry(queue as u16, Some(told.clone())));
        }
        drop(told);
        let outcome = all_registered(&registered, wanted);
        if outcome.is_err() {
            crew.ended.store(true, Relaxed);
        }
        outcome.map(|()| crew)
    }

    /// Waits, at the end of the session, until no request is at work. Returns `false` if a request
    /// hangs.
    pub fn settles(&self) -> bool {
        settles(|| self.working.load(SeqCst) == 0)
    }

    fn queue(&self, queue: u16) -> &Queue {
        &self.queues[usize::from(queue)]
    }

    fn start_entry(self: &Arc<Crew>, queue: u16, told: Option<Registered>) {
        self.queue(queue).entries.fetch_add(1, SeqCst);
        let crew = self.clone();
        self.threads.offer(move || crew.work_new(queue, told));
    }

    /// Makes another entry: the last idle one has a request, which may hang.
    fn grow(self: &Arc<Crew>, queue: u16) {
        let place = self.queue(queue);
        if self.ended.load(Relaxed)
            || place.entries.load(SeqCst) >= ENTRIES_MAX
            || place.growing.swap(true, SeqCst)
        {
            return;
        }
        self.start_entry(queue, None);
    }

    /// Has a new thread go on with an entry whose request was answered by another thread than the
    /// one that took it: the thread that took it hangs, or ends without an entry.
    fn adopt(self: &Arc<Crew>, seat: Box<Seat>) {
        if self.ended.load(Relaxed) {
            return;
        }
        let crew = self.clone();
        self.threads.offer(move || crew.work_adopted(seat));
    }

    /// Runs a thread with a new entry. The first threads report through `told`. Later threads try
    /// until they have an entry, since nothing else would notice that requests wait.
    fn work_new(self: &Arc<Crew>, queue: u16, told: Option<Registered>) {
        let _ = bind(queue); // A processor that is away has no requests.
        let place = self.queue(queue);
        loop {
            let error = match self.register(queue) {
                Ok(worker) => {
                    match told {
                        Some(told) => drop(told.send(Ok(()))),
                        None => {
                            place.growing.store(false, SeqCst);
                            self.poke(queue);
                        }
                    }
                    return worker.serve();
                }
                Err(error) => error,
            };
            if is_end(&error) {
                self.ended.store(true, Relaxed);
            }
            if told.is_some() || self.ended.load(Relaxed) {
                place.entries.fetch_sub(1, SeqCst);
                if let Some(told) = told {
                    let _ = told.send(Err(error));
                }
                return;
            }
            tracing::warn!(%error, "a ring entry could not be made");
            sleep(Duration::from_secs(1));
        }
    }

    fn register(self: &Arc<Crew>, queue: u16) -> io::Result<Worker> {
        let mut worker =
            Worker::new(self.clone(), Seat::new(queue)?, Start::New).map_err(|(e, _)| e)?;
        worker.register()?;
        Ok(worker)
    }

    /// Runs a thread that goes on with an entry. It tries until it has a ring, since a program waits
    /// for the answer in the entry.
    fn work_adopted(self: &Arc<Crew>, mut seat: Box<Seat>) {
        let _ = bind(seat.queue);
        while !self.ended.load(Relaxed) {
            match Worker::new(self.clone(), seat, Start::Adopted) {
                Ok(worker) => return worker.serve(),
                Err((error, back)) => {
                    tracing::warn!(%error, "an answer waits for a ring");
                    sleep(Duration::from_secs(1));
                    seat = back;
                }
            }
        }
    }

    /// Sends a request to the queue of the processor that this thread is bound to, without waiting
    /// for it: asks for zero bytes of a file, to which the kernel answers with a request. The kernel
    /// must know the file.
    fn poke(self: &Arc<Crew>, queue: u16) {
        let recent = self.recent.load(Relaxed);
        if !self.ask_for(self.known.node) && !self.ask_for(recent) {
            let crew = self.clone();
            self.learner.offer(move || {
                // The lookup is a request to this queue, and so a poke itself.
                let _ = bind(queue);
                crew.learn();
                crew.ask_for(crew.known.node);
            });
        }
    }

    fn ask_for(&self, node: u64) -> bool {
        // The number is even, as all the kernel's own numbers are, and far from them.
        let unique = (1 << 62) + self.pokes.fetch_add(2, Relaxed);
        self.device.retrieve(node, unique)
    }

    /// Makes the kernel know the file that pokes ask for. Returns when it does, or after 5 s.
    pub fn make_known(self: &Arc<Crew>) {
        let (crew, (done, learned)) = (self.clone(), sync_channel(1));
        self.learner.offer(move || {
            crew.learn();
            let _ = done.send(());
        });
        let _ = learned.recv_timeout(Duration::from_secs(5));
    }

    /// Looks up the file that pokes ask for, on the learner's thread.
    fn learn(&self) {
        // If the daemon is killed, its own request that is under way is answered only once the
        // device is closed. So this thread must not keep the device open.
        const CLOSE_RANGE_UNSHARE: libc::c_uint = 1 << 1;
        // SAFETY: the call takes three numbers, and the descriptors it closes are this thread's
        // own copies, which nothing here uses.
        let alone = unsafe {
            libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE)
        };
        if alone == 0 {
            let _ = rustix::fs::stat(&self.known.path);
        }
    }
}

/// The file that pokes ask for.
struct Known {
    path: PathBuf,
    node: u64,
}

fn all_registered(registered: &Receiver<io::Result<()>>, wanted: usize) -> io::Result<()> {
    for _ in 0..wanted {
        let outcome = registered.recv_timeout(Duration::from_secs(30));
        outcome.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        let read = |text| numbers(text).collect::<Vec<_>>();
        assert_eq!(read("0\n"), [0]);
        assert_eq!(read("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(read("\n").is_empty());
    }
}
