//! Measures the kernels on this machine: the peak of fused multiply-adds, then matrix products and attention of
//! ViT-B/16 and ViT-Ti/16 as shares of it. Times are the best of several runs, since other processes disturb.

use std::time::Instant;

use vit_cpu::activation::Activation;
use vit_cpu::attention::{Attention, AttentionShape, View, ViewMut, forward, forward_workspace};
use vit_cpu::gemm::{ALayout, BLayout, Epilogue, Gemm, gemm, gemm_workspace, pack_b, packed_len};
use vit_cpu::isa::Isa;
use vit_cpu::pool::Pool;

/// A buffer that starts at a cache line.
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

/// The shortest time of one call, over about a third of a second.
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

/// What the threads reach with independent multiply-adds in registers.
fn peak(pool: &Pool, isa: Isa) -> f64 {
    let loops = 200_000;
    let tasks = pool.threads();
    let flops = std::sync::atomic::AtomicU64::new(0);
    let time = best(|| {
        flops.store(0, std::sync::atomic::Ordering::Relaxed);
        pool.run(tasks, &|_| {
            let n = vit_cpu::isa::fma_loop(isa, loops);
            flops.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
        });
    });
    flops.into_inner() as f64 / time / 1e9
}

fn product(pool: &Pool, isa: Isa, m: usize, n: usize, k: usize, activation: Activation) -> f64 {
    let a = Aligned::new(m * k);
    let w = Aligned::new(n * k);
    let bias = Aligned::new(n);
    let mut b = Aligned::new(packed_len(isa, k, n));
    let mut c = Aligned::new(m * n);
    let mut workspace = Aligned::new(gemm_workspace(isa, pool.threads(), m, n, k));
    pack_b(isa, w.get(), BLayout::RowsAreN, k, k, n, b.get_mut());
    let time = best(|| {
        let product = Gemm {
            m,
            n,
            k,
            a: a.get(),
            lda: k,
            a_layout: ALayout::RowMajor,
            b: b.get(),
            c: c.get_mut(),
            ldc: n,
            alpha: 1.0,
            accumulate: false,
            epilogue: Epilogue { bias: Some(bias.get()), activation, ..Epilogue::default() },
        };
        gemm(pool, isa, product, workspace.get_mut());
    });
    2.0 * (m * n * k) as f64 / time / 1e9
}

fn attention(pool: &Pool, isa: Isa, batch: usize, heads: usize) -> f64 {
    let (rows, head_dim) = (197, 64);
    let shape = AttentionShape { batch, heads, queries: rows, keys: rows, head_dim };
    let qkv = Aligned::new(batch * rows * 3 * heads * head_dim);
    let mut out = Aligned::new(batch * rows * heads * head_dim);
    let mut workspace = Aligned::new(forward_workspace(isa, pool.threads(), &shape));
    let time = best(|| {
        let [q, k, v] = View::packed_qkv(qkv.get(), rows, heads, head_dim);
        let attention = Attention {
            shape,
            scale: 0.125,
            q,
            k,
            v,
            out: ViewMut::dense(out.get_mut(), rows, heads, head_dim),
            lse: None,
            weights: None,
            bias: None,
            dropout: None,
        };
        forward(pool, isa, attention, workspace.get_mut());
    });
    4.0 * (batch * heads * rows * rows * head_dim) as f64 / time / 1e9
}

fn main() {
    let wanted: Vec<Isa> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let isas = if wanted.is_empty() { Isa::available() } else { wanted };
    for isa in isas {
        for threads in [1, 2] {
            let pool = Pool::new(threads);
            let peak = peak(&pool, isa);
            println!("\n{isa}, {threads} threads: FMA peak {peak:.1} GFLOP/s");
            let print = |name: &str, rate: f64| {
                println!("{name:<34} {rate:8.1} GFLOP/s {:5.1}%", 100.0 * rate / peak);
            };
            for (model, width) in [("B/16", 768), ("Ti/16", 192)] {
                for batch in [1, 8] {
                    let m = 197 * batch;
                    for (layer, n, k, activation) in [
                        ("qkv", 3 * width, width, Activation::None),
                        ("proj", width, width, Activation::None),
                        ("fc1", 4 * width, width, Activation::None),
                        ("fc1+gelu", 4 * width, width, Activation::GeluErf),
                        ("fc2", width, 4 * width, Activation::None),
                    ] {
                        let name = format!("{model} batch {batch} {layer} {m}x{n}x{k}");
                        print(&name, product(&pool, isa, m, n, k, activation));
                    }
                    let rate = attention(&pool, isa, batch, width / 64);
                    print(&format!("{model} batch {batch} attention"), rate);
                }
            }
        }
    }
}
