//! The eight tile registers and their instructions, under Intel's names.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Rows of a tile register.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a row of a tile register.
pub(crate) const TILE_ROW_BYTES: usize = 64;

/// The tile registers and TMUL of one thread. Tiles 0 to 3 are accumulators of 2 x 2 tiles: 0 and 1 of the upper rows,
/// 2 and 3 of the lower ones. Tiles 4 and 5 hold the upper and the lower rows of A, 6 and 7 the left and the right
/// columns of B.
pub(crate) trait Tmul {
    /// LDTILECFG for 1 to 32 rows of A; must precede the loads. It may clear the tiles.
    fn ldtilecfg(&mut self, rows: usize);

    /// Loads a tile, the rows of which are `stride` bytes apart.
    ///
    /// # Safety
    /// The rows must be readable.
    unsafe fn tileloadd<const TILE: usize>(&mut self, from: *const u8, stride: usize);

    /// `acc += A B` of 16 pairs of bf16 in each row of A and each column of B.
    fn tdpbf16ps<const ACC: usize, const A: usize, const B: usize>(&mut self);

    /// `acc += A B` of 16 groups of four bytes, unsigned in A and signed in B.
    fn tdpbusd<const ACC: usize, const A: usize, const B: usize>(&mut self);

    /// Stores a tile, with rows `stride` bytes apart.
    ///
    /// # Safety
    /// The rows must be writable.
    unsafe fn tilestored<const TILE: usize>(&mut self, to: *mut u8, stride: usize);

    /// Sets every row of the accumulators to the same 32 elements.
    ///
    /// # Safety
    /// The elements must be readable.
    #[inline(always)]
    unsafe fn load_accumulators(&mut self, initial: *const u8) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.tileloadd::<0>(initial, 0);
            self.tileloadd::<1>(initial.add(TILE_ROW_BYTES), 0);
            self.tileloadd::<2>(initial, 0);
            self.tileloadd::<3>(initial.add(TILE_ROW_BYTES), 0);
        }
    }

    /// Stores the accumulators as `[32][32]`.
    ///
    /// # Safety
    /// 32 rows must be writable.
    #[inline(always)]
    unsafe fn store_accumulators(&mut self, to: *mut u8) {
        let stride = 2 * TILE_ROW_BYTES;
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.tilestored::<0>(to, stride);
            self.tilestored::<1>(to.add(TILE_ROW_BYTES), stride);
            self.tilestored::<2>(to.add(TILE_ROWS * stride), stride);
            self.tilestored::<3>(to.add(TILE_ROWS * stride + TILE_ROW_BYTES), stride);
        }
    }
}

/// The rows of each tile for `rows` rows of A. LDTILECFG requires at least one: with at most 16 rows of A, the lower
/// tiles have one row, which is unused.
fn rows_of_tiles(rows: usize) -> [u8; 8] {
    let [upper, lower] = [rows.min(TILE_ROWS), rows.saturating_sub(TILE_ROWS).max(1)].map(|rows| rows as u8);
    [upper, upper, lower, lower, upper, lower, TILE_ROWS as u8, TILE_ROWS as u8]
}

/// Proof that the machine has AMX, and that this process may use it.
pub(crate) struct Amx {
    /// The rows of A of the last configuration; 0 before the first.
    rows: usize,
}

