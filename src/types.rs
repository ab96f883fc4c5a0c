//! Element types, reduction operators and collectives: the vocabulary every other floor shares.
//!
//! # What the numbers mean
//!
//! The rules below hold for every engine.
//!
//! * Integers wrap on overflow. `Avg` of integers is the wrapped sum divided by the number of ranks, rounded
//!   toward zero.
//! * `f16`, `bf16` and the two 8-bit floats are accumulated in `f32` and rounded once per fold (round to nearest,
//!   ties to even). 8-bit floats saturate to their largest finite value, as the hardware conversion does.
//! * `Avg` of floats multiplies the finished sum, before its last rounding, by the reciprocal of the number of ranks
//!   rounded to the accumulator's type.
//! * `Min` and `Max` propagate NaN (IEEE 754-2019 *minimum* and *maximum*) and order `-0.0` below `+0.0`.
//! * Any NaN result is *a* NaN: sign and payload are unspecified.
//! * `PreMulSum(s)` multiplies every contribution by `s` in the accumulator's type and rounds the product to the
//!   element type before it is added.

use std::fmt;

use crate::error::{Error, Result};

/// The type of one element of a message.
///
/// The discriminants are those of NCCL's `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// Signed 8-bit integer.
    I8 = 0,
    /// Unsigned 8-bit integer.
    U8 = 1,
    /// Signed 32-bit integer.
    I32 = 2,
    /// Unsigned 32-bit integer.
    U32 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Unsigned 64-bit integer.
    U64 = 5,
    /// IEEE half precision.
    F16 = 6,
    /// IEEE single precision.
    F32 = 7,
    /// IEEE double precision.
    F64 = 8,
    /// Brain float: the upper half of an `f32`.
    BF16 = 9,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities.
    F8E4M3 = 10,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2 = 11,
}

impl DataType {
    /// Every type, in the order of the discriminants.
    pub const ALL: [DataType; 12] = [
        DataType::I8,
        DataType::U8,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::F32,
        DataType::F64,
        DataType::BF16,
        DataType::F8E4M3,
        DataType::F8E5M2,
    ];

    /// Bytes of one element.
    ///
    /// ```
    /// assert_eq!(ringleader::DataType::BF16.size(), 2);
    /// ```
    pub const fn size(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::F8E4M3 | DataType::F8E5M2 => 1,
            DataType::F16 | DataType::BF16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }

    /// Whether the type is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DataType::F16
                | DataType::F32
                | DataType::F64
                | DataType::BF16
                | DataType::F8E4M3
                | DataType::F8E5M2
        )
    }

    /// The short lower-case name: `f32`, `bf16`, `f8e4m3`.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::I8 => "i8",
            DataType::U8 => "u8",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
            DataType::I64 => "i64",
            DataType::U64 => "u64",
            DataType::F16 => "f16",
            DataType::F32 => "f32",
            DataType::F64 => "f64",
            DataType::BF16 => "bf16",
            DataType::F8E4M3 => "f8e4m3",
            DataType::F8E5M2 => "f8e5m2",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for DataType {
    type Err = Error;

    /// Accepts the short names and NCCL's spellings (`float`, `half`, `int32`, `bfloat16`, `fp8_e4m3`, …).
    fn from_str(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        Ok(match lower.as_str() {
            "i8" | "int8" | "char" => DataType::I8,
            "u8" | "uint8" => DataType::U8,
            "i32" | "int32" | "int" => DataType::I32,
            "u32" | "uint32" => DataType::U32,
            "i64" | "int64" => DataType::I64,
            "u64" | "uint64" => DataType::U64,
            "f16" | "float16" | "half" => DataType::F16,
            "f32" | "float32" | "float" => DataType::F32,
            "f64" | "float64" | "double" => DataType::F64,
            "bf16" | "bfloat16" => DataType::BF16,
            "f8e4m3" | "fp8_e4m3" | "float8_e4m3" | "fp8-e4m3" => DataType::F8E4M3,
            "f8e5m2" | "fp8_e5m2" | "float8_e5m2" | "fp8-e5m2" => DataType::F8E5M2,
            _ => {
                return Err(Error::invalid_value(
                    "type",
                    text,
                    "i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64, f8e4m3 or f8e5m2",
                ));
            }
        })
    }
}

/// A number given to [`ReduceOp::PreMulSum`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A floating-point factor; rounded to the accumulator's type.
    Float(f64),
    /// A signed integer factor.
    Int(i64),
    /// An unsigned integer factor.
    Uint(u64),
}

impl Scalar {
    /// The factor as `f64`, for floating-point data.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Float(x) => x,
            Scalar::Int(x) => x as f64,
            Scalar::Uint(x) => x as f64,
        }
    }

    /// The factor as the low 64 bits of an integer, for integer data; `None` if it has a fractional part or is
    /// out of range.
    pub fn as_bits(self) -> Option<u64> {
        match self {
            Scalar::Int(x) => Some(x as u64),
            Scalar::Uint(x) => Some(x),
            Scalar::Float(x) if x.fract() == 0.0 && x >= -(2f64.powi(63)) && x < 2f64.powi(63) => {
                Some(x as i64 as u64)
            }
            Scalar::Float(_) => None,
        }
    }
}

impl From<f64> for Scalar {
    fn from(x: f64) -> Self {
        Scalar::Float(x)
    }
}

impl From<f32> for Scalar {
    fn from(x: f32) -> Self {
        Scalar::Float(f64::from(x))
    }
}

