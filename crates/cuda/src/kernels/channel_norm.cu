// Batch norm (Ioffe and Szegedy, 2015) and group norm (Wu and He, 2018) of channels-last images [pixels of all samples,
// channels], forward and backward. A relu after a batch norm, and a residual sum between the two, may be fused.
//
// In kernels with a RowRange, the threads of a block are [ROWS][LANES], with VEC channels each. A block loops over the
// rows of its split; a thread sums its rows of a channel in f32. All other sums are f64, in an order that depends on
// the shape and the number of splits alone. Below, `normed` is (x - mean) · rstd.
//
// BATCH: 1 for statistics per channel, 0 for statistics per sample and group of channels. RELU (only with BATCH):
// forward, 1 with a relu. Backward, 1 for relu(norm(x)), whose derivative follows from x; 2 for
// relu(norm(x) + residual), whose derivative follows from the relu's result. Storage types: X of x, DY of dy, Y of the
// result (y, dx or ReluGrad::d_sum), R of the residual or the relu's result, DY2 of a second gradient of that.

#define THREADS 256
#define ROWS (THREADS / LANES)
// Rows that a thread loads before it computes; fewer in the backward pass, where a row takes two to four vectors of
// registers.
#define ROWS_IN_FLIGHT 4
#define ROWS_IN_FLIGHT_BACKWARD 2

struct NormShape {
    u64 rows;
    u32 channels;
    // Rows and groups of a sample.
    u32 pixels, groups;
};

// The index of an element's statistics, [channels] or [samples, groups].
__device__ __forceinline__ u64 statistic(const NormShape& shape, u64 row, u32 channel) {
    if (BATCH) return channel;
    return row / shape.pixels * shape.groups + channel / (shape.channels / shape.groups);
}

// One value for each channel of a thread: in the kernels, `centre` is the mean, `factor` rstd, `weight` gamma, `offset`
// beta, `scale` gamma · rstd.
struct Channels {
    float v[VEC];
    __device__ __forceinline__ void read(const float* from, u32 first) { load<VEC>(from + first, v); }
};

// The statistics of a row's elements; in a batch norm they do not depend on the row.
__device__ __forceinline__ void read_statistics(Channels& to, const float* from, const NormShape& shape, u64 row,
                                                u32 first) {
#pragma unroll
    for (int i = 0; i < VEC; i++) to.v[i] = from[statistic(shape, row, first + i)];
}

// The first channel and the first row of a thread, and the end of its split; without rows past the last channel.
struct RowRange {
    u32 channel;
    u64 row, end;
    __device__ __forceinline__ RowRange(const NormShape& shape, u32 rows_per_split) {
        channel = (blockIdx.x * LANES + threadIdx.x % LANES) * VEC;
        const u64 begin = (u64)blockIdx.y * rows_per_split;
        row = begin + threadIdx.x / LANES;
        end = begin + rows_per_split < shape.rows ? begin + rows_per_split : shape.rows;
        if (channel >= shape.channels) end = 0;
    }
};

// Two sums of every channel over the rows of a block: partials [splits, channels, 2].
__device__ __forceinline__ void write_sums(const Channels& first, const Channels& second, double* partials,
                                           const NormShape& shape) {
    // The padding of one float moves the rows of a warp to different banks.
    __shared__ float shared[2][ROWS][LANES * VEC + 1];
    const u32 lane = threadIdx.x % LANES, thread_row = threadIdx.x / LANES;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        shared[0][thread_row][lane * VEC + i] = first.v[i], shared[1][thread_row][lane * VEC + i] = second.v[i];
    __syncthreads();
    for (u32 i = threadIdx.x; i < 2 * LANES * VEC; i += THREADS) {
        const u32 sum_index = i / (LANES * VEC), column = i % (LANES * VEC), c = blockIdx.x * LANES * VEC + column;
        if (c >= shape.channels) continue;
        double sum = 0.0;
        for (u32 row = 0; row < ROWS; row++) sum += (double)shared[sum_index][row][column];
        partials[((u64)blockIdx.y * shape.channels + c) * 2 + sum_index] = sum;
    }
}

