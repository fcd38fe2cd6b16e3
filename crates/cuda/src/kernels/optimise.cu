// Optimiser updates of all parameters in one launch (multi-tensor apply; LAMB in two), moving averages likewise, and
// the global norm of all gradients in two launches.
//
// Tensors are divided into chunks of CHUNK elements, one for each block. The table `chunks` has the tensor and the
// chunk of every block, so that one grid covers tensors of any size. `norm` is the global norm of the gradients,
// `step` the number of the step from 1 on.

#define THREADS 256
// As CHUNK in lower/optimise.rs.
#define CHUNK 8192

struct Chunk {
    u32 tensor;
    u32 index; // within the tensor

    __device__ __forceinline__ u64 begin() const { return (u64)index * CHUNK; }
    __device__ __forceinline__ u64 end(u64 count) const { return begin() + CHUNK < count ? begin() + CHUNK : count; }
};

struct Gradient {
    const float* data;
    u64 count;
};

// The sum of squares of every chunk: partials[blocks].
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_squares(const Gradient* gradients, const Chunk* chunks, float* partials) {
    const Chunk chunk = chunks[blockIdx.x];
    const Gradient gradient = gradients[chunk.tensor];
    const u64 begin = chunk.begin(), end = chunk.end(gradient.count);
    float sum = 0.0f;
    for (u64 i = begin + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
        if (i + 4 <= end) {
            float v[4];
            load<4>(gradient.data + i, v);
            sum += v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
        } else {
            for (u64 j = i; j < end; j++) sum += gradient.data[j] * gradient.data[j];
        }
    }
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// norm = sqrt(sum of partials), by one block, in f64.
extern "C" __global__ void __launch_bounds__(THREADS) global_norm(const float* partials, u32 count, float* norm) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < count; i += THREADS) sum += (double)partials[i];
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) *norm = (float)sqrt(sum);
}

// One tensor's update. New values may overwrite the old ones; an output without a consumer is null. Two kernels use
// fields for other values: moving_average has the new sample in `gradient` and the decay in `rate`, guarded_update the
// new value in `gradient` and in `rate` the norm that guards the update.
struct TensorUpdate {
    const float *parameter, *gradient, *mean, *variance;
    float *new_parameter, *new_mean, *new_variance;
    // The new parameter in bf16, which the matrix products of the next run read.
    bf16* bf16_copy;
    const float* rate; // the learning rate
    u64 count;
    // Weight decay: added to the gradient (Adam, SGD), and to the update (AdamW, Lion).
    float coupled_decay, decoupled_decay;
    u32 trust_ratio; // whether the update is scaled by |parameter| / |update| (LAMB)
    // The first block of this tensor in the first pass, which is where its partial sums begin.
    u32 first_block;

    __device__ __forceinline__ void store_parameter(u64 i, float value) const {
        if (new_parameter) new_parameter[i] = value;
        if (bf16_copy) bf16_copy[i] = from_float<bf16>(value);
    }
};

__device__ __forceinline__ bool is_finite(float v) { return fabsf(v) < INFINITY; }

// A tensor's update, with a weight decay that is multiplied by `decay_factor` unless that is null.
__device__ __forceinline__ TensorUpdate with_decay(TensorUpdate p, const float* decay_factor) {
    const float factor = decay_factor ? *decay_factor : 1.0f;
    p.coupled_decay *= factor;
    p.decoupled_decay *= factor;
    return p;
}

// What gradients are multiplied by: min(1, clip / (norm + clip_epsilon)), without clipping 1; -1 if the norm is not
// finite: then parameter and state keep their values.
__device__ __forceinline__ float clip_factor(u32 clips, float clip, float clip_epsilon, float norm) {
    if (!is_finite(norm)) return -1.0f;
    return clips ? fminf(clip / (norm + clip_epsilon), 1.0f) : 1.0f;
}

template <int N> __device__ __forceinline__ void store_if_used(float* to, u64 i, const float (&v)[N]) {
    if (to) store<N>(to + i, v);
}

// Adam (Kingma and Ba, 2015), AdamW (Loshchilov and Hutter, 2019) and LAMB (You et al., 2020).

struct Adam {
    float beta1, beta2, epsilon, clip, clip_epsilon;
    u32 clips;
};

// Learning rate, 1 / (1 - beta1^t) and 1 / sqrt(1 - beta2^t) for step t, and `clip_factor`.
struct AdamStep {
    float rate, mean_correction, root_correction, clip_factor;
};