impl From<i64> for Scalar {
    fn from(x: i64) -> Self {
        Scalar::Int(x)
    }
}

impl From<u64> for Scalar {
    fn from(x: u64) -> Self {
        Scalar::Uint(x)
    }
}

/// How contributions are combined. See the [module documentation](self) for the exact arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Smallest contribution; NaN if any contribution is NaN.
    Min,
    /// Largest contribution; NaN if any contribution is NaN.
    Max,
    /// Sum divided by the number of ranks.
    Avg,
    /// Sum of contributions each multiplied by this rank's factor.
    PreMulSum(Scalar),
}

impl ReduceOp {
    /// The lower-case name without the factor: `sum`, `premulsum`.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::PreMulSum(_) => "premulsum",
        }
    }

    /// Checks that the operator can be applied to the type.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] if an integer type is given a factor that is not an integer.
    pub fn check(self, dtype: DataType) -> Result<()> {
        match self {
            ReduceOp::PreMulSum(s) if !dtype.is_float() && s.as_bits().is_none() => {
                Err(Error::invalid_value(
                    "op",
                    format!("premulsum factor {}", s.as_f64()),
                    format!("an integer factor for data of type {dtype}"),
                ))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for ReduceOp {
    type Err = Error;

    /// `sum`, `prod`, `min`, `max`, `avg`, or `premulsum:FACTOR`.
    fn from_str(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let bad = || Error::invalid_value("op", text, "sum, prod, min, max, avg or premulsum:FACTOR");
        Ok(match lower.as_str() {
            "sum" => ReduceOp::Sum,
            "prod" => ReduceOp::Prod,
            "min" => ReduceOp::Min,
            "max" => ReduceOp::Max,
            "avg" => ReduceOp::Avg,
            _ => {
                let factor = lower.strip_prefix("premulsum:").ok_or_else(bad)?;
                let scalar = match factor.parse::<i64>() {
                    Ok(i) => Scalar::Int(i),
                    Err(_) => Scalar::Float(factor.parse().map_err(|_| bad())?),
                };
                ReduceOp::PreMulSum(scalar)
            }
        })
    }
}

/// What a call does with the message. `root` is a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Every rank ends with the reduction of all inputs.
    AllReduce,
    /// Rank `r` ends with block `r` of the reduction of all inputs.
    ReduceScatter,
    /// Every rank ends with all inputs, concatenated in rank order.
    AllGather,
    /// Every rank ends with the root's input.
    Broadcast {
        /// The rank whose input everybody receives.
        root: usize,
    },
    /// The root ends with the reduction of all inputs.
    Reduce {
        /// The rank that receives the result.
        root: usize,
    },
}

impl Collective {
    /// The snake-case name without the root: `all_reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllGather => "all_gather",
            Collective::Broadcast { .. } => "broadcast",
            Collective::Reduce { .. } => "reduce",
        }
    }

    /// The root, if the collective has one.
    pub const fn root(self) -> Option<usize> {
        match self {
            Collective::Broadcast { root } | Collective::Reduce { root } => Some(root),
            _ => None,
        }
    }

    /// Whether contributions are combined with a [`ReduceOp`].
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. })
    }

    /// Into how many equal blocks the message is divided by rank: `ranks` for all_gather and reduce_scatter, else 1.
    pub const fn blocks(self, ranks: usize) -> usize {
        match self {
            Collective::AllGather | Collective::ReduceScatter => ranks,
            _ => 1,
        }
    }

    /// Bus bandwidth over algorithm bandwidth, as nccl-tests defines them.
    ///
    /// ```
    /// assert_eq!(ringleader::Collective::AllReduce.bus_factor(4), 1.5);
    /// ```
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::ReduceScatter | Collective::AllGather => (n - 1.0) / n,
            Collective::Broadcast { .. } | Collective::Reduce { .. } => 1.0,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.root() {
            Some(root) => write!(f, "{} from root {root}", self.name()),
            None => f.pad(self.name()),
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be an element of a message.
///
/// The trait is sealed: the set of types is fixed by [`DataType`].
pub trait Element: sealed::Sealed + Copy + Send + Sync + PartialEq + fmt::Debug + 'static {
    /// The matching [`DataType`].
    const DTYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DataType = DataType::$dtype;
        }
    )*};
}

elements! {
    i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64, f32 => F32, f64 => F64,
    half::f16 => F16, half::bf16 => BF16, float8::F8E4M3 => F8E4M3, float8::F8E5M2 => F8E5M2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for t in DataType::ALL {
            assert_eq!(t.name().parse::<DataType>().unwrap(), t);
        }
        for text in ["sum", "prod", "min", "max", "avg"] {
            assert_eq!(text.parse::<ReduceOp>().unwrap().name(), text);
        }
        assert_eq!("premulsum:2.5".parse::<ReduceOp>().unwrap(), ReduceOp::PreMulSum(Scalar::Float(2.5)));
        let message = "f33".parse::<DataType>().unwrap_err().to_string();
        assert!(message.contains("f33") && message.contains("bf16"), "{message}");
    }

    #[test]
    fn integer_data_refuses_a_fractional_factor() {
        assert!(ReduceOp::PreMulSum(Scalar::Float(0.5)).check(DataType::I32).is_err());
        assert!(ReduceOp::PreMulSum(Scalar::Float(2.0)).check(DataType::I32).is_ok());
        assert!(ReduceOp::PreMulSum(Scalar::Float(0.5)).check(DataType::F16).is_ok());
    }
}
