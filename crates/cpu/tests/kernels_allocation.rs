//! Running a kernel allocates nothing: the executor's memory plan relies on it.

mod counting_allocator;

use counting_allocator::allocations;
use vit_cpu::activation::{Activation, apply};
use vit_cpu::attention::{
    AttentionArgs, AttentionGradArgs, AttentionShape, GradOutputs, HeadView, HeadViewMut, backward, backward_workspace,
    forward, forward_workspace,
};
use vit_cpu::gemm::{ALayout, BLayout, Epilogue, Matmul, matmul, matmul_workspace};
use vit_cpu::isa::Isa;
use vit_cpu::norm::{LayerNormArgs, LayerNormGradArgs, layer_norm, layer_norm_grad, layer_norm_grad_workspace};
use vit_cpu::thread_pool::ThreadPool;

#[test]
fn running_allocates_nothing() {
    let pool = ThreadPool::new(2);
    let isa = Isa::detect();
    let (batch, rows, heads, head_dim) = (2, 50, 3, 16);
    let shape = AttentionShape { batch, heads, queries: rows, keys: rows, head_dim };
    let width = heads * head_dim;
    let total = batch * rows;
    let x = vec![0.5f32; total * width];
    let weight = vec![0.25f32; width * 3 * width];
    let mut qkv = vec![0.0; total * 3 * width];
    let mut dqkv = qkv.clone();
    let mut out = x.clone();
    let mut normalised = x.clone();
    let mut dx = x.clone();
    let mut lse = vec![0.0; batch * heads * rows];
    let (mut mean, mut rstd) = (vec![0.0; total], vec![0.0; total]);
    let (mut dgamma, mut dbeta) = (vec![0.0; width], vec![0.0; width]);
    let workspaces = [
        matmul_workspace(isa, 2, 1, total, 3 * width, width),
        forward_workspace(isa, 2, &shape),
        backward_workspace(2, &shape),
        layer_norm_grad_workspace(total, width),
    ];
    let mut workspace = vec![0.0; workspaces.into_iter().max().unwrap_or_default()];

    let mut step = || {
        let args = LayerNormArgs::new([total, width], &x, 1e-6, &mut normalised);
        layer_norm(&pool, isa, LayerNormArgs { mean: Some(&mut mean), rstd: Some(&mut rstd), ..args });
        let product = Matmul {
            batch: 1,
            m: total,
            n: 3 * width,
            k: width,
            a: &normalised,
            lda: width,
            a_layout: ALayout::RowMajor,
            a_batch_stride: 0,
            b: &weight,
            ldb: width,
            b_layout: BLayout::RowsAreN,
            b_batch_stride: 0,
            c: &mut qkv,
            ldc: 3 * width,
            c_batch_stride: 0,
            accumulate: false,
            epilogue: Epilogue { activation: Some(Activation::Gelu), ..Epilogue::default() },
            d_activation: None,
        };
        matmul(&pool, isa, product, &mut workspace);
        let [q, k, v] = HeadView::packed_qkv(&qkv, rows, heads, head_dim);
        let attention = AttentionArgs {
            shape,
            scale: 0.25,
            q,
            k,
            v,
            out: HeadViewMut::dense(&mut out, rows, heads, head_dim),
            lse: Some(&mut lse),
            weights: None,
            bias: None,
            dropout: None,
        };
        forward(&pool, isa, attention, &mut workspace);
        let grad = AttentionGradArgs {
            shape,
            scale: 0.25,
            q,
            k,
            v,
            out: HeadView::dense(&out, rows, heads, head_dim),
            dout: HeadView::dense(&x, rows, heads, head_dim),
            lse: &lse,
            bias: None,
            dropout: None,
            outputs: GradOutputs::Packed(&mut dqkv),
            dbias: None,
        };
        backward(&pool, isa, grad, &mut workspace);
        let args = LayerNormGradArgs {
            rows: total,
            dim: width,
            dy: &out,
            x: &x,
            gamma: None,
            mean: &mean,
            rstd: &rstd,
            centred: true,
            residual_grad: None,
            dx: &mut dx,
            dgamma: Some(&mut dgamma),
            dbeta: Some(&mut dbeta),
        };
        layer_norm_grad(&pool, isa, args, &mut workspace);
        apply(&pool, isa, Activation::Silu, &dx, &mut out);
    };
    // The first rounds may initialise locks and the detection of CPU features.
    step();
    std::thread::sleep(std::time::Duration::from_millis(5));
    step();
    let before = allocations();
    for _ in 0..5 {
        step();
    }
    assert_eq!(allocations() - before, 0);
}
