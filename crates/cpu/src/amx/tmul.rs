//! The eight tile registers and what can be done with them.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// The matrix unit of one thread. Tiles 0 to 3 are sums: 0 and 1 of the upper rows, 2 and 3 of the lower ones. Tiles 4 and 5
/// are the upper and the lower rows of A, 6 and 7 two times 16 columns of B.
pub(crate) trait Unit {
    /// Says how many rows there are, 1 to 32, before the sums begin.
    fn configure(&mut self, rows: usize);

    /// Reads a tile, the rows of which take 64 bytes each and are `stride` bytes apart.
    ///
    /// # Safety
    /// The rows must be readable.
    unsafe fn load<const TILE: usize>(&mut self, from: *const u8, stride: usize);

    /// Adds the products of A and B to the sums. A number of either is a pair of bfloat16.
    fn multiply<const SUMS: usize, const A: usize, const B: usize>(&mut self);

    /// Adds the products of A and B to the sums. A number of A is four unsigned bytes, one of B four signed ones.
    fn multiply_bytes<const SUMS: usize, const A: usize, const B: usize>(&mut self);

    /// Writes a tile.
    ///
    /// # Safety
    /// The rows must be writable.
    unsafe fn store<const TILE: usize>(&mut self, to: *mut u8, stride: usize);

    /// Begins the sums of all rows with the same 32 numbers.
    ///
    /// # Safety
    /// The numbers must be readable.
    #[inline(always)]
    unsafe fn begin_sums(&mut self, start: *const u8) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            self.load::<0>(start, 0);
            self.load::<1>(start.add(64), 0);
            self.load::<2>(start, 0);
            self.load::<3>(start.add(64), 0);
        }
    }

    /// Writes the sums, rows of 32 numbers without a gap.
    ///
    /// # Safety
    /// 32 rows must be writable.
    #[inline(always)]
    unsafe fn end_sums(&mut self, to: *mut u8) {
        let stride = 2 * 64;
        // SAFETY: the caller vouches for the memory.
        unsafe {
            self.store::<0>(to, stride);
            self.store::<1>(to.add(64), stride);
            self.store::<2>(to.add(16 * stride), stride);
            self.store::<3>(to.add(16 * stride + 64), stride);
        }
    }
}

/// The rows of each tile. A tile has at least one: where there are no lower rows, what is in it does not matter.
fn rows_of_tiles(rows: usize) -> [u8; 8] {
    let [upper, lower] = [rows.min(16), rows.saturating_sub(16).max(1)].map(|rows| rows as u8);
    [upper, upper, lower, lower, upper, lower, 16, 16]
}

/// Proof that the machine has the unit, and that this process may use it.
pub(crate) struct Amx {
    /// The rows it is configured for; 0 if it is not.
    rows: usize,
}

