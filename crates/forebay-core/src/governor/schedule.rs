//! Windows of the day in which the drain may work, and how fast.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Windows of the local day. Without any window the drain may always work; with some it rests
/// outside of them until the hard mark.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Schedule(pub Vec<Window>);

/// From one minute of the day to another, over midnight if the end is not behind the begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub from: u16,
    pub until: u16,
    /// Bytes per second; 0 is no limit.
    pub rate_max: u64,
}

const DAY: u16 = 24 * 60;

impl Schedule {
    /// The rate that the drain may have at this minute of the day, in bytes per second.
    pub fn allows(&self, minute: u16) -> f64 {
        if self.0.is_empty() {
            return f64::INFINITY;
        }
        self.0.iter().filter(|window| window.covers(minute)).map(Window::rate).fold(0.0, f64::max)
    }

    /// Reads `22:00-06:00` or, with rates read by `rate`, `22:00-06:00,12:00-13:00=20MB/s`;
    /// `always` is no schedule.
    ///
    /// # Errors
    ///
    /// Says what to write instead.
    pub fn parse(
        text: &str,
        rate: impl Fn(&str) -> Result<u64, String>,
    ) -> Result<Schedule, String> {
        if matches!(text.trim(), "" | "always") {
            return Ok(Schedule::default());
        }
        text.split(',')
            .map(|window| Window::parse(window.trim(), &rate))
            .collect::<Result<_, _>>()
            .map(Schedule)
    }
}

impl Window {
    fn covers(&self, minute: u16) -> bool {
        match self.from < self.until {
            true => (self.from..self.until).contains(&minute),
            false => minute >= self.from || minute < self.until,
        }
    }

    fn rate(&self) -> f64 {
        if self.rate_max == 0 { f64::INFINITY } else { self.rate_max as f64 }
    }

    fn parse(text: &str, rate: impl Fn(&str) -> Result<u64, String>) -> Result<Window, String> {
        let (times, cap) = text.split_once('=').unwrap_or((text, "none"));
        let times = times.split_once('-').ok_or_else(advice)?;
        Ok(Window {
            from: minute(times.0)?,
            until: minute(times.1)? % DAY,
            rate_max: rate(cap.trim())?,
        })
    }
}

fn minute(text: &str) -> Result<u16, String> {
    let (hours, minutes) = text.trim().split_once(':').ok_or_else(advice)?;
    let number = |text: &str, max| text.parse().ok().filter(|n: &u16| *n <= max);
    let time = number(hours, 24).zip(number(minutes, 59));
    time.map(|(h, m)| h * 60 + m).filter(|minute| *minute <= DAY).ok_or_else(advice)
}

fn advice() -> String {
    "write windows of the day, for example 22:00-06:00 or 22:00-06:00,12:00-13:00=20MB/s, or always"
        .into()
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = |minute: u16| (minute / 60, minute % 60);
        let ((h1, m1), (h2, m2)) = (clock(self.from), clock(self.until));
        write!(f, "{h1:02}:{m1:02}-{h2:02}:{m2:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Schedule, String> {
        Schedule::parse(text, |rate| match rate {
            "none" => Ok(0),
            digits => digits.parse().map_err(|_| "no rate".into()),
        })
    }

    #[test]
    fn windows_cover_their_minutes_over_midnight_too() {
        let night = parse("22:00-06:00, 12:00-13:00=5").unwrap();
        let at = |h: u16, m: u16| night.allows(h * 60 + m);
        assert_eq!(
            (at(21, 59), at(22, 0), at(5, 59), at(6, 0)),
            (0.0, f64::INFINITY, f64::INFINITY, 0.0)
        );
        assert_eq!((at(12, 30), at(13, 0)), (5.0, 0.0));
        assert_eq!(parse("always").unwrap().allows(0), f64::INFINITY);
        assert_eq!(parse("00:00-24:00").unwrap().allows(700), f64::INFINITY);
    }

    #[test]
    fn nonsense_is_told_what_to_write() {
        for text in ["22-6", "22:00", "25:00-06:00", "22:60-06:00", "22:00-06:00;"] {
            assert!(parse(text).unwrap_err().contains("22:00-06:00"), "{text}");
        }
        assert_eq!(parse("22:00-06:00=fast").unwrap_err(), "no rate");
    }
}
