//! The loops around a microkernel, named as in BLIS: pc over kc blocks, ranges of KC terms of k; jr over the panels of
//! NR columns of B; ir over the register tiles of MR rows. The two outer ones, jc and ic, are the tasks that
//! [`super::TaskGrid`] hands to threads.

/// The body of the loops: a microkernel, how its operands are packed, and how its tiles reach C.
pub(crate) trait LoopBody {
    /// Starts a kc block.
    fn begin_k_block(&mut self, index: usize);
    /// Starts a panel: `columns` columns from `column` on.
    fn begin_panel(&mut self, column: usize, columns: usize);
    /// Computes one register tile from this row on, or several; returns the number of rows.
    fn tiles(&mut self, row: usize) -> usize;
    /// Ends a panel.
    #[inline(always)]
    fn end_panel(&mut self) {}
    /// Ends a kc block.
    #[inline(always)]
    fn end_k_block(&mut self) {}
}

/// Runs the loops over `m` rows, `n` columns in panels of `nr`, and `k_blocks` kc blocks.
#[inline(always)]
pub(crate) fn for_each_tile(m: usize, n: usize, k_blocks: usize, nr: usize, body: &mut impl LoopBody) {
    for pc in 0..k_blocks {
        body.begin_k_block(pc);
        let mut jr = 0;
        while jr < n {
            let columns = nr.min(n - jr);
            body.begin_panel(jr, columns);
            let mut ir = 0;
            while ir < m {
                ir += body.tiles(ir);
            }
            body.end_panel();
            jr += columns;
        }
        body.end_k_block();
    }
}

/// The most terms that are summed in registers before the sums go to C; with [`super::MC`] it bounds a block of A.
const MAX_KC: usize = 768;

/// KC, the terms of a kc block: about equal for all blocks and a multiple of 8. `k` alone decides it, and with it the
/// order of summation.
pub(crate) fn kc(k: usize) -> usize {
    let blocks = k.div_ceil(MAX_KC).max(1);
    k.div_ceil(blocks).next_multiple_of(8)
}

/// The number of kc blocks; one even if there are no terms, since the epilogue follows the last.
pub(crate) fn k_blocks(k: usize) -> usize {
    k.div_ceil(kc(k).max(1)).max(1)
}
