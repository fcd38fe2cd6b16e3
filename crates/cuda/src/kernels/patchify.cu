// An image cut into patches, each flattened in the order channel, row, column, and put together again.
#ifndef X
#define X float
#endif
#ifndef Y
#define Y float
#endif

#define THREADS 256

struct Cut {
    u32 height, width, channels;
    u32 patch_height, patch_width;
    u32 rows, columns;
    // Elements between neighbours in the image.
    u64 image_stride, y_stride, x_stride, channel_stride;
};

extern "C" __global__ void __launch_bounds__(THREADS) patchify(const X* image, Y* patches, const Cut cut, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 patch_len = cut.channels * cut.patch_height * cut.patch_width;
    const u32 within = (u32)(i % patch_len);
    const u64 patch = i / patch_len;
    const u32 kx = within % cut.patch_width, ky = within / cut.patch_width % cut.patch_height;
    const u32 channel = within / (cut.patch_width * cut.patch_height);
    const u32 px = (u32)(patch % cut.columns), py = (u32)(patch / cut.columns % cut.rows);
    const u64 n = patch / cut.columns / cut.rows;
    const u64 from = n * cut.image_stride + (u64)(py * cut.patch_height + ky) * cut.y_stride +
                     (u64)(px * cut.patch_width + kx) * cut.x_stride + channel * cut.channel_stride;
    patches[i] = from_float<Y>(to_float(image[from]));
}

// `order` says how an element's number is taken apart: channels last or channels first.
extern "C" __global__ void __launch_bounds__(THREADS)
    unpatchify(const X* patches, Y* image, const Cut cut, u32 channels_first, u64 count) {
    const u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    u32 channel, x, y;
    u64 rest = i;
    if (channels_first) {
        x = (u32)(rest % cut.width), rest /= cut.width;
        y = (u32)(rest % cut.height), rest /= cut.height;
        channel = (u32)(rest % cut.channels), rest /= cut.channels;
    } else {
        channel = (u32)(rest % cut.channels), rest /= cut.channels;
        x = (u32)(rest % cut.width), rest /= cut.width;
        y = (u32)(rest % cut.height), rest /= cut.height;
    }
    const u32 py = y / cut.patch_height, px = x / cut.patch_width;
    float v = 0.0f;
    if (py < cut.rows && px < cut.columns) {
        const u64 patch = (rest * cut.rows + py) * cut.columns + px;
        const u32 ky = y % cut.patch_height, kx = x % cut.patch_width;
        v = to_float(patches[((patch * cut.channels + channel) * cut.patch_height + ky) * cut.patch_width + kx]);
    }
    image[i] = from_float<Y>(v);
}
