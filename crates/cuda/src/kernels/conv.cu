// What surrounds the matrix products of a convolution: patches of the image laid out as rows, and rows of patches added
// back onto the pixels they came from. One group of channels at a time.

#define THREADS 256

struct Shape {
    u32 height, width, all_channels;
    u32 out_height, out_width;
    u32 kernel_height, kernel_width;
    u32 stride_y, stride_x;
    u32 pad_y, pad_x;
    u32 dilation_y, dilation_x;
    // Channels of a group, and the first of this one.
    u32 channels, first_channel;
};

// rows [images · out_height · out_width, channels · kernel_height · kernel_width], in the order channel, row, column.
extern "C" __global__ void __launch_bounds__(THREADS)
    image_to_rows(const X* image, Y* rows, const Shape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 row_len = s.channels * s.kernel_height * s.kernel_width;
    const u32 within = (u32)(i % row_len);
    u64 place = i / row_len;
    const u32 kx = within % s.kernel_width, ky = within / s.kernel_width % s.kernel_height;
    const u32 c = within / (s.kernel_width * s.kernel_height);
    const u32 ox = (u32)(place % s.out_width);
    place /= s.out_width;
    const u32 oy = (u32)(place % s.out_height);
    const u64 n = place / s.out_height;
    // Before the image, the unsigned difference is larger than any extent.
    const u32 y = oy * s.stride_y + ky * s.dilation_y - s.pad_y, x = ox * s.stride_x + kx * s.dilation_x - s.pad_x;
    float v = 0.0f;
    if (y < s.height && x < s.width)
        v = to_float(image[((n * s.height + y) * s.width + x) * s.all_channels + s.first_channel + c]);
    rows[i] = from_float<Y>(v);
}

// Every pixel collects its own from all rows that it was part of, in a fixed order.
extern "C" __global__ void __launch_bounds__(THREADS)
    rows_to_image(const X* rows, Y* image, const Shape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 c = (u32)(i % s.channels);
    u64 place = i / s.channels;
    const u32 x = (u32)(place % s.width);
    place /= s.width;
    const u32 y = (u32)(place % s.height);
    const u64 n = place / s.height;
    const u32 row_len = s.channels * s.kernel_height * s.kernel_width;
    float sum = 0.0f;
    for (u32 ky = 0; ky < s.kernel_height; ky++) {
        const u32 reach_y = y + s.pad_y - ky * s.dilation_y;
        if (y + s.pad_y < ky * s.dilation_y || reach_y % s.stride_y || reach_y / s.stride_y >= s.out_height) continue;
        for (u32 kx = 0; kx < s.kernel_width; kx++) {
            const u32 reach_x = x + s.pad_x - kx * s.dilation_x;
            if (x + s.pad_x < kx * s.dilation_x || reach_x % s.stride_x || reach_x / s.stride_x >= s.out_width)
                continue;
            const u64 row = (n * s.out_height + reach_y / s.stride_y) * s.out_width + reach_x / s.stride_x;
            sum += to_float(rows[row * row_len + (c * s.kernel_height + ky) * s.kernel_width + kx]);
        }
    }
    image[((n * s.height + y) * s.width + x) * s.all_channels + s.first_channel + c] = from_float<Y>(sum);
}
