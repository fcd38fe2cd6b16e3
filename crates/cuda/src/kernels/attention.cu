// Attention forward and backward (FlashAttention, Dao et al., 2022) for heads of up to 128, with bias and dropout, in
// f32 on CUDA cores. Tiles of 32 queries and 32 keys are in shared memory; scores are never written to device memory.
// Every sum has a fixed order.
//
// Layouts: q, k, v, out, dy and the gradients [batch, tokens, heads, HEAD_DIM] with a stride for tokens; lse (natural
// logarithms) and delta [batch, heads, queries]; weights and masks [batch, heads, queries, keys]; bias [groups, heads,
// queries, keys].
//
// HEAD_DIM: the head size. Storage types: Q of query, key and value; B of the bias; O of the result; DY of dy; DX of
// the operands' gradients.

#define TILE 32
#define THREADS 256
// A thread sums rows ty and ty + 16 of a tile of results, each in COLUMNS columns, every 16th from tx on, where
// threadIdx.x is 16 ty + tx. Tiles in shared memory are [TILE][PITCH]: the odd pitch avoids bank conflicts.
#define COLUMNS ((HEAD_DIM + 15) / 16)
#define PITCH (16 * COLUMNS + 1)

struct AttentionShape {
    u32 heads, queries, keys;
    // Sample b has the bias of group b mod groups.
    u32 groups, batch;
    float scale;
    // From one token to the next, in elements.
    u64 q_stride, k_stride, v_stride, out_stride;
    u64 dq_stride, dk_stride, dv_stride;
};

// The sample, head and tile of tokens of a block, and the row of the head's first query in [batch, heads, queries].
struct HeadTile {
    u32 tile, head, sample;
    u64 first_row;
};

__device__ __forceinline__ HeadTile head_tile(const AttentionShape& s, u32 tiles) {
    HeadTile p;
    p.tile = blockIdx.x % tiles;
    p.head = blockIdx.x / tiles % s.heads;
    p.sample = blockIdx.x / tiles / s.heads;
    p.first_row = ((u64)p.sample * s.heads + p.head) * s.queries;
    return p;
}

// Loads 32 tokens of one head, from token `first` on, with zeros past the sample's last token and past HEAD_DIM.
template <class T>
__device__ __forceinline__ void load_tile(float* tile, const T* from, u64 stride, u32 first, u32 tokens, u32 sample,
                                          u32 head) {
    for (u32 i = threadIdx.x; i < TILE * 16 * COLUMNS; i += THREADS) {
        const u32 token = i / (16 * COLUMNS), c = i % (16 * COLUMNS);
        const bool inside = first + token < tokens && c < HEAD_DIM;
        tile[token * PITCH + c] =
            inside ? to_float(from[((u64)sample * tokens + first + token) * stride + head * HEAD_DIM + c]) : 0.0f;
    }
}

__device__ __forceinline__ float dot(const float* a, const float* b) {
    float sum = 0.0f;
#pragma unroll 8
    for (int c = 0; c < HEAD_DIM; c++) sum += a[c] * b[c];
    return sum;
}

// sum += left right, for this thread's two rows of left [TILE][TILE + 1] and its columns of right [TILE][PITCH].
__device__ __forceinline__ void accumulate(float (&sum)[2][COLUMNS], const float* left, const float* right) {
    const u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (u32 j = 0; j < TILE; j++) {
        const float l0 = left[ty * (TILE + 1) + j], l1 = left[(ty + 16) * (TILE + 1) + j];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float r = right[j * PITCH + tx + 16 * c];
            sum[0][c] += l0 * r, sum[1][c] += l1 * r;
        }
    }
}

// Stores this thread's columns of one row of a head; `row` points to the head's first column.
template <class T> __device__ __forceinline__ void store_row(T* row, const float (&values)[COLUMNS]) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const u32 column = threadIdx.x % 16 + 16 * c;
        if (column < HEAD_DIM) row[column] = from_float<T>(values[c]);
    }
}

// The score of key j for query i of a sample, from their dot product.
__device__ __forceinline__ float score_of(float product, const AttentionShape& s, const B* bias, u32 sample, u32 head,
                                        u32 i, u32 j) {
    const float score = product * s.scale;
    if (!bias) return score;
    return score + to_float(bias[(((u64)(sample % s.groups) * s.heads + head) * s.queries + i) * s.keys + j]);
}

