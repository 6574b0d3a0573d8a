//! Moments as people write them: a time from now, or a time of the local day. On the wire they are
//! seconds since the epoch.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::units::parse_duration;

const DAY_SECS: f64 = 86400.0;

pub fn unix_secs() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Reads `10min` (from now), `18:30` or `18:30:15` (the next one).
pub fn parse(text: &str) -> Result<f64, String> {
    parse_at(text, unix_secs())
}

fn parse_at(text: &str, now: f64) -> Result<f64, String> {
    if !text.contains(':') {
        let from_now = parse_duration(text).map_err(|why| format!("{why}; or a time, 18:30"))?;
        return Ok(now + from_now.as_secs_f64());
    }
    let wanted = time_of_day(text).ok_or("write a time of the day as 18:30 or 18:30:15")?;
    let tm = local(now);
    let today = f64::from(tm.tm_hour * 3600 + tm.tm_min * 60 + tm.tm_sec) + now.fract();
    let ahead = f64::from(wanted) - today;
    Ok(now + if ahead > 0.0 { ahead } else { ahead + DAY_SECS })
}

fn time_of_day(text: &str) -> Option<u32> {
    let parts: Vec<u32> = text.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    let (hour, min, sec) = match parts[..] {
        [hour, min] => (hour, min, 0),
        [hour, min, sec] => (hour, min, sec),
        _ => return None,
    };
    (hour < 24 && min < 60 && sec < 60).then_some(hour * 3600 + min * 60 + sec)
}

/// The local time of the day.
pub fn show(unix: f64) -> String {
    let tm = local(unix);
    format!("{:02}:{:02}:{:02}", tm.tm_hour, tm.tm_min, tm.tm_sec)
}

/// The local day and time, such as `2026-11-24T18:30:00`.
pub fn show_day(unix: u64) -> String {
    let tm = local(unix as f64);
    let (year, month) = (tm.tm_year + 1900, tm.tm_mon + 1);
    format!("{year:04}-{month:02}-{:02}T{}", tm.tm_mday, show(unix as f64))
}

fn local(unix: f64) -> libc::tm {
    let time = unix as libc::time_t;
    // SAFETY: localtime_r fills the zeroed struct, which has no invariants; both pointers live.
    unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::localtime_r(&time, &mut tm);
        tm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_from_now_or_the_next_of_that_name() {
        let now = unix_secs().floor();
        assert_eq!(parse_at("10min", now).unwrap(), now + 600.0);
        for ahead in [1.0, 3600.0, DAY_SECS - 1.0] {
            let found = parse_at(&show(now + ahead), now).unwrap();
            // Twice a year the clock skips an hour or repeats one.
            assert!((found - now - ahead).abs() <= 3600.0, "{ahead}");
        }
        for bad in ["10", "25:00", "1:2:3:4", "x:y", ""] {
            assert!(parse_at(bad, now).is_err(), "{bad}");
        }
    }
}