__device__ __forceinline__ AdamStep adam_step(const TensorUpdate& p, const Adam& adam, const float* step,
                                              const float* norm) {
    const double correct1 = 1.0 - pow((double)adam.beta1, (double)*step);
    const double correct2 = 1.0 - pow((double)adam.beta2, (double)*step);
    AdamStep s;
    s.rate = *p.rate;
    s.mean_correction = (float)(1.0 / correct1);
    s.root_correction = (float)(1.0 / sqrt(correct2));
    s.clip_factor = clip_factor(adam.clips, adam.clip, adam.clip_epsilon, *norm);
    return s;
}

// The update that the learning rate scales: the bias-corrected m / (sqrt(v) + epsilon), plus decoupled weight decay.
__device__ __forceinline__ float direction(const TensorUpdate& p, const Adam& adam, const AdamStep& s, float w, float m,
                                           float v) {
    return s.mean_correction * m / (sqrtf(v) * s.root_correction + adam.epsilon) + p.decoupled_decay * w;
}

// The N elements from i on. With a trust ratio only the moments m and v are written, and the squares of parameter and
// update are added to `squares`.
template <int N>
__device__ __forceinline__ void adam_elements(const TensorUpdate& p, const Adam& adam, const AdamStep& s, u64 i,
                                              float (&squares)[2]) {
    float w[N], g[N], m[N], v[N];
    load<N>(p.parameter + i, w);
    load<N>(p.gradient + i, g);
    load<N>(p.mean + i, m);
    load<N>(p.variance + i, v);
    if (s.clip_factor >= 0.0f) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float d = s.clip_factor * g[j] + p.coupled_decay * w[j];
            m[j] = adam.beta1 * m[j] + (1.0f - adam.beta1) * d;
            v[j] = adam.beta2 * v[j] + (1.0f - adam.beta2) * d * d;
            const float u = direction(p, adam, s, w[j], m[j], v[j]);
            if (p.trust_ratio) {
                squares[0] += w[j] * w[j];
                squares[1] += u * u;
            } else {
                w[j] -= s.rate * u;
            }
        }
    }
    store_if_used<N>(p.new_mean, i, m);
    store_if_used<N>(p.new_variance, i, v);
    if (p.trust_ratio) return;
    store_if_used<N>(p.new_parameter, i, w);
    if (p.bf16_copy) store<N>(p.bf16_copy + i, w);
}

// Adam and AdamW; for LAMB the first pass, with partials [blocks, 2] of the squares of parameter and update.
extern "C" __global__ void __launch_bounds__(THREADS)
    adam(const TensorUpdate* tensors, const Chunk* chunks, const float* step, const float* norm,
         const float* decay_factor, float* partials, const Adam adam) {
    const Chunk chunk = chunks[blockIdx.x];
    const TensorUpdate p = with_decay(tensors[chunk.tensor], decay_factor);
    __shared__ AdamStep shared;
    if (threadIdx.x == 0) shared = adam_step(p, adam, step, norm);
    __syncthreads();
    const AdamStep s = shared;
    const u64 begin = chunk.begin(), end = chunk.end(p.count);
    float squares[2] = {0.0f, 0.0f};
    for (u64 i = begin + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
        if (i + 4 <= end) {
            adam_elements<4>(p, adam, s, i, squares);
        } else {
            for (u64 j = i; j < end; j++) adam_elements<1>(p, adam, s, j, squares);
        }
    }
    if (!p.trust_ratio) return;
    squares[0] = block_sum<THREADS>(squares[0]);
    squares[1] = block_sum<THREADS>(squares[1]);
    if (threadIdx.x == 0) partials[2 * blockIdx.x] = squares[0], partials[2 * blockIdx.x + 1] = squares[1];
}

// The second pass of LAMB, over the chunks of tensors with a trust ratio (1 where either norm is 0); their `new_mean`
// and `new_variance` are not null. Every block adds up the partial sums of its whole tensor, in the same order.
extern "C" __global__ void __launch_bounds__(THREADS)
    adam_with_trust(const TensorUpdate* tensors, const Chunk* chunks, const float* step, const float* norm,
                    const float* decay_factor, const float* partials, const Adam adam) {
    const Chunk chunk = chunks[blockIdx.x];
    const TensorUpdate p = with_decay(tensors[chunk.tensor], decay_factor);
    const u32 blocks = (u32)((p.count + CHUNK - 1) / CHUNK);
    double squares[2] = {0.0, 0.0};
    for (u32 i = threadIdx.x; i < blocks; i += THREADS) {
        squares[0] += (double)partials[2 * (p.first_block + i)];
        squares[1] += (double)partials[2 * (p.first_block + i) + 1];
    }
    squares[0] = block_sum<THREADS>(squares[0]);
    squares[1] = block_sum<THREADS>(squares[1]);
    __shared__ AdamStep shared;
    if (threadIdx.x == 0) {
        shared = adam_step(p, adam, step, norm);
        if (squares[0] > 0.0 && squares[1] > 0.0) shared.rate *= (float)(sqrt(squares[0]) / sqrt(squares[1]));
    }
    __syncthreads();
    const AdamStep s = shared;
    const u64 begin = chunk.begin(), end = chunk.end(p.count);
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
        float w = p.parameter[i];
        if (s.clip_factor >= 0.0f) w -= s.rate * direction(p, adam, s, w, p.new_mean[i], p.new_variance[i]);
        p.store_parameter(i, w);
    }
}

