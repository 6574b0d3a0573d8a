//! Access to the files of a space that is only kept.

use rustix::fs::{self, Mode, OFlags};

use forebay_base::Result;
use forebay_base::way::{self, Demand};

use super::mount::{self, Seen};
use super::pool::Pool;
use super::{Id, Owner, Record, failed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// The owner, and users that the owner admits.
    Open,
    /// Only root; files that are open stay so.
    Shut,
}

impl Pool {
    /// Opens or shuts a space that is mounted; does nothing if it is so already, or not mounted.
    pub fn set_door(&self, id: &Id, door: Door) -> Result<()> {
        let _turn = self.turn(id);
        let Some(record) = Record::load(&self.inner.state, id)? else { return Ok(()) };
        let Some(space) = record.space() else { return Ok(()) };
        let at = &space.spec.mount_at;
        let Seen::Ours(_) = mount::seen(at, self.sign(&record, space)?.as_ref())? else {
            return Ok(());
        };
        let end = way::walk(at, Demand::Fixed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = fs::openat(&end.dir, &end.name, flags, Mode::empty());
        let top = top.map_err(failed(at.display()))?;
        let stat = fs::fstat(&top).map_err(failed(at.display()))?;
        let is_shut = stat.st_uid == 0 && stat.st_mode & 0o7777 == 0;
        match door {
            Door::Open if is_shut => mount::hand_over(&top, space.spec.owner, space.spec.mode),
            Door::Shut if !is_shut => mount::hand_over(&top, Owner::ROOT, 0),
            Door::Open | Door::Shut => Ok(()),
        }
    }
}
