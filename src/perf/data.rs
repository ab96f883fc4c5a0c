//! Random contributions, and the check of results against a reference in 64-bit floats.
//!
//! Contributions repeat after [`PERIOD`] elements, a prime: data that lands at a wrong place of a large message is
//! found all the same, and the reference is computed only once for each element of the period.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::case::Case;
use crate::error::{Error, Result};
use crate::types::{Collective, Element, ReduceOp};

/// After so many elements contributions repeat.
pub(super) const PERIOD: usize = 1_048_573;

/// An element type with random values and a reference.
pub(super) trait Sample: Element {
    /// What a result is compared with.
    type Reference: Copy + Send + Sync;

    /// The largest finite value, where there are values beyond it.
    const MOST: Option<f64>;

    /// A contribution made of random bits. Reductions of a few hundred of them stay within the type's range, except
    /// that products of integers wrap.
    fn sample(random: u64, op: ReduceOp) -> Self;

    /// The reduction of all ranks' contributions.
    fn reduced(contributions: impl Iterator<Item = Self> + Clone, op: ReduceOp) -> Self::Reference;

    /// The factor of a pre-multiplied sum as an element; 1 without.
    fn factor(op: ReduceOp) -> Self;

    /// The same element again.
    fn copied(self) -> Self::Reference;

