//! Loops compiled twice: for every CPU and for AVX2. The results have the same bits, because the compiler may neither
//! reorder nor fuse floating-point operations.

/// Defines a function whose body is also compiled for AVX2 and then used if the CPU has it.
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
                    // SAFETY: the CPU has the feature that the function is compiled for.
                    return unsafe { compiled($($argument),*) };
                }
            }
            plain($($argument),*)
        }
    };
}

pub(super) use wide;
