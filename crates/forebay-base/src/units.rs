//! Sizes, times and shares as people write them, and back.
//!
//! Settings reject a bare number, since `10` bytes and `10` GiB differ by nine zeros; zero is the same
//! in every unit and needs none. Options of benchmarks are read as IOR's are (`terse_*`): a bare
//! number is bytes or seconds, and all units of bytes are powers of 1024.

use std::time::Duration;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
pub const TIB: u64 = 1 << 40;

/// Decimal and binary units by their lower-case names, largest first.
const SIZE_UNITS: [(&str, u64); 12] = [
    ("pib", 1 << 50),
    ("pb", 1_000_000_000_000_000),
    ("tib", TIB),
    ("tb", 1_000_000_000_000),
    ("gib", GIB),
    ("gb", 1_000_000_000),
    ("mib", MIB),
    ("mb", 1_000_000),
    ("kib", KIB),
    ("kb", 1_000),
    ("b", 1),
    ("byte", 1),
];

/// In microseconds, the finest unit of all times here.
const TIME_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// A unit that a number is shown in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    pub name: &'static str,
    pub size: f64,
}

const fn unit(name: &'static str, size: f64) -> Unit {
    Unit { name, size }
}

const KI: f64 = 1024.0;

pub const SIZES: [Unit; 7] = [
    unit("EiB", KI * KI * KI * KI * KI * KI),
    unit("PiB", KI * KI * KI * KI * KI),
    unit("TiB", KI * KI * KI * KI),
    unit("GiB", KI * KI * KI),
    unit("MiB", KI * KI),
    unit("KiB", KI),
    unit("B", 1.0),
];
pub const RATES: [Unit; 5] = [
    unit("TiB/s", KI * KI * KI * KI),
    unit("GiB/s", KI * KI * KI),
    unit("MiB/s", KI * KI),
    unit("KiB/s", KI),
    unit("B/s", 1.0),
];
/// Units of times in nanoseconds.
pub const NANOS: [Unit; 4] = [unit("s", 1e9), unit("ms", 1e6), unit("us", 1e3), unit("ns", 1.0)];
pub const SECONDS: [Unit; 3] = [unit("h", 3600.0), unit("min", 60.0), unit("s", 1.0)];
/// Units of operations per second.
pub const OPS: [Unit; 3] = [unit("M ops/s", 1e6), unit("k ops/s", 1e3), unit("ops/s", 1.0)];

/// The largest unit of which `value` is at least `least`; `units` go from large to small, and the
/// last serves all smaller values.
pub fn fitting(units: &[Unit], value: f64, least: f64) -> Unit {
    let fits = units.iter().find(|unit| value >= unit.size * least);
    *fits.unwrap_or(&units[units.len() - 1])
}

/// Reads `10GiB`, `1.5 TB`, `4096B`; below 16 EiB. The message of an error says what to write instead.
pub fn parse_size(text: &str) -> Result<u64, String> {
    size_like(text, "GiB")
}

/// Reads a size; messages name `usual` as the unit where one is missing.
fn size_like(text: &str, usual: &str) -> Result<u64, String> {
    let (number, unit) = amount(text, &format!("10{usual}"))?;
    let unit = unit.to_ascii_lowercase();
    match unit.as_str() {
        "" if is_zero(number) => Ok(0),
        "" => Err(format!("add a unit, for example {number}{usual}")),
        "k" | "m" | "g" | "t" | "p" => {
            let u = unit.to_ascii_uppercase();
            Err(format!("write {number}{u}iB (powers of 1024) or {number}{u}B (powers of 1000)"))
        }
        unit => {
            let factor = factor(&SIZE_UNITS, unit)
                .ok_or("unknown unit; use B, kB, MB, GB, TB or KiB, MiB, GiB, TiB")?;
            scaled(number, factor).ok_or_else(|| "too large; write less than 16384PiB".into())
        }
    }
}

/// Reads a size with an optional `/s` behind it; `none` means no limit and is 0, a rate of 0 is refused.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    if text.trim() == "none" {
        return Ok(0);
    }
    match parse_number_of_rate(text)? {
        0 => Err(NO_RATE.into()),
        rate => Ok(rate),
    }
}

/// Why a rate of 0 is refused.
pub const NO_RATE: &str = "a rate of 0 would let nothing through: write none for no cap";

/// Whether the text is a rate of 0, which [`parse_rate`] refuses.
pub fn is_rate_of_nothing(text: &str) -> bool {
    parse_number_of_rate(text) == Ok(0)
}

fn parse_number_of_rate(text: &str) -> Result<u64, String> {
    size_like(text.trim().strip_suffix("/s").unwrap_or(text), "MB")
}

