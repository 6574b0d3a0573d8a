//! Partners that keep copies of this member's durable bytes, and may take it over.

use std::time::Duration;

use forebay_backing::FileKey;

use super::{Core, Fitness, Keepers};

impl Core {
    pub fn keepers(&self) -> Keepers {
        Keepers::default()
    }

    /// What copies of a file carry. `None`: it is not claimed yet; a copy has to wait for that.
    pub fn claim_number(&self, _file: FileKey) -> Option<u64> {
        None
    }

    /// Whether this member may serve, flush and acknowledge at `now`.
    pub fn fit(&self, _now: Duration) -> Fitness {
        Fitness::Fit
    }
}