impl Amx {
    /// # Safety
    /// [`is_available`] must have said yes, and a thread can have one of these at a time.
    pub unsafe fn new() -> Amx {
        Amx { rows: 0 }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        // What is in the tiles need not be kept when another thread gets this core.
        // SAFETY: the instruction exists.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// What the instruction that configures the tiles reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

// The state of the tiles lives from one of these blocks to the next, so they are not said to change them. The compiler has
// no use for the registers itself.
impl Unit for Amx {
    #[inline(always)]
    fn configure(&mut self, rows: usize) {
        if self.rows == rows {
            return;
        }
        self.rows = rows;
        let mut c = Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        c.row_bytes[..8].fill(64);
        c.rows[..8].copy_from_slice(&rows_of_tiles(rows));
        // SAFETY: the configuration is one that the instruction accepts.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &c, options(nostack, preserves_flags, readonly)) };
    }

    #[inline(always)]
    unsafe fn load<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            asm!("tileloadd tmm{tile}, [{from} + {stride}*1]", tile = const TILE, from = in(reg) from,
                stride = in(reg) stride, options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    fn multiply<const SUMS: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: the shapes fit, as configured.
        unsafe {
            asm!("tdpbf16ps tmm{sums}, tmm{a}, tmm{b}", sums = const SUMS, a = const A, b = const B,
                options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn multiply_bytes<const SUMS: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: the shapes fit, as configured.
        unsafe {
            asm!("tdpbusd tmm{sums}, tmm{a}, tmm{b}", sums = const SUMS, a = const A, b = const B,
                options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store<const TILE: usize>(&mut self, to: *mut u8, stride: usize) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            asm!("tilestored [{to} + {stride}*1], tmm{tile}", tile = const TILE, to = in(reg) to,
                stride = in(reg) stride, options(nostack, preserves_flags));
        }
    }
}

/// Whether the machine has the unit and the system lets this process use it, for which it must be asked once. From then on
/// signal stacks of this process must have room for the tiles; if one has not, the answer is no.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_unit() && may_use())
}

fn has_unit() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const ALL: u32 = BF16 | TILE | INT8;
    // SAFETY: every x86-64 has the instruction. Newer compilers know that.
    #[allow(unused_unsafe)]
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & ALL == ALL
    }
}

#[cfg(target_os = "linux")]
fn may_use() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call asks for a permission and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn may_use() -> bool {
    false
}

/// The same in plain Rust, to test what uses it on machines without the unit.
#[cfg(test)]
pub(crate) struct Emulated {
    rows: [usize; 8],
    tiles: [[[u32; 16]; 16]; 8],
}

#[cfg(test)]
impl Emulated {
    pub fn new() -> Emulated {
        Emulated { rows: [0; 8], tiles: [[[0; 16]; 16]; 8] }
    }
}

#[cfg(test)]
impl Unit for Emulated {
    fn configure(&mut self, rows: usize) {
        assert!((1..=32).contains(&rows), "{rows} rows");
        *self = Emulated { rows: rows_of_tiles(rows).map(usize::from), ..Emulated::new() };
    }

    unsafe fn load<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        for row in 0..self.rows[TILE] {
            // SAFETY: the caller vouches for the memory.
            self.tiles[TILE][row] = unsafe { from.add(row * stride).cast::<[u32; 16]>().read_unaligned() };
        }
    }

    fn multiply<const SUMS: usize, const A: usize, const B: usize>(&mut self) {
        // Nothing that is less than a normal number goes in or comes out.
        let normal = |x: f32| if x.is_subnormal() { 0.0 } else { x };
        let number = |bits: u32| normal(f32::from_bits(bits));
        for row in 0..self.rows[SUMS] {
            for column in 0..16 {
                // The terms of either half have a sum of their own.
                let mut sums = [0f32; 2];
                for k in 0..16 {
                    let (a, b) = (self.tiles[A][row][k], self.tiles[B][k][column]);
                    sums[0] = normal(number(a << 16).mul_add(number(b << 16), sums[0]));
                    sums[1] = normal(number(a & 0xFFFF_0000).mul_add(number(b & 0xFFFF_0000), sums[1]));
                }
                let sum = normal(number(self.tiles[SUMS][row][column]) + normal(sums[0] + sums[1]));
                self.tiles[SUMS][row][column] = sum.to_bits();
            }
        }
    }

    fn multiply_bytes<const SUMS: usize, const A: usize, const B: usize>(&mut self) {
        for row in 0..self.rows[SUMS] {
            for column in 0..16 {
                let mut sum = self.tiles[SUMS][row][column] as i32;
                for k in 0..16 {
                    let (a, b) = (self.tiles[A][row][k].to_le_bytes(), self.tiles[B][k][column].to_le_bytes());
                    sum += a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(b as i8)).sum::<i32>();
                }
                self.tiles[SUMS][row][column] = sum as u32;
            }
        }
    }

    unsafe fn store<const TILE: usize>(&mut self, to: *mut u8, stride: usize) {
        for row in 0..self.rows[TILE] {
            // SAFETY: the caller vouches for the memory.
            unsafe { to.add(row * stride).cast::<[u32; 16]>().write_unaligned(self.tiles[TILE][row]) };
        }
    }
}