/// Reads `30s`, `100ms`, `5min`, `2h`, `1d`; below 2^64 microseconds, which is some 584,000 years.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = amount(text, "30s")?;
    match unit {
        "" if is_zero(number) => Ok(Duration::ZERO),
        "" => Err(format!("add a unit, for example {number}s")),
        _ => {
            let factor =
                factor(&TIME_UNITS, unit).ok_or("unknown unit; use us, ms, s, min, h or d")?;
            let us = scaled(number, factor).ok_or("too long; the most is some 584,000 years")?;
            Ok(Duration::from_micros(us))
        }
    }
}

/// Reads `80%` or `80`: a share has one unit only, so the sign may be left out.
pub fn parse_percent(text: &str) -> Result<u8, String> {
    let whole = percent(text).filter(|share| share.fract() == 0.0);
    let wrong = || "write a whole share from 0% to 100%, for example 80%".into();
    whole.map(|share| share as u8).ok_or_else(wrong)
}

/// Reads a share from 0 to 100, with or without the sign.
pub fn percent(text: &str) -> Option<f64> {
    let digits = text.trim().strip_suffix('%').unwrap_or(text.trim()).trim_end();
    digits.parse().ok().filter(|share| (0.0..=100.0).contains(share))
}

/// Reads `4096`, `16m`, `1.5g`: IOR's suffixes, powers of 1024, with an optional `b`, `iB`.
pub fn terse_size(text: &str) -> Result<u64, String> {
    let (number, suffix) = split(text);
    let suffix = suffix.to_ascii_lowercase();
    let letter = suffix.strip_suffix("ib").or(suffix.strip_suffix('b')).unwrap_or(&suffix);
    let factor = match suffix.as_str() {
        "" | "b" => Some(1),
        _ => factor(&SIZE_UNITS, &format!("{letter}ib")),
    };
    factor.and_then(|factor| scaled(number, factor)).ok_or_else(|| {
        format!("{text:?} is not a size; write bytes, or a number with k, m, g or t")
    })
}

/// The spelling of a size that [`terse_size`] reads back unchanged, such as `256k`.
pub fn terse_text(bytes: u64) -> String {
    let units = [(TIB, "t"), (GIB, "g"), (MIB, "m"), (KIB, "k")];
    match units.iter().find(|(size, _)| bytes > 0 && bytes.is_multiple_of(*size)) {
        Some((size, letter)) => format!("{}{letter}", bytes / size),
        None => bytes.to_string(),
    }
}

/// Reads `2g`, `500m/s`: bytes per second.
pub fn terse_rate(text: &str) -> Result<f64, String> {
    terse_size(text.strip_suffix("/s").unwrap_or(text)).map(|rate| rate as f64)
}

/// Reads `2`, `1.5s`, `500ms`, `3m`, `1h`, `1d`; a bare number is seconds.
pub fn terse_seconds(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text);
    let unit = factor(&TIME_UNITS, if unit.is_empty() { "s" } else { unit });
    let seconds = unit.and_then(|us| Some(number.parse::<f64>().ok()? * us as f64 / 1e6));
    // Thirty years; above, times in nanoseconds would not fit.
    seconds.filter(|seconds| *seconds <= 1e9).ok_or_else(|| {
        format!("{text:?} is not a time; write seconds, or a number with us, ms, s, m, h, d")
    })
}

/// The shortest exact spelling, such as `16MiB`; [`parse_size`] reads it back unchanged.
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

/// The shortest exact spelling, such as `30s`; [`parse_duration`] reads it back unchanged.
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
    // A value that would be rounded to 1024.0 of a unit is 1.0 of the next.
    let unit = fitting(&SIZES, bytes as f64, 1023.95 / 1024.0);
    match unit.name {
        "B" => format!("{bytes} B"),
        name => format!("{:.1} {name}", bytes as f64 / unit.size),
    }
}

/// A size such as `16 MiB`, `1.50 GiB`, `100 bytes`: exact multiples without a fraction, as IOR prints
/// them.
pub fn human_bytes(bytes: u64) -> String {
    bytes_in(&SIZES[2..], bytes)
}

/// A size in one of `units`, which end in bytes.
pub fn bytes_in(units: &[Unit], bytes: u64) -> String {
    let unit = fitting(units, bytes as f64, 1.0);
    match unit.name {
        "B" => format!("{bytes} bytes"),
        name if bytes.is_multiple_of(unit.size as u64) => {
            format!("{} {name}", bytes / unit.size as u64)
        }
        name => format!("{:.2} {name}", bytes as f64 / unit.size),
    }
}