// Partial sums of x - x0 and (x - x0)² with x0 the first row: shifted data avoid cancellation where the mean is far
// from 0.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    channel_moments(const X* x, double* partials, const NormShape shape, u32 rows_per_split) {
    RowRange range(shape, rows_per_split);
    Channels first = {}, second = {}, origin = {};
    if (range.channel < shape.channels) load<VEC>(x + range.channel, origin.v);
    for (u64 row = range.row; row < range.end; row += ROWS * ROWS_IN_FLIGHT) {
        float v[ROWS_IN_FLIGHT][VEC];
#pragma unroll
        for (int a = 0; a < ROWS_IN_FLIGHT; a++)
            if (row + a * ROWS < range.end) load<VEC>(x + (row + a * ROWS) * shape.channels + range.channel, v[a]);
#pragma unroll
        for (int a = 0; a < ROWS_IN_FLIGHT; a++) {
            if (row + a * ROWS >= range.end) continue;
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float shifted = v[a][i] - origin.v[i];
                first.v[i] += shifted, second.v[i] += shifted * shifted;
            }
        }
    }
    write_sums(first, second, partials, shape);
}

// For RELU 2: the relu's result, a second gradient of it (may be null), and where the gradient of norm(x) + residual is
// written.
struct ReluGrad {
    const R* result;
    const DY2* dy2;
    Y* d_sum;
};

// Partial sums of dy and dy · normed, for dbeta and dgamma; with RELU after dy (with RELU 2 plus dy2), then the
// gradient of the relu's result, became that of its input.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    channel_dots(const X* x, const DY* dy, const float* gamma, const float* beta, const float* mean, const float* rstd,
                 double* partials, const NormShape shape, u32 rows_per_split, const ReluGrad relu) {
    RowRange range(shape, rows_per_split);
    Channels first = {}, second = {}, centre = {}, factor = {}, scale = {}, offset = {};
    if (range.channel < shape.channels) {
        if (BATCH) centre.read(mean, range.channel), factor.read(rstd, range.channel);
        if (RELU == 1) {
            scale.read(gamma, range.channel), offset.read(beta, range.channel);
#pragma unroll
            for (int i = 0; i < VEC; i++) scale.v[i] *= factor.v[i];
        }
    }
    for (u64 row = range.row; row < range.end; row += ROWS * ROWS_IN_FLIGHT_BACKWARD) {
        float v[ROWS_IN_FLIGHT_BACKWARD][VEC], d[ROWS_IN_FLIGHT_BACKWARD][VEC];
        float r[ROWS_IN_FLIGHT_BACKWARD][VEC], d2[ROWS_IN_FLIGHT_BACKWARD][VEC];
#pragma unroll
        for (int a = 0; a < ROWS_IN_FLIGHT_BACKWARD; a++) {
            const u64 index = (row + a * ROWS) * shape.channels + range.channel;
            if (row + a * ROWS >= range.end) continue;
            load<VEC>(x + index, v[a]);
            load<VEC>(dy + index, d[a]);
            if (RELU == 2) load<VEC>(relu.result + index, r[a]);
            if (RELU == 2 && relu.dy2) load<VEC>(relu.dy2 + index, d2[a]);
        }
#pragma unroll
        for (int a = 0; a < ROWS_IN_FLIGHT_BACKWARD; a++) {
            if (row + a * ROWS >= range.end) continue;
            if (!BATCH) {
                read_statistics(centre, mean, shape, row + a * ROWS, range.channel);
                read_statistics(factor, rstd, shape, row + a * ROWS, range.channel);
            }
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float centred = v[a][i] - centre.v[i];
                if (RELU == 1) d[a][i] = relu_grad(centred * scale.v[i] + offset.v[i], d[a][i]);
                if (RELU == 2) {
                    if (relu.dy2) d[a][i] += d2[a][i];
                    // The sums are those of the stored, rounded values.
                    d[a][i] = relu_grad(r[a][i], rounded<Y>(d[a][i]));
                }
                first.v[i] += d[a][i], second.v[i] += d[a][i] * (centred * factor.v[i]);
            }
            if (RELU == 2) store<VEC>(relu.d_sum + (row + a * ROWS) * shape.channels + range.channel, d[a]);
        }
    }
    write_sums(first, second, partials, shape);
}

