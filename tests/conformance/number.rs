//! The element types as the suite sees them: bits, samples, and reference arithmetic for one element.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ringleader::{Element, ReduceOp};

/// An element type with its reference arithmetic.
pub(crate) trait Number: Element {
    fn bits(self) -> u64;
    fn from_bits(bits: u64) -> Self;
    fn is_nan(self) -> bool;

    /// A contribution made of random bits, such that no order of combining any 8 of them leaves the type's range.
    fn sample(random: u64, op: ReduceOp) -> Self;

    /// Checks a result against the exact one. `ops` and `contributions` are in rank order.
    fn check(got: Self, contributions: &[Self], ops: &[ReduceOp]) -> Result<(), String>;

    /// Contributions combined in rank order and rounded once.
    fn in_rank_order(contributions: &[Self], ops: &[ReduceOp]) -> Self;

    /// NaN, zeros, infinities, and both ends of the range, as far as the type has them.
    fn special() -> Vec<Self>;
}

/// A finalizer of splitmix64: every bit of the result depends on every bit of `x`.
pub(crate) fn random(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn bits(self) -> u64 {
                self as u64
            }
            fn from_bits(bits: u64) -> Self {
                bits as $t
            }
            fn is_nan(self) -> bool {
                false
            }
            fn sample(random: u64, _op: ReduceOp) -> Self {
                (random >> 32 ^ random) as $t
            }
            fn check(got: Self, contributions: &[Self], ops: &[ReduceOp]) -> Result<(), String> {
                let expected = Self::in_rank_order(contributions, ops);
                if got == expected { Ok(()) } else { Err(format!("expected {expected}")) }
            }
            fn in_rank_order(contributions: &[Self], ops: &[ReduceOp]) -> Self {
                let scaled = contributions.iter().zip(ops).map(|(&x, &op)| match op {
                    ReduceOp::PreMulSum(s) => x.wrapping_mul(s.as_bits().expect("an integer factor") as $t),
                    _ => x,
                });
                let n = contributions.len();
                match ops[0] {
                    ReduceOp::Sum | ReduceOp::PreMulSum(_) => scaled.fold(0, |a, b| a.wrapping_add(b)),
                    ReduceOp::Avg => (scaled.fold(0 as $t, |a, b| a.wrapping_add(b)) as i128 / n as i128) as $t,
                    ReduceOp::Prod => scaled.fold(1, |a, b| a.wrapping_mul(b)),
                    ReduceOp::Min => scaled.min().expect("at least one rank"),
                    ReduceOp::Max => scaled.max().expect("at least one rank"),
                }
            }
            fn special() -> Vec<Self> {
                vec![0, 1, 2, <$t>::MAX, <$t>::MIN, <$t>::MAX - 1, <$t>::MIN + 1, (0 as $t).wrapping_sub(1)]
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

/// What sets a floating-point type apart from the others.
trait Float: Element {
    /// Bits of the significand, the hidden one counted.
    const PRECISION: i32;
    /// The smallest positive value is two to this power.
    const SMALLEST: i32;

    fn to_f64(self) -> f64;
    /// Rounds an accumulator, which is `f32` unless the type is `f64`, to nearest even.
    fn narrow(acc: f64) -> Self;
    /// Rounds to the accumulator's type.
    fn acc(x: f64) -> f64 {
        f64::from(x as f32)
    }
}

impl Float for f64 {
    const PRECISION: i32 = 53;
    const SMALLEST: i32 = -1074;
    fn to_f64(self) -> f64 {
        self
    }
    fn narrow(acc: f64) -> Self {
        acc
    }
    fn acc(x: f64) -> f64 {
        x
    }
}

impl Float for f32 {
    const PRECISION: i32 = 24;
    const SMALLEST: i32 = -149;
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn narrow(acc: f64) -> Self {
        acc as f32
    }
}

impl Float for f16 {
    const PRECISION: i32 = 11;
    const SMALLEST: i32 = -24;
    fn to_f64(self) -> f64 {
        self.to_f64()
    }
    fn narrow(acc: f64) -> Self {
        f16::from_f32(acc as f32)
    }
}

impl Float for bf16 {
    const PRECISION: i32 = 8;
    const SMALLEST: i32 = -133;
    fn to_f64(self) -> f64 {
        self.to_f64()
    }
    fn narrow(acc: f64) -> Self {
        bf16::from_f32(acc as f32)
    }
}

impl Float for F8E4M3 {
    const PRECISION: i32 = 4;
    const SMALLEST: i32 = -9;
    fn to_f64(self) -> f64 {
        f64::from(self.to_f32())
    }
    fn narrow(acc: f64) -> Self {
        F8E4M3::from_bits(nearest_of_256(acc, |bits| F8E4M3::from_bits(bits).to_f32()))
    }
}

impl Float for F8E5M2 {
    const PRECISION: i32 = 3;
    const SMALLEST: i32 = -16;
    fn to_f64(self) -> f64 {
        f64::from(self.to_f32())
    }
    fn narrow(acc: f64) -> Self {
        F8E5M2::from_bits(nearest_of_256(acc, |bits| F8E5M2::from_bits(bits).to_f32()))
    }
}

/// Rounds to the nearest finite value of an 8-bit float, ties to even, by trying them all: slow and plainly right.
fn nearest_of_256(x: f64, value: impl Fn(u8) -> f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let finite = (0..0x80u8).filter(|&bits| value(bits).is_finite());
    let magnitude = x.abs().min(1e5);
    let distance = |bits: u8| (f64::from(value(bits)) - magnitude).abs();
    let best = finite.min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
    sign | best.expect("zero is finite")
}

fn factor(op: ReduceOp) -> f64 {
    match op {
        ReduceOp::PreMulSum(s) => s.as_f64(),
        _ => 1.0,
    }
}

/// IEEE 754-2019 minimum: NaN wins, and -0 is below +0.
fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == b {
        if a.is_sign_negative() { a } else { b }
    } else {
        a.min(b)
    }
}

fn maximum(a: f64, b: f64) -> f64 {
    -minimum(-a, -b)
}

/// Whether the result is within the error that any order of combining, rounded each time, can have.
fn check_float<T: Float + Number>(got: T, contributions: &[T], ops: &[ReduceOp]) -> Result<(), String> {
    let n = contributions.len();
    let scaled = || contributions.iter().zip(ops).map(|(x, &op)| Float::to_f64(*x) * T::acc(factor(op)));
    let (exact, magnitude) = match ops[0] {
        ReduceOp::Min | ReduceOp::Max => {
            let expected = T::in_rank_order(contributions, ops);
            let same = got.bits() == expected.bits() || got.is_nan() && expected.is_nan();
            return if same { Ok(()) } else { Err(format!("expected {expected:?}")) };
        }
        ReduceOp::Prod => {
            let product: f64 = scaled().product();
            (product, product.abs())
        }
        ReduceOp::Sum | ReduceOp::PreMulSum(_) => (scaled().sum(), scaled().map(f64::abs).sum()),
        ReduceOp::Avg => {
            let n = n as f64;
            (scaled().sum::<f64>() / n, scaled().map(f64::abs).sum::<f64>() / n)
        }
    };
    // One rounding for each combination, one for the factor, one for the division; the reference rounds like f64.
    let roundings = if T::PRECISION == 53 { 2 * n + 4 } else { n + 2 };
    // (1 + u)^roundings - 1, without losing a small u.
    let relative = (roundings as f64 * 2f64.powi(-T::PRECISION).ln_1p()).exp_m1();
    let allowed = magnitude * relative + n as f64 * 2f64.powi(T::SMALLEST);
    let error = (Float::to_f64(got) - exact).abs();
    if error <= allowed { Ok(()) } else { Err(format!("expected {exact} within {allowed:e}")) }
}

fn fold_float<T: Float + Number>(contributions: &[T], ops: &[ReduceOp]) -> T {
    // A scaled contribution may travel before it is added, so it is rounded to the element type wherever it is.
    let scaled = contributions.iter().zip(ops).map(|(x, &op)| match op {
        ReduceOp::PreMulSum(s) => Float::to_f64(T::narrow(T::acc(Float::to_f64(*x) * T::acc(s.as_f64())))),
        _ => Float::to_f64(*x),
    });
    let combine: fn(f64, f64) -> f64 = match ops[0] {
        ReduceOp::Sum | ReduceOp::PreMulSum(_) | ReduceOp::Avg => |a, b| a + b,
        ReduceOp::Prod => |a, b| a * b,
        ReduceOp::Min => minimum,
        ReduceOp::Max => maximum,
    };
    // f64 holds the sum or product of two f32 so precisely that rounding it to f32 is rounding once.
    let all = scaled.reduce(|a, b| T::acc(combine(a, b))).expect("at least one rank");
    let divided = if ops[0] == ReduceOp::Avg { T::acc(all / contributions.len() as f64) } else { all };
    T::narrow(divided)
}

/// A contribution to a reduction with `op`, in f64.
fn sample_float(random: u64, op: ReduceOp) -> f64 {
    let unit = (random >> 11) as f64 / (1u64 << 53) as f64;
    let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
    match op {
        // Products of 8 stay between a tenth and 26.
        ReduceOp::Prod => sign * (0.75 + 0.75 * unit),
        _ => sign * 2.0 * unit,
    }
}

macro_rules! floats {
    ($($t:ty as $bits:ty, from $from:path);*) => {$(
        impl Number for $t {
            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }
            fn from_bits(bits: u64) -> Self {
                <$t>::from_bits(bits as $bits)
            }
            fn is_nan(self) -> bool {
                Float::to_f64(self).is_nan()
            }
            fn sample(random: u64, op: ReduceOp) -> Self {
                $from(sample_float(random, op) as _)
            }
            fn check(got: Self, contributions: &[Self], ops: &[ReduceOp]) -> Result<(), String> {
                check_float(got, contributions, ops)
            }
            fn in_rank_order(contributions: &[Self], ops: &[ReduceOp]) -> Self {
                fold_float(contributions, ops)
            }
            fn special() -> Vec<Self> {
                if size_of::<Self>() == 1 {
                    return (0..256).map(<Self as Number>::from_bits).collect();
                }
                let values = [0.0, 1.0, 1.5, 1e-3, 2f64.powi(Self::SMALLEST), 400.0, 6e4, 3e38, f64::INFINITY];
                let mut all: Vec<Self> = values.iter().flat_map(|&x| [Self::narrow(Self::acc(x)), Self::narrow(Self::acc(-x))]).collect();
                all.push(Self::narrow(f64::NAN));
                all
            }
        }
    )*};
}
floats! {
    f32 as u32, from std::convert::identity::<f32>;
    f64 as u64, from std::convert::identity::<f64>;
    f16 as u16, from f16::from_f32;
    bf16 as u16, from bf16::from_f32;
    F8E4M3 as u8, from F8E4M3::from_f32;
    F8E5M2 as u8, from F8E5M2::from_f32
}
