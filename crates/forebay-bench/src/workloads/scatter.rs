//! A step of `fill` or `steps`: clients that each have one transfer at a time, at random places of a
//! file, for a time.

use std::collections::BTreeMap;
use std::path::Path;

use super::session::{Cache, Session, Told};
use super::skew::{Picker, Skew};
use super::work::{self, Random, Work, work};
use crate::drive::SyncEach;
use crate::error::Result;
use crate::io::{Direction, How};
use crate::meter::Total;
use crate::progress::Goal;
use crate::record::Access;
use crate::team::Task;

pub struct Scatter<'a> {
    pub path: &'a Path,
    /// The range of the file, in bytes, that is accessed.
    pub size: u64,
    pub direction: Direction,
    pub transfer: u64,
    pub each: SyncEach,
    pub tasks: usize,
    pub seconds: f64,
    /// Tells the random numbers of this step from those of the others.
    pub stream: u64,
}

impl Scatter<'_> {
    /// Runs and records the step; returns its duration in seconds, and its measurements.
    pub fn run(&self, session: &mut Session, name: &str) -> Result<(f64, Total)> {
        let base = session.base.clone();
        let files = [self.path.to_owned()];
        let (access, before) = match self.direction {
            Direction::Write => (Access::Write, session.before()),
            Direction::Read => (Access::Read, session.before_reading(&files)?),
        };
        let write = self.direction == Direction::Write;
        let how = How { write, direct: base.direct(), ..How::default() };
        let shared = Work {
            seconds: Some(self.seconds),
            each: self.each,
            ..Work::on(self.path.to_owned(), how, self.transfer as usize)
        };
        let picker = Picker::new(Skew::Uniform, self.size / self.transfer);
        let team = session.team(self.tasks, name, Goal::Seconds(self.seconds));
        let outcome = team.run(|task: &Task<'_>, end| {
            let rng = work::rng(base.seed + self.stream, task.rank);
            let (direction, len) = (self.direction, self.transfer);
            let mut plan = Random { direction, picker: picker.clone(), rng, len };
            work(&base, task, end, &shared, &mut plan).map(drop)
        });
        let seconds = work::seconds(&outcome);
        let told = Told {
            name,
            iteration: 0,
            access,
            tasks: self.tasks,
            seconds,
            transfer: self.transfer,
            before,
            cache: Cache::Doubtful,
            files: &files,
            figures: BTreeMap::new(),
        };
        Ok((seconds, session.phase(told, &outcome)?))
    }
}