// Partial sums over the elements of a sample's group, of x and x², or unless dy is null of dy · gamma and
// dy · gamma · normed: partials [splits, samples · groups, 2]. A block has one split of one group.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_sums(const X* x, const DY* dy, const float* gamma, const float* mean, const float* rstd, double* partials,
               const NormShape shape, u32 elements_per_split) {
    const u32 group_channels = shape.channels / shape.groups, g = blockIdx.x % shape.groups;
    const u64 sample = blockIdx.x / shape.groups, size = (u64)group_channels * shape.pixels;
    const u64 begin = (u64)blockIdx.y * elements_per_split;
    const u64 end = begin + elements_per_split < size ? begin + elements_per_split : size;
    double first = 0.0, second = 0.0;
    for (u64 i = begin + threadIdx.x; i < end; i += THREADS) {
        const u32 c = g * group_channels + (u32)(i % group_channels);
        const u64 index = (sample * shape.pixels + i / group_channels) * shape.channels + c;
        const float v = to_float(x[index]);
        if (dy) {
            const float d = to_float(dy[index]) * gamma[c];
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

// The sums of eight statistics over all splits, returned to the first eight threads of the block; its threads are
// [32 splits][8 statistics]. partials [splits, count, 2]. Every thread must call it.
__device__ __forceinline__ void sum_splits(const double* partials, u32 splits, u32 count, double (&sums)[2]) {
    __shared__ double shared[2][32][9];
    const u32 c = threadIdx.x % 8, thread_row = threadIdx.x / 8, i = blockIdx.x * 8 + c;
    sums[0] = 0.0, sums[1] = 0.0;
    if (i < count) {
#pragma unroll 4
        for (u32 split = thread_row; split < splits; split += 32) {
            const double* from = partials + ((u64)split * count + i) * 2;
            sums[0] += from[0], sums[1] += from[1];
        }
    }
    shared[0][thread_row][c] = sums[0], shared[1][thread_row][c] = sums[1];
    __syncthreads();
    if (thread_row != 0) return;
    for (int other = 1; other < 32; other++) sums[0] += shared[0][other][c], sums[1] += shared[1][other][c];
}

// The sums over all splits in f32: first[count] and second[count], each of which may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_splits_f32(const double* partials, u32 splits, u32 count, float* first, float* second) {
    double sums[2];
    sum_splits(partials, splits, count, sums);
    const u32 i = blockIdx.x * 8 + threadIdx.x;
    if (threadIdx.x >= 8 || i >= count) return;
    if (first) first[i] = (float)sums[0];
    if (second) second[i] = (float)sums[1];
}

// Running statistics of a batch norm; `new_mean` and `new_variance` may be null.
struct RunningStatistics {
    const float *mean, *variance;
    float *new_mean, *new_variance;
    float momentum;

    // After a batch of `size` elements per channel, with this mean and biased variance of channel i.
    __device__ __forceinline__ void update(u32 i, double batch_mean, double batch_variance, u64 size) const {
        if (new_mean) {
            const double old = (double)mean[i];
            new_mean[i] = (float)(old + (double)momentum * (batch_mean - old));
        }
        if (new_variance) {
            const double old = (double)variance[i];
            const double unbiased = batch_variance * (double)size / ((double)size - 1.0);
            new_variance[i] = (float)(old + (double)momentum * (unbiased - old));
        }
    }
};

// Mean and 1 / sqrt(variance + epsilon) over `size` elements, and with BATCH the running statistics, from the partials
// of channel_moments (BATCH, relative to the first row, `origin`) or group_sums. `biased_variance` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    moments(const double* partials, u32 splits, u32 count, u64 size, float epsilon, const X* origin, float* mean,
            float* rstd, float* biased_variance, const RunningStatistics running) {
    double sums[2];
    sum_splits(partials, splits, count, sums);
    const u32 i = blockIdx.x * 8 + threadIdx.x;
    if (threadIdx.x >= 8 || i >= count) return;
    const double shifted = sums[0] / (double)size;
    const double centre = BATCH ? shifted + (double)to_float(origin[i]) : shifted;
    // Rounding can make the difference negative; fmax would drop a NaN.
    const double difference = sums[1] / (double)size - shifted * shifted,
                 variance = difference < 0.0 ? 0.0 : difference;
    mean[i] = (float)centre;
    rstd[i] = (float)(1.0 / sqrt(variance + (double)epsilon));
    if (biased_variance) biased_variance[i] = (float)variance;
    running.update(i, centre, variance, size);
}

// The variance of one part of the batch about the mean of all parts, mean_sum / parts, from that about its own mean.
extern "C" __global__ void __launch_bounds__(THREADS)
    variance_about(const float* mean, const float* variance, const float* mean_sum, float parts, u32 count, float* to) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const float distance = mean[i] - mean_sum[i] / parts;
    to[i] = variance[i] + distance * distance;
}

// As `moments`, over `size` elements of all parts, from sums of the parts' means and variances about the common mean.
extern "C" __global__ void __launch_bounds__(THREADS)
    synced_moments(const float* mean_sum, const float* variance_sum, float parts, u32 count, u64 size, float epsilon,
                   float* mean, float* rstd, const RunningStatistics running) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const double centre = (double)mean_sum[i] / (double)parts, variance = (double)variance_sum[i] / (double)parts;
    mean[i] = (float)centre;
    rstd[i] = (float)(1.0 / sqrt(variance + (double)epsilon));
    running.update(i, centre, variance, size);
}

