//! Holds: the programs that write a file past the daemon wait while a hold of the file is in force.
//!
//! For each write that the kernel passes through it takes the lock of the FUSE inode. So does the removal of an
//! extended attribute, before it asks the daemon. A hold is such a removal, by a name that nobody else knows: it is
//! answered when the writers may go on, that there is no such attribute, and has changed nothing.
//!
//! The removal is made by a program of its own ([`holder`]). A thread of the daemon could not be killed while it
//! waits for the daemon's answer, and would keep the device open after the daemon's end, and so itself.
//!
//! Invariants:
//! - O1: a file has one request at a time. One that is not wanted any more before it has come is wanted again, or
//!   answered as soon as it comes.
//! - O2: the daemon waits for no lock of a file's inode while it holds the file: it sends the kernel no notification
//!   but those that need none (see [`Notify`](crate::vfs::Notify)).

pub mod holder;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Builder;
use std::time::Duration;

use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use forebay_engine::{Stage, WriterHold};
use hashbrown::HashMap;

const PREFIX: &str = "user.forebay.hold.";

/// The most requests at once. Over io_uring each one has an entry of its queue, which has at most 512, beside the
/// waits for locks.
const REQUESTS_MAX: usize = 64;

/// How long an unmount waits for requests that have not ended yet.
const REST_MAX: Duration = Duration::from_secs(2);

/// Answers a request.
type GoOn = Box<dyn FnOnce() + Send>;

/// The program that makes the requests, and the mount that it makes them in.
#[derive(Debug, Clone)]
pub struct Holder {
    pub program: fn() -> Command,
    pub mountpoint: PathBuf,
    /// The numbers of the mount's device, such as `0:50`.
    pub device: String,
}

#[derive(Clone)]
pub struct Holds(Arc<Inner>);

struct Inner {
    holder: OnceLock<Holder>,
    /// The beginning of the names of all requests.
    name: OnceLock<String>,
    /// Whether a request has come, and none could not be made since.
    works: AtomicBool,
    table: Mutex<Table>,
    /// Tells that a program has reported the end of a request, or has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Table {
    /// By node.
    requests: HashMap<u64, Request>,
    last: u64,
    child: Option<Running>,
    is_resting: bool,
}

struct Request {
    number: u64,
    is_wanted: bool,
    progress: Arc<Progress>,
    /// Present while the hold is in force.
    go_on: Option<GoOn>,
}

/// How far a request is, for its hold.
#[derive(Default)]
struct Progress {
    has_come: AtomicBool,
    is_over: AtomicBool,
}

impl Drop for Request {
    fn drop(&mut self) {
        self.progress.is_over.store(true, Relaxed);
    }
}

/// The running program.
struct Running {
    id: u32,
    orders: ChildStdin,
    /// The requests that it has not reported the end of.
    requests: usize,
}

/// A hold of one file; given back when it is dropped.
pub struct Hold {
    of: Holds,
    node: u64,
    number: u64,
    progress: Arc<Progress>,
}

impl Default for Holds {
    fn default() -> Holds {
        Holds(Arc::new(Inner {
            holder: OnceLock::new(),
            name: OnceLock::new(),
            works: AtomicBool::new(false),
            table: Mutex::new(Rank::Holds, Table::default()),
            ended: Condvar::new(),
        }))
    }
}