// Lion (Chen et al., 2023); the momentum is `mean`. `step` is unused: optimisers get the same scalars.
struct Lion {
    float beta1, beta2, clip, clip_epsilon;
    u32 clips;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    lion(const TensorUpdate* tensors, const Chunk* chunks, const float* step, const float* norm,
         const float* decay_factor, const Lion lion) {
    const Chunk chunk = chunks[blockIdx.x];
    const TensorUpdate p = with_decay(tensors[chunk.tensor], decay_factor);
    const float factor = clip_factor(lion.clips, lion.clip, lion.clip_epsilon, *norm), rate = *p.rate;
    const u64 begin = chunk.begin(), end = chunk.end(p.count);
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
        float w = p.parameter[i], m = p.mean[i];
        if (factor >= 0.0f) {
            const float g = factor * p.gradient[i];
            const float c = lion.beta1 * m + (1.0f - lion.beta1) * g;
            // 0 and NaN are their own signs.
            const float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c;
            w -= rate * (sign + p.decoupled_decay * w);
            m = lion.beta2 * m + (1.0f - lion.beta2) * g;
        }
        if (p.new_mean) p.new_mean[i] = m;
        p.store_parameter(i, w);
    }
}

// Stochastic gradient descent with momentum, as PyTorch defines it; the momentum buffer is `mean`.
struct Sgd {
    float momentum, dampening, clip, clip_epsilon;
    u32 nesterov, clips;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    sgd(const TensorUpdate* tensors, const Chunk* chunks, const float* step, const float* norm, const Sgd sgd) {
    const Chunk chunk = chunks[blockIdx.x];
    const TensorUpdate p = tensors[chunk.tensor];
    const float factor = clip_factor(sgd.clips, sgd.clip, sgd.clip_epsilon, *norm), rate = *p.rate;
    const bool first = *step <= 1.0f || sgd.momentum == 0.0f;
    const float keep = first ? 0.0f : sgd.momentum, add = first ? 1.0f : 1.0f - sgd.dampening;
    const float buffer_weight = sgd.nesterov ? sgd.momentum : 1.0f, gradient_weight = sgd.nesterov ? 1.0f : 0.0f;
    const u64 begin = chunk.begin(), end = chunk.end(p.count);
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
        float w = p.parameter[i], buffer = p.mean[i];
        if (factor >= 0.0f) {
            const float g = factor * p.gradient[i] + p.coupled_decay * w;
            buffer = keep * buffer + add * g;
            w -= rate * (buffer_weight * buffer + gradient_weight * g);
        }
        if (p.new_mean) p.new_mean[i] = buffer;
        p.store_parameter(i, w);
    }
}

// average = decay · average + (1 - decay) · sample, unless the norm is not finite.
extern "C" __global__ void __launch_bounds__(THREADS)
    moving_average(const TensorUpdate* tensors, const Chunk* chunks, const float* norm) {
    const Chunk chunk = chunks[blockIdx.x];
    const TensorUpdate p = tensors[chunk.tensor];
    const bool update = is_finite(*norm);
    const float decay = *p.rate;
    const u64 begin = chunk.begin(), end = chunk.end(p.count);
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
        const float old = p.parameter[i];
        const float average = update ? decay * old + (1.0f - decay) * p.gradient[i] : old;
        p.store_parameter(i, average);
    }
}

// The new value (in `gradient`) if the norm (in `rate`) is finite, else the old one.
extern "C" __global__ void __launch_bounds__(THREADS) guarded_update(const TensorUpdate* tensors, const Chunk* chunks) {
    const Chunk chunk = chunks[blockIdx.x];
    const TensorUpdate p = tensors[chunk.tensor];
    const float* source = is_finite(*p.rate) ? p.gradient : p.parameter;
    const u64 begin = chunk.begin(), end = chunk.end(p.count);
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
        p.store_parameter(i, source[i]);
    }
}
