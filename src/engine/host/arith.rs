//! The arithmetic of every element type, as documented in [`crate::types`].

use float8::{F8E4M3, F8E5M2};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::types::Scalar;

/// What contributions are accumulated in.
pub(crate) trait Accumulator: Copy + Default {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn minimum(self, other: Self) -> Self;
    fn maximum(self, other: Self) -> Self;
    /// Divides by a number of ranks: floats multiply by the reciprocal, integers round toward zero.
    fn divide(self, ranks: u64) -> Self;
    /// A factor rounded to this type; integers take the low bits.
    fn factor(scalar: Scalar) -> Self;
}

macro_rules! integer {
    ($($t:ty as $wide:ty),*) => {$(
        impl Accumulator for $t {
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn minimum(self, other: Self) -> Self {
                self.min(other)
            }
            fn maximum(self, other: Self) -> Self {
                self.max(other)
            }
            fn divide(self, ranks: u64) -> Self {
                // In 64 bits: the number of ranks may not fit the element type.
                (self as $wide / ranks as $wide) as $t
            }
            fn factor(scalar: Scalar) -> Self {
                scalar.as_bits().unwrap_or(0) as $t
            }
        }
    )*};
}
integer!(i8 as i64, u8 as u64, i32 as i64, u32 as u64, i64 as i64, u64 as u64);

macro_rules! float {
    ($($t:ty),*) => {$(
        impl Accumulator for $t {
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn mul(self, other: Self) -> Self {
                self * other
            }
            // Both without branches, so that they vectorise. Of equal numbers, only zeros can differ, by their sign
            // bit; a sum with a NaN is a NaN.
            fn minimum(self, other: Self) -> Self {
                let smaller = if self < other { self } else { other };
                let equal = <$t>::from_bits(self.to_bits() | other.to_bits());
                let ordered = if self == other { equal } else { smaller };
                if self.is_nan() | other.is_nan() { self + other } else { ordered }
            }
            fn maximum(self, other: Self) -> Self {
                let larger = if self > other { self } else { other };
                let equal = <$t>::from_bits(self.to_bits() & other.to_bits());
                let ordered = if self == other { equal } else { larger };
                if self.is_nan() | other.is_nan() { self + other } else { ordered }
            }
            fn divide(self, ranks: u64) -> Self {
                self * (1.0 / ranks as $t)
            }
            fn factor(scalar: Scalar) -> Self {
                scalar.as_f64() as $t
            }
        }
    )*};
}
float!(f32, f64);

/// An element type.
pub(crate) trait Number: Copy + 'static {
    /// What it is accumulated in.
    type Acc: Accumulator;

    fn widen(self) -> Self::Acc;
    /// Rounds to nearest, ties to even; 8-bit floats saturate.
    fn narrow(acc: Self::Acc) -> Self;

    /// [`widen`](Self::widen) for slices of one length.
    fn widen_all(from: &[Self], to: &mut [Self::Acc]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }

    /// [`narrow`](Self::narrow) for slices of one length.
    fn narrow_all(from: &[Self::Acc], to: &mut [Self]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = Self::narrow(from);
        }
    }
}

macro_rules! exact {
    ($($t:ty),*) => {$(
        impl Number for $t {
            type Acc = $t;
            fn widen(self) -> $t {
                self
            }
            fn narrow(acc: $t) -> $t {
                acc
            }
        }
    )*};
}
exact!(i8, u8, i32, u32, i64, u64, f32, f64);

