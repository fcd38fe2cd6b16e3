//! Compiling a loop twice: for every machine, and for the wide registers that most have. The results are the same bits,
//! because nothing here allows the compiler to reorder or fuse floating-point operations.

/// Defines a function without a result whose body is also compiled for AVX2, which then runs where the machine has it.
macro_rules! wide {
    ($(#[$meta:meta])* $visible:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $visible fn $name($($argument: $type),*) {
            #[inline(always)]
            fn plain($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn compiled($($argument: $type),*) {
                    plain($($argument),*)
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the feature that the function is compiled for was found.
                    return unsafe { compiled($($argument),*) };
                }
            }
            plain($($argument),*)
        }
    };
}

pub(super) use wide;