// out, and the log-sum-exp of every row of scores: a block has 32 queries of one head and loops over all keys. `bias`,
// `seed` and `lse` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_forward(const Q* q, const Q* k, const Q* v, const B* bias, const u32* seed, O* out, float* lse,
                      const AttentionShape s, const Mask mask) {
    DYNAMIC_SHARED(float, shared);
    float *tile_q = shared, *tile_k = tile_q + TILE * PITCH, *tile_v = tile_k + TILE * PITCH;
    float* weights = tile_v + TILE * PITCH;
    float *row_max = weights + TILE * (TILE + 1), *row_sum = row_max + TILE, *row_rescale = row_sum + TILE;

    const HeadTile work = head_tile(s, (s.queries + TILE - 1) / TILE);
    const u32 query0 = work.tile * TILE, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    load_tile(tile_q, q, s.q_stride, query0, s.queries, work.sample, work.head);
    if (threadIdx.x < TILE) row_max[threadIdx.x] = -INFINITY, row_sum[threadIdx.x] = 0.0f;
    float sum[2][COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) sum[0][c] = sum[1][c] = 0.0f;

    for (u32 key0 = 0; key0 < s.keys; key0 += TILE) {
        __syncthreads();
        load_tile(tile_k, k, s.k_stride, key0, s.keys, work.sample, work.head);
        load_tile(tile_v, v, s.v_stride, key0, s.keys, work.sample, work.head);
        __syncthreads();
#pragma unroll
        for (u32 r = ty; r < TILE; r += 16)
#pragma unroll
            for (u32 c = tx; c < TILE; c += 16) {
                const u32 i = query0 + r, j = key0 + c;
                float score = -INFINITY;
                if (j < s.keys) {
                    score = dot(tile_q + r * PITCH, tile_k + c * PITCH);
                    score = i < s.queries ? score_of(score, s, bias, work.sample, work.head, i, j) : 0.0f;
                }
                weights[r * (TILE + 1) + c] = score;
            }
        __syncthreads();
        // Online softmax: a warp has four rows, a lane a key.
#pragma unroll
        for (u32 r = 4 * warp; r < 4 * warp + 4; r++) {
            const float score = weights[r * (TILE + 1) + lane], old_max = row_max[r];
            const float new_max = fmaxf(old_max, warp_max(score));
            // A bias of -inf may have masked every key so far.
            float weight = new_max == -INFINITY ? 0.0f : expf(score - new_max);
            const float rescale = new_max == -INFINITY ? 1.0f : expf(old_max - new_max);
            const float total = warp_sum(weight);
            if (seed && query0 + r < s.queries && key0 + lane < s.keys)
                weight *= mask_factor(mask, seed, (work.first_row + query0 + r) * s.keys + key0 + lane);
            weights[r * (TILE + 1) + lane] = weight;
            if (lane == 0) {
                row_max[r] = new_max;
                row_sum[r] = row_sum[r] * rescale + total;
                row_rescale[r] = rescale;
            }
        }
        __syncthreads();
        const float rescale[2] = {row_rescale[ty], row_rescale[ty + 16]};
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[0][c] *= rescale[0], sum[1][c] *= rescale[1];
        accumulate(sum, weights, tile_v);
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 i = query0 + ty + 16 * r;
        if (i >= s.queries) continue;
        const float total = row_sum[ty + 16 * r];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[r][c] /= total;
        store_row(out + ((u64)work.sample * s.queries + i) * s.out_stride + work.head * HEAD_DIM, sum[r]);
        if (lse && tx == 0) lse[work.first_row + i] = row_max[ty + 16 * r] + logf(total);
    }
}

// The attention weights before dropout, from the log-sum-exp of their rows: one block per row, a tile of one query.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_weights(const Q* q, const Q* k, const B* bias, const float* lse, float* weights, const AttentionShape s) {
    __shared__ float query[HEAD_DIM];
    const HeadTile work = head_tile(s, s.queries);
    const u32 i = work.tile;
    for (u32 c = threadIdx.x; c < HEAD_DIM; c += THREADS)
        query[c] = to_float(q[((u64)work.sample * s.queries + i) * s.q_stride + work.head * HEAD_DIM + c]);
    __syncthreads();
    for (u32 j = threadIdx.x; j < s.keys; j += THREADS) {
        const Q* key = k + ((u64)work.sample * s.keys + j) * s.k_stride + work.head * HEAD_DIM;
        float product = 0.0f;
        for (int c = 0; c < HEAD_DIM; c++) product += query[c] * to_float(key[c]);
        const float score = score_of(product, s, bias, work.sample, work.head, i, j);
        weights[(work.first_row + i) * s.keys + j] = expf(score - lse[work.first_row + i]);
    }
}

