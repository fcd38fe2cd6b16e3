// Dropout (Srivastava et al., 2014) and stochastic depth (Huang et al., 2016). Masks are a function of seed and
// position, so the backward pass is the same kernel. VEC: elements of a vector in dropout_samples. X, Y: storage types.

#define THREADS 256

// A thread has four elements, one for each word of a Philox block.
extern "C" __global__ void __launch_bounds__(THREADS)
    dropout_elements(const X* x, const u32* seed, Y* y, const Mask mask, u64 count) {
    const u64 block = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 first = 4 * block;
    if (first >= count) return;
    const uint4 words = random_words(seed, mask.stream, block);
    const float factors[4] = {
        words.x >= mask.keep_from ? mask.factor : 0.0f,
        words.y >= mask.keep_from ? mask.factor : 0.0f,
        words.z >= mask.keep_from ? mask.factor : 0.0f,
        words.w >= mask.keep_from ? mask.factor : 0.0f,
    };
    if (first + 4 <= count) {
        float v[4];
        load<4>(x + first, v);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] *= factors[i];
        store<4>(y + first, v);
    } else {
        for (int i = 0; first + i < count; i++) y[first + i] = from_float<Y>(factors[i] * to_float(x[first + i]));
    }
}

// Stochastic depth: one decision for every sample, of `vectors_per_sample` vectors.
extern "C" __global__ void __launch_bounds__(THREADS)
    dropout_samples(const X* x, const u32* seed, Y* y, const Mask mask, u64 vectors_per_sample, u64 vectors) {
    const u64 vector = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (vector >= vectors) return;
    const float factor = mask_factor(mask, seed, vector / vectors_per_sample);
    float v[VEC];
    load<VEC>(x + VEC * vector, v);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] *= factor;
    store<VEC>(y + VEC * vector, v);
}