// y = relu((x - mean) · rstd · gamma + beta + residual), with RELU 0 without the relu; `residual` may be null.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    normalise(const X* x, const float* gamma, const float* beta, const float* mean, const float* rstd,
              const R* residual, Y* y, const NormShape shape, u32 rows_per_split) {
    RowRange range(shape, rows_per_split);
    Channels centre, scale, weight, offset;
    if (range.row >= range.end) return;
    weight.read(gamma, range.channel), offset.read(beta, range.channel);
    if (BATCH) {
        centre.read(mean, range.channel), scale.read(rstd, range.channel);
#pragma unroll
        for (int i = 0; i < VEC; i++) scale.v[i] *= weight.v[i];
    }
    for (u64 row = range.row; row < range.end; row += ROWS * ROWS_IN_FLIGHT) {
        float v[ROWS_IN_FLIGHT][VEC], r[ROWS_IN_FLIGHT][VEC];
#pragma unroll
        for (int a = 0; a < ROWS_IN_FLIGHT; a++) {
            const u64 index = (row + a * ROWS) * shape.channels + range.channel;
            if (row + a * ROWS >= range.end) continue;
            load<VEC>(x + index, v[a]);
            if (residual) load<VEC>(residual + index, r[a]);
        }
#pragma unroll
        for (int a = 0; a < ROWS_IN_FLIGHT; a++) {
            if (row + a * ROWS >= range.end) continue;
            if (!BATCH) {
                read_statistics(centre, mean, shape, row + a * ROWS, range.channel);
                read_statistics(scale, rstd, shape, row + a * ROWS, range.channel);
#pragma unroll
                for (int i = 0; i < VEC; i++) scale.v[i] *= weight.v[i];
            }
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                v[a][i] = (v[a][i] - centre.v[i]) * scale.v[i] + offset.v[i];
                if (residual) v[a][i] += r[a][i];
                if (RELU) v[a][i] = relu(v[a][i]);
            }
            store<VEC>(y + (row + a * ROWS) * shape.channels + range.channel, v[a]);
        }
    }
}

// dx = scale · dy + constant + coefficient · (x - mean). `sum` and `dot` are the sums of dy and dy · normed in a batch
// norm, of dy · gamma and dy · gamma · normed in a group norm; inverse_size is 1 / the number of elements that share
// statistics. With RELU 1, dy is the gradient of the relu's result. After channel_dots with RELU 2, dy is its `d_sum`.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    normalise_grad(const X* x, const DY* dy, const float* gamma, const float* beta, const float* mean,
                   const float* rstd, const float* sum, const float* dot, float inverse_size, Y* dx,
                   const NormShape shape, u32 rows_per_split) {
    RowRange range(shape, rows_per_split);
    Channels centre, scale, constant, coefficient, offset, weight;
    if (range.row >= range.end) return;
    weight.read(gamma, range.channel);
    if (RELU == 1) offset.read(beta, range.channel);
    auto prepare = [&](u64 row) {
        Channels factor;
        read_statistics(centre, mean, shape, row, range.channel);
        read_statistics(factor, rstd, shape, row, range.channel);
        read_statistics(constant, sum, shape, row, range.channel);
        read_statistics(coefficient, dot, shape, row, range.channel);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            scale.v[i] = weight.v[i] * factor.v[i];
            const float common = -inverse_size * (BATCH ? scale.v[i] : factor.v[i]);
            constant.v[i] *= common, coefficient.v[i] *= common * factor.v[i];
        }
    };
    if (BATCH) prepare(0);
    for (u64 row = range.row; row < range.end; row += ROWS * ROWS_IN_FLIGHT_BACKWARD) {
        float v[ROWS_IN_FLIGHT_BACKWARD][VEC], d[ROWS_IN_FLIGHT_BACKWARD][VEC];
#pragma unroll
        for (int a = 0; a < ROWS_IN_FLIGHT_BACKWARD; a++) {
            const u64 index = (row + a * ROWS) * shape.channels + range.channel;
            if (row + a * ROWS >= range.end) continue;
            load<VEC>(x + index, v[a]);
            load<VEC>(dy + index, d[a]);
        }
#pragma unroll
        for (int a = 0; a < ROWS_IN_FLIGHT_BACKWARD; a++) {
            if (row + a * ROWS >= range.end) continue;
            if (!BATCH) prepare(row + a * ROWS);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float centred = v[a][i] - centre.v[i];
                if (RELU == 1) d[a][i] = relu_grad(centred * scale.v[i] + offset.v[i], d[a][i]);
                v[a][i] = scale.v[i] * d[a][i] + (constant.v[i] + coefficient.v[i] * centred);
            }
            store<VEC>(dx + (row + a * ROWS) * shape.channels + range.channel, v[a]);
        }
    }
}
