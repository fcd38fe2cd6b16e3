// The optimiser's update of all parameters in one launch, and the norm of all gradients in two.
//
// Tensors are cut into chunks of CHUNK elements; a table says which chunk belongs to which tensor, so that one grid
// covers tensors of any size.
#define THREADS 256
#define CHUNK 8192

struct Chunk {
    u32 tensor;
    u32 number;
};

struct Gradient {
    const float* data;
    u64 count;
};

// The sum of squares of every chunk.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_squares(const Gradient* gradients, const Chunk* chunks, float* partials) {
    const Chunk chunk = chunks[blockIdx.x];
    const Gradient gradient = gradients[chunk.tensor];
    const u64 begin = (u64)chunk.number * CHUNK;
    const u64 end = begin + CHUNK < gradient.count ? begin + CHUNK : gradient.count;
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

// The root of their sum, by one block.
extern "C" __global__ void __launch_bounds__(THREADS) root_of_sum(const float* partials, u32 count, float* norm) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < count; i += THREADS) sum += (double)partials[i];
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) *norm = (float)sqrt(sum);
}

// One parameter: what is read, and where the new values go, which may be the same place or, for one that nobody wants,
// nowhere. `copy` is the parameter in bf16, for the next run's matrix products.
struct Parameter {
    const float *parameter, *gradient, *mean, *variance;
    float *new_parameter, *new_mean, *new_variance;
    bf16* copy;
    u64 count;
    float weight_decay;
    u32 unused;
};

struct Adam {
    float beta1, beta2, epsilon, clip, clip_epsilon;
    u32 clips;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw(const Parameter* parameters, const Chunk* chunks, const float* rate, const float* step, const float* norm,
          const Adam adam) {
    const Chunk chunk = chunks[blockIdx.x];
    const Parameter p = parameters[chunk.tensor];
    __shared__ float numbers[4];
    if (threadIdx.x == 0) {
        const double correct1 = 1.0 - pow((double)adam.beta1, (double)*step);
        const double correct2 = 1.0 - pow((double)adam.beta2, (double)*step);
        numbers[0] = (float)((double)*rate / correct1);
        numbers[1] = (float)(1.0 / sqrt(correct2));
        numbers[2] = (float)(1.0 - (double)*rate * (double)p.weight_decay);
        numbers[3] = adam.clips ? fminf(adam.clip / (*norm + adam.clip_epsilon), 1.0f) : 1.0f;
    }
    __syncthreads();
    const float step_size = numbers[0], root = numbers[1], keep = numbers[2], factor = numbers[3];
    const u64 begin = (u64)chunk.number * CHUNK;
    const u64 end = begin + CHUNK < p.count ? begin + CHUNK : p.count;
    for (u64 i = begin + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
        if (i + 4 <= end) {
            float w[4], g[4], m[4], v[4];
            load<4>(p.parameter + i, w);
            load<4>(p.gradient + i, g);
            load<4>(p.mean + i, m);
            load<4>(p.variance + i, v);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float d = factor * g[j];
                m[j] = adam.beta1 * m[j] + (1.0f - adam.beta1) * d;
                v[j] = adam.beta2 * v[j] + (1.0f - adam.beta2) * d * d;
                w[j] = keep * w[j] - step_size * m[j] / (sqrtf(v[j]) * root + adam.epsilon);
            }
            if (p.new_parameter) store<4>(p.new_parameter + i, w);
            if (p.new_mean) store<4>(p.new_mean + i, m);
            if (p.new_variance) store<4>(p.new_variance + i, v);
            if (p.copy) store<4>(p.copy + i, w);
        } else {
            for (u64 j = i; j < end; j++) {
                const float d = factor * p.gradient[j];
                const float m = adam.beta1 * p.mean[j] + (1.0f - adam.beta1) * d;
                const float v = adam.beta2 * p.variance[j] + (1.0f - adam.beta2) * d * d;
                const float w = keep * p.parameter[j] - step_size * m / (sqrtf(v) * root + adam.epsilon);
                if (p.new_parameter) p.new_parameter[j] = w;
                if (p.new_mean) p.new_mean[j] = m;
                if (p.new_variance) p.new_variance[j] = v;
                if (p.copy) p.copy[j] = from_float<bf16>(w);
            }
        }
    }
}
