//! Convolutions, pooling, patches and windows of images.

use vit_graph::ops::{Activation, Conv2d, ImageLayout, Patchify, Pool2d, PoolMode, Unpatchify, Unwindows, Windows};
use vit_graph::{Shape, Tensor};

use crate::build::{CaseBuilder, Outputs, Table, differentiable};

pub(super) fn table(t: &mut Table) {
    t.each("conv2d", [1, 1, 2, 3], conv2d);
    t.each("conv2d of many channels", [[1, 1], [3, 3], [2, 5]], many_channels);
    t.one("conv2d, relu", |c| followed(c, |y, _, _| y.activation(Activation::Relu)));
    t.one("conv2d, add, relu", |c| followed(c, |y, r, _| (y + r).activation(Activation::Relu)));
    t.one("conv2d, silu, add", |c| followed(c, |y, r, _| r + y.activation(Activation::Silu)));
    t.one("conv2d, scale, shift, add", |c| followed(c, |y, r, [scale, shift]| y * scale + shift + r));
    t.each("depthwise conv2d", [3, 16, 33], depthwise);
    let modes = [(PoolMode::Max, false), (PoolMode::Max, true), (PoolMode::Mean, false), (PoolMode::Mean, true)];
    t.each("pool", modes, pool);
    t.each("patchify", [ImageLayout::ChannelsFirst, ImageLayout::ChannelsLast], patchify);
    t.two("windows", windows);
}

fn conv2d(c: &mut CaseBuilder, groups: usize) -> Outputs {
    let r = &mut c.rng;
    let (b, kernel) = (r.pick(&[1, 2, 3]), [r.pick(&[1, 2, 3]), r.pick(&[1, 2, 3])]);
    let conv = Conv2d {
        stride: [r.pick(&[1, 2, 3]), r.pick(&[1, 2])],
        padding: [[r.pick(&[0, 1]), r.pick(&[0, 1, 2])], [r.pick(&[0, 1]), r.pick(&[0, 2])]],
        dilation: [r.pick(&[1, 2]), r.pick(&[1, 1, 2])],
        groups,
        bias: r.flip(),
    };
    let (channels, filters) = (groups * r.pick(&[1, 2, 5]), groups * r.pick(&[1, 3, 17]));
    let image = [b, r.pick(&[5, 8, 9]), r.pick(&[5, 6, 11]), channels];
    differentiable([convolve(c, conv, image, [filters, channels / groups, kernel[0], kernel[1]])])
}

fn convolve(c: &mut CaseBuilder, conv: Conv2d, image: [usize; 4], weight: [usize; 4]) -> Tensor {
    let (x, w) = (c.float(image), c.float(weight));
    let bias = conv.bias.then(|| c.float([weight[0]]));
    x.conv2d(conv, &w, bias.as_ref())
}

/// Channels in whole vector registers, for which devices have special kernels; sums of a few hundred terms.
fn many_channels(c: &mut CaseBuilder, kernel: [usize; 2]) -> Outputs {
    let r = &mut c.rng;
    let stride = r.pick(&[1, 2, 3]);
    let padding = kernel.map(|k| [r.pick(&[0, k / 2]), k / 2]);
    let conv = Conv2d { stride: [stride; 2], padding, dilation: [1; 2], groups: 1, bias: r.flip() };
    let channels = r.pick(if kernel == [1, 1] { &[8, 64, 72] } else { &[8, 16, 24] });
    let filters = r.pick(&[8, 24, 72]);
    let image = [r.pick(&[1, 2]), r.pick(&[4, 7]), r.pick(&[5, 8, 9]), channels];
    differentiable([convolve(c, conv, image, [filters, channels, kernel[0], kernel[1]])])
}

