//! Requests of programs for names and attributes.

use std::sync::Arc;

use crate::copies::Outbox;
use crate::drain::{Drain, Ground};
use crate::files::Files;
use crate::files::names::Names;
use crate::home::Home;
use crate::io::Io;

pub mod attrs;
pub mod names;

pub struct Verbs {
    home: Arc<Home>,
    files: Arc<Files>,
    names: Arc<Names>,
    outbox: Arc<Outbox>,
    drain: Arc<Drain>,
    io: Arc<Io>,
}

impl Verbs {
    pub(crate) fn new(
        ground: Ground,
        outbox: Arc<Outbox>,
        drain: Arc<Drain>,
        io: Arc<Io>,
    ) -> Verbs {
        let Ground { home, files, names, .. } = ground;
        Verbs { home, files, names, outbox, drain, io }
    }
}
