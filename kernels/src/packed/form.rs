//! The formats that can be packed, each as a handful of facts: kernels are written once, over these.

use crate::dtype::{DType, FP4_TWICE};

/// How the codes and scales of a format become weights: `scale * (code - zero) + min`.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct Form {
    /// Bits of a code that lie together: 2, 4 or 8.
    pub bits: usize,
    /// Further bits, each in a plane of its own.
    pub planes: usize,
    /// The code that stands for zero.
    pub zero: i32,
    /// A minimum is added.
    pub min: bool,
    /// Each sixteen columns have a scale of their own; otherwise each 32.
    pub fine: bool,
    /// How the scales are stored.
    pub scales: Scales,
}

/// Codes of 4-bit floating point, in the order of the stored ones: twice the value, and 12 to have no negative ones.
pub(crate) const FP4_CODES: [u8; 16] = {
    let (mut codes, mut i) = ([0; 16], 0);
    while i < codes.len() {
        codes[i] = (FP4_TWICE[i] + 12).cast_unsigned();
        i += 1;
    }
    codes
};

/// How scales are stored.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Scales {
    /// An f16 per group: the scale, then the minimum.
    Plain,
    /// Bytes per group (or half group), times an f16 that 256 columns share. Minima are subtracted.
    Nested {
        /// The bytes of the scales are signed.
        signed: bool,
    },
    /// A byte per group, the exponent of a power of two; the stored codes are those of [`FP4_CODES`].
    Power,
}

/// Declares the forms: a type for each, so that kernels are compiled for its constants, and the ways to it from a
/// [`DType`].
macro_rules! packed_forms {
    ($($name:ident = $dtype:ident, $bits:literal + $planes:literal, zero $zero:literal, min $min:literal,
       fine $fine:literal, $scales:expr;)*) => {
        $(
            #[doc = concat!("The format of [`DType::", stringify!($dtype), "`].")]
            pub(crate) struct $name;

            impl Known for $name {
                const STORED: DType = DType::$dtype;
                const FORM: Form = Form {
                    bits: $bits, planes: $planes, zero: $zero, min: $min, fine: $fine, scales: $scales,
                };
            }
        )*

        impl Form {
            /// The form of a format; none if it is not packed.
            pub const fn of(dtype: DType) -> Option<Form> {
                match dtype {
                    $(DType::$dtype => Some($name::FORM),)*
                    _ => None,
                }
            }
        }

        /// Calls `run` with the form of `dtype`, which must be one that is packed.
        #[inline]
        pub(crate) fn with_form<R: Run>(dtype: DType, run: R) {
            match dtype {
                $(DType::$dtype => run.run::<$name>(),)*
                other => unreachable!("{other:?} is not packed"),
            }
        }
    };
}

/// Something to be done for any form.
pub(crate) trait Run {
    /// Does it for `F`.
    fn run<F: Known>(self);
}

/// A form that is known when code is compiled.
pub(crate) trait Known {
    /// How it is stored.
    const STORED: DType;
    /// Its facts.
    const FORM: Form;
}

packed_forms! {
    Q8_0 = Q8_0, 8 + 0, zero 128, min false, fine false, Scales::Plain;
    Q4_0 = Q4_0, 4 + 0, zero 8, min false, fine false, Scales::Plain;
    Q4_1 = Q4_1, 4 + 0, zero 0, min true, fine false, Scales::Plain;
    Q5_0 = Q5_0, 4 + 1, zero 16, min false, fine false, Scales::Plain;
    Q5_1 = Q5_1, 4 + 1, zero 0, min true, fine false, Scales::Plain;
    Mxfp4 = MXFP4, 4 + 0, zero 12, min false, fine false, Scales::Power;
    Q2K = Q2K, 2 + 0, zero 0, min true, fine true, Scales::Nested { signed: false };
    Q3K = Q3K, 2 + 1, zero 4, min false, fine true, Scales::Nested { signed: true };
    Q4K = Q4K, 4 + 0, zero 0, min true, fine false, Scales::Nested { signed: false };
    Q5K = Q5K, 4 + 1, zero 0, min true, fine false, Scales::Nested { signed: false };
    Q6K = Q6K, 4 + 2, zero 32, min false, fine true, Scales::Nested { signed: true };
}
