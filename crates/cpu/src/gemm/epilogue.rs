//! The epilogue of a product, and the kernel that applies it to sums and writes C.

use super::check_matrix;
use crate::activation::{Activation, ActivationFn, with_activation};
use crate::simd::{Kernel, Simd};

/// The operations between `A B` and C: `residual + factor * scale * activation(A B + bias)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// `[n]`, added to every row.
    pub bias: Option<&'a [f32]>,
    /// Applied after the bias.
    pub activation: Option<Activation>,
    /// `[n]`, multiplies every row after the activation.
    pub scale: Option<&'a [f32]>,
    /// Multiplies each element: `[m, n]` and its row stride. It must not be C itself.
    pub factor: Option<(&'a [f32], usize)>,
    /// Added last: `[m, n]` and its row stride. It must not be C itself.
    pub residual: Option<(&'a [f32], usize)>,
}

impl<'a> Epilogue<'a> {
    /// The epilogue of the block of C that starts at this row and column.
    pub(crate) fn at(self, row: usize, column: usize) -> Epilogue<'a> {
        Epilogue {
            bias: self.bias.map(|x| &x[column..]),
            activation: self.activation,
            scale: self.scale.map(|x| &x[column..]),
            factor: self.factor.map(|(x, ld)| (&x[row * ld + column..], ld)),
            residual: self.residual.map(|(x, ld)| (&x[row * ld + column..], ld)),
        }
    }

    pub(crate) fn check(&self, m: usize, n: usize) {
        if let Some(bias) = self.bias {
            assert!(bias.len() >= n, "bias of {} for {n} columns", bias.len());
        }
        if let Some(scale) = self.scale {
            assert!(scale.len() >= n, "scale of {} for {n} columns", scale.len());
        }
        for (name, matrix) in [("factor", self.factor), ("residual", self.residual)] {
            if let Some((x, ld)) = matrix {
                check_matrix(name, x.len(), m, n, ld);
            }
        }
    }
}

/// A block of C and the epilogue of its sums.
pub(crate) struct SumsToC<'a> {
    pub columns: usize,
    pub c: *mut f32,
    pub ldc: usize,
    /// Whether the old C is added: it holds the sums of earlier kc blocks, or the caller accumulates.
    pub add_c: bool,
    pub epilogue: Epilogue<'a>,
    /// The residual if it is added before the activation, as in a ResNet: `[rows, columns]` and its row stride.
    pub residual_before_activation: Option<(&'a [f32], usize)>,
    /// Receives the derivative of the activation, laid out as C; null if unused.
    pub d_activation: *mut f32,
}

impl SumsToC<'_> {
    /// A block of no columns.
    pub fn none() -> Self {
        let (c, d_activation) = (std::ptr::null_mut(), std::ptr::null_mut());
        SumsToC {
            columns: 0,
            c,
            ldc: 0,
            add_c: false,
            epilogue: Epilogue::default(),
            residual_before_activation: None,
            d_activation,
        }
    }

    /// Applies the epilogue to the sums of some rows, `stride` apart, and writes these rows of C. `sums` may be in C.
    ///
    /// # Safety
    /// `rows` x `columns` elements from `row` on must be valid: those of C, of the operands of the epilogue, of
    /// `residual_before_activation` and, unless it is null, of `d_activation`. The sums must be readable in whole
    /// vectors.
    #[inline(always)]
    pub unsafe fn store<S: Simd>(&self, s: S, sums: *const f32, stride: usize, row: usize, rows: usize) {
        if self.d_activation.is_null() {
            with_activation!(self.epilogue.activation, f => s.vectorize(StoreRows::<_, false> {
                to_c: self, sums, stride, row, rows, f
            }));
        } else {
            with_activation!(self.epilogue.activation, f => s.vectorize(StoreRows::<_, true> {
                to_c: self, sums, stride, row, rows, f
            }));
        }
    }
}

