// Batch and group norms of channels-last images, forward and backward, with a relu that follows and a sum before it.
//
// Threads have VEC neighbouring channels and go down the rows: a block has LANES threads side by side and 256 / LANES
// rows at a time. Sums of a thread are f32, over few rows; from there on they are f64. Their order is decided by the
// shape alone.
//
// BATCH: 1 where statistics belong to a channel, 0 where they belong to a sample's group of channels.
// RELU: forward, 1 where a relu follows. Backward, 1 where the norm's result went through a relu, whose slope follows from
// x; 2 where it went through one together with something else, whose slope follows from the result.
// X, DY, Y: storage types; R: of what is added before the relu or of its result, MORE: of a second gradient.

#define THREADS 256
#define ROWS (THREADS / LANES)
// Rows that a thread has in flight, forward and backward.
#define AHEAD 4
#define AHEAD_BACK 2

struct Cut {
    u64 rows;
    u32 channels;
    // Rows of a sample, and the groups that its channels fall into.
    u32 pixels, groups;
};

// The place of an element's statistics.
__device__ __forceinline__ u64 statistic(const Cut& cut, u64 row, u32 channel) {
    if (BATCH) return channel;
    return row / cut.pixels * cut.groups + channel / (cut.channels / cut.groups);
}

// One number for each of a thread's channels.
struct Channels {
    float v[VEC];
    __device__ __forceinline__ void read(const float* from, u32 first) { load<VEC>(from + first, v); }
};

// The same from statistics, which in a batch norm are the same for all rows.
__device__ __forceinline__ void read_statistics(Channels& to, const float* from, const Cut& cut, u64 row, u32 first) {
#pragma unroll
    for (int i = 0; i < VEC; i++) to.v[i] = from[statistic(cut, row, first + i)];
}

// The rows of a thread, and its first channel.
struct Share {
    u32 channel;
    u64 row, end;
    __device__ __forceinline__ Share(const Cut& cut, u32 rows_per_split) {
        channel = (blockIdx.x * LANES + threadIdx.x % LANES) * VEC;
        const u64 begin = (u64)blockIdx.y * rows_per_split;
        row = begin + threadIdx.x / LANES;
        end = begin + rows_per_split < cut.rows ? begin + rows_per_split : cut.rows;
        if (channel >= cut.channels) end = 0;
    }
};

// Adds up two sums for every channel of a block, over its rows: partials[split][channel][2].
__device__ __forceinline__ void write_sums(const Channels& first, const Channels& second, double* partials,
                                           const Cut& cut) {
    __shared__ float shared[2][ROWS][LANES * VEC + 1];
    const u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        shared[0][group][lane * VEC + i] = first.v[i], shared[1][group][lane * VEC + i] = second.v[i];
    __syncthreads();
    for (u32 i = threadIdx.x; i < 2 * LANES * VEC; i += THREADS) {
        const u32 which = i / (LANES * VEC), column = i % (LANES * VEC), c = blockIdx.x * LANES * VEC + column;
        if (c >= cut.channels) continue;
        double sum = 0.0;
        for (u32 other = 0; other < ROWS; other++) sum += (double)shared[which][other][column];
        partials[((u64)blockIdx.y * cut.channels + c) * 2 + which] = sum;
    }
}

// For every channel and split of the rows: the sums of x and x², both seen from the first row, so that little is lost
// where the mean is far from zero.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    channel_moments(const X* x, double* partials, const Cut cut, u32 rows_per_split) {
    Share share(cut, rows_per_split);
    Channels first = {}, second = {}, origin = {};
    if (share.channel < cut.channels) load<VEC>(x + share.channel, origin.v);
    for (u64 row = share.row; row < share.end; row += ROWS * AHEAD) {
        float v[AHEAD][VEC];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (row + a * ROWS < share.end) load<VEC>(x + (row + a * ROWS) * cut.channels + share.channel, v[a]);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (row + a * ROWS >= share.end) continue;
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float seen = v[a][i] - origin.v[i];
                first.v[i] += seen, second.v[i] += seen * seen;
            }
        }
    }
    write_sums(first, second, partials, cut);
}

// What a norm's gradient has to do with a relu: its result, a second gradient that is added to the first, and where the
// gradient before the relu is written.
struct Gate {
    const R* result;
    const MORE* more;
    Y* passed;
};

