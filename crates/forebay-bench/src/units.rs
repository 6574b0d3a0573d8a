//! Sizes and times as people write them, and as they read them.

use crate::{Error, Result};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
pub const TIB: u64 = 1 << 40;

/// Reads `4096`, `16m`, `1.5g`: IOR's suffixes, powers of 1024, with an optional `b`, `iB`.
pub fn parse_size(text: &str) -> Result<u64> {
    let wrong = || {
        Error::usage(format!("{text:?} is not a size; write bytes, or a number with k, m, g or t"))
    };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let unit = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => KIB,
        "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => GIB,
        "t" | "tb" | "tib" => TIB,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(wrong);
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit as f64;
    if bytes < u64::MAX as f64 { Ok(bytes.round() as u64) } else { Err(wrong()) }
}

/// Reads `2g`, `500m/s`: bytes per second.
pub fn parse_rate(text: &str) -> Result<f64> {
    parse_size(text.strip_suffix("/s").unwrap_or(text)).map(|rate| rate as f64)
}

/// Reads `2`, `1.5s`, `500ms`, `3m`, `1h`; a bare number is seconds.
pub fn parse_seconds(text: &str) -> Result<f64> {
    let wrong = || {
        Error::usage(format!(
            "{text:?} is not a time; write seconds, or a number with us, ms, s, m, h"
        ))
    };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let unit = match suffix {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * unit;
    // Thirty years; above, times in nanoseconds would not fit.
    if seconds <= 1e9 { Ok(seconds) } else { Err(wrong()) }
}

/// `16 MiB`, `1.50 GiB`, `100 bytes`: exact multiples without a fraction, as IOR prints them.
pub fn human_bytes(bytes: u64) -> String {
    for (unit, name) in [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit {
            let value = bytes as f64 / unit as f64;
            return if bytes.is_multiple_of(unit) {
                format!("{} {name}", bytes / unit)
            } else {
                format!("{value:.2} {name}")
            };
        }
    }
    format!("{bytes} bytes")
}

/// `412.3 MiB/s`.
pub fn human_rate(bytes_per_second: f64) -> String {
    for (unit, name) in [(TIB, "TiB/s"), (GIB, "GiB/s"), (MIB, "MiB/s"), (KIB, "KiB/s")] {
        if bytes_per_second >= unit as f64 {
            return format!("{:.1} {name}", bytes_per_second / unit as f64);
        }
    }
    format!("{bytes_per_second:.0} bytes/s")
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

/// `850 ns`, `12.3 us`, `4.56 ms`, `1.20 s`.
pub fn human_nanos(nanos: u64) -> String {
    match nanos as f64 {
        n if n >= 1e9 => format!("{:.2} s", n / 1e9),
        n if n >= 1e6 => format!("{:.2} ms", n / 1e6),
        n if n >= 1e3 => format!("{:.1} us", n / 1e3),
        n => format!("{n:.0} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        let cases = [("0", 0), ("262144", 262_144), ("16m", 16 * MIB), ("2G", 2 * GIB)];
        for (text, bytes) in cases.into_iter().chain([("1.5k", 1536), ("1t", TIB), ("4KiB", 4096)])
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for text in ["", "m", "1x", "-1", "1.2.3", "99999999999t"] {
            let error = parse_size(text).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(parse_seconds("1d").is_err() && parse_seconds("99999999999").is_err());
        assert_eq!((parse_rate("2k/s"), parse_rate("7")), (Ok(2048.0), Ok(7.0)));
        assert_eq!(parse_seconds("500ms"), Ok(0.5));
    }

    #[test]
    fn people_read_round_numbers() {
        assert_eq!(human_bytes(1 << 20), "1 MiB");
        assert_eq!(human_bytes(1536), "1.50 KiB");
        assert_eq!(human_bytes(12), "12 bytes");
        assert_eq!(human_nanos(1_234_000), "1.23 ms");
        assert_eq!(human_count(2_310_000.0), "2.31 M");
    }
}