    /// Whether a result is what it should be, within what rounding can do.
    fn fits(self, reference: Self::Reference) -> bool;
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Sample for $t {
            /// Integers wrap, so that their reference must be exact.
            type Reference = $t;
            const MOST: Option<f64> = None;

            fn sample(random: u64, _: ReduceOp) -> Self {
                random as $t
            }
            fn reduced(contributions: impl Iterator<Item = Self> + Clone, op: ReduceOp) -> Self {
                let ranks = contributions.clone().count();
                let sum = |all: &mut dyn Iterator<Item = $t>| all.fold(0, <$t>::wrapping_add);
                let mut all = contributions;
                match op {
                    ReduceOp::Sum => sum(&mut all),
                    ReduceOp::Avg => sum(&mut all) / ranks as $t,
                    ReduceOp::PreMulSum(_) => {
                        let factor = <$t as Sample>::factor(op);
                        sum(&mut all.map(|x| x.wrapping_mul(factor)))
                    }
                    ReduceOp::Prod => all.fold(1, <$t>::wrapping_mul),
                    ReduceOp::Min => all.fold(<$t>::MAX, <$t>::min),
                    ReduceOp::Max => all.fold(<$t>::MIN, <$t>::max),
                }
            }
            fn factor(op: ReduceOp) -> Self {
                match op {
                    ReduceOp::PreMulSum(s) => s.as_bits().unwrap_or(0) as $t,
                    _ => 1,
                }
            }
            fn copied(self) -> Self {
                self
            }
            fn fits(self, reference: Self) -> bool {
                self == reference
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

/// The exact result and how far from it a rounded one may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    exact: f64,
    within: f64,
}

/// The reference of floats: any order of combining is allowed, with a rounding after each step.
fn near(
    contributions: impl Iterator<Item = f64> + Clone,
    op: ReduceOp,
    precision: i32,
    smallest: i32,
) -> Near {
    let ranks = contributions.clone().count() as f64;
    let factor = match op {
        ReduceOp::PreMulSum(s) => s.as_f64(),
        ReduceOp::Avg => 1.0 / ranks,
        _ => 1.0,
    };
    let scaled = contributions.map(|x| x * factor);
    let (exact, magnitude) = match op {
        ReduceOp::Min => return Near { exact: scaled.fold(f64::INFINITY, f64::min), within: 0.0 },
        ReduceOp::Max => return Near { exact: scaled.fold(f64::NEG_INFINITY, f64::max), within: 0.0 },
        ReduceOp::Prod => {
            let product: f64 = scaled.product();
            (product, product.abs())
        }
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => {
            (scaled.clone().sum(), scaled.map(f64::abs).sum())
        }
    };
    // A rounding for each combination, for the factor and its product, and for what f64 itself rounds here.
    let roundings = ranks + 4.0;
    let relative = (roundings * 2f64.powi(-precision).ln_1p()).exp_m1();
    Near { exact, within: magnitude * relative + (ranks + 1.0) * 2f64.powi(smallest) }
}

macro_rules! floats {
    // The bits of the significand, the power of two that is the smallest positive value, and the largest finite value.
    ($($t:ty: $precision:literal, $smallest:literal, $most:expr, $to:expr, $from:expr;)*) => {$(
        impl Sample for $t {
            type Reference = Near;
            const MOST: Option<f64> = Some($most);

            fn sample(random: u64, op: ReduceOp) -> Self {
                // Only few bits in the lower half, so that every type holds many different values.
                let unit = (random >> 11) as f64 / (1u64 << 53) as f64;
                let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
                let value = match op {
                    // Close enough to 1 that a product of many neither vanishes nor overflows.
                    ReduceOp::Prod => sign * (0.75 + 0.5 * unit),
                    _ => sign * unit,
                };
                $from(value)
            }
            fn reduced(contributions: impl Iterator<Item = Self> + Clone, op: ReduceOp) -> Near {
                near(contributions.map($to), op, $precision, $smallest)
            }
            fn factor(op: ReduceOp) -> Self {
                match op {
                    ReduceOp::PreMulSum(s) => $from(s.as_f64()),
                    _ => $from(1.0),
                }
            }
            fn copied(self) -> Near {
                Near { exact: $to(self), within: 0.0 }
            }
            fn fits(self, reference: Near) -> bool {
                ($to(self) - reference.exact).abs() <= reference.within
            }
        }
    )*};
}
floats! {
    f64: 53, -1074, f64::MAX, |x: f64| x, |x: f64| x;
    f32: 24, -149, f32::MAX as f64, |x: f32| f64::from(x), |x: f64| x as f32;
    f16: 11, -24, f16::MAX.to_f64_const(), |x: f16| x.to_f64(), f16::from_f64;
    bf16: 8, -133, bf16::MAX.to_f64_const(), |x: bf16| x.to_f64(), bf16::from_f64;
    F8E4M3: 4, -9, 448.0, |x: F8E4M3| f64::from(x.to_f32()), |x: f64| F8E4M3::from_f32(x as f32);
    F8E5M2: 3, -16, 57344.0, |x: F8E5M2| f64::from(x.to_f32()), |x: f64| F8E5M2::from_f32(x as f32);
}

/// Runs an expression with `$T` standing for the Rust type of a `DataType`.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_type!(@ $dtype, $T => $body,
            I8 i8, U8 u8, I32 i32, U32 u32, I64 i64, U64 u64, F16 half::f16, F32 f32, F64 f64, BF16 half::bf16,
            F8E4M3 float8::F8E4M3, F8E5M2 float8::F8E5M2)
    };
    (@ $dtype:expr, $T:ident => $body:expr, $($variant:ident $rust:ty),*) => {
        match $dtype {
            $($crate::types::DataType::$variant => {
                type $T = $rust;
                $body
            })*
        }
    };
}
pub(super) use with_type;

