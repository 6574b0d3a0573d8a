//! The presets: which terms of the one control law take part, and how. There is no second law.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How the drain decides; see [`Preset::law`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Age as deadline, level as feedback, idleness as opportunity, latency as brake.
    #[default]
    Governor,
    /// Nothing below the high mark, as fast as possible above it, down to the low mark.
    Threshold,
    /// Everything once it is `max-age` old, whatever the level.
    Age,
    /// Only while the backing store and the programs rest.
    Idle,
    /// Nothing until writers would have to be slowed down.
    Hold,
}

/// How the level counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByLevel {
    Off,
    /// All or nothing, between the marks.
    Step,
    Rising(Integral),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integral {
    /// Bounded, and it grows only while the drain obeys.
    Bounded,
    /// Without either bound: proves that the simulation notices the difference.
    Unbounded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByAge {
    Off,
    /// Paced so that no byte gets older than `max-age`.
    MaxAge,
    /// As `MaxAge`, with a fixed age of its own.
    After(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    Off,
    On,
}

/// The terms in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Law {
    pub age: ByAge,
    pub level: ByLevel,
    pub idle: Switch,
    pub brake: Switch,
    /// Copies in flight at most, beside `flush-depth`.
    pub depth_max: u32,
}

/// How long FlashCache leaves an untouched block.
const FALLOW: Duration = Duration::from_secs(900);

impl Preset {
    pub const ALL: [Preset; 5] =
        [Preset::Governor, Preset::Threshold, Preset::Age, Preset::Idle, Preset::Hold];

    pub const fn name(self) -> &'static str {
        match self {
            Preset::Governor => "governor",
            Preset::Threshold => "threshold",
            Preset::Age => "age",
            Preset::Idle => "idle",
            Preset::Hold => "hold",
        }
    }

    pub fn law(self) -> Law {
        let nothing = Law {
            age: ByAge::Off,
            level: ByLevel::Off,
            idle: Switch::Off,
            brake: Switch::Off,
            depth_max: u32::MAX,
        };
        match self {
            Preset::Governor => Law {
                age: ByAge::MaxAge,
                level: ByLevel::Rising(Integral::Bounded),
                idle: Switch::On,
                brake: Switch::On,
                ..nothing
            },
            // FlashCache allows itself four at once.
            Preset::Threshold => {
                Law { age: ByAge::After(FALLOW), level: ByLevel::Step, depth_max: 4, ..nothing }
            }
            Preset::Age => Law { age: ByAge::MaxAge, ..nothing },
            Preset::Idle => Law { idle: Switch::On, ..nothing },
            Preset::Hold => nothing,
        }
    }
}
