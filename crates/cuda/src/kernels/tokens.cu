// Random indices of a sample's tokens, gathering and scattering of tokens by index, and classes of colours. X, Y:
// storage types of tokens. VEC: elements of a vector, which divides the width of a token, `vectors` vectors.

#define THREADS 256
// The most tokens of a sample.
#define MAX_TOKENS 4096

// order [samples, tokens]: the `chosen` tokens with the smallest random words (the first of equal ones), then the
// others, both in ascending order of tokens. A block has one sample.
extern "C" __global__ void __launch_bounds__(THREADS)
    random_partition(const u32* seed, int* order, u32 stream, u32 tokens, u32 chosen) {
    __shared__ u32 words[MAX_TOKENS];
    __shared__ unsigned char is_chosen[MAX_TOKENS];
    for (u32 i = threadIdx.x; i < tokens; i += THREADS)
        words[i] = random_word(seed, stream, (u64)blockIdx.x * tokens + i);
    __syncthreads();
    for (u32 i = threadIdx.x; i < tokens; i += THREADS) {
        u32 rank = 0;
        for (u32 j = 0; j < tokens; j++) rank += words[j] < words[i] || (words[j] == words[i] && j < i);
        is_chosen[i] = rank < chosen;
    }
    __syncthreads();
    order += (u64)blockIdx.x * tokens;
    for (u32 i = threadIdx.x; i < tokens; i += THREADS) {
        u32 before = 0;
        for (u32 j = 0; j < i; j++) before += is_chosen[j];
        order[is_chosen[i] ? before : chosen + i - before] = (int)i;
    }
}

// sources [samples, tokens]: the token whose embedding each token gets, most often itself. The first `corrupted` of
// order [samples, tokens] get the mask token (index `tokens`) if their random word is below `masked`, else another
// token if it is below `replaced`. A thread has one of `count` places in `order`.
extern "C" __global__ void __launch_bounds__(THREADS)
    token_corruption(const int* order, const u32* seed, int* sources, u32 stream, u32 tokens, u32 corrupted, u32 masked,
                     u32 replaced, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 place = (u32)(i % tokens), token = (u32)order[i];
    if (token >= tokens) return;
    const u32 kind = random_word(seed, stream, 2 * i);
    u32 source = token;
    if (place < corrupted && kind < masked) {
        source = tokens;
    } else if (place < corrupted && kind < replaced && tokens > 1) {
        source = random_word(seed, stream, 2 * i + 1) % (tokens - 1);
        source += source >= token;
    }
    sources[i - place + token] = (int)source;
}

// y [samples, count, width] from x [samples, tokens, width] by the indices order[sample][start .. start + count - 1] of
// order [samples, places]; zeros for an index outside. A thread has one of `all` vectors of y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_tokens(const X* x, const int* order, Y* y, u32 tokens, u32 places, u32 start, u32 count, u32 vectors,
                  u64 all) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= all) return;
    const u64 row = i / vectors, sample = row / count;
    const u32 token = (u32)order[sample * places + start + row % count];
    float v[VEC] = {};
    if (token < tokens) load<VEC>(x + ((sample * tokens + token) * vectors + i % vectors) * VEC, v);
    store<VEC>(y + i * VEC, v);
}

// The gradient of gather_tokens: y [samples, tokens, width] sums for each token the rows of x [samples, count, width]
// whose index is that token, in their order. A warp has one of `rows` tokens.
extern "C" __global__ void __launch_bounds__(THREADS)
    scatter_tokens(const X* x, const int* order, Y* y, u32 tokens, u32 places, u32 start, u32 count, u32 vectors,
                   u64 rows) {
    const u64 row = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const u64 sample = row / tokens;
    const int token = (int)(row % tokens);
    const u32 lane = threadIdx.x % 32;
    order += sample * places + start;
    x += sample * count * vectors * VEC;
    for (u32 first = 0; first < vectors; first += 32) {
        const u32 vector = first + lane;
        float sum[VEC] = {};
        for (u32 base = 0; base < count; base += 32) {
            u32 matches = __ballot_sync(0xffffffffu, base + lane < count && order[base + lane] == token);
            for (; matches != 0; matches &= matches - 1) {
                const u32 place = base + __ffs(matches) - 1;
                if (vector >= vectors) continue;
                float v[VEC];
                load<VEC>(x + ((u64)place * vectors + vector) * VEC, v);
#pragma unroll
                for (int i = 0; i < VEC; i++) sum[i] += v[i];
            }
        }
        if (vector < vectors) store<VEC>(y + (row * vectors + vector) * VEC, sum);
    }
}

// By channel, those with which x was normalised: x · std + mean is in 0 .. 1.
struct Colours {
    float mean[8], std[8];
};

// classes [samples, rows, columns] of the mean colours of cells of `high` x `wide` pixels of x [samples, channels,
// height, width]: three bits of each channel. In f64, in the order of the CPU and without fma, for the same classes.
extern "C" __global__ void __launch_bounds__(THREADS)
    colour_class(const float* x, int* classes, const Colours colours, u32 channels, u32 height, u32 width, u32 high,
                 u32 wide, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 rows = height / high, columns = width / wide;
    const u32 row = (u32)(i / columns % rows), column = (u32)(i % columns);
    int value = 0;
    for (u32 c = 0; c < channels; c++) {
        const float* cell = x + ((i / columns / rows * channels + c) * height + (u64)row * high) * width + column * wide;
        double sum = 0.0;
        for (u32 y = 0; y < high; y++)
            for (u32 z = 0; z < wide; z++) sum += (double)cell[(u64)y * width + z];
        const double scaled = __dmul_rn(sum / (double)(high * wide), (double)colours.std[c]);
        const double level = floor(8.0 * __dadd_rn(scaled, (double)colours.mean[c]));
        value = 8 * value + (int)fmin(fmax(level, 0.0), 7.0);
    }
    classes[i] = value;
}
