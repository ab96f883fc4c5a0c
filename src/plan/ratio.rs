//! Exact rational numbers: rates are compared and proven without rounding.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Div, Mul, Sub};

/// The greatest common divisor; `gcd(0, b)` is `b`.
pub(crate) const fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A fraction in lowest terms with a positive denominator.
///
/// Values in this module come from capacities of at most 2^27 MB/s and at most 64 GPUs, so that products stay far within
/// `i128`.
///
/// ```
/// use ringleader::plan::Ratio;
/// let rate = Ratio::new(1200, 14);
/// assert_eq!(rate.to_string(), "600/7");
/// assert!(rate < Ratio::from(86));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    num: i128,
    den: i128,
}

impl Ratio {
    /// Zero.
    pub const ZERO: Ratio = Ratio { num: 0, den: 1 };

    /// `num / den`, reduced.
    ///
    /// # Panics
    /// If `den` is zero, as integer division does.
    pub const fn new(num: i128, den: i128) -> Ratio {
        assert!(den != 0, "a fraction needs a denominator other than zero");
        let sign = if den < 0 { -1 } else { 1 };
        let g = match gcd(num, den) {
            0 => 1,
            g => g,
        };
        Ratio { num: sign * num / g, den: sign * den / g }
    }

    /// The numerator, in lowest terms.
    pub const fn num(self) -> i128 {
        self.num
    }

    /// The denominator, in lowest terms; positive.
    pub const fn den(self) -> i128 {
        self.den
    }

    /// The nearest floating-point number, for display and predictions.
    pub fn to_f64(self) -> f64 {
        self.num as f64 / self.den as f64
    }
}

impl From<i64> for Ratio {
    fn from(value: i64) -> Ratio {
        Ratio { num: value.into(), den: 1 }
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Ratio) -> Ordering {
        (self.num * other.den).cmp(&(other.num * self.den))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Ratio) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Add for Ratio {
    type Output = Ratio;
    fn add(self, other: Ratio) -> Ratio {
        Ratio::new(self.num * other.den + other.num * self.den, self.den * other.den)
    }
}

impl Sub for Ratio {
    type Output = Ratio;
    fn sub(self, other: Ratio) -> Ratio {
        Ratio::new(self.num * other.den - other.num * self.den, self.den * other.den)
    }
}

impl Mul for Ratio {
    type Output = Ratio;
    fn mul(self, other: Ratio) -> Ratio {
        Ratio::new(self.num * other.num, self.den * other.den)
    }
}

impl Div for Ratio {
    type Output = Ratio;
    fn div(self, other: Ratio) -> Ratio {
        Ratio::new(self.num * other.den, self.den * other.num)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.den {
            1 => write!(f, "{}", self.num),
            den => write!(f, "{}/{den}", self.num),
        }
    }
}

impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_reduce_and_compare_exactly() {
        assert_eq!(Ratio::new(6, -4), Ratio::new(-3, 2));
        assert_eq!(Ratio::new(0, -5), Ratio::ZERO);
        assert!(Ratio::new(1, 3) < Ratio::new(333_334, 1_000_000));
        assert_eq!(Ratio::new(1, 2) + Ratio::new(1, 3) - Ratio::new(5, 6), Ratio::ZERO);
        assert_eq!(Ratio::new(2, 3) * Ratio::new(3, 4) / Ratio::new(1, 2), Ratio::from(1));
    }
}