// For every channel and split of the rows: the sums of dy and dy · normed, where dy has gone back through the relu.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    channel_dots(const X* x, const DY* dy, const float* gamma, const float* beta, const float* mean, const float* rstd,
                 double* partials, const Cut cut, u32 rows_per_split, const Gate gate) {
    Share share(cut, rows_per_split);
    Channels first = {}, second = {}, centre = {}, factor = {}, scale = {}, offset = {};
    if (share.channel < cut.channels) {
        if (BATCH) centre.read(mean, share.channel), factor.read(rstd, share.channel);
        if (RELU == 1) {
            scale.read(gamma, share.channel), offset.read(beta, share.channel);
#pragma unroll
            for (int i = 0; i < VEC; i++) scale.v[i] *= factor.v[i];
        }
    }
    for (u64 row = share.row; row < share.end; row += ROWS * AHEAD_BACK) {
        float v[AHEAD_BACK][VEC], d[AHEAD_BACK][VEC], r[AHEAD_BACK][VEC], m[AHEAD_BACK][VEC];
#pragma unroll
        for (int a = 0; a < AHEAD_BACK; a++) {
            const u64 at = (row + a * ROWS) * cut.channels + share.channel;
            if (row + a * ROWS >= share.end) continue;
            load<VEC>(x + at, v[a]);
            load<VEC>(dy + at, d[a]);
            if (RELU == 2) load<VEC>(gate.result + at, r[a]);
            if (RELU == 2 && gate.more) load<VEC>(gate.more + at, m[a]);
        }
#pragma unroll
        for (int a = 0; a < AHEAD_BACK; a++) {
            if (row + a * ROWS >= share.end) continue;
            if (!BATCH) {
                read_statistics(centre, mean, cut, row + a * ROWS, share.channel);
                read_statistics(factor, rstd, cut, row + a * ROWS, share.channel);
            }
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float from_centre = v[a][i] - centre.v[i];
                if (RELU == 1) d[a][i] = relu_grad(from_centre * scale.v[i] + offset.v[i], d[a][i]);
                if (RELU == 2) {
                    if (gate.more) d[a][i] += m[a][i];
                    d[a][i] = relu_grad(r[a][i], rounded<Y>(d[a][i]));
                }
                first.v[i] += d[a][i], second.v[i] += d[a][i] * (from_centre * factor.v[i]);
            }
            if (RELU == 2) store<VEC>(gate.passed + (row + a * ROWS) * cut.channels + share.channel, d[a]);
        }
    }
    write_sums(first, second, partials, cut);
}

// For every group and split of its elements: the sums of x and x², or with dy those of dy · gamma and of that times
// normed. One block each.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_sums(const X* x, const DY* dy, const float* gamma, const float* mean, const float* rstd, double* partials,
               const Cut cut, u32 per_split) {
    const u32 own = cut.channels / cut.groups, g = blockIdx.x % cut.groups;
    const u64 sample = blockIdx.x / cut.groups, size = (u64)own * cut.pixels;
    const u64 begin = (u64)blockIdx.y * per_split;
    const u64 end = begin + per_split < size ? begin + per_split : size;
    double first = 0.0, second = 0.0;
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
        const u32 c = g * own + (u32)(i % own);
        const u64 at = (sample * cut.pixels + i / own) * cut.channels + c;
        const float v = to_float(x[at]);
        if (dy) {
            const float d = to_float(dy[at]) * gamma[c];
            first += (double)d, second += (double)(d * ((v - mean[blockIdx.x]) * rstd[blockIdx.x]));
        } else {
            first += (double)v, second += (double)v * (double)v;
        }
    }
    first = block_sum<THREADS>(first);
    second = block_sum<THREADS>(second);
    if (threadIdx.x != 0) return;
    partials[((u64)blockIdx.y * gridDim.x + blockIdx.x) * 2] = first;
    partials[((u64)blockIdx.y * gridDim.x + blockIdx.x) * 2 + 1] = second;
}

// The sums of eight channels over all splits, known to the first eight threads of a block.
__device__ __forceinline__ void all_splits(const double* partials, u32 splits, u32 count, double (&sums)[2]) {
    __shared__ double shared[2][32][9];
    const u32 c = threadIdx.x % 8, group = threadIdx.x / 8, i = blockIdx.x * 8 + c;
    sums[0] = 0.0, sums[1] = 0.0;
    if (i < count) {
#pragma unroll 4
        for (u32 split = group; split < splits; split += 32) {
            const double* from = partials + ((u64)split * count + i) * 2;
            sums[0] += from[0], sums[1] += from[1];
        }
    }
    shared[0][group][c] = sums[0], shared[1][group][c] = sums[1];
    __syncthreads();
    if (group != 0) return;
    for (int other = 1; other < 32; other++) sums[0] += shared[0][other][c], sums[1] += shared[1][other][c];
}

// The two sums themselves, from those of all splits.
extern "C" __global__ void __launch_bounds__(THREADS)
    whole_sums(const double* partials, u32 splits, u32 count, float* first, float* second) {
    double sums[2];
    all_splits(partials, splits, count, sums);
    const u32 i = blockIdx.x * 8 + threadIdx.x;
    if (threadIdx.x >= 8 || i >= count) return;
    if (first) first[i] = (float)sums[0];
    if (second) second[i] = (float)sums[1];
}

struct Running {
    const float *mean, *variance;
    float *new_mean, *new_variance;
    float momentum;
};