// delta[row] = out · dy, which the gradients of all scores of the row contain. A warp has a row.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_delta(const O* out, const DY* dy, float* delta, const AttentionShape s, u64 rows) {
    const u64 row = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const u64 i = row % s.queries, head = row / s.queries % s.heads, sample = row / s.queries / s.heads;
    const u64 start = (sample * s.queries + i) * s.out_stride + head * HEAD_DIM;
    float sum = 0.0f;
    for (u32 c = threadIdx.x % 32; c < HEAD_DIM; c += 32) sum += to_float(out[start + c]) * to_float(dy[start + c]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) delta[row] = sum;
}

// The weight of one key for one query after dropout, and the gradient of the score: that of the bias, and times
// the softmax scale, which callers apply, that of the product of query and key.
struct WeightGrad {
    float weight, dscore;
};

// For key j and query i; zeros past the last. `product` is q · k, `dweight` dy · v, `lse` and `delta` are of row i.
__device__ __forceinline__ WeightGrad weight_grad(const AttentionShape& s, const HeadTile& work, const B* bias,
                                                  const u32* seed, const Mask& mask, u32 i, u32 j, float product,
                                                  float dweight, float lse, float delta) {
    WeightGrad result = {0.0f, 0.0f};
    if (i >= s.queries || j >= s.keys) return result;
    const float weight = expf(score_of(product, s, bias, work.sample, work.head, i, j) - lse);
    const float factor = seed ? mask_factor(mask, seed, (work.first_row + i) * s.keys + j) : 1.0f;
    result.weight = weight * factor;
    result.dscore = weight * (dweight * factor - delta);
    return result;
}

// dk and dv: a block has 32 keys and loops over all queries. Either result may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_grad_keys(const Q* q, const Q* k, const Q* v, const B* bias, const u32* seed, const DY* dy,
                        const float* lse, const float* delta, DX* dk, DX* dv, const AttentionShape s, const Mask mask) {
    DYNAMIC_SHARED(float, shared);
    float *tile_q = shared, *tile_k = tile_q + TILE * PITCH, *tile_v = tile_k + TILE * PITCH;
    float* tile_dy = tile_v + TILE * PITCH;
    float *weights = tile_dy + TILE * PITCH, *dscores = weights + TILE * (TILE + 1);

    const HeadTile work = head_tile(s, (s.keys + TILE - 1) / TILE);
    const u32 key0 = work.tile * TILE, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    load_tile(tile_k, k, s.k_stride, key0, s.keys, work.sample, work.head);
    load_tile(tile_v, v, s.v_stride, key0, s.keys, work.sample, work.head);
    float sum_k[2][COLUMNS], sum_v[2][COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) sum_k[0][c] = sum_k[1][c] = sum_v[0][c] = sum_v[1][c] = 0.0f;

    for (u32 query0 = 0; query0 < s.queries; query0 += TILE) {
        __syncthreads();
        load_tile(tile_q, q, s.q_stride, query0, s.queries, work.sample, work.head);
        load_tile(tile_dy, dy, s.out_stride, query0, s.queries, work.sample, work.head);
        __syncthreads();
#pragma unroll
        for (u32 r = ty; r < TILE; r += 16)
#pragma unroll
            for (u32 c = tx; c < TILE; c += 16) {
                const u32 i = query0 + r;
                const float product = dot(tile_q + r * PITCH, tile_k + c * PITCH);
                const float dweight = dot(tile_dy + r * PITCH, tile_v + c * PITCH);
                const bool inside = i < s.queries;
                const WeightGrad p = weight_grad(s, work, bias, seed, mask, i, key0 + c, product, dweight,
                                    inside ? lse[work.first_row + i] : 0.0f, inside ? delta[work.first_row + i] : 0.0f);
                weights[r * (TILE + 1) + c] = p.weight;
                dscores[r * (TILE + 1) + c] = p.dscore * s.scale;
            }
        __syncthreads();
        for (u32 r = 0; r < TILE; r++) {
            const float w0 = weights[r * (TILE + 1) + ty], w1 = weights[r * (TILE + 1) + ty + 16];
            const float d0 = dscores[r * (TILE + 1) + ty], d1 = dscores[r * (TILE + 1) + ty + 16];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const float query = tile_q[r * PITCH + tx + 16 * c], g = tile_dy[r * PITCH + tx + 16 * c];
                sum_k[0][c] += d0 * query, sum_k[1][c] += d1 * query;
                sum_v[0][c] += w0 * g, sum_v[1][c] += w1 * g;
            }
        }
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 j = key0 + ty + 16 * r;
        if (j >= s.keys) continue;
        const u64 token = (u64)work.sample * s.keys + j;
        if (dk) store_row(dk + token * s.dk_stride + work.head * HEAD_DIM, sum_k[r]);
        if (dv) store_row(dv + token * s.dv_stride + work.head * HEAD_DIM, sum_v[r]);
    }
}

