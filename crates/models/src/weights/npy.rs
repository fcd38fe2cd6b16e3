//! Writes one array as NumPy saves it; `npz` reads them.

use std::io::Write;
use std::path::Path;

use vit_system::atomic_file;

/// Writes an f32 array of this shape, row-major, to a file that appears once it is complete.
pub fn write(path: &Path, shape: &[usize], values: &[f32]) -> std::io::Result<()> {
    atomic_file::write_with(path, |out| {
        start(out, shape)?;
        append(out, values)
    })
}

/// Writes the header of an f32 array of this shape; its elements follow through [`append`].
pub fn start(out: &mut impl Write, shape: &[usize]) -> std::io::Result<()> {
    let extents: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", extents.trim_end());
    // The header follows 10 bytes, ends with a newline, and is padded so that the data start at a multiple of 64.
    let padding = (10 + header.len() + 1).next_multiple_of(64) - (10 + header.len() + 1);
    header.push_str(&" ".repeat(padding));
    header.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())
}

/// Writes more elements, in order.
pub fn append(out: &mut impl Write, values: &[f32]) -> std::io::Result<()> {
    values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
}