/// The finalizer of splitmix64: every bit of the result depends on every bit of `x`.
fn random(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Checks that a call's results can be compared with a reference: that whatever the order in which contributions, which
/// are at most 1, are scaled and added, no sum leaves the type's range.
///
/// # Errors
/// [`Error::InvalidValue`] for the factor of a pre-multiplied sum that is no number, or too large.
pub(super) fn check_factor(case: &Case, ranks: usize) -> Result<()> {
    let most = with_type!(case.dtype, T => T::MOST);
    let (ReduceOp::PreMulSum(scalar), Some(most), true) = (case.op, most, case.collective.reduces()) else {
        return Ok(());
    };
    let (factor, limit) = (scalar.as_f64(), most / ranks as f64);
    if factor.abs() <= limit {
        return Ok(());
    }
    let expected = format!(
        "a factor from -{limit:.4e} to {limit:.4e}, so that sums of {ranks} ranks stay within the range of {} and can be \
         checked",
        case.dtype
    );
    Err(Error::invalid_value("op", format!("premulsum:{factor}"), expected))
}

/// All ranks' contributions to one call, and what comes out.
pub(super) struct Data<T: Sample> {
    case: Case,
    ranks: usize,
    /// `patterns[rank][i]` is the rank's contribution to element `i` of the message, and to every `PERIOD`-th after it.
    patterns: Vec<Vec<T>>,
    /// The reduction, where the collective reduces.
    reduced: Vec<T::Reference>,
}

impl<T: Sample> Data<T> {
    /// Bytes of memory that [`new`](Self::new) takes.
    pub(super) fn bytes(case: &Case, ranks: usize) -> usize {
        let reference = if case.collective.reduces() { size_of::<T::Reference>() } else { 0 };
        case.elements(ranks).min(PERIOD) * (ranks * size_of::<T>() + reference)
    }

    /// Contributions for a call; other seeds give others.
    pub(super) fn new(case: &Case, ranks: usize, seed: u64) -> Self {
        let period = case.elements(ranks).min(PERIOD);
        let pattern = |rank: usize| {
            let base = random(seed ^ ((rank as u64) << 48));
            (0..period).map(|i| T::sample(random(base ^ i as u64), case.op)).collect()
        };
        let patterns: Vec<Vec<T>> = (0..ranks).map(pattern).collect();
        let reduced = match case.collective.reduces() {
            true => (0..period).map(|i| T::reduced(patterns.iter().map(|p| p[i]), case.op)).collect(),
            false => Vec::new(),
        };
        Data { case: *case, ranks, patterns, reduced }
    }

    /// A rank's contribution to the first elements of the message; it repeats after these.
    #[cfg(test)]
    fn pattern(&self, rank: usize) -> &[T] {
        &self.patterns[rank]
    }

    /// Fills a part of a rank's buffer that begins at element `first` of the message.
    pub(super) fn fill(&self, rank: usize, first: usize, part: &mut [T]) {
        let pattern = &self.patterns[rank];
        let mut done = 0;
        while done < part.len() {
            let source = &pattern[(first + done) % pattern.len()..];
            let n = source.len().min(part.len() - done);
            part[done..done + n].copy_from_slice(&source[..n]);
            done += n;
        }
    }

    /// Something that is not a result, to be found where nothing was written.
    pub(super) fn filler(&self) -> T {
        T::sample(random(!0), self.case.op)
    }

    /// Counts wrong elements in a part of an output that begins at element `first` of the message.
    pub(super) fn wrong(&self, first: usize, part: &[T]) -> u64 {
        match self.case.collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. } => {
                self.differing(first, part, |i| self.reduced[i])
            }
            Collective::Broadcast { root } => {
                self.differing(first, part, |i| self.patterns[root][i].copied())
            }
            Collective::AllGather => {
                let block = self.case.count(self.ranks).max(1);
                let mut wrong = 0;
                let mut done = 0;
                while done < part.len() {
                    let (owner, inside) = ((first + done) / block, (first + done) % block);
                    let n = (block - inside).min(part.len() - done);
                    let owned = &part[done..done + n];
                    wrong += self.differing(first + done, owned, |i| self.patterns[owner][i].copied());
                    done += n;
                }
                wrong
            }
        }
    }

    /// Counts the elements that are not what `reference` says of their place in the period.
    fn differing(&self, first: usize, part: &[T], reference: impl Fn(usize) -> T::Reference) -> u64 {
        let period = self.patterns[0].len();
        let mut wrong = 0;
        let mut done = 0;
        while done < part.len() {
            let at = (first + done) % period;
            let n = (period - at).min(part.len() - done);
            let elements = part[done..done + n].iter().enumerate();
            wrong += elements.filter(|&(i, x)| !x.fits(reference(at + i))).count() as u64;
            done += n;
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DataType, Scalar};

    fn case(collective: Collective, dtype: DataType, op: ReduceOp, bytes: usize) -> Case {
        Case { collective, dtype, op, bytes, in_place: false }
    }

    /// Reduces as an engine would, in the type itself.
    fn plain(contributions: &[f32], op: ReduceOp) -> f32 {
        let combine: fn(f32, f32) -> f32 = match op {
            ReduceOp::Prod => |a, b| a * b,
            ReduceOp::Min => f32::min,
            ReduceOp::Max => f32::max,
            _ => |a, b| a + b,
        };
        let scaled = contributions.iter().map(|x| match op {
            ReduceOp::PreMulSum(s) => x * s.as_f64() as f32,
            _ => *x,
        });
        let all = scaled.reduce(combine).unwrap();
        if op == ReduceOp::Avg { all / contributions.len() as f32 } else { all }
    }

    #[test]
    fn right_results_pass_and_wrong_ones_are_counted() {
        let ops = [
            ReduceOp::Sum,
            ReduceOp::Prod,
            ReduceOp::Min,
            ReduceOp::Max,
            ReduceOp::Avg,
            ReduceOp::PreMulSum(Scalar::Float(1.3)),
        ];
        for op in ops {
            let case = case(Collective::AllReduce, DataType::F32, op, 4000);
            let data = Data::<f32>::new(&case, 5, 1);
            let mut result: Vec<f32> =
                (0..1000).map(|i| plain(&[0, 1, 2, 3, 4].map(|r| data.pattern(r)[i]), op)).collect();
            assert_eq!(data.wrong(0, &result), 0, "{op:?}");
            assert_eq!(data.wrong(10, &result[10..]), 0, "{op:?}");
            assert!(data.wrong(1, &result) > 900, "shifted data is found: {op:?}");
            result[3] *= 1.00001;
            result[700] = f32::NAN;
            assert_eq!(data.wrong(0, &result), 2, "{op:?}");
        }
    }

    #[test]
    fn factors_whose_sums_cannot_be_checked_are_refused() {
        let with = |dtype, factor: f64| Case {
            op: ReduceOp::PreMulSum(Scalar::Float(factor)),
            ..case(Collective::AllReduce, dtype, ReduceOp::Sum, 8)
        };
        for (dtype, good, bad) in [
            (DataType::F32, 1e38, 2e38),
            (DataType::F64, 8e307, 1e308),
            (DataType::F16, 32752.0, 32753.0),
            (DataType::F8E4M3, -224.0, 225.0),
            (DataType::BF16, -1e-300, f64::NEG_INFINITY),
        ] {
            assert_eq!(check_factor(&with(dtype, good), 2), Ok(()), "{dtype} {good}");
            for bad in [bad, f64::NAN] {
                let message = check_factor(&with(dtype, bad), 2).unwrap_err().to_string();
                assert!(message.contains(&format!("premulsum:{bad}")), "{message}");
                let gather = Case { collective: Collective::AllGather, ..with(dtype, bad) };
                assert_eq!(check_factor(&gather, 2), Ok(()), "nothing is scaled");
            }
        }
        assert_eq!(check_factor(&with(DataType::I64, 9e18), 2), Ok(()), "integers wrap");
    }

    #[test]
    fn integers_are_exact() {
        let case = case(Collective::Reduce { root: 0 }, DataType::I64, ReduceOp::Avg, 800);
        let data = Data::<i64>::new(&case, 3, 2);
        let mut result: Vec<i64> =
            (0..100).map(|i| (0..3).map(|r| data.pattern(r)[i]).fold(0i64, i64::wrapping_add) / 3).collect();
        assert_eq!(data.wrong(0, &result), 0);
        result[99] += 1;
        assert_eq!(data.wrong(0, &result), 1);
    }

    #[test]
    fn gathered_blocks_belong_to_their_ranks() {
        let case = case(Collective::AllGather, DataType::U8, ReduceOp::Sum, 3 * 700_000);
        let data = Data::<u8>::new(&case, 3, 3);
        let mut message = vec![0; 2_100_000];
        for rank in 0..3 {
            let range = case.input(rank, 3);
            data.fill(rank, range.start, &mut message[range]);
        }
        assert_eq!(data.wrong(0, &message), 0);
        message.rotate_left(700_000);
        assert!(data.wrong(0, &message) > 2_000_000);
    }

    #[test]
    fn every_type_has_values_that_reduce_to_themselves_on_one_rank() {
        for dtype in DataType::ALL {
            let case = case(Collective::AllReduce, dtype, ReduceOp::Sum, 1000 * dtype.size());
            with_type!(dtype, T => {
                let data = Data::<T>::new(&case, 1, 4);
                assert_eq!(data.wrong(0, data.pattern(0)), 0, "{dtype}");
                assert!(data.wrong(1, data.pattern(0)) > 500, "{dtype}");
            });
        }
    }
}
