//! The loop over k of the f32 microkernels of GEMM and attention, and its innermost step: a rank-1 update of the sums
//! of a register tile. AMX, int8 and implicit GEMM have other microkernels.

use crate::simd::Simd;

/// The current position in the micro-panels of A and B of a register tile. These may be packed, or rows of the matrices
/// themselves: a packed A, `[k][MR]`, is a transposed one with `lda = MR`; a row-major A is read in place.
pub(crate) struct MicroPanels {
    /// Rows 0, 3 and 6 of A: an x86 address reaches the two rows after each by its scaled index. Of a transposed A only
    /// the first is used, the current row.
    a: [*const f32; 3],
    lda: usize,
    b: *const f32,
    ldb: usize,
}

impl MicroPanels {
    /// Starts at the first term, with row strides `lda` and `ldb`.
    #[inline(always)]
    pub fn new(a: *const f32, lda: usize, b: *const f32, ldb: usize) -> MicroPanels {
        MicroPanels { a: [0, 3, 6].map(|row| a.wrapping_add(row * lda)), lda, b, ldb }
    }

    /// `sums += a bᵀ`, where `b` is the current row of B and `a` column `term` of A, counted from the current position;
    /// then B advances by a row. A row-major A advances by [`MicroPanels::advance_a`] only. The rows of a transposed A
    /// are terms: `a` is its current row, it advances with B, and `term` is ignored.
    ///
    /// # Safety
    /// `ROWS` elements of A and `VECTORS` vectors of B must be readable there.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    pub unsafe fn rank1_update<S: Simd, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(
        &mut self,
        s: S,
        term: usize,
        sums: &mut [[S::V; VECTORS]; ROWS],
    ) {
        const { assert!(ROWS <= 9, "rows beyond the reach of an address") };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut vectors = [s.splat(0.0); VECTORS];
            for (j, v) in vectors.iter_mut().enumerate() {
                *v = s.load(self.b.add(j * S::LANES));
            }
            self.b = self.b.wrapping_add(self.ldb);
            for r in 0..ROWS {
                let x = match TRANSPOSED {
                    true => self.a[0].add(r),
                    false => self.a[r / 3].wrapping_add(term + r % 3 * self.lda),
                };
                let x = s.splat(*x);
                for j in 0..VECTORS {
                    sums[r][j] = s.mul_add(x, vectors[j], sums[r][j]);
                }
            }
        }
        if TRANSPOSED {
            self.a[0] = self.a[0].wrapping_add(self.lda);
        }
    }

    /// Advances along the rows of A.
    #[inline(always)]
    pub fn advance_a(&mut self, terms: usize) {
        self.a = self.a.map(|p| opaque(p.wrapping_add(terms)));
    }

    /// The row of a transposed A `terms` after the current one, for a prefetch; it need not be valid.
    #[inline(always)]
    pub fn row_ahead(&self, terms: usize) -> *const f32 {
        self.a[0].wrapping_add(terms * self.lda)
    }
}

/// A microkernel's loop over k, unrolled, with its prefetches.
pub(crate) trait KLoop {
    /// The position in the operands.
    fn panels(&mut self) -> &mut MicroPanels;

    /// Prefetches at the start of each iteration, also of those with one term that remain after unrolling.
    fn prefetch_in_iteration<S: Simd>(&mut self, s: S);

    /// Prefetches after each rank-1 update.
    #[inline(always)]
    fn prefetch_in_term<S: Simd, const TRANSPOSED: bool>(&mut self, _: S) {}

    /// One iteration: `TERMS` rank-1 updates.
    ///
    /// # Safety
    /// The terms must be readable, as for [`MicroPanels::rank1_update`].
    #[inline(always)]
    unsafe fn iteration<
        S: Simd,
        const ROWS: usize,
        const VECTORS: usize,
        const TRANSPOSED: bool,
        const TERMS: usize,
    >(
        &mut self,
        s: S,
        sums: &mut [[S::V; VECTORS]; ROWS],
    ) {
        self.prefetch_in_iteration(s);
        for term in 0..TERMS {
            // SAFETY: guaranteed by the caller.
            unsafe { self.panels().rank1_update::<S, ROWS, VECTORS, TRANSPOSED>(s, term, sums) };
            self.prefetch_in_term::<S, TRANSPOSED>(s);
        }
        if !TRANSPOSED {
            self.panels().advance_a(TERMS);
        }
    }

    /// Adds `terms` terms, `UNROLL` in an iteration and the remainder one by one.
    ///
    /// # Safety
    /// As for [`KLoop::iteration`].
    #[inline(always)]
    unsafe fn run<S: Simd, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool, const UNROLL: usize>(
        &mut self,
        s: S,
        terms: usize,
        sums: &mut [[S::V; VECTORS]; ROWS],
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            for _ in 0..terms / UNROLL {
                self.iteration::<S, ROWS, VECTORS, TRANSPOSED, UNROLL>(s, sums);
            }
            for _ in 0..terms % UNROLL {
                self.iteration::<S, ROWS, VECTORS, TRANSPOSED, 1>(s, sums);
            }
        }
    }
}

/// Hides from the compiler that the pointers of different rows are related: it would otherwise keep one for every row,
/// for which there are not enough registers.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "the assembly does not access memory")]
fn opaque(p: *const f32) -> *const f32 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut p = p;
        // SAFETY: the assembly is empty.
        unsafe { std::arch::asm!("/* {p} */", p = inout(reg) p, options(pure, nomem, nostack, preserves_flags)) };
        p
    }
    #[cfg(not(target_arch = "x86_64"))]
    p
}