impl Holds {
    /// Gives the means to make requests.
    ///
    /// # Errors
    ///
    /// If there is no secret name to be had.
    pub fn begin(&self, holder: Holder) -> io::Result<()> {
        let mut secret = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut secret)?;
        let _ = self.0.name.set(format!("{PREFIX}{:032x}.", u128::from_ne_bytes(secret)));
        let _ = self.0.holder.set(holder);
        Ok(())
    }

    pub fn work(&self) -> bool {
        self.0.works.load(Relaxed)
    }

    /// Asks for a hold of a node, and does not wait for it; `None` if there can be none now.
    pub fn ask(&self, node: u64, generation: u64) -> Option<Hold> {
        let name = self.0.name.get()?;
        let mut table = self.table();
        if table.is_resting {
            return None;
        }
        if let Some(request) = table.requests.get_mut(&node) {
            // O1.
            let is_free = !std::mem::replace(&mut request.is_wanted, true);
            return is_free.then(|| request.hold(self, node));
        }
        if table.requests.len() >= REQUESTS_MAX {
            return None;
        }
        table.last += 1;
        let number = table.last;
        let order = format!("{number} {node} {generation} {name}{number}\n");
        if let Err(error) = self.send(&mut table, &order) {
            tracing::warn!(%error, "programs that write past the daemon cannot be held");
            self.0.works.store(false, Relaxed);
            return None;
        }
        let request = Request { number, is_wanted: true, progress: Arc::default(), go_on: None };
        let hold = request.hold(self, node);
        table.requests.insert(node, request);
        Some(hold)
    }

    /// Finds out whether holds work, by one of the mount's root.
    pub fn probe(&self) {
        // It is not wanted any more when it comes.
        drop(self.ask(crate::nodes::ROOT, 0));
    }

    /// The number of the request that removes an attribute of this name, if it is a hold.
    pub fn number_of(&self, name: &std::ffi::OsStr) -> Option<u64> {
        name.to_str()?.strip_prefix(self.0.name.get()?.as_str())?.parse().ok()
    }

    /// Takes a request that has come. It is answered with `go_on`.
    pub fn come(&self, node: u64, number: u64, go_on: GoOn) {
        self.0.works.store(true, Relaxed);
        let mut table = self.table();
        if let Some(request) = table.requests.get_mut(&node)
            && request.number == number
            && request.is_wanted
        {
            request.go_on = Some(go_on);
            request.progress.has_come.store(true, Relaxed);
            return;
        }
        table.remove(node, number);
        drop(table);
        go_on();
    }

    /// Gives all holds back and asks for none until this is dropped. Waits a while until no request keeps the mount in
    /// use.
    pub fn rest(&self) -> Rest<'_> {
        let mut held = Vec::new();
        let mut table = self.table();
        table.is_resting = true;
        table.requests.retain(|_, request| {
            request.is_wanted = false;
            let go_on = request.go_on.take();
            let is_on_its_way = go_on.is_none();
            held.extend(go_on);
            is_on_its_way
        });
        drop(table);
        held.into_iter().for_each(|go_on| go_on());
        let is_in_use =
            |table: &mut Table| table.child.as_ref().is_some_and(|child| child.requests > 0);
        drop(self.0.ended.wait_timeout_while(self.table(), REST_MAX, is_in_use));
        Rest(self)
    }

    #[track_caller]
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock()
    }

    /// Sends an order to the program, which is started if it does not run.
    fn send(&self, table: &mut Table, order: &str) -> io::Result<()> {
        if let Some(child) = &mut table.child
            && child.send(order).is_ok()
        {
            return Ok(());
        }
        table.child.insert(self.start()?).send(order)
    }

    fn start(&self) -> io::Result<Running> {
        let holder = self.0.holder.get().ok_or(io::ErrorKind::NotFound)?;
        let mut command = (holder.program)();
        command.arg(&holder.mountpoint).arg(&holder.device);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let (orders, told) = (child.stdin.take(), child.stdout.take());
        let (Some(orders), Some(told)) = (orders, told) else { unreachable!("both are piped") };
        let (id, holds) = (child.id(), Arc::downgrade(&self.0));
        let listen = move || listen(&holds, child, told);
        Builder::new().name("fb-hold".into()).spawn(listen)?;
        Ok(Running { id, orders, requests: 0 })
    }

    /// Called when a request of a program has ended.
    fn end(&self, id: u32, number: u64, errno: i32) {
        let mut table = self.table();
        if let Some(child) = table.child.as_mut().filter(|child| child.id == id) {
            child.requests = child.requests.saturating_sub(1);
            self.0.ended.notify_all();
        }
        // One that was answered is known no more.
        let of = table.requests.iter().find(|(_, request)| request.number == number);
        let Some(node) = of.map(|(node, _)| *node) else { return };
        tracing::debug!(errno, node, "a hold of writers past the daemon was not to be had");
        let go_on = table.remove(node, number);
        drop(table);
        go_on.into_iter().for_each(|go_on| go_on());
    }

    /// Called when a program has ended: its requests are answered as soon as they come. Those of a later program are
    /// taken for its own; they are asked for again.
    fn gone(&self, id: u32) {
        let mut table = self.table();
        table.child.take_if(|child| child.id == id);
        let requests = std::mem::take(&mut table.requests);
        self.0.ended.notify_all();
        drop(table);
        requests.into_values().filter_map(|mut it| it.go_on.take()).for_each(|go_on| go_on());
    }
}

impl Table {
    fn remove(&mut self, node: u64, number: u64) -> Option<GoOn> {
        let is_it = self.requests.get(&node).is_some_and(|request| request.number == number);
        is_it.then(|| self.requests.remove(&node)).flatten()?.go_on.take()
    }
}

impl Request {
    fn hold(&self, of: &Holds, node: u64) -> Hold {
        Hold { of: of.clone(), node, number: self.number, progress: self.progress.clone() }
    }
}

impl Running {
    fn send(&mut self, order: &str) -> io::Result<()> {
        self.orders.write_all(order.as_bytes())?;
        self.requests += 1;
        Ok(())
    }
}

/// No holds are asked for until this is dropped.
pub struct Rest<'a>(&'a Holds);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.0.table().is_resting = false;
    }
}

impl WriterHold for Hold {
    fn stage(&self) -> Stage {
        let Progress { has_come, is_over } = &*self.progress;
        match (is_over.load(Relaxed), has_come.load(Relaxed)) {
            (true, _) => Stage::Failed,
            (false, true) => Stage::InForce,
            (false, false) => Stage::UnderWay,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.of.table();
        let Some(request) = table.requests.get_mut(&self.node) else { return };
        if request.number != self.number {
            return;
        }
        request.is_wanted = false;
        if request.go_on.is_some() {
            let go_on = table.remove(self.node, self.number);
            drop(table);
            go_on.into_iter().for_each(|go_on| go_on());
        }
    }
}

/// Hears of ended requests until the program ends.
fn listen(holds: &Weak<Inner>, mut child: Child, told: ChildStdout) {
    for line in BufReader::new(told).lines() {
        let Ok(line) = line else { break };
        let (number, errno) = line.split_once(' ').unwrap_or_default();
        let (Ok(number), Ok(errno)) = (number.parse(), errno.parse()) else { continue };
        let Some(holds) = holds.upgrade().map(Holds) else { break };
        holds.end(child.id(), number, errno);
    }
    if let Some(holds) = holds.upgrade().map(Holds) {
        holds.gone(child.id());
    }
    let _ = child.wait();
}
