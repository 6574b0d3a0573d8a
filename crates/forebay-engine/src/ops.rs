//! What an operator asks, and the threads that keep house.

use std::sync::{Arc, Mutex};

use crate::drain::Drain;
use crate::files::Files;
use crate::files::names::Names;
use crate::home::Home;
use crate::io::Io;
use crate::room::Room;
use crate::room::passed::Passed;
use crate::tier::witness::Witness;

pub mod detach;
pub mod house;
pub mod operate;
pub mod prefetch;
pub mod resolve;
pub mod status;

pub struct Ops {
    pub(crate) home: Arc<Home>,
    pub(crate) files: Arc<Files>,
    pub(crate) names: Arc<Names>,
    pub(crate) room: Arc<Room>,
    pub(crate) passed: Arc<Passed>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) io: Arc<Io>,
    pub(crate) witness: Witness,
    pub(crate) threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}
