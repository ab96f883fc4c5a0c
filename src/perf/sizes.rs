//! Message sizes as people write them: `64M`, `1G`, lists, and ranges with a factor or a step.

use crate::error::{Error, Result};

/// Reads a number of bytes: digits, then nothing or `K`, `M`, `G`, `T` (1024 each; `KB` and `KiB` mean the same).
///
/// ```
/// assert_eq!(ringleader::perf::parse_bytes("64M")?, 64 << 20);
/// assert_eq!(ringleader::perf::parse_bytes("1.5K")?, 1536);
/// # Ok::<(), ringleader::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidValue`] if it is none, or more than 2^48 bytes.
pub fn parse_bytes(text: &str) -> Result<usize> {
    let bad = || Error::invalid_value("bytes", text, "a size such as 8, 512K, 64M or 1G");
    let upper = text.trim().to_ascii_uppercase();
    let number = upper.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &upper[number.len()..] {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(bad()),
    };
    let unit = (1u64 << shift) as f64;
    // A sign or an exponent is no size.
    let plain = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let bytes = if plain { number.parse::<f64>().map_err(|_| bad())? * unit } else { return Err(bad()) };
    if bytes.fract() != 0.0 || bytes > (1u64 << 48) as f64 {
        return Err(bad());
    }
    Ok(bytes as usize)
}

/// Reads sizes separated by commas.
///
/// # Errors
/// [`Error::InvalidValue`] naming the part that is no size.
pub fn parse_list(text: &str) -> Result<Vec<usize>> {
    text.split(',').map(parse_bytes).collect()
}

/// How a range goes on from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Multiplied by this.
    Factor(usize),
    /// So many bytes more.
    Bytes(usize),
}

/// The sizes from `first` to at most `last`.
///
/// ```
/// use ringleader::perf::{Step, size_range};
/// assert_eq!(size_range(8, 64, Step::Factor(2))?, [8, 16, 32, 64]);
/// # Ok::<(), ringleader::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidValue`] if the range is empty, endless, or has more than 10 000 sizes.
pub fn size_range(first: usize, last: usize, step: Step) -> Result<Vec<usize>> {
    if first > last {
        let expected = format!("a size not below the first one, {first}");
        return Err(Error::invalid_value("last size", last.to_string(), expected));
    }
    match step {
        Step::Factor(f) if f < 2 => return Err(Error::invalid_value("factor", f.to_string(), "at least 2")),
        Step::Bytes(0) => return Err(Error::invalid_value("step", "0", "at least 1 byte")),
        Step::Factor(_) if first == 0 => {
            return Err(Error::invalid_value("first size", "0", "at least 1 where sizes are multiplied"));
        }
        _ => {}
    }
    let next = |&size: &usize| match step {
        Step::Factor(f) => size.checked_mul(f),
        Step::Bytes(b) => size.checked_add(b),
    };
    let most = 10_000;
    let sizes: Vec<_> =
        std::iter::successors(Some(first), next).take_while(|&s| s <= last).take(most + 1).collect();
    if sizes.len() > most {
        let value = format!("{first} to {last}");
        return Err(Error::invalid_value("sizes", value, format!("at most {most} sizes; use a larger step")));
    }
    Ok(sizes)
}

/// The shortest exact way to write a size: `64M`, `1000`.
pub fn format_bytes(bytes: usize) -> String {
    for (unit, shift) in [("G", 30), ("M", 20), ("K", 10)] {
        if bytes >> shift > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("8", 8),
            ("1k", 1024),
            ("64M", 64 << 20),
            ("1GiB", 1 << 30),
            ("2GB", 2 << 30),
            ("7B", 7),
            ("0", 0),
            ("0.5K", 512),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "M", "-1", "1X", "1e9", "0.3", "1.2.3", "9999999T", "8 8", "5I", "8IB"] {
            let message = parse_bytes(bad).unwrap_err().to_string();
            assert!(message.contains(&format!("{bad:?}")) && message.contains("64M"), "{message}");
        }
        assert_eq!(parse_list("8,1K"), Ok(vec![8, 1024]));
        assert!(parse_list("8,,16").is_err());
    }

    #[test]
    fn ranges_end_where_they_should() {
        assert_eq!(size_range(8, 100, Step::Factor(4)), Ok(vec![8, 32]));
        assert_eq!(size_range(8, 24, Step::Bytes(8)), Ok(vec![8, 16, 24]));
        assert_eq!(size_range(5, 5, Step::Factor(2)), Ok(vec![5]));
        for (first, last, step) in [
            (9, 8, Step::Factor(2)),
            (0, 8, Step::Factor(2)),
            (8, 16, Step::Factor(1)),
            (8, 16, Step::Bytes(0)),
            (0, 1 << 20, Step::Bytes(1)),
        ] {
            assert!(size_range(first, last, step).is_err(), "{first} {last} {step:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_formatted_is_read_back(bytes in 0usize..1 << 45) {
            prop_assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }
    }
}
