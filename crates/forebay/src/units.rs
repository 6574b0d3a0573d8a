//! Sizes, times and shares as people write them, and back. Reading rejects a bare number, since
//! `10` bytes and `10` GiB differ by nine zeros; zero is the same in every unit and needs none.

use std::time::Duration;

/// Decimal and binary units by their lower-case names, largest first.
const SIZE_UNITS: [(&str, u64); 12] = [
    ("pib", 1 << 50),
    ("pb", 1_000_000_000_000_000),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("b", 1),
    ("byte", 1),
];

/// In microseconds, the finest time anything here is set to.
const TIME_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Reads `10GiB`, `1.5 TB`, `4096B`. The message of an error says what to write instead.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text, "10GiB")?;
    let unit = unit.to_ascii_lowercase();
    match (unit.as_str(), number) {
        ("", 0.0) => Ok(0),
        ("", _) => Err(format!("add a unit, for example {}GiB", text.trim())),
        ("k" | "m" | "g" | "t" | "p", _) => {
            let (n, u) = (number, unit.to_ascii_uppercase());
            Err(format!("write {n}{u}iB (powers of 1024) or {n}{u}B (powers of 1000)"))
        }
        (unit, _) => {
            let factor = factor(&SIZE_UNITS, unit)
                .ok_or("unknown unit; use B, kB, MB, GB, TB or KiB, MiB, GiB, TiB")?;
            scale(number, factor).ok_or_else(|| "too large; the most is 16384PiB".into())
        }
    }
}

/// Reads a size with an optional `/s` behind it; `none` and `0` mean no limit.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    if text.trim() == "none" {
        return Ok(0);
    }
    let size = text.trim().strip_suffix("/s").unwrap_or(text);
    match parse_size(size).map_err(|reason| reason.replace("GiB", "MB"))? {
        0 => Err("a rate of 0 would let nothing through: write none for no cap".into()),
        rate => Ok(rate),
    }
}

/// Reads `30s`, `100ms`, `5min`, `2h`, `1d`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text, "30s")?;
    match (unit, number) {
        ("", 0.0) => Ok(Duration::ZERO),
        ("", _) => Err(format!("add a unit, for example {}s", text.trim())),
        _ => {
            let factor =
                factor(&TIME_UNITS, unit).ok_or("unknown unit; use us, ms, s, min, h or d")?;
            let us = scale(number, factor).ok_or("too long; the most is 100 years")?;
            Ok(Duration::from_micros(us))
        }
    }
}

/// Reads `80%` or `80`: a share has one unit only, so the sign may be left out.
pub fn parse_percent(text: &str) -> Result<u8, String> {
    let digits = text.trim().strip_suffix('%').unwrap_or(text.trim()).trim_end();
    match digits.parse::<u8>() {
        Ok(share) if share <= 100 => Ok(share),
        _ => Err("write a whole share from 0% to 100%, for example 80%".into()),
    }
}