// dq: a block has 32 queries and loops over all keys.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_grad_queries(const Q* q, const Q* k, const Q* v, const B* bias, const u32* seed, const DY* dy,
                           const float* lse, const float* delta, DX* dq, const AttentionShape s, const Mask mask) {
    DYNAMIC_SHARED(float, shared);
    float *tile_q = shared, *tile_k = tile_q + TILE * PITCH, *tile_v = tile_k + TILE * PITCH;
    float *tile_dy = tile_v + TILE * PITCH, *dscores = tile_dy + TILE * PITCH;

    const HeadTile work = head_tile(s, (s.queries + TILE - 1) / TILE);
    const u32 query0 = work.tile * TILE, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    load_tile(tile_q, q, s.q_stride, query0, s.queries, work.sample, work.head);
    load_tile(tile_dy, dy, s.out_stride, query0, s.queries, work.sample, work.head);
    float row_lse[2], row_delta[2], sum[2][COLUMNS];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 i = query0 + ty + 16 * r;
        row_lse[r] = i < s.queries ? lse[work.first_row + i] : 0.0f;
        row_delta[r] = i < s.queries ? delta[work.first_row + i] : 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[r][c] = 0.0f;
    }
    for (u32 key0 = 0; key0 < s.keys; key0 += TILE) {
        __syncthreads();
        load_tile(tile_k, k, s.k_stride, key0, s.keys, work.sample, work.head);
        load_tile(tile_v, v, s.v_stride, key0, s.keys, work.sample, work.head);
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < 2; r++)
#pragma unroll
            for (u32 c = tx; c < TILE; c += 16) {
                const u32 tile_row = ty + 16 * r;
                const float product = dot(tile_q + tile_row * PITCH, tile_k + c * PITCH);
                const float dweight = dot(tile_dy + tile_row * PITCH, tile_v + c * PITCH);
                const WeightGrad p = weight_grad(s, work, bias, seed, mask, query0 + tile_row, key0 + c, product,
                                                 dweight, row_lse[r], row_delta[r]);
                dscores[tile_row * (TILE + 1) + c] = p.dscore * s.scale;
            }
        __syncthreads();
        accumulate(sum, dscores, tile_k);
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 i = query0 + ty + 16 * r;
        if (i >= s.queries) continue;
        store_row(dq + ((u64)work.sample * s.queries + i) * s.dq_stride + work.head * HEAD_DIM, sum[r]);
    }
}

// The gradient of the bias, partials [splits, count] for bias_gradient.cu: a thread has one of `count` elements and
// sums over a split of its group's samples in order.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_grad_bias(const Q* q, const Q* k, const Q* v, const B* bias, const u32* seed, const DY* dy,
                        const float* lse, const float* delta, float* partials, const AttentionShape s,
                        const Mask mask, u32 samples_per_split, u64 count) {
    const u64 element = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (element >= count) return;
    const u32 j = (u32)(element % s.keys), i = (u32)(element / s.keys % s.queries);
    HeadTile work;
    work.tile = 0;
    work.head = (u32)(element / s.keys / s.queries % s.heads);
    const u32 group = (u32)(element / s.keys / s.queries / s.heads);
    const u32 samples = s.batch / s.groups, first = blockIdx.y * samples_per_split;
    const u32 end = first + samples_per_split < samples ? first + samples_per_split : samples;
    float sum = 0.0f;
    for (u32 sample = first; sample < end; sample++) {
        work.sample = sample * s.groups + group;
        work.first_row = ((u64)work.sample * s.heads + work.head) * s.queries;
        const u64 query = (u64)work.sample * s.queries + i, key = (u64)work.sample * s.keys + j;
        const u32 column = work.head * HEAD_DIM;
        float product = 0.0f, dweight = 0.0f;
        for (int c = 0; c < HEAD_DIM; c++) {
            product += to_float(q[query * s.q_stride + column + c]) * to_float(k[key * s.k_stride + column + c]);
            dweight += to_float(dy[query * s.out_stride + column + c]) * to_float(v[key * s.v_stride + column + c]);
        }
        const u64 row = work.first_row + i;
        sum += weight_grad(s, work, bias, seed, mask, i, j, product, dweight, lse[row], delta[row]).dscore;
    }
    partials[blockIdx.y * count + element] = sum;
}
