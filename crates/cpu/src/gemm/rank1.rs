//! The innermost step of every product: one term of all the sums of a register tile.

use crate::simd::Simd;

/// Where a tile is in its operands.
///
/// Making one is no promise yet; [`Operands::add`] says what must be readable.
pub(crate) struct Operands {
    /// The rows of A: those of a tile are at most two steps of `lda` below one of these, which is as far as the address of
    /// an instruction reaches.
    a: [*const f32; 3],
    lda: usize,
    b: *const f32,
    ldb: usize,
}

impl Operands {
    /// The first terms: A with rows `lda` apart, a panel of B with rows `ldb` apart.
    #[inline(always)]
    pub fn new(a: *const f32, lda: usize, b: *const f32, ldb: usize) -> Operands {
        Operands { a: [0, 3, 6].map(|row| a.wrapping_add(row * lda)), lda, b, ldb }
    }

    /// Adds one term to all sums, `ahead` terms after where the rows of A are, and goes on to the next row of B. A
    /// transposed A, whose rows are terms, goes on as well.
    ///
    /// # Safety
    /// The term must be readable: in ROWS rows of A, and VECTORS vectors of the panel.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    pub unsafe fn add<S: Simd, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(
        &mut self,
        s: S,
        ahead: usize,
        sums: &mut [[S::V; VECTORS]; ROWS],
    ) {
        const { assert!(ROWS <= 9, "a tile of more rows than can be reached") };
        // SAFETY: the caller vouches for the term.
        unsafe {
            let mut vectors = [s.splat(0.0); VECTORS];
            for (j, v) in vectors.iter_mut().enumerate() {
                *v = s.load(self.b.add(j * S::LANES));
            }
            self.b = self.b.wrapping_add(self.ldb);
            for r in 0..ROWS {
                let x = match TRANSPOSED {
                    true => self.a[0].add(r),
                    false => self.a[r / 3].wrapping_add(ahead + r % 3 * self.lda),
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

    /// Goes on along the rows of A.
    #[inline(always)]
    pub fn skip(&mut self, terms: usize) {
        self.a = self.a.map(|p| opaque(p.wrapping_add(terms)));
    }

    /// The row of a transposed A, so many terms after this one; it need not be valid.
    #[inline(always)]
    pub fn row_ahead(&self, terms: usize) -> *const f32 {
        self.a[0].wrapping_add(terms * self.lda)
    }
}

/// A tile on its way along its operands, a few terms at a time: what is not a product is done once for each group.
pub(crate) trait Groups {
    /// Adds `TERMS` terms to all sums.
    ///
    /// # Safety
    /// That many terms must be readable, as for [`Operands::add`].
    unsafe fn group<S: Simd, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool, const TERMS: usize>(
        &mut self,
        s: S,
        sums: &mut [[S::V; VECTORS]; ROWS],
    );

    /// Adds any number of terms in groups of `GROUP`, and what is left one by one.
    ///
    /// # Safety
    /// As for [`Groups::group`].
    #[inline(always)]
    unsafe fn add<S: Simd, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool, const GROUP: usize>(
        &mut self,
        s: S,
        terms: usize,
        sums: &mut [[S::V; VECTORS]; ROWS],
    ) {
        // SAFETY: the caller vouches for all the terms.
        unsafe {
            for _ in 0..terms / GROUP {
                self.group::<S, ROWS, VECTORS, TRANSPOSED, GROUP>(s, sums);
            }
            for _ in 0..terms % GROUP {
                self.group::<S, ROWS, VECTORS, TRANSPOSED, 1>(s, sums);
            }
        }
    }
}

/// The same pointer, without the compiler knowing: it would keep one for every row, and there are not enough registers.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nobody reads or writes where it points")]
fn opaque(p: *const f32) -> *const f32 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut p = p;
        // SAFETY: there is no instruction in it.
        unsafe { std::arch::asm!("/* {p} */", p = inout(reg) p, options(pure, nomem, nostack, preserves_flags)) };
        p
    }
    #[cfg(not(target_arch = "x86_64"))]
    p
}
