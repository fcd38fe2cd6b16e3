// How biases and their gradients come and go: every thread has those of its own scores.

// Reads the biases of a tile of queries and all keys, or, TRANSPOSED, of a tile of keys and all queries.
template <int N, int TILES, int THREADS, bool TRANSPOSED>
static __device__ __forceinline__ void read_bias(const Own<B, THREADS>& own, const B* bias, const Shape& s, const Walk& walk,
                                                 int begin) {
    const B* from = bias + ((u64)walk.group * s.heads + walk.head) * QUERIES * KEYS;
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float pair[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int mine = begin + row_of(2 * half), other = tile * N + column_of(n, i);
                    const int query = TRANSPOSED ? other : mine, key = TRANSPOSED ? mine : other;
                    pair[i] = query < QUERIES && key < KEYS ? to_float(from[query * KEYS + key]) : 0.0f;
                }
                own.set((tile * N / 8 + n) * 2 + half, pair);
            }
}

// The place of a block's share of the bias's gradient: [share of the samples][group][head][query][key].
static __device__ __forceinline__ float* share_of(float* dbias, const Shape& s, const Walk& walk) {
    return dbias + (((u64)walk.first / s.share * s.groups + walk.group) * s.heads + walk.head) * QUERIES * KEYS;
}
