// Biases and their gradients [groups, heads, QUERIES, KEYS], which blocks keep in ThreadPairs, the layout of the
// accumulators of the scores. Compiled after tiles.cu.

// Loads the biases of the resident tile, queries from `begin` on, and all keys, or, TRANSPOSED, keys and all queries.
template <int N, int TILES, int THREADS, bool TRANSPOSED>
static __device__ __forceinline__ void read_bias(const ThreadPairs<B, THREADS>& pairs, const B* bias,
                                                 const AttentionShape& s, const BlockWork& work, int begin) {
    const B* from = bias + ((u64)work.group * s.heads + work.head) * QUERIES * KEYS;
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float pair[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int resident_token = begin + row_of(2 * half), streamed_token = tile * N + column_of(n, i);
                    const int query = TRANSPOSED ? streamed_token : resident_token;
                    const int key = TRANSPOSED ? resident_token : streamed_token;
                    pair[i] = query < QUERIES && key < KEYS ? to_float(from[query * KEYS + key]) : 0.0f;
                }
                pairs.set((tile * N / 8 + n) * 2 + half, pair);
            }
}

// Where the block's partial sums of the bias's gradient [QUERIES, KEYS] are, in dbias
// [splits, groups, heads, QUERIES, KEYS], which bias_gradient.cu adds.
static __device__ __forceinline__ float* split_partials(float* dbias, const AttentionShape& s, const BlockWork& work) {
    const u64 split = (u64)work.first_sample / s.samples_per_split;
    return dbias + ((split * s.groups + work.group) * s.heads + work.head) * QUERIES * KEYS;
}