struct StoreRows<'a, F, const DERIVATIVE: bool> {
    to_c: &'a SumsToC<'a>,
    sums: *const f32,
    stride: usize,
    row: usize,
    rows: usize,
    f: F,
}

impl<F: ActivationFn, const DERIVATIVE: bool> Kernel for StoreRows<'_, F, DERIVATIVE> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let StoreRows { to_c, sums, stride, row: first, rows, ref f } = self;
        let SumsToC { columns, c, ldc, add_c, epilogue, residual_before_activation, d_activation } = *to_c;
        let Epilogue { bias, scale, factor, residual, .. } = epilogue;
        let by_element = factor.is_some() || residual.is_some() || residual_before_activation.is_some();
        // Without operands there is nothing to keep in registers down a column: whole rows, in the order of memory.
        if bias.is_none() && scale.is_none() && !by_element && !add_c && columns.is_multiple_of(S::LANES) {
            for row in 0..rows {
                for column in (0..columns).step_by(S::LANES) {
                    let offset = (first + row) * ldc + column;
                    // SAFETY: guaranteed by the caller of `SumsToC::store`.
                    unsafe {
                        let x = s.load(sums.add(row * stride + column));
                        if DERIVATIVE {
                            let (value, derivative) = f.value_and_derivative(s, x);
                            s.store(c.add(offset), value);
                            s.store(d_activation.add(offset), derivative);
                        } else {
                            s.store(c.add(offset), f.value(s, x));
                        }
                    }
                }
            }
            return;
        }
        let mut column = 0;
        while column < columns {
            let n = columns - column;
            // SAFETY: guaranteed by the caller of `SumsToC::store`.
            unsafe {
                if n >= S::LANES {
                    self.column_of_vectors::<S, false>(s, column, n);
                } else {
                    self.column_of_vectors::<S, true>(s, column, n);
                }
            }
            column += S::LANES;
        }
    }
}

impl<F: ActivationFn, const DERIVATIVE: bool> StoreRows<'_, F, DERIVATIVE> {
    /// One vector of each row: `n` elements from `column` on if it is `PARTIAL`, else all lanes.
    ///
    /// # Safety
    /// As for [`SumsToC::store`].
    #[inline(always)]
    unsafe fn column_of_vectors<S: Simd, const PARTIAL: bool>(&self, s: S, column: usize, n: usize) {
        let StoreRows { to_c, sums, stride, row: first, rows, ref f } = *self;
        let SumsToC { c, ldc, add_c, epilogue, residual_before_activation, d_activation, .. } = *to_c;
        let Epilogue { bias, scale, factor, residual, .. } = epilogue;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let load = |p: *const f32| if PARTIAL { s.load_first(p, n) } else { s.load(p) };
            let store = |p: *mut f32, x: S::V| if PARTIAL { s.store_first(p, x, n) } else { s.store(p, x) };
            let bias = bias.map_or(s.splat(0.0), |bias| load(bias.as_ptr().add(column)));
            for row in 0..rows {
                let offset = (first + row) * ldc + column;
                let of_row = |(matrix, ld): (&[f32], usize)| load(matrix.as_ptr().add((first + row) * ld + column));
                let c = c.add(offset);
                let mut x = s.load(sums.add(row * stride + column));
                if add_c {
                    x = s.add(x, load(c));
                }
                x = s.add(x, bias);
                if let Some(addend) = residual_before_activation {
                    x = s.add(x, of_row(addend));
                }
                if DERIVATIVE {
                    let (value, derivative) = f.value_and_derivative(s, x);
                    store(d_activation.add(offset), derivative);
                    x = value;
                } else {
                    x = f.value(s, x);
                }
                if let Some(scale) = scale {
                    x = s.mul(x, load(scale.as_ptr().add(column)));
                }
                if let Some(factor) = factor {
                    x = s.mul(x, of_row(factor));
                }
                if let Some(residual) = residual {
                    x = s.add(x, of_row(residual));
                }
                store(c, x);
            }
        }
    }
}