macro_rules! half_float {
    ($($t:ty),*) => {$(
        impl Number for $t {
            type Acc = f32;
            fn widen(self) -> f32 {
                self.to_f32()
            }
            fn narrow(acc: f32) -> $t {
                <$t>::from_f32(acc)
            }
            fn widen_all(from: &[$t], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow_all(from: &[f32], to: &mut [$t]) {
                to.convert_from_f32_slice(from);
            }
        }
    )*};
}
half_float!(f16, bf16);

macro_rules! float8 {
    ($($t:ty: $table:ident),*) => {$(
        /// Every 8-bit pattern as `f32`.
        static $table: [f32; 256] = {
            let mut table = [0.0; 256];
            let mut bits = 0;
            while bits < 256 {
                table[bits] = <$t>::from_bits(bits as u8).to_f32();
                bits += 1;
            }
            table
        };
        impl Number for $t {
            type Acc = f32;
            fn widen(self) -> f32 {
                $table[self.to_bits() as usize]
            }
            fn narrow(acc: f32) -> $t {
                <$t>::from_f32(acc)
            }
        }
    )*};
}
float8!(F8E4M3: E4M3_AS_F32, F8E5M2: E5M2_AS_F32);

/// One of the four ways in which two accumulators are combined.
pub(crate) trait Operator {
    fn combine<A: Accumulator>(a: A, b: A) -> A;
}

macro_rules! operators {
    ($($name:ident => $method:ident),*) => {$(
        pub(crate) struct $name;
        impl Operator for $name {
            #[inline(always)]
            fn combine<A: Accumulator>(a: A, b: A) -> A {
                a.$method(b)
            }
        }
    )*};
}
operators!(Sum => add, Prod => mul, Min => minimum, Max => maximum);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_and_maximum_order_zeros_and_keep_nan() {
        for (a, b) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
            let (low, high) = (Accumulator::minimum(a, b), Accumulator::maximum(a, b));
            assert!(low.is_sign_negative() && high.is_sign_positive());
        }
        for (a, b) in [(f64::NAN, 1.0f64), (1.0, f64::NAN), (f64::NAN, f64::INFINITY)] {
            assert!(Accumulator::minimum(a, b).is_nan() && Accumulator::maximum(a, b).is_nan());
        }
        assert_eq!(Accumulator::minimum(f32::NEG_INFINITY, f32::MAX), f32::NEG_INFINITY);
        assert_eq!(Accumulator::maximum(-1.0f32, -2.0), -1.0);
    }

    #[test]
    fn averages_of_integers_round_toward_zero_with_any_number_of_ranks() {
        assert_eq!((-7i8).divide(2), -3);
        assert_eq!((-128i8).divide(128), -1);
        assert_eq!(255u8.divide(128), 1);
        assert_eq!(u64::MAX.divide(2), u64::MAX / 2);
    }

    #[test]
    fn eight_bit_floats_saturate_and_round_to_even() {
        for big in [449.0f32, 1e30, f32::INFINITY] {
            assert_eq!(F8E4M3::narrow(big).to_bits(), 0x7e);
            assert_eq!(F8E4M3::narrow(-big).to_bits(), 0xfe);
        }
        for big in [61440.0f32, 1e30, f32::INFINITY] {
            assert_eq!(F8E5M2::narrow(big).to_bits(), 0x7b);
            assert_eq!(F8E5M2::narrow(-big).to_bits(), 0xfb);
        }
        assert!(F8E4M3::narrow(f32::NAN).widen().is_nan() && F8E5M2::narrow(f32::NAN).widen().is_nan());
        // Half way between neighbours: the one with the even mantissa.
        assert_eq!(F8E4M3::narrow(17.0).widen(), 16.0);
        assert_eq!(F8E4M3::narrow(19.0).widen(), 20.0);
        assert_eq!(F8E5M2::narrow(9.0).widen(), 8.0);
        assert_eq!(F8E5M2::narrow(11.0).widen(), 12.0);
    }

    #[test]
    fn every_narrow_value_survives_widening() {
        for bits in 0..=255u8 {
            let (a, b) = (F8E4M3::from_bits(bits), F8E5M2::from_bits(bits));
            if !a.widen().is_nan() {
                assert_eq!(F8E4M3::narrow(a.widen()).to_bits(), bits);
            }
            if b.widen().is_finite() {
                assert_eq!(F8E5M2::narrow(b.widen()).to_bits(), bits);
            }
        }
    }
}
