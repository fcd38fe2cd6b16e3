//! The optimisers' update rules, applied in place to a parameter and its state in one pass over memory.
//! Products and sums are rounded separately, never fused: every instruction set gives the same bits.
//!
//! An optimiser is added with a type that implements [`ElementUpdate`], and an arm in [`optimiser_step`].

use vit_graph::ops::{Adam, Lion, OptimiserUpdate, Sgd};

use crate::isa::Isa;
use crate::simd::{Kernel, MAX_LANES, Simd};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// Elements of one task, a constant so that the sums of LAMB do not depend on the number of threads.
const CHUNK: usize = 16 * 1024;

/// How one element of a parameter changes, given `READS` values that stay (usually the gradient) and `STATE` values
/// that change with it (the optimiser's moments).
pub(crate) trait ElementUpdate<const READS: usize, const STATE: usize>: Copy + Send + Sync {
    /// The new parameter and state.
    fn update<S: Simd>(
        self,
        s: S,
        parameter: S::V,
        reads: [S::V; READS],
        state: [S::V; STATE],
    ) -> (S::V, [S::V; STATE]);
}

/// The scalars of a step.
#[derive(Clone, Copy)]
pub(crate) struct StepScalars {
    pub learning_rate: f32,
    /// From 1 on.
    pub step: f32,
    /// Clipping, as a factor of the gradient.
    pub gradient_scale: f32,
}

/// Applies an optimiser to a parameter and its state, which are the outputs.
pub(crate) fn optimiser_step(
    pool: &ThreadPool,
    isa: Isa,
    op: &OptimiserUpdate,
    scalars: StepScalars,
    gradient: &[f32],
    outputs: &mut [&mut [f32]],
    workspace: &mut [f32],
) {
    match (op, outputs) {
        (OptimiserUpdate::Adam(op), [parameter, mean, variance]) => {
            let rule = AdamRule::new(op, scalars);
            match op.trust_ratio {
                true => lamb(pool, isa, rule, parameter, gradient, [mean, variance], workspace),
                false => update(pool, isa, rule, parameter, [gradient], [mean, variance]),
            }
        }
        (OptimiserUpdate::Lion(op), [parameter, momentum]) => {
            update(pool, isa, LionRule { op: *op, scalars }, parameter, [gradient], [momentum]);
        }
        (OptimiserUpdate::Sgd(op), [parameter, buffer]) => {
            update(pool, isa, SgdRule::new(op, scalars), parameter, [gradient], [buffer]);
        }
        _ => unreachable!("the graph checked the number of outputs"),
    }
}

/// Elements of workspace that [`optimiser_step`] needs for a parameter of this length.
pub(crate) fn step_workspace(op: OptimiserUpdate, length: usize) -> usize {
    match op {
        OptimiserUpdate::Adam(Adam { trust_ratio: true, .. }) => lamb_workspace(length),
        _ => 0,
    }
}

/// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019); the state is mean and variance.
#[derive(Clone, Copy)]
pub(crate) struct AdamRule {
    pub learning_rate: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    /// Clipping, as a factor of the gradient.
    pub gradient_scale: f32,
    /// `1 / (1 - beta1^step)`
    pub mean_correction: f32,
    /// `1 / sqrt(1 - beta2^step)`
    pub root_correction: f32,
    /// Weight decay that is added to the gradient (Adam).
    pub gradient_decay: f32,
    /// Weight decay that is added to the update (AdamW).
    pub update_decay: f32,
}

impl AdamRule {
    fn new(op: &Adam, StepScalars { learning_rate, step, gradient_scale }: StepScalars) -> Self {
        let [correct1, correct2] = [op.beta1, op.beta2].map(|beta| 1.0 - f64::from(beta).powf(f64::from(step)));
        let (gradient_decay, update_decay) = if op.decoupled { (0.0, op.weight_decay) } else { (op.weight_decay, 0.0) };
        AdamRule {
            learning_rate,
            beta1: op.beta1,
            beta2: op.beta2,
            epsilon: op.epsilon,
            gradient_scale,
            mean_correction: (1.0 / correct1) as f32,
            root_correction: (1.0 / correct2.sqrt()) as f32,
            gradient_decay,
            update_decay,
        }
    }

