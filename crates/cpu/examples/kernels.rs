//! Benchmarks the kernels: matrix products and attention of ViT-B/16 and ViT-Ti/16, in GFLOP/s and relative to the peak
//! of fused multiply-adds. Times are the minimum of several runs. Arguments choose instruction sets by name; `int8`
//! selects the linear layers on bytes, `train` the kernels of a backward pass.

use std::time::Instant;

use vit_cpu::activation::Activation;
use vit_cpu::attention::{
    AttentionArgs, AttentionGradArgs, AttentionShape, GradOutputs, HeadView, HeadViewMut, backward, backward_workspace,
    forward, forward_workspace,
};
use vit_cpu::gemm::{
    ALayout, BLayout, Epilogue, Gemm, Matmul, gemm, gemm_workspace, matmul, matmul_workspace, pack_b, packed_len,
};
use vit_cpu::int8::{self, Gemm8};
use vit_cpu::isa::Isa;
use vit_cpu::thread_pool::ThreadPool;

/// A buffer of random values, aligned to a cache line.
struct Aligned {
    data: Vec<f32>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let mut data = vec![0.0; len + 16];
        let mut state = 12345u64;
        for x in &mut data {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *x = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        }
        let start = data.as_ptr().align_offset(64);
        Aligned { data, start, len }
    }
    fn get(&self) -> &[f32] {
        &self.data[self.start..][..self.len]
    }
    fn get_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.start..][..self.len]
    }
}

/// The minimum time of a call, over about a third of a second.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    let mut runs = 0;
    while runs < 5 || begin.elapsed().as_secs_f64() < 0.35 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

/// GFLOP/s of all threads in a loop of independent operations in registers, which returns their number.
fn peak(pool: &ThreadPool, rounds: impl Fn(usize) -> u64 + Sync) -> f64 {
    let loops = 200_000;
    let tasks = pool.threads();
    let flops = std::sync::atomic::AtomicU64::new(0);
    let time = best(|| {
        flops.store(0, std::sync::atomic::Ordering::Relaxed);
        pool.run(tasks, &|_| {
            let n = rounds(loops);
            flops.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
        });
    });
    flops.into_inner() as f64 / time / 1e9
}

fn product(pool: &ThreadPool, isa: Isa, m: usize, n: usize, k: usize, activation: Option<Activation>) -> f64 {
    let a = Aligned::new(m * k);
    let w = Aligned::new(n * k);
    let bias = Aligned::new(n);
    let mut b = Aligned::new(packed_len(isa, k, n));
    let mut c = Aligned::new(m * n);
    let mut workspace = Aligned::new(gemm_workspace(isa, pool.threads(), m, n, k));
    pack_b(isa, w.get(), BLayout::RowsAreN, k, k, n, b.get_mut());
    let time = best(|| {
        let epilogue = Epilogue { bias: Some(bias.get()), activation, ..Epilogue::default() };
        let product = Gemm { epilogue, ..Gemm::dense([m, n, k], a.get(), b.get(), c.get_mut()) };
        gemm(pool, isa, product, workspace.get_mut());
    });
    2.0 * (m * n * k) as f64 / time / 1e9
}

/// The same product on bytes, including the quantisation of A.
fn quantised_product(pool: &ThreadPool, isa: Isa, m: usize, n: usize, k: usize, activation: Option<Activation>) -> f64 {
    let a = Aligned::new(m * k);
    let w = Aligned::new(n * k);
    let bias = Aligned::new(n);
    let mut b = Aligned::new(int8::packed_len(isa, k, n));
    let mut c = Aligned::new(m * n);
    let mut workspace = Aligned::new(int8::workspace(isa, m, k));
    int8::pack(isa, w.get(), k, n, b.get_mut());
    let time = best(|| {
        let product = Gemm8 {
            m,
            n,
            k,
            a: a.get(),
            lda: k,
            b_packed: b.get(),
            c: c.get_mut(),
            ldc: n,
            epilogue: Epilogue { bias: Some(bias.get()), activation, ..Epilogue::default() },
        };
        int8::gemm(pool, isa, product, workspace.get_mut());
    });
    2.0 * (m * n * k) as f64 / time / 1e9
}

/// The linear layers of ViT-B/16 on bytes and on `f32`, measured in turns.
fn quantised(pool: &ThreadPool, isa: Isa) {
    let threads = pool.threads();
    let peak = peak(pool, |n| int8::dot_loop(isa, n));
    println!("\n{} int8, {threads} threads: dot product peak {peak:.1} GOP/s", int8::DotPath::from(isa));
    for m in [197, 1576] {
        for (layer, n, k, activation) in layers(768) {
            let (mut bytes, mut floats) = (0f64, 0f64);
            for _ in 0..3 {
                bytes = bytes.max(quantised_product(pool, isa, m, n, k, activation));
                floats = floats.max(product(pool, isa, m, n, k, activation));
            }
            let name = format!("{layer} {m}x{n}x{k}");
            let share = 100.0 * bytes / peak;
            println!("{name:<34} {bytes:8.1} GOP/s {share:5.1}%  f32 {floats:7.1}  x{:.2}", bytes / floats);
        }
    }
}

