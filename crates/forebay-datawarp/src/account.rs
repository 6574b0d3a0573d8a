//! Facts about an instance in DataWarp's terms: stripes, servers, accounts.

use std::path::Path;

use forebay_base::{Error, Result};
use rustix::fs::statvfs;
use serde_json::{Value, json};

use crate::place::{Site, invalid};
use crate::records::{Direction, State, Transfer};

/// A file has one stripe, however long it is: programs take this number for a good size of a write.
pub const STRIPE_BYTES: i32 = 8 << 20;

/// Stripes begin at pages.
const STRIPE_STEP: i32 = 4096;

/// # Errors
///
/// EINVAL for impossible numbers, and for a path outside of instances; ENOTSUP for more than one stripe.
pub fn set_stripes(path: &Path, bytes: i32, width: i32) -> Result<()> {
    if width <= 0 || bytes <= 0 || bytes % STRIPE_STEP != 0 {
        return Err(invalid(format!("{width} stripes of {bytes} bytes")));
    }
    require_instance(path)?;
    match width {
        1 => Ok(()),
        _ => Err(Error::os(libc::ENOTSUP, "a file is on one node")),
    }
}

pub fn require_instance(path: &Path) -> Result<()> {
    Site::here()?.place(path).map(|_| ())
}

/// The accounts of an instance, as far as forebay keeps them; unknown fields are left out.
pub fn accounts(path: &Path) -> Result<Value> {
    let failed = |e| Error::io(e, path.display().to_string());
    let there = path.canonicalize().map_err(failed)?;
    let site = Site::here()?;
    let place = site.place(&there)?;
    let room = statvfs(&there).map_err(|e| failed(e.into()))?;
    let all = site.transfers()?;
    let moved = |direction| bytes_moved(&place.only(&all), direction);
    Ok(json!({ "realm": {
        "namespace count": 1,
        "server count": 1,
        "fragments": [{
            "server name": site.node,
            "lower filesystem capacity": room.f_blocks * room.f_frsize,
            "cur capacity used": (room.f_blocks - room.f_bfree) * room.f_frsize,
        }],
        "namespaces": [{
            "stripe width": 1,
            "stripe size": STRIPE_BYTES,
            "substripe width": 1,
            "substripe size": STRIPE_BYTES,
            // Seen from the instance: a stage-in writes to it.
            "stage bytes written": moved(Direction::In),
            "stage bytes read": moved(Direction::Out),
        }],
    }}))
}

fn bytes_moved(all: &[&Transfer], direction: Direction) -> u64 {
    let ended = all.iter().filter(|one| one.direction == direction);
    let told = ended.filter_map(|one| one.actual.as_ref());
    told.filter(|actual| actual.state != State::Waiting).map(|actual| actual.bytes).sum()
}
