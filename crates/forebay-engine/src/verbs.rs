//! What programs ask of names and attributes.

use std::sync::Arc;

use crate::drain::Drain;
use crate::files::Files;
use crate::files::names::Names;
use crate::home::Home;
use crate::io::Io;

pub mod attrs;
pub mod names;

pub struct Verbs {
    pub(crate) home: Arc<Home>,
    pub(crate) files: Arc<Files>,
    pub(crate) names: Arc<Names>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) io: Arc<Io>,
}
