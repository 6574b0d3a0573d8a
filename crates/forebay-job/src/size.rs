//! Sizes as people write them, and as Slurm reads them.

/// A size in bytes, and remarks about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    pub bytes: u64,
    /// The unit behind the number, if there was one.
    pub unit: Unit,
    /// The size that Slurm reads, if it differs.
    pub slurm: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Given,
    Missing,
}

const UNITS: &str =
    "write a number with KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (of 1000)";

/// Reads `10GiB`, `1.5TB`, `4096`. An error has the problem and the remedy.
pub fn read(text: &str) -> Result<Size, (String, String)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let wrong = |why: &str| Err((why.to_string(), UNITS.to_string()));
    if number.is_empty() {
        return wrong("this is no size");
    }
    if matches!(unit.to_ascii_lowercase().as_str(), "n" | "node" | "nodes") {
        return Err((
            "a size in nodes is of a burst buffer that is made of whole nodes".into(),
            "write the bytes that are wanted, for example 100GiB".into(),
        ));
    }
    let Some(factor) = factor(unit) else { return wrong("this unit is not known") };
    let bytes = match scaled(number, factor) {
        None if number.parse::<f64>().is_err() => return wrong("this is no number"),
        None => return wrong("this is more than can be counted"),
        Some(0) => return wrong("this is nothing"),
        Some(bytes) => bytes,
    };
    let unit = if unit.is_empty() { Unit::Missing } else { Unit::Given };
    let slurm = number.contains('.').then(|| whole_part(number)).filter(|read| *read != bytes);
    Ok(Size { bytes, unit, slurm })
}

/// Slurm ends a number at its decimal point, and the rest is then no unit that it knows.
fn whole_part(number: &str) -> u64 {
    number.split('.').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let power = |letter: u8| b"kmgtp".iter().position(|&l| l == letter).map(|p| p as u32 + 1);
    match unit.as_bytes() {
        [] | [b'b'] => Some(1),
        [letter] | [letter, b'i', b'b'] => Some(1024u64.pow(power(*letter)?)),
        [letter, b'b'] => Some(1000u64.pow(power(*letter)?)),
        _ => None,
    }
}

/// A whole number stays exact where a float would round it. A fraction of a byte is rounded up.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let value = number.parse::<f64>().ok()? * factor as f64;
    (value < u64::MAX as f64).then(|| value.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_slurm() {
        for (text, bytes) in [
            ("10GiB", 10 << 30),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("10GB", 10_000_000_000),
            ("1KB", 1000),
            ("1K", 1024),
            ("2PiB", 2 << 50),
            ("5tb", 5_000_000_000_000),
            ("4096", 4096),
            ("4096B", 4096),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(read(text).unwrap().bytes, bytes, "{text}");
            assert_eq!(read(text).unwrap().slurm, None, "{text}");
        }
        assert_eq!(read("7").unwrap().unit, Unit::Missing);
    }

    #[test]
    fn decimals_are_taken_and_what_slurm_reads_is_told() {
        for (text, bytes, slurm) in [
            ("3.5TB", 3_500_000_000_000, Some(3)),
            ("0.5GiB", 1 << 29, Some(0)),
            ("2.0B", 2, None),
            (".5K", 512, Some(0)),
        ] {
            let size = read(text).unwrap();
            assert_eq!((size.bytes, size.slurm), (bytes, slurm), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_told() {
        for (text, why) in [
            ("", "no size"),
            ("GB", "no size"),
            ("-1GB", "no size"),
            ("0", "nothing"),
            ("0.0GB", "nothing"),
            ("1.2.3GB", "no number"),
            ("10XB", "not known"),
            ("10GBs", "not known"),
            ("2nodes", "in nodes"),
            ("2N", "in nodes"),
            ("99999999999PB", "counted"),
        ] {
            let (said, remedy) = read(text).unwrap_err();
            assert!(said.contains(why) && remedy.starts_with("write "), "{text}: {said}");
        }
    }
}
