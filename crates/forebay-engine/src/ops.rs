//! Requests of operators, and the threads that keep house.

use std::sync::Arc;

use crate::copies::{Copies, Outbox};
use crate::drain::{Drain, Ground};
use crate::files::Files;
use crate::files::names::Names;
use crate::home::Home;
use crate::io::Io;
use crate::room::Room;
use crate::room::passed::Passed;
use crate::tier::witness::Witness;
use forebay_base::lock::{Mutex, Rank};

pub mod as_taken;
pub mod detach;
pub mod house;
pub mod operate;
pub mod prefetch;
pub mod resolve;
pub mod status;
pub mod taken;

pub struct Ops {
    home: Arc<Home>,
    files: Arc<Files>,
    names: Arc<Names>,
    room: Arc<Room>,
    passed: Arc<Passed>,
    copies: Arc<Copies>,
    outbox: Arc<Outbox>,
    drain: Arc<Drain>,
    io: Arc<Io>,
    witness: Witness,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Ops {
    pub(crate) fn new(
        ground: Ground,
        room: Arc<Room>,
        (copies, outbox): (Arc<Copies>, Arc<Outbox>),
        drain: Arc<Drain>,
        io: Arc<Io>,
        witness: Witness,
    ) -> Ops {
        let Ground { home, files, names, passed } = ground;
        let threads = Mutex::new(Rank::Threads, Vec::new());
        Ops { home, files, names, room, passed, copies, outbox, drain, io, witness, threads }
    }
}
