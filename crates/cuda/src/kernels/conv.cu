// im2col and col2im of channels-last images [n, height, width, all_channels], for convolution as a matrix product, one
// group of channels at a time. A thread has one element of the result. X, Y: storage types of operand and result.

#define THREADS 256

struct ConvShape {
    u32 height, width, all_channels;
    u32 out_height, out_width;
    u32 kernel_height, kernel_width;
    u32 stride_y, stride_x;
    u32 pad_y, pad_x; // above and to the left
    u32 dilation_y, dilation_x;
    // Channels of one group, and the first channel of this group.
    u32 channels, first_channel;
};

// columns [n, out_height, out_width][channels, kernel_height, kernel_width].
extern "C" __global__ void __launch_bounds__(THREADS)
    im2col(const X* image, Y* columns, const ConvShape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 row_length = s.channels * s.kernel_height * s.kernel_width;
    u64 rest = i;
    const u32 column = unravel(rest, row_length);
    const u32 kx = column % s.kernel_width, ky = column / s.kernel_width % s.kernel_height;
    const u32 c = column / (s.kernel_width * s.kernel_height);
    const u32 ox = unravel(rest, s.out_width), oy = unravel(rest, s.out_height);
    const u64 n = rest;
    // In the padding before the image, the unsigned difference wraps to more than any extent.
    const u32 y = oy * s.stride_y + ky * s.dilation_y - s.pad_y, x = ox * s.stride_x + kx * s.dilation_x - s.pad_x;
    float v = 0.0f;
    if (y < s.height && x < s.width)
        v = to_float(image[((n * s.height + y) * s.width + x) * s.all_channels + s.first_channel + c]);
    columns[i] = from_float<Y>(v);
}

// The transpose of im2col: every pixel sums the elements that im2col copied from it, in the order of the filter's taps.
// Output position o has the pixel under tap k if o * stride = pixel + pad - k * dilation (`offset_y`, `offset_x`).
extern "C" __global__ void __launch_bounds__(THREADS)
    col2im(const X* columns, Y* image, const ConvShape s, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    u64 rest = i;
    const u32 c = unravel(rest, s.channels), x = unravel(rest, s.width), y = unravel(rest, s.height);
    const u64 n = rest;
    const u32 row_length = s.channels * s.kernel_height * s.kernel_width;
    float sum = 0.0f;
    for (u32 ky = 0; ky < s.kernel_height; ky++) {
        const u32 offset_y = y + s.pad_y - ky * s.dilation_y;
        if (y + s.pad_y < ky * s.dilation_y || offset_y % s.stride_y || offset_y / s.stride_y >= s.out_height) continue;
        for (u32 kx = 0; kx < s.kernel_width; kx++) {
            const u32 offset_x = x + s.pad_x - kx * s.dilation_x;
            if (x + s.pad_x < kx * s.dilation_x || offset_x % s.stride_x || offset_x / s.stride_x >= s.out_width)
                continue;
            const u64 row = (n * s.out_height + offset_y / s.stride_y) * s.out_width + offset_x / s.stride_x;
            sum += to_float(columns[row * row_length + (c * s.kernel_height + ky) * s.kernel_width + kx]);
        }
    }
    image[((n * s.height + y) * s.width + x) * s.all_channels + s.first_channel + c] = from_float<Y>(sum);
}
