//! Element types, shapes and the broadcasting rule.

use std::fmt;
use std::ops::Deref;

/// The type of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 16-bit float, 8 exponent bits.
    BF16,
    /// 16-bit float, 5 exponent bits.
    F16,
    /// 32-bit integer: labels, indices, seeds.
    I32,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::BF16 | DType::F16 => 2,
        }
    }

    /// Whether gradients flow through values of this type.
    pub fn is_float(self) -> bool {
        self != DType::I32
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
        })
    }
}

/// The extents of a value, outermost first; row-major and dense.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// The number of elements, or `None` where the product overflows.
    pub fn checked_elements(&self) -> Option<usize> {
        self.0.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }

    /// The number of elements, which does not overflow for shapes in a [`crate::Graph`].
    pub fn elements(&self) -> usize {
        self.0.iter().product()
    }

    /// The last extent, 1 for a scalar.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// The number of rows of [`Shape::last`] elements.
    pub fn rows(&self) -> usize {
        self.0[..self.0.len().saturating_sub(1)].iter().product()
    }

    /// The row-major strides, in elements.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.0.len()];
        for axis in (1..self.0.len()).rev() {
            strides[axis - 1] = strides[axis] * self.0[axis];
        }
        strides
    }

    /// This shape with one extent replaced.
    pub fn with(&self, axis: usize, extent: usize) -> Shape {
        let mut shape = self.clone();
        shape.0[axis] = extent;
        shape
    }

    /// This shape with the last extent replaced; a scalar gains an axis.
    pub fn with_last(&self, extent: usize) -> Shape {
        let mut extents = self.0.clone();
        extents.pop();
        extents.push(extent);
        Shape(extents)
    }

    /// The shape that two operands broadcast to: axes are matched from the last, an extent of 1 repeats.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.0.len().max(other.0.len());
        let extent = |s: &Shape, axis: usize| (axis + s.0.len()).checked_sub(rank).map_or(1, |i| s.0[i]);
        (0..rank)
            .map(|axis| match (extent(self, axis), extent(other, axis)) {
                (a, b) if a == b => Some(a),
                (1, b) => Some(b),
                (a, 1) => Some(a),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()
            .map(Shape)
    }

    /// The strides of this shape broadcast to `to`; 0 along repeated axes.
    pub fn broadcast_strides(&self, to: &Shape) -> Vec<usize> {
        let strides = self.strides();
        let offset = to.0.len() - self.0.len();
        (0..to.0.len())
            .map(|axis| if axis < offset || self.0[axis - offset] == 1 { 0 } else { strides[axis - offset] })
            .collect()
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, extent) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{extent}")?;
        }
        f.write_str("]")
    }
}

impl From<Vec<usize>> for Shape {
    fn from(extents: Vec<usize>) -> Self {
        Shape(extents)
    }
}

impl From<&[usize]> for Shape {
    fn from(extents: &[usize]) -> Self {
        Shape(extents.to_vec())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(extents: [usize; N]) -> Self {
        Shape(extents.to_vec())
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        self.0 == other
    }
}

/// The type of a value: element type and shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Type {
    /// The element type.
    pub dtype: DType,
    /// The extents.
    pub shape: Shape,
}

impl Type {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        Type { dtype, shape: shape.into() }
    }

    /// An f32 value of this shape.
    pub fn f32(shape: impl Into<Shape>) -> Self {
        Type::new(DType::F32, shape)
    }

    /// Bytes of the whole value.
    pub fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size()
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_matches_axes_from_the_last() {
        let a = Shape::from([2, 1, 4]);
        assert_eq!(a.broadcast(&Shape::from([3, 1])), Some(Shape::from([2, 3, 4])));
        assert_eq!(a.broadcast(&Shape::from([3])), None);
        assert_eq!(Shape::from([4]).broadcast_strides(&Shape::from([2, 4])), [0, 1]);
        assert_eq!(Shape::default().broadcast(&a), Some(a));
    }

    #[test]
    fn overflowing_products_are_detected() {
        assert_eq!(Shape::from([usize::MAX, 2]).checked_elements(), None);
        assert_eq!(Shape::from([0, usize::MAX]).checked_elements(), Some(0));
    }
}