/// A convolution and operations that devices fuse into it: `follow(y, residual, [scale, shift])`.
fn followed(c: &mut CaseBuilder, follow: impl Fn(Tensor, Tensor, [Tensor; 2]) -> Tensor) -> Outputs {
    let r = &mut c.rng;
    let (b, kernel, stride) = (r.pick(&[1, 2]), r.pick(&[1, 3]), r.pick(&[1, 2]));
    let (channels, filters) = (r.pick(&[1, 3, 8, 17]), r.pick(&[1, 7, 16, 50, 65]));
    let padding = [[kernel / 2, kernel / 2], [0, kernel / 2]];
    let conv = Conv2d { stride: [stride; 2], padding, dilation: [1; 2], groups: 1, bias: r.flip() };
    let image = [b, r.pick(&[5, 8]), r.pick(&[6, 11]), channels];
    let y = convolve(c, conv, image, [filters, channels, kernel, kernel]);
    let per_channel = c.floats([filters]);
    let residual = c.float(y.shape());
    differentiable([follow(y, residual, per_channel)])
}

fn depthwise(c: &mut CaseBuilder, channels: usize) -> Outputs {
    let r = &mut c.rng;
    let (kernel, stride) = (r.pick(&[3, 5]), r.pick(&[1, 2]));
    let padding = [[r.pick(&[0, 1, 2]), r.pick(&[1, 2])], [r.pick(&[1, 2]), r.pick(&[0, 1, 2])]];
    let conv = Conv2d { stride: [stride; 2], padding, dilation: [1; 2], groups: channels, bias: r.flip() };
    let image = [r.pick(&[1, 2]), r.pick(&[5, 8, 9]), r.pick(&[5, 6, 19]), channels];
    differentiable([convolve(c, conv, image, [channels, 1, kernel, kernel])])
}

fn pool(c: &mut CaseBuilder, (pooling, count_padding): (PoolMode, bool)) -> Outputs {
    let r = &mut c.rng;
    let kernel = [r.pick(&[1, 2, 3]), r.pick(&[2, 3])];
    let rows = [r.pick(&[0, 1]) % kernel[0], r.pick(&[0, 2]) % kernel[0]];
    let columns = [r.pick(&[0, 1]), r.pick(&[0, 1])];
    let stride = [r.pick(&[1, 2, 3]), r.pick(&[1, 2])];
    let pool = Pool2d { pooling, kernel, stride, padding: [rows, columns], count_padding };
    let shape = [r.pick(&[1, 2]), r.pick(&[3, 5, 8]), r.pick(&[4, 7]), r.wide()];
    differentiable([c.float(shape).pool2d(pool)])
}

fn patchify(c: &mut CaseBuilder, layout: ImageLayout) -> Outputs {
    let r = &mut c.rng;
    let patch = [r.pick(&[1, 2, 3]), r.pick(&[1, 2, 4, 8])];
    let (b, channels) = (r.extent(), r.pick(&[1, 3, 4]));
    let [height, width] = [patch[0] * 2 + r.pick(&[0, 1]) % patch[0], patch[1] * 3];
    let shape = match layout {
        ImageLayout::ChannelsFirst => [b, channels, height, width],
        ImageLayout::ChannelsLast => [b, height, width, channels],
    };
    let patchify = Patchify { patch, layout };
    let patches = c.float(shape).apply(patchify, &[]);
    let again = patches.apply(Unpatchify { patchify, image: Shape::from(shape) }, &[]);
    differentiable([patches, again])
}

fn windows(c: &mut CaseBuilder) -> Outputs {
    let r = &mut c.rng;
    let size = [r.pick(&[1, 2, 3]), r.pick(&[2, 4])];
    let shift = [r.pick(&[0, 1]), r.pick(&[0, 1, 2])];
    let image = [r.pick(&[1, 2]), r.pick(&[4, 6, 7]), r.pick(&[4, 5, 8]), r.extent()];
    let windows = Windows { size, shift };
    let x = c.float(image);
    let cut = x.apply(windows, &[]);
    let joined = c.float(cut.shape()).apply(Unwindows { windows, image: x.shape() }, &[]);
    differentiable([cut, joined])
}
