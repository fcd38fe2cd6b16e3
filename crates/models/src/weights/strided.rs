//! Gathers the elements of a strided view into row-major order: PyTorch stores views of shared storages, NumPy stores
//! Fortran order. All arithmetic is checked, since sizes and strides come from the file.

use std::borrow::Cow;

/// The bytes of a view of `storage` in row-major order, borrowed if they are contiguous; `offset` and `strides` are in
/// elements of `size` bytes. `None` if the view leaves the storage or a product overflows. The caller must bound the number
/// of elements.
pub(super) fn gather<'a>(
    storage: &'a [u8],
    size: usize,
    offset: usize,
    shape: &[usize],
    strides: &[usize],
) -> Option<Cow<'a, [u8]>> {
    if shape.len() != strides.len() {
        return None;
    }
    let count = super::element_count(shape)?;
    if count == 0 {
        return Some(Cow::Borrowed(&[]));
    }
    let last = shape
        .iter()
        .zip(strides)
        .try_fold(offset, |last, (&axis, &stride)| last.checked_add((axis - 1).checked_mul(stride)?))?;
    if last.checked_add(1)?.checked_mul(size)? > storage.len() {
        return None;
    }
    if is_contiguous(shape, strides) {
        let start = offset * size;
        return storage.get(start..start + count * size).map(Cow::Borrowed);
    }

    let mut gathered = Vec::with_capacity(count.checked_mul(size)?);
    let mut index = vec![0usize; shape.len()];
    for _ in 0..count {
        let element = index.iter().zip(strides).fold(offset, |at, (&i, &stride)| at + i * stride);
        gathered.extend_from_slice(storage.get(element * size..(element + 1) * size)?);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Some(Cow::Owned(gathered))
}

/// The strides of a Fortran-ordered array: the first axis is the fastest.
pub(super) fn fortran(shape: &[usize]) -> Option<Vec<usize>> {
    let mut stride = 1usize;
    let mut strides = Vec::with_capacity(shape.len());
    for &axis in shape {
        strides.push(stride);
        stride = stride.checked_mul(axis)?;
    }
    Some(strides)
}

/// Whether the view is row-major. The stride of an axis of length 1 does not matter.
fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    for (&axis, &stride) in shape.iter().zip(strides).rev() {
        if axis != 1 && stride != expected {
            return false;
        }
        expected *= axis;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transposed_view_is_gathered_in_row_major_order() {
        let storage: Vec<u8> = (0..12).collect();
        assert_eq!(*gather(&storage, 2, 0, &[2, 3], &[1, 2]).unwrap(), [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]);
        assert_eq!(fortran(&[2, 3]).unwrap(), [1, 2]);
    }

    #[test]
    fn a_view_past_its_storage_is_refused() {
        let storage = [0u8; 12];
        assert!(gather(&storage, 2, 1, &[2, 3], &[3, 1]).is_none());
        assert!(gather(&storage, 2, 0, &[2, 3], &[usize::MAX, 1]).is_none());
        assert!(gather(&storage, 2, 0, &[usize::MAX, 3], &[0, 0]).is_none());
        assert!(gather(&storage, 2, usize::MAX, &[], &[]).is_none());
        assert!(gather(&storage, 2, 99, &[0], &[1]).unwrap().is_empty());
    }
}