    #[inline(always)]
    fn moments<S: Simd>(&self, s: S, parameter: S::V, gradient: S::V, [mean, variance]: [S::V; 2]) -> [S::V; 2] {
        let scaled = s.mul(s.splat(self.gradient_scale), gradient);
        let g = s.add(scaled, s.mul(s.splat(self.gradient_decay), parameter));
        let (beta1, beta2) = (s.splat(self.beta1), s.splat(self.beta2));
        let (rest1, rest2) = (s.splat(1.0 - self.beta1), s.splat(1.0 - self.beta2));
        [s.add(s.mul(beta1, mean), s.mul(rest1, g)), s.add(s.mul(beta2, variance), s.mul(s.mul(rest2, g), g))]
    }

    /// The update before the learning rate.
    #[inline(always)]
    fn direction<S: Simd>(&self, s: S, parameter: S::V, [mean, variance]: [S::V; 2]) -> S::V {
        let root = s.mul(s.sqrt(variance), s.splat(self.root_correction));
        let step = s.div(s.mul(s.splat(self.mean_correction), mean), s.add(root, s.splat(self.epsilon)));
        s.add(step, s.mul(s.splat(self.update_decay), parameter))
    }
}

impl ElementUpdate<1, 2> for AdamRule {
    #[inline(always)]
    fn update<S: Simd>(self, s: S, parameter: S::V, [gradient]: [S::V; 1], state: [S::V; 2]) -> (S::V, [S::V; 2]) {
        let state = self.moments(s, parameter, gradient, state);
        (descend(s, parameter, self.learning_rate, self.direction(s, parameter, state)), state)
    }
}

/// Lion (Chen et al., 2023); the state is the momentum.
#[derive(Clone, Copy)]
struct LionRule {
    op: Lion,
    scalars: StepScalars,
}

impl ElementUpdate<1, 1> for LionRule {
    #[inline(always)]
    fn update<S: Simd>(self, s: S, parameter: S::V, [gradient]: [S::V; 1], [momentum]: [S::V; 1]) -> (S::V, [S::V; 1]) {
        let Lion { beta1, beta2, weight_decay, .. } = self.op;
        let g = s.mul(s.splat(self.scalars.gradient_scale), gradient);
        let interpolation = weighted_sum(s, [beta1, 1.0 - beta1], [momentum, g]);
        let direction = s.add(sign(s, interpolation), s.mul(s.splat(weight_decay), parameter));
        let momentum = weighted_sum(s, [beta2, 1.0 - beta2], [momentum, g]);
        (descend(s, parameter, self.scalars.learning_rate, direction), [momentum])
    }
}

/// 1, -1, or the value itself if it is 0 or NaN.
#[inline(always)]
fn sign<S: Simd>(s: S, value: S::V) -> S::V {
    let zero = s.splat(0.0);
    s.select(s.lt(zero, value), s.splat(1.0), s.select(s.lt(value, zero), s.splat(-1.0), value))
}

/// Stochastic gradient descent with momentum; the state is the momentum buffer.
#[derive(Clone, Copy)]
pub(crate) struct SgdRule {
    pub learning_rate: f32,
    pub weight_decay: f32,
    /// Clipping, as a factor of the gradient.
    pub gradient_scale: f32,
    /// The new buffer, as weights of the old buffer and the gradient.
    pub buffer_weights: [f32; 2],
    /// The update, as weights of the new buffer and the gradient.
    pub update_weights: [f32; 2],
}

impl SgdRule {
    fn new(op: &Sgd, StepScalars { learning_rate, step, gradient_scale }: StepScalars) -> Self {
        let [old_buffer, add_gradient, of_buffer, of_gradient] = op.weights(step);
        SgdRule {
            learning_rate,
            weight_decay: op.weight_decay,
            gradient_scale,
            buffer_weights: [old_buffer, add_gradient],
            update_weights: [of_buffer, of_gradient],
        }
    }
}

impl ElementUpdate<1, 1> for SgdRule {
    #[inline(always)]
    fn update<S: Simd>(self, s: S, parameter: S::V, [gradient]: [S::V; 1], [buffer]: [S::V; 1]) -> (S::V, [S::V; 1]) {
        let scaled = s.mul(s.splat(self.gradient_scale), gradient);
        let g = s.add(scaled, s.mul(s.splat(self.weight_decay), parameter));
        let buffer = weighted_sum(s, self.buffer_weights, [buffer, g]);
        (descend(s, parameter, self.learning_rate, weighted_sum(s, self.update_weights, [buffer, g])), [buffer])
    }
}

