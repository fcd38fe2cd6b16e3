//! The stems of ResNets, and the stride and dilation of each block of a residual network.

use super::drop_path_rate;

/// The first convolutions of a residual network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stem {
    /// One of 7x7 with stride 2, then pooling.
    Plain,
    /// One of 3x3 with stride 1, no pooling: for images of 32 pixels, as is usual for CIFAR.
    Small,
    /// Three of 3x3 (ResNet-D).
    Deep,
    /// Three of 3x3, the first with three quarters of the second's filters.
    Tiered,
}

impl Stem {
    /// How many times coarser the feature map is than the image, pooling included.
    pub fn stride(self) -> usize {
        if self == Stem::Small { 1 } else { 4 }
    }
}

/// One block of a residual network.
#[derive(Debug, Clone, Copy)]
pub struct ResidualBlock {
    /// The width of its stage.
    pub width: usize,
    /// Whether it is the first of its stage.
    pub first: bool,
    /// The stride of its spatial convolution.
    pub stride: usize,
    /// The dilation of the block before it, which its first convolution has.
    pub previous_dilation: usize,
    /// The dilation of its stage.
    pub dilation: usize,
    /// The rate of stochastic depth.
    pub drop_path: f32,
}

impl ResidualBlock {
    /// The dilation of the convolution that changes the resolution, at most 2 in timm's later networks.
    pub fn first_dilation(&self) -> usize {
        if self.first { self.previous_dilation.min(2) } else { self.dilation }
    }
}

/// The strides of a residual network's stem and first stage, and the coarsest resolution of its maps. Every later stage halves
/// the resolution; where it would become coarser, convolutions are dilated instead.
#[derive(Debug, Clone, Copy)]
pub struct NetworkStrides {
    /// How many times coarser than the image the first stage's input is.
    pub stem: usize,
    /// The stride of the first stage.
    pub first_stage: usize,
    /// How many times coarser than the image the last map is at most.
    pub output: usize,
}

/// The blocks of each stage.
pub fn residual_stages(
    depths: &[usize],
    widths: &[usize],
    strides: NetworkStrides,
    drop_path: f32,
) -> Vec<Vec<ResidualBlock>> {
    let (mut total_stride, mut dilation, mut previous_dilation, mut index) = (strides.stem, 1, 1, 0);
    let blocks: usize = depths.iter().sum();
    let mut stages = Vec::new();
    for (stage, (&depth, &width)) in depths.iter().zip(widths).enumerate() {
        let mut stage_stride = if stage == 0 { strides.first_stage } else { 2 };
        if total_stride >= strides.output {
            dilation *= stage_stride;
            stage_stride = 1;
        }
        total_stride *= stage_stride;
        let block = |block: usize| {
            let first = block == 0;
            let stride = if first { stage_stride } else { 1 };
            let drop_path = drop_path_rate(drop_path, index, blocks);
            let block = ResidualBlock { width, first, stride, previous_dilation, dilation, drop_path };
            (previous_dilation, index) = (dilation, index + 1);
            block
        };
        stages.push((0..depth).map(block).collect());
    }
    stages
}

/// Why these depths and widths of stages are impossible.
pub fn stages_contradiction(depths: &[usize], widths: &[usize]) -> Option<String> {
    if depths.len() != widths.len() {
        return Some(format!(
            "there are {} stages and {} widths; each stage needs one width",
            depths.len(),
            widths.len()
        ));
    }
    let possible =
        depths.iter().all(|depth| (1..=1 << 10).contains(depth)) && widths.iter().all(|w| (1..=1 << 16).contains(w));
    (!possible).then(|| {
        format!(
            "the stages have {depths:?} blocks and widths {widths:?}; 1 to 1024 blocks and widths from 1 to 65536 are possible"
        )
    })
}
