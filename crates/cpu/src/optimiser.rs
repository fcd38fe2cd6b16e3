//! One pass of Adam over a part of a parameter: reads four streams and writes three, which is all that it should cost.

use crate::simd::{Kernel, Simd};

/// The numbers of a step.
#[derive(Clone, Copy)]
pub(crate) struct AdamNumbers {
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub rate: f32,
    /// What the gradient is multiplied by.
    pub factor: f32,
    /// What corrects the mean, and the root of the variance.
    pub corrections: [f32; 2],
    /// Weight decay that is added to the gradient, and to the update.
    pub decays: [f32; 2],
}

/// Changes parameter, mean and variance in place; all slices have one length.
pub(crate) struct AdamStep<'a> {
    pub numbers: AdamNumbers,
    pub parameter: &'a mut [f32],
    pub gradient: &'a [f32],
    pub mean: &'a mut [f32],
    pub variance: &'a mut [f32],
}

impl Kernel for AdamStep<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let AdamNumbers { beta1, beta2, epsilon, rate, factor, corrections, decays } = self.numbers;
        let [beta1, rest1, beta2, rest2] = [beta1, 1.0 - beta1, beta2, 1.0 - beta2].map(|x| s.splat(x));
        let [epsilon, rate, factor] = [epsilon, rate, factor].map(|x| s.splat(x));
        let [[scale, root], [coupled, decoupled]] = [corrections, decays].map(|pair| pair.map(|x| s.splat(x)));
        let count = self.gradient.len();
        assert!([self.parameter.len(), self.mean.len(), self.variance.len()] == [count; 3], "lengths differ");
        let gradient = self.gradient.as_ptr();
        let [parameter, mean, variance] = [self.parameter, self.mean, self.variance].map(<[f32]>::as_mut_ptr);
        let mut i = 0;
        while i < count {
            let n = count - i;
            // SAFETY: reads and writes stay below the length that all slices have.
            unsafe {
                let p = s.load_up_to(parameter.add(i), n);
                let g = s.add(s.mul(factor, s.load_up_to(gradient.add(i), n)), s.mul(coupled, p));
                let m = s.add(s.mul(beta1, s.load_up_to(mean.add(i), n)), s.mul(rest1, g));
                let v = s.add(s.mul(beta2, s.load_up_to(variance.add(i), n)), s.mul(s.mul(rest2, g), g));
                let size = s.add(s.mul(s.sqrt(v), root), epsilon);
                let update = s.add(s.div(s.mul(scale, m), size), s.mul(decoupled, p));
                s.store_up_to(parameter.add(i), s.sub(p, s.mul(rate, update)), n);
                s.store_up_to(mean.add(i), m, n);
                s.store_up_to(variance.add(i), v, n);
            }
            i += S::LANES;
        }
    }
}