/// The exponential moving average of a value; the average takes the place of the parameter.
#[derive(Clone, Copy)]
pub(crate) struct MovingAverageRule {
    pub decay: f32,
}

impl ElementUpdate<1, 0> for MovingAverageRule {
    #[inline(always)]
    fn update<S: Simd>(self, s: S, average: S::V, [value]: [S::V; 1], _: [S::V; 0]) -> (S::V, [S::V; 0]) {
        (weighted_sum(s, [self.decay, 1.0 - self.decay], [average, value]), [])
    }
}

/// The second pass of LAMB: mean and variance are known, and the learning rate includes the trust ratio.
#[derive(Clone, Copy)]
struct LambRule(AdamRule);

impl ElementUpdate<2, 0> for LambRule {
    #[inline(always)]
    fn update<S: Simd>(self, s: S, parameter: S::V, moments: [S::V; 2], _: [S::V; 0]) -> (S::V, [S::V; 0]) {
        (descend(s, parameter, self.0.learning_rate, self.0.direction(s, parameter, moments)), [])
    }
}

#[inline(always)]
fn weighted_sum<S: Simd>(s: S, weights: [f32; 2], values: [S::V; 2]) -> S::V {
    s.add(s.mul(s.splat(weights[0]), values[0]), s.mul(s.splat(weights[1]), values[1]))
}

#[inline(always)]
fn descend<S: Simd>(s: S, parameter: S::V, learning_rate: f32, direction: S::V) -> S::V {
    s.sub(parameter, s.mul(s.splat(learning_rate), direction))
}

/// Applies a rule to every element, in place.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn update<R: ElementUpdate<READS, STATE>, const READS: usize, const STATE: usize>(
    pool: &ThreadPool,
    isa: Isa,
    rule: R,
    parameter: &mut [f32],
    reads: [&[f32]; READS],
    state: [&mut [f32]; STATE],
) {
    let length = parameter.len();
    let (parameter, state) = (DisjointMut::new(parameter), state.map(DisjointMut::new));
    pool.run(length.div_ceil(CHUNK), &|task| {
        let (start, count) = (task * CHUNK, CHUNK.min(length - task * CHUNK));
        isa.dispatch(UpdateChunk {
            rule,
            // SAFETY: the chunks of tasks do not overlap.
            parameter: unsafe { parameter.slice(start, count) },
            reads: reads.map(|values| &values[start..][..count]),
            // SAFETY: as above.
            state: state.each_ref().map(|values| unsafe { values.slice(start, count) }),
        });
    });
}

struct UpdateChunk<'a, R, const READS: usize, const STATE: usize> {
    rule: R,
    parameter: &'a mut [f32],
    reads: [&'a [f32]; READS],
    state: [&'a mut [f32]; STATE],
}

impl<R: ElementUpdate<READS, STATE>, const READS: usize, const STATE: usize> Kernel
    for UpdateChunk<'_, R, READS, STATE>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let count = self.parameter.len();
        let (all_read, all_state) =
            (self.reads.iter().all(|r| r.len() == count), self.state.iter().all(|x| x.len() == count));
        assert!(all_read && all_state, "a parameter, its gradient and its state have one length");
        let parameter = self.parameter.as_mut_ptr();
        let (reads, state) = (self.reads.map(<[f32]>::as_ptr), self.state.map(<[f32]>::as_mut_ptr));
        let mut i = 0;
        // SAFETY: all slices have `count` elements.
        unsafe {
            while i + S::LANES <= count {
                update_vector(s, self.rule, i, S::LANES, parameter, &reads, &state);
                i += S::LANES;
            }
            if i < count {
                update_vector(s, self.rule, i, count - i, parameter, &reads, &state);
            }
        }
    }
}

/// Updates `n` elements from `i` on. Inlined with a constant `n`, loads and stores of a whole vector have no branches.
///
/// # Safety
/// The elements must be readable and, except those of `reads`, writable.
#[inline(always)]
unsafe fn update_vector<S: Simd, R: ElementUpdate<READS, STATE>, const READS: usize, const STATE: usize>(
    s: S,
    rule: R,
    i: usize,
    n: usize,
    parameter: *mut f32,
    reads: &[*const f32; READS],
    state: &[*mut f32; STATE],
) {
    let (mut read, mut old) = ([s.splat(0.0); READS], [s.splat(0.0); STATE]);
    // SAFETY: guaranteed by the caller.
    unsafe {
        for (value, from) in read.iter_mut().zip(reads) {
            *value = s.load_up_to(from.add(i), n);
        }
        for (value, from) in old.iter_mut().zip(state) {
            *value = s.load_up_to(from.add(i), n);
        }
        let (value, new) = rule.update(s, s.load_up_to(parameter.add(i), n), read, old);
        s.store_up_to(parameter.add(i), value, n);
        for (value, to) in new.into_iter().zip(state) {
            s.store_up_to(to.add(i), value, n);
        }
    }
}