/// The shortest exact spelling, such as `16MiB`; what [`parse_size`] reads back unchanged.
pub fn exact_size(bytes: u64) -> String {
    let names = [(50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    if bytes == 0 {
        return "0".into();
    }
    if bytes.is_multiple_of(1_000_000) && !bytes.is_multiple_of(1 << 20) {
        return format!("{}MB", bytes / 1_000_000);
    }
    match names.iter().find(|(shift, _)| bytes.is_multiple_of(1u64 << shift)) {
        Some((shift, name)) => format!("{}{name}", bytes >> shift),
        None => format!("{bytes}B"),
    }
}

/// The shortest exact spelling, such as `30s`; what [`parse_duration`] reads back unchanged.
pub fn exact_duration(time: Duration) -> String {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let names = [("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    if us == 0 {
        return "0s".into();
    }
    match names.iter().find(|(_, factor)| us.is_multiple_of(*factor)) {
        Some((name, factor)) => format!("{}{name}", us / factor),
        None => format!("{us}us"),
    }
}

/// A size to read at a glance, such as `12.3 GiB`.
pub fn human_size(bytes: u64) -> String {
    let names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut step = 0;
    while value >= 1023.95 && step + 1 < names.len() {
        value /= 1024.0;
        step += 1;
    }
    match step {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", names[step]),
    }
}

/// A time to read at a glance, such as `1 h 02 min`, `42 s`, `0.3 s`.
pub fn human_secs(secs: f64) -> String {
    let whole = secs.max(0.0).round() as u64;
    match whole {
        _ if secs < 9.95 => format!("{:.1} s", secs.max(0.0)),
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {:02} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// A count with its noun, in the plural where it needs one.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

fn split<'t>(text: &'t str, example: &str) -> Result<(f64, &'t str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end]
        .parse::<f64>()
        .map_err(|_| format!("write a number with a unit, for example {example}"))?;
    Ok((number, text[end..].trim_start()))
}

fn factor(units: &[(&str, u64)], name: &str) -> Option<u64> {
    units.iter().find(|(unit, _)| *unit == name).map(|(_, factor)| *factor)
}

fn scale(number: f64, factor: u64) -> Option<u64> {
    let value = number * factor as f64;
    // A whole number stays exact where a float would round it.
    if number.fract() == 0.0 && number < 9e15 {
        return (number as u64).checked_mul(factor);
    }
    (value < u64::MAX as f64).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_both_systems() {
        for (text, bytes) in [
            ("10GiB", 10 << 30),
            ("100MB", 100_000_000),
            ("1.5 KiB", 1536),
            ("4096B", 4096),
            ("0", 0),
            ("16384PiB", u64::MAX),
        ] {
            match parse_size(text) {
                Ok(got) => assert_eq!(got, bytes, "{text}"),
                Err(_) => assert_eq!(text, "16384PiB", "2^64 does not fit"),
            }
        }
    }

    #[test]
    fn a_number_without_a_unit_is_told_the_fix() {
        assert_eq!(parse_size("10").unwrap_err(), "add a unit, for example 10GiB");
        assert_eq!(parse_rate("10").unwrap_err(), "add a unit, for example 10MB");
        for nothing in ["0", "0MB/s", "0.0B"] {
            assert!(parse_rate(nothing).unwrap_err().contains("none for no cap"), "{nothing}");
        }
        assert_eq!(parse_duration("30").unwrap_err(), "add a unit, for example 30s");
        assert!(parse_size("10G").unwrap_err().contains("10GiB"));
        assert!(parse_size("ten").unwrap_err().contains("10GiB"));
        assert!(parse_size("10 parsecs").unwrap_err().contains("unknown unit"));
        assert!(parse_size("99999999999PiB").unwrap_err().contains("too large"));
        assert!(parse_percent("101").is_err() && parse_percent("-1").is_err());
        assert_eq!((parse_percent("80%"), parse_percent("40")), (Ok(80), Ok(40)));
    }

    #[test]
    fn exact_spellings_read_back_unchanged() {
        for bytes in [0, 1, 1023, 1024, 100_000_000, 16 << 20, (1 << 40) + 1, 3 << 50] {
            assert_eq!(parse_size(&exact_size(bytes)), Ok(bytes));
        }
        for us in [0, 1, 1_000, 1_500, 30_000_000, 90_000_000, 7_200_000_000] {
            let time = Duration::from_micros(us);
            assert_eq!(parse_duration(&exact_duration(time)), Ok(time));
        }
    }

    #[test]
    fn humans_get_three_digits_or_so() {
        assert_eq!(human_size(1_048_575), "1.0 MiB");
        assert_eq!(human_size(999), "999 B");
        assert_eq!(human_size(13_207_024_435), "12.3 GiB");
        assert_eq!(human_secs(0.25), "0.2 s");
        assert_eq!(human_secs(3720.0), "1 h 02 min");
        assert_eq!((counted(1, "file"), counted(2, "file")), ("1 file".into(), "2 files".into()));
    }
}