/// Names, outputs, inputs and activations of the linear layers of a block.
fn layers(width: usize) -> [(&'static str, usize, usize, Option<Activation>); 5] {
    [
        ("qkv", 3 * width, width, None),
        ("proj", width, width, None),
        ("fc1", 4 * width, width, None),
        ("fc1+gelu", 4 * width, width, Some(Activation::Gelu)),
        ("fc2", width, 4 * width, None),
    ]
}

fn attention(pool: &ThreadPool, isa: Isa, batch: usize, heads: usize, rows: usize) -> f64 {
    let head_dim = 64;
    let shape = AttentionShape { batch, heads, queries: rows, keys: rows, head_dim };
    let qkv = Aligned::new(batch * rows * 3 * heads * head_dim);
    let mut out = Aligned::new(batch * rows * heads * head_dim);
    let mut workspace = Aligned::new(forward_workspace(isa, pool.threads(), &shape));
    let time = best(|| {
        let [q, k, v] = HeadView::packed_qkv(qkv.get(), rows, heads, head_dim);
        let attention = AttentionArgs {
            shape,
            scale: 0.125,
            q,
            k,
            v,
            out: HeadViewMut::dense(out.get_mut(), rows, heads, head_dim),
            lse: None,
            weights: None,
            bias: None,
            dropout: None,
        };
        forward(pool, isa, attention, workspace.get_mut());
    });
    4.0 * (batch * heads * rows * rows * head_dim) as f64 / time / 1e9
}

/// A product of a linear layer's backward pass: the gradient of the weights with a transposed A, else that of the
/// input.
fn gradient(pool: &ThreadPool, isa: Isa, m: usize, n: usize, k: usize, a_layout: ALayout) -> f64 {
    let a = Aligned::new(m * k);
    let b = Aligned::new(k * n);
    let mut c = Aligned::new(m * n);
    let mut workspace = Aligned::new(matmul_workspace(isa, pool.threads(), 1, m, n, k));
    let time = best(|| {
        let lda = if a_layout == ALayout::RowMajor { k } else { m };
        let (a, b) = ((a.get(), lda, a_layout), (b.get(), n, BLayout::RowsAreK));
        let product = Matmul::single([m, n, k], a, b, (c.get_mut(), n));
        matmul(pool, isa, product, workspace.get_mut());
    });
    2.0 * (m * n * k) as f64 / time / 1e9
}

fn attention_gradient(pool: &ThreadPool, isa: Isa, batch: usize, heads: usize) -> f64 {
    let (rows, head_dim) = (197, 64);
    let shape = AttentionShape { batch, heads, queries: rows, keys: rows, head_dim };
    let length = batch * rows * heads * head_dim;
    let (qkv, out, dout) = (Aligned::new(3 * length), Aligned::new(length), Aligned::new(length));
    let lse = vec![6.0; batch * heads * rows];
    let mut dqkv = Aligned::new(3 * length);
    let mut workspace = Aligned::new(backward_workspace(pool.threads(), &shape));
    let time = best(|| {
        let [q, k, v] = HeadView::packed_qkv(qkv.get(), rows, heads, head_dim);
        let grad = AttentionGradArgs {
            shape,
            scale: 0.125,
            q,
            k,
            v,
            out: HeadView::dense(out.get(), rows, heads, head_dim),
            dout: HeadView::dense(dout.get(), rows, heads, head_dim),
            lse: &lse,
            bias: None,
            dropout: None,
            outputs: GradOutputs::Packed(dqkv.get_mut()),
            dbias: None,
        };
        backward(pool, isa, grad, workspace.get_mut());
    });
    10.0 * (batch * heads * rows * rows * head_dim) as f64 / time / 1e9
}

/// The kernels of the backward pass of a transformer block.
fn training(pool: &ThreadPool, isa: Isa, print: impl Fn(&str, f64)) {
    for (model, width, batch) in [("B/16", 768, 1), ("Ti/16", 192, 1), ("Ti/16", 192, 16)] {
        let rows = 197 * batch;
        let name = |what: &str| format!("{model} batch {batch} {what}");
        for (layer, n, k, activation) in layers(width) {
            if activation.is_none() {
                let of = |what: &str| name(&format!("{layer} {what}"));
                print(&of("of weights"), gradient(pool, isa, n, k, rows, ALayout::Transposed));
                print(&of("of input"), gradient(pool, isa, rows, k, n, ALayout::RowMajor));
            }
        }
        print(&name("attention"), attention(pool, isa, batch, width / 64, 197));
        print(&name("attention gradient"), attention_gradient(pool, isa, batch, width / 64));
    }
}

fn main() {
    let chosen: Vec<Isa> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let has_argument = |what: &str| std::env::args().any(|a| a == what);
    let (only_int8, only_training) = (has_argument("int8"), has_argument("train"));
    let isas = if chosen.is_empty() { Isa::available() } else { chosen };
    for isa in isas {
        for threads in [1, 2] {
            let pool = ThreadPool::new(threads);
            if !only_training {
                quantised(&pool, isa);
            }
            if only_int8 {
                continue;
            }
            let peak = peak(&pool, |n| vit_cpu::isa::fma_loop(isa, n));
            println!("\n{isa}, {threads} threads: FMA peak {peak:.1} GFLOP/s");
            let print = |name: &str, rate: f64| {
                println!("{name:<34} {rate:8.1} GFLOP/s {:5.1}%", 100.0 * rate / peak);
            };
            training(&pool, isa, print);
            if only_training {
                continue;
            }
            for (model, width) in [("B/16", 768), ("Ti/16", 192)] {
                for batch in [1, 8] {
                    let m = 197 * batch;
                    for (layer, n, k, activation) in layers(width) {
                        let name = format!("{model} batch {batch} {layer} {m}x{n}x{k}");
                        print(&name, product(&pool, isa, m, n, k, activation));
                    }
                    // 197 tokens need padding to whole vectors, 208 do not.
                    for rows in [197, 208] {
                        let rate = attention(&pool, isa, batch, width / 64, rows);
                        print(&format!("{model} batch {batch} attention of {rows}"), rate);
                    }
                }
            }
        }
    }
}
