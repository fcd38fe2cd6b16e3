// Dropout (Srivastava et al., 2014), stochastic depth (Huang et al., 2016) and random subsets of tokens. Masks are a
// function of seed and position, so the backward pass of the first two is the same kernel. VEC: elements of a vector in
// dropout_samples. X, Y: storage types.

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

// The most tokens of a sample.
#define MAX_TOKENS 4096
#define DROPPED 0xffffffffu

// The place of every token among the kept ones, or DROPPED. Kept are those with the smallest random words, the first of
// equal ones. A block has one sample. `places` first holds the random words; `kept` is scratch.
__device__ __forceinline__ void token_places(const u32* seed, u32 stream, u32 tokens, u32 keep, u32* places,
                                             u32* kept) {
    for (u32 i = threadIdx.x; i < tokens; i += THREADS)
        places[i] = random_word(seed, stream, (u64)blockIdx.x * tokens + i);
    __syncthreads();
    for (u32 i = threadIdx.x; i < tokens; i += THREADS) {
        u32 rank = 0;
        for (u32 j = 0; j < tokens; j++) rank += places[j] < places[i] || (places[j] == places[i] && j < i);
        kept[i] = rank < keep;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < tokens; i += THREADS) {
        u32 place = 0;
        for (u32 j = 0; j < i; j++) place += kept[j];
        places[i] = kept[i] ? place : DROPPED;
    }
    __syncthreads();
}

// y [samples, keep, width] from x [samples, tokens, width].
extern "C" __global__ void __launch_bounds__(THREADS)
    token_subset(const X* x, const u32* seed, Y* y, u32 stream, u32 tokens, u32 keep, u32 width) {
    __shared__ u32 places[MAX_TOKENS], kept[MAX_TOKENS];
    token_places(seed, stream, tokens, keep, places, kept);
    const u64 from = (u64)blockIdx.x * tokens * width, to = (u64)blockIdx.x * keep * width;
    for (u32 i = threadIdx.x; i < tokens * width; i += THREADS)
        if (places[i / width] != DROPPED)
            y[to + (u64)places[i / width] * width + i % width] = from_float<Y>(to_float(x[from + i]));
}

// dx [samples, tokens, width] from dy [samples, keep, width]: zeros for tokens that were dropped.
extern "C" __global__ void __launch_bounds__(THREADS)
    token_subset_grad(const X* dy, const u32* seed, Y* dx, u32 stream, u32 tokens, u32 keep, u32 width) {
    __shared__ u32 places[MAX_TOKENS], kept[MAX_TOKENS];
    token_places(seed, stream, tokens, keep, places, kept);
    const u64 from = (u64)blockIdx.x * keep * width, to = (u64)blockIdx.x * tokens * width;
    for (u32 i = threadIdx.x; i < tokens * width; i += THREADS) {
        const u32 source = places[i / width];
        const float value = source == DROPPED ? 0.0f : to_float(dy[from + (u64)source * width + i % width]);
        dx[to + i] = from_float<Y>(value);
    }
}
