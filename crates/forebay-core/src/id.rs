//! The ids that tell files apart in the tier.

use serde::{Deserialize, Serialize};

/// Stable across restarts, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId(pub u64);