// Mean and deviation of `size` elements each, and what a batch norm remembers of them. A batch norm's sums are seen from
// the first row, `origin`.
extern "C" __global__ void __launch_bounds__(THREADS)
    moments(const double* partials, u32 splits, u32 count, u64 size, float epsilon, const X* origin, float* mean,
            float* rstd, const Running running) {
    double sums[2];
    all_splits(partials, splits, count, sums);
    const u32 i = blockIdx.x * 8 + threadIdx.x;
    if (threadIdx.x >= 8 || i >= count) return;
    const double seen = sums[0] / (double)size, centre = BATCH ? seen + (double)to_float(origin[i]) : seen;
    // Rounding can take it below zero; fmax would lose a NaN.
    const double difference = sums[1] / (double)size - seen * seen, variance = difference < 0.0 ? 0.0 : difference;
    mean[i] = (float)centre;
    rstd[i] = (float)(1.0 / sqrt(variance + (double)epsilon));
    if (running.new_mean) {
        const double old = (double)running.mean[i];
        running.new_mean[i] = (float)(old + (double)running.momentum * (centre - old));
    }
    if (running.new_variance) {
        const double old = (double)running.variance[i];
        const double found = variance * (double)size / ((double)size - 1.0);
        running.new_variance[i] = (float)(old + (double)running.momentum * (found - old));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    normalise(const X* x, const float* gamma, const float* beta, const float* mean, const float* rstd,
              const R* residual, Y* y, const Cut cut, u32 rows_per_split) {
    Share share(cut, rows_per_split);
    Channels centre, factor, scale, offset;
    if (share.row >= share.end) return;
    scale.read(gamma, share.channel), offset.read(beta, share.channel);
    if (BATCH) {
        centre.read(mean, share.channel), factor.read(rstd, share.channel);
#pragma unroll
        for (int i = 0; i < VEC; i++) factor.v[i] *= scale.v[i];
    }
    for (u64 row = share.row; row < share.end; row += ROWS * AHEAD) {
        float v[AHEAD][VEC], r[AHEAD][VEC];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const u64 at = (row + a * ROWS) * cut.channels + share.channel;
            if (row + a * ROWS >= share.end) continue;
            load<VEC>(x + at, v[a]);
            if (residual) load<VEC>(residual + at, r[a]);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (row + a * ROWS >= share.end) continue;
            if (!BATCH) {
                read_statistics(centre, mean, cut, row + a * ROWS, share.channel);
                read_statistics(factor, rstd, cut, row + a * ROWS, share.channel);
#pragma unroll
                for (int i = 0; i < VEC; i++) factor.v[i] *= scale.v[i];
            }
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                v[a][i] = (v[a][i] - centre.v[i]) * factor.v[i] + offset.v[i];
                if (residual) v[a][i] += r[a][i];
                if (RELU) v[a][i] = relu(v[a][i]);
            }
            store<VEC>(y + (row + a * ROWS) * cut.channels + share.channel, v[a]);
        }
    }
}

// `sum` and `dot` are those of dy and dy · normed in a batch norm, with gamma in them in a group norm; `size` is the
// number of elements that have their statistics in common.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    normalise_grad(const X* x, const DY* dy, const float* gamma, const float* beta, const float* mean,
                   const float* rstd, const float* sum, const float* dot, float share_of_one, Y* dx, const Cut cut,
                   u32 rows_per_split) {
    Share share(cut, rows_per_split);
    // dx = scale · dy + constant + slope · (x - centre)
    Channels centre, scale, constant, slope, offset, weight;
    if (share.row >= share.end) return;
    weight.read(gamma, share.channel);
    if (RELU == 1) offset.read(beta, share.channel);
    auto prepare = [&](u64 row) {
        Channels factor;
        read_statistics(centre, mean, cut, row, share.channel);
        read_statistics(factor, rstd, cut, row, share.channel);
        read_statistics(constant, sum, cut, row, share.channel);
        read_statistics(slope, dot, cut, row, share.channel);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            scale.v[i] = weight.v[i] * factor.v[i];
            const float common = -share_of_one * (BATCH ? scale.v[i] : factor.v[i]);
            constant.v[i] *= common, slope.v[i] *= common * factor.v[i];
        }
    };
    if (BATCH) prepare(0);
    for (u64 row = share.row; row < share.end; row += ROWS * AHEAD_BACK) {
        float v[AHEAD_BACK][VEC], d[AHEAD_BACK][VEC];
#pragma unroll
        for (int a = 0; a < AHEAD_BACK; a++) {
            const u64 at = (row + a * ROWS) * cut.channels + share.channel;
            if (row + a * ROWS >= share.end) continue;
            load<VEC>(x + at, v[a]);
            load<VEC>(dy + at, d[a]);
        }
#pragma unroll
        for (int a = 0; a < AHEAD_BACK; a++) {
            if (row + a * ROWS >= share.end) continue;
            if (!BATCH) prepare(row + a * ROWS);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float from_centre = v[a][i] - centre.v[i];
                if (RELU == 1) d[a][i] = relu_grad(from_centre * scale.v[i] + offset.v[i], d[a][i]);
                v[a][i] = scale.v[i] * d[a][i] + (constant.v[i] + slope.v[i] * from_centre);
            }
            store<VEC>(dx + (row + a * ROWS) * cut.channels + share.channel, v[a]);
        }
    }
}
