// An image cut into patches, each flattened in the order channel, row, column, and put together again.

#define THREADS 256

struct Cut {
    u32 height, width, channels;
    u32 patch_height, patch_width;
    u32 rows, columns;
    // Elements between neighbours in the image.
    u64 image_stride, y_stride, x_stride, channel_stride;
};

// Every thread has VEC neighbours of a patch's row, which are neighbours in the image too.
extern "C" __global__ void __launch_bounds__(THREADS)
    patchify(const X* __restrict__ image, Y* __restrict__ patches, const Cut cut, u64 packs) {
    const u64 pack = (u64)blockIdx.x * THREADS + threadIdx.x;
    if (pack >= packs) return;
    INDEX rest = (INDEX)pack;
    const u32 width = cut.patch_width / VEC;
    const u32 kx = (u32)(rest % width) * VEC;
    rest /= width;
    const u32 ky = (u32)(rest % cut.patch_height);
    rest /= cut.patch_height;
    const u32 channel = (u32)(rest % cut.channels);
    rest /= cut.channels;
    const u32 px = (u32)(rest % cut.columns);
    rest /= cut.columns;
    const u32 py = (u32)(rest % cut.rows);
    const u64 n = rest / cut.rows;
    const u64 from = n * cut.image_stride + (u64)(py * cut.patch_height + ky) * cut.y_stride +
                     (u64)(px * cut.patch_width + kx) * cut.x_stride + channel * cut.channel_stride;
    float v[VEC];
    load<VEC>(image + from, v);
    store<VEC>(patches + pack * VEC, v);
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