impl Amx {
    /// # Safety
    /// [`is_available`] must be true, and a thread must not have two of these at a time: they are the same registers.
    pub unsafe fn new() -> Amx {
        Amx { rows: 0 }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        // Released tiles are not saved on a context switch.
        // SAFETY: the machine has AMX.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// The memory operand of LDTILECFG.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

// Tiles keep their contents from one assembly block to the next, so the blocks do not declare them as clobbered; the
// compiler does not use them itself.
impl Tmul for Amx {
    #[inline(always)]
    fn ldtilecfg(&mut self, rows: usize) {
        if self.rows == rows {
            return;
        }
        self.rows = rows;
        let mut config = TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(TILE_ROW_BYTES as u16);
        config.rows[..8].copy_from_slice(&rows_of_tiles(rows));
        // SAFETY: the configuration is valid: palette 1, at most 16 rows of at most 64 bytes.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &config, options(nostack, preserves_flags, readonly)) };
    }

    #[inline(always)]
    unsafe fn tileloadd<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            asm!("tileloadd tmm{tile}, [{from} + {stride}*1]", tile = const TILE, from = in(reg) from,
                stride = in(reg) stride, options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    fn tdpbf16ps<const ACC: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: `self` proves that the machine has AMX, and `rows_of_tiles` configures tiles whose shapes fit.
        unsafe {
            asm!("tdpbf16ps tmm{acc}, tmm{a}, tmm{b}", acc = const ACC, a = const A, b = const B,
                options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn tdpbusd<const ACC: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: `self` proves that the machine has AMX, and `rows_of_tiles` configures tiles whose shapes fit.
        unsafe {
            asm!("tdpbusd tmm{acc}, tmm{a}, tmm{b}", acc = const ACC, a = const A, b = const B,
                options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn tilestored<const TILE: usize>(&mut self, to: *mut u8, stride: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            asm!("tilestored [{to} + {stride}*1], tmm{tile}", tile = const TILE, to = in(reg) to,
                stride = in(reg) stride, options(nostack, preserves_flags));
        }
    }
}

/// Whether the machine has AMX and the kernel permits this process to use it. Linux requires a request for that
/// permission, and refuses it if a signal stack of the process has no room for the tiles.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_amx() && request_permission())
}

fn has_amx() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const ALL: u32 = BF16 | TILE | INT8;
    // SAFETY: every x86-64 machine has CPUID; newer compilers do not require the block.
    #[allow(unused_unsafe)]
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & ALL == ALL
    }
}

#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the system call accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// AMX in plain Rust, for tests on machines without it.
#[cfg(test)]
pub(crate) struct EmulatedTmul {
    rows: [usize; 8],
    tiles: [[[u32; 16]; TILE_ROWS]; 8],
}

#[cfg(test)]
impl EmulatedTmul {
    pub fn new() -> EmulatedTmul {
        EmulatedTmul { rows: [0; 8], tiles: [[[0; 16]; TILE_ROWS]; 8] }
    }
}

#[cfg(test)]
impl Tmul for EmulatedTmul {
    fn ldtilecfg(&mut self, rows: usize) {
        assert!((1..=32).contains(&rows), "{rows} rows");
        *self = EmulatedTmul { rows: rows_of_tiles(rows).map(usize::from), ..EmulatedTmul::new() };
    }

    unsafe fn tileloadd<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        for row in 0..self.rows[TILE] {
            // SAFETY: guaranteed by the caller.
            self.tiles[TILE][row] = unsafe { from.add(row * stride).cast::<[u32; 16]>().read_unaligned() };
        }
    }

    fn tdpbf16ps<const ACC: usize, const A: usize, const B: usize>(&mut self) {
        // Subnormal operands and results are flushed to zero.
        let flushed = |x: f32| if x.is_subnormal() { 0.0 } else { x };
        let operand = |bits: u32| flushed(f32::from_bits(bits));
        for row in 0..self.rows[ACC] {
            for column in 0..16 {
                // The lower and the upper bf16 of the pairs are summed apart.
                let mut sums = [0f32; 2];
                for k in 0..16 {
                    let (a, b) = (self.tiles[A][row][k], self.tiles[B][k][column]);
                    sums[0] = flushed(operand(a << 16).mul_add(operand(b << 16), sums[0]));
                    sums[1] = flushed(operand(a & 0xFFFF_0000).mul_add(operand(b & 0xFFFF_0000), sums[1]));
                }
                let sum = flushed(operand(self.tiles[ACC][row][column]) + flushed(sums[0] + sums[1]));
                self.tiles[ACC][row][column] = sum.to_bits();
            }
        }
    }

    fn tdpbusd<const ACC: usize, const A: usize, const B: usize>(&mut self) {
        for row in 0..self.rows[ACC] {
            for column in 0..16 {
                let mut sum = self.tiles[ACC][row][column] as i32;
                for k in 0..16 {
                    let (a, b) = (self.tiles[A][row][k].to_le_bytes(), self.tiles[B][k][column].to_le_bytes());
                    sum += a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(b as i8)).sum::<i32>();
                }
                self.tiles[ACC][row][column] = sum as u32;
            }
        }
    }

    unsafe fn tilestored<const TILE: usize>(&mut self, to: *mut u8, stride: usize) {
        for row in 0..self.rows[TILE] {
            // SAFETY: guaranteed by the caller.
            unsafe { to.add(row * stride).cast::<[u32; 16]>().write_unaligned(self.tiles[TILE][row]) };
        }
    }
}
