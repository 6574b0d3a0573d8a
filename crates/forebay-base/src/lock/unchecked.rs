//! Empty stand-ins: release builds do not check the locks that a thread holds.

use crate::lock::Rank;

#[derive(Debug)]
pub(super) struct Place;

pub(super) struct Mark;

impl Place {
    #[inline]
    pub const fn new(_: Rank) -> Place {
        Place
    }

    #[inline]
    pub fn wait(&self) -> Mark {
        Mark
    }

    #[inline]
    pub fn tried(&self) -> Mark {
        Mark
    }
}

impl Mark {
    #[inline]
    pub fn lasts_without(&self, _: &str) {}
}

#[inline]
pub(super) fn lasts(_: &str) {}
