//! The only place that reads and writes the elements of users' buffers and link slots.
//!
//! Buffers reach the engine as raw pointers, because several ranks, on several threads, work on parts of the same
//! one. A [`Job`] combines equally long runs of elements; the schedule's proof, not the compiler, says that nobody else
//! touches them meanwhile.

use std::mem::size_of;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::arith::{Accumulator, Max, Min, Number, Operator, Prod, Sum};
use crate::types::{DataType, ReduceOp, Scalar};

/// A run of elements to read.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    /// The first element.
    pub(super) address: *const u8,
    /// Whether it is the rank's own contribution as the user gave it, which a pre-multiplied sum multiplies.
    pub(super) raw: bool,
}

/// One step of a fold: combine the sources, write the sinks.
pub(super) struct Job<'a> {
    /// At least one.
    pub(super) sources: &'a [Operand],
    /// Where the result goes.
    pub(super) sinks: &'a [*mut u8],
    /// Elements in each.
    pub(super) len: usize,
    /// The factor for raw sources.
    pub(super) factor: Option<Scalar>,
    /// The number to divide the result by.
    pub(super) divisor: Option<u64>,
}

/// Runs a [`Job`] for one type and operator.
///
/// # Safety
/// Every source and sink is aligned for the type and valid for `len` elements; nobody writes the sources, or touches
/// the sinks, while the job runs. A source and a sink may be the same run, but not otherwise overlap.
pub(super) type Kernel = unsafe fn(&Job<'_>);

/// The kernel of a type and an operator.
pub(super) fn kernel(dtype: DataType, op: ReduceOp) -> Kernel {
    macro_rules! pick {
        ($($variant:ident => $t:ty),* $(,)?) => {
            match (dtype, op) {
                $(
                    (DataType::$variant, ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_)) => fold::<$t, Sum>,
                    (DataType::$variant, ReduceOp::Prod) => fold::<$t, Prod>,
                    (DataType::$variant, ReduceOp::Min) => fold::<$t, Min>,
                    (DataType::$variant, ReduceOp::Max) => fold::<$t, Max>,
                )*
            }
        };
    }
    pick! {
        I8 => i8, U8 => u8, I32 => i32, U32 => u32, I64 => i64, U64 => u64, F16 => half::f16, F32 => f32, F64 => f64,
        BF16 => half::bf16, F8E4M3 => float8::F8E4M3, F8E5M2 => float8::F8E5M2,
    }
}

/// Elements combined at a time: small enough for accumulators and sources to stay in the first-level cache.
const BLOCK: usize = 1024;

/// See [`Kernel`].
///
/// # Safety
/// As [`Kernel`] says.
unsafe fn fold<T: Number, O: Operator>(job: &Job<'_>) {
    let scaled = |source: &Operand| source.raw && job.factor.is_some();
    if let ([only], None) = (job.sources, job.divisor)
        && !scaled(only)
    {
        // SAFETY: the caller's contract, in bytes.
        return unsafe { copy(only.address, job.sinks, job.len * size_of::<T>()) };
    }
    let factor = job.factor.map(T::Acc::factor);
    // Rounded as if it had travelled: a rank may add its own contribution where a peer adds the copy it was sent.
    let scale = |x: T::Acc, factor: T::Acc| T::narrow(x.mul(factor)).widen();
    let mut acc = [T::Acc::default(); BLOCK];
    let mut wide = [T::Acc::default(); BLOCK];
    let mut start = 0;
    while start < job.len {
        let len = BLOCK.min(job.len - start);
        let acc = &mut acc[..len];
        for (i, source) in job.sources.iter().enumerate() {
            // SAFETY: in bounds and aligned by the caller's contract; a sink that is the same run is not written
            // before all sources of this block have been read, and this borrow has ended by then.
            let from = unsafe { from_raw_parts(source.address.cast::<T>().add(start), len) };
            let factor = factor.filter(|_| source.raw);
            if i == 0 {
                T::widen_all(from, acc);
                if let Some(factor) = factor {
                    acc.iter_mut().for_each(|a| *a = scale(*a, factor));
                }
            } else if let Some(factor) = factor {
                let wide = &mut wide[..len];
                T::widen_all(from, wide);
                acc.iter_mut().zip(wide).for_each(|(a, w)| *a = O::combine(*a, scale(*w, factor)));
            } else {
                combine::<T, O>(acc, from, &mut wide[..len]);
            }
        }
        if let Some(ranks) = job.divisor {
            acc.iter_mut().for_each(|a| *a = a.divide(ranks));
        }
        for &sink in job.sinks {
            // SAFETY: in bounds and aligned by the caller's contract, and nobody else touches it.
            let to = unsafe { from_raw_parts_mut(sink.cast::<T>().add(start), len) };
            T::narrow_all(acc, to);
        }
        start += len;
    }
}

/// `acc = acc ∘ from`, element by element.
fn combine<T: Number, O: Operator>(acc: &mut [T::Acc], from: &[T], wide: &mut [T::Acc]) {
    T::widen_all(from, wide);
    acc.iter_mut().zip(wide).for_each(|(a, &mut w)| *a = O::combine(*a, w));
}

/// Copies bytes to every sink that is not the source itself.
///
/// # Safety
/// `from` and the sinks are valid for `bytes` and each sink is either `from` or does not overlap it.
pub(super) unsafe fn copy(from: *const u8, sinks: &[*mut u8], bytes: usize) {
    for &to in sinks.iter().filter(|to| to.cast_const() != from) {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }
}