/// `412.3 MiB/s`.
pub fn human_rate(bytes_per_second: f64) -> String {
    let unit = fitting(&RATES, bytes_per_second, 1023.95 / 1024.0);
    let digits = usize::from(unit.size > 1.0);
    format!("{:.digits$} {}", bytes_per_second / unit.size, unit.name)
}

/// `850 ns`, `12.3 us`, `4.56 ms`, `1.20 s`.
pub fn human_nanos(nanos: u64) -> String {
    let unit = fitting(&NANOS, nanos as f64, 1.0);
    let digits = match unit.name {
        "ns" => 0,
        "us" => 1,
        _ => 2,
    };
    format!("{:.digits$} {}", nanos as f64 / unit.size, unit.name)
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

/// `950`, `42.1 k`, `2.31 M`.
pub fn human_count(count: f64) -> String {
    match count {
        c if c >= 1e9 => format!("{:.2} G", c / 1e9),
        c if c >= 1e6 => format!("{:.2} M", c / 1e6),
        c if c >= 1e4 => format!("{:.1} k", c / 1e3),
        c => format!("{c:.0}"),
    }
}

/// A count with its noun, in the plural where it needs one.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// A number and the unit behind it.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

fn amount<'t>(text: &'t str, example: &str) -> Result<(&'t str, &'t str), String> {
    let (number, unit) = split(text.trim());
    match number.parse::<f64>() {
        Ok(_) => Ok((number, unit.trim_start())),
        Err(_) => Err(format!("write a number with a unit, for example {example}")),
    }
}

fn is_zero(number: &str) -> bool {
    number.parse() == Ok(0.0)
}

fn factor(units: &[(&str, u64)], name: &str) -> Option<u64> {
    units.iter().find(|(unit, _)| *unit == name).map(|(_, factor)| *factor)
}

/// A whole number stays exact where a float would round it.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let value = number.parse::<f64>().ok()? * factor as f64;
    (value < u64::MAX as f64).then_some(value.round() as u64)
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
            ("16383PiB", 16383 << 50),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("16384PiB").unwrap_err(), "too large; write less than 16384PiB");
    }

    #[test]
    fn a_number_without_a_unit_is_told_the_fix() {
        assert_eq!(parse_size("10").unwrap_err(), "add a unit, for example 10GiB");
        assert_eq!(parse_rate("10").unwrap_err(), "add a unit, for example 10MB");
        let either = "write 5GiB (powers of 1024) or 5GB (powers of 1000)";
        assert_eq!([parse_size("5g"), parse_rate("5g")].map(Result::unwrap_err), [either; 2]);
        let units = "unknown unit; use B, kB, MB, GB, TB or KiB, MiB, GiB, TiB";
        assert_eq!([parse_size("5zz"), parse_rate("5zz")].map(Result::unwrap_err), [units; 2]);
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

    #[test]
    fn terse_sizes_are_powers_of_1024() {
        let cases = [("0", 0), ("262144", 262_144), ("16m", 16 * MIB), ("2G", 2 * GIB)];
        let more = [("1.5k", 1536), ("1t", TIB), ("4KiB", 4096), ("4kb", 4096), ("9b", 9)];
        for (text, bytes) in cases.into_iter().chain(more) {
            assert_eq!(terse_size(text), Ok(bytes), "{text}");
        }
        for bytes in [0, 1, 1000, 256 * KIB, 3 * TIB] {
            assert_eq!(terse_size(&terse_text(bytes)), Ok(bytes));
        }
        assert_eq!((terse_rate("2k/s"), terse_rate("7")), (Ok(2048.0), Ok(7.0)));
        assert_eq!((terse_seconds("500ms"), terse_seconds("2")), (Ok(0.5), Ok(2.0)));
    }

    #[test]
    fn terse_nonsense_is_refused_by_name() {
        for text in ["", "m", "1x", "-1", "1.2.3", "99999999999t", "1yte", "1kbb", "1ib"] {
            let error = terse_size(text).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        assert!(terse_seconds("1w").is_err() && terse_seconds("99999999999").is_err());
    }

    #[test]
    fn people_read_round_numbers() {
        assert_eq!(human_bytes(1 << 20), "1 MiB");
        assert_eq!(human_bytes(1536), "1.50 KiB");
        assert_eq!(human_bytes(12), "12 bytes");
        assert_eq!(human_nanos(1_234_000), "1.23 ms");
        assert_eq!(human_count(2_310_000.0), "2.31 M");
        assert_eq!(human_rate(432_000_000.0), "412.0 MiB/s");
    }
}