/// Elements of workspace that [`lamb`] needs for a parameter of this length.
pub(crate) fn lamb_workspace(length: usize) -> usize {
    2 * length.div_ceil(CHUNK)
}

/// LAMB (You et al., 2020): Adam whose update of a whole parameter is scaled to the parameter's norm.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn lamb(
    pool: &ThreadPool,
    isa: Isa,
    mut rule: AdamRule,
    parameter: &mut [f32],
    gradient: &[f32],
    [mean, variance]: [&mut [f32]; 2],
    workspace: &mut [f32],
) {
    let squares = &mut workspace[..lamb_workspace(parameter.len())];
    {
        let (parameter, moments) = (&*parameter, [&mut *mean, &mut *variance].map(DisjointMut::new));
        pool.run_chunks(squares, 2, &|task, squares| {
            let (start, count) = (task * CHUNK, CHUNK.min(parameter.len() - task * CHUNK));
            isa.dispatch(LambMoments {
                rule,
                parameter: &parameter[start..][..count],
                gradient: &gradient[start..][..count],
                // SAFETY: the chunks of tasks do not overlap.
                moments: moments.each_ref().map(|values| unsafe { values.slice(start, count) }),
                squares,
            });
        });
    }
    // `[chunk][2]`: sums of squares of the parameter and of its update.
    let norm = |first: usize| squares[first..].iter().step_by(2).map(|&s| f64::from(s)).sum::<f64>().sqrt();
    let trust_ratio = match (norm(0), norm(1)) {
        (parameter, update) if parameter > 0.0 && update > 0.0 => (parameter / update) as f32,
        _ => 1.0,
    };
    rule.learning_rate *= trust_ratio;
    update(pool, isa, LambRule(rule), parameter, [mean, variance], []);
}

/// The first pass of LAMB: new moments, and the sums of squares of parameter and update.
struct LambMoments<'a> {
    rule: AdamRule,
    parameter: &'a [f32],
    gradient: &'a [f32],
    moments: [&'a mut [f32]; 2],
    /// Receives the two sums.
    squares: &'a mut [f32],
}

impl Kernel for LambMoments<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let count = self.parameter.len();
        let [mean, variance] = self.moments;
        assert!([self.gradient.len(), mean.len(), variance.len()] == [count; 3], "lengths differ");
        let (parameter, gradient) = (self.parameter.as_ptr(), self.gradient.as_ptr());
        let (mean, variance) = (mean.as_mut_ptr(), variance.as_mut_ptr());
        // `MAX_LANES` partial sums on every instruction set, in as many vectors as that takes.
        let mut sums = [[0.0f32; MAX_LANES]; 2];
        let mut i = 0;
        while i < count {
            let n = (count - i).min(S::LANES);
            // SAFETY: reads and writes stay below `count`, the length of all slices; the sums of a vector start at a
            // multiple of LANES below MAX_LANES.
            unsafe {
                let p = s.load_up_to(parameter.add(i), n);
                let old = [s.load_up_to(mean.add(i), n), s.load_up_to(variance.add(i), n)];
                let moments = self.rule.moments(s, p, s.load_up_to(gradient.add(i), n), old);
                s.store_up_to(mean.add(i), moments[0], n);
                s.store_up_to(variance.add(i), moments[1], n);
                let update = s.first_or(self.rule.direction(s, p, moments), n, s.splat(0.0));
                for (value, sums) in [p, update].into_iter().zip(&mut sums) {
                    let sums = sums.as_mut_ptr().add(i % MAX_LANES);
                    s.store(sums, s.add(s.load(sums), s.mul(value, value)));
                }
            }
            i += S::LANES;
        }
        self.squares.iter_mut().zip(sums).for_each(|(total, sums)| *total = sums.iter().sum());
    }
}
