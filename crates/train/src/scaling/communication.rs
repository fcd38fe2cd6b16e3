//! The all-reduce of gradients: in each node a reduce-scatter, between nodes an all-reduce of each GPU's slice, in each
//! node an all-gather. It moves the bytes of a ring and has the latency of a tree, as NCCL's double binary trees do.
//! Gradients are sent in buckets as soon as the backward pass has computed them, one bucket after the other.

use std::time::Duration;

use super::{GpuModel, Network};

/// The share of a link's bandwidth that large messages reach.
const LINK_SHARE: f64 = 0.85;

/// The time of an empty message inside a node.
const LINK_LATENCY: f64 = 1e-6;

/// Bytes of a bucket, unless there would be fewer than [`MIN_BUCKETS`].
const BUCKET: f64 = 64e6;

const MIN_BUCKETS: f64 = 8.0;

/// The all-reduce of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Communication {
    /// Its time without computing.
    pub total: Duration,
    /// Of it, the time after the backward pass.
    pub exposed: Duration,
}

impl Communication {
    pub(super) fn of(bytes: f64, backward: Duration, gpus: usize, gpu: &GpuModel, network: &Network) -> Communication {
        let buckets = (bytes / BUCKET).ceil().max(MIN_BUCKETS);
        let each = all_reduce(bytes / buckets, gpus, gpu, network);
        let backward = backward.as_secs_f64();
        let mut free = 0.0f64;
        for bucket in 1..=buckets as u64 {
            let complete = backward * bucket as f64 / buckets;
            free = free.max(complete) + each;
        }
        let (total, exposed) = (each * buckets, if each > 0.0 { free - backward } else { 0.0 });
        Communication { total: Duration::from_secs_f64(total), exposed: Duration::from_secs_f64(exposed) }
    }

    /// The share of its time in which GPUs compute, too.
    pub fn hidden(&self) -> f64 {
        match self.total.is_zero() {
            true => 1.0,
            false => 1.0 - self.exposed.as_secs_f64() / self.total.as_secs_f64(),
        }
    }
}

/// Seconds of one all-reduce.
fn all_reduce(bytes: f64, gpus: usize, gpu: &GpuModel, network: &Network) -> f64 {
    let local = gpus.min(gpu.per_node);
    let nodes = gpus.div_ceil(gpu.per_node);
    let inside = among(local, bytes, gpu.link, LINK_LATENCY);
    inside + among(nodes, bytes / local as f64, network.bandwidth, network.latency.as_secs_f64())
}

/// Seconds of an all-reduce among equals: each sends all slices but its own, twice, and a message goes up and down a tree.
fn among(size: usize, bytes: f64, bandwidth: f64, latency: f64) -> f64 {
    let slices = 2.0 * (size - 1) as f64 / size as f64;
    slices * bytes / (bandwidth * LINK_SHARE) + 2.0 * (size as f64).log2().ceil() * latency
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_networks_cannot_be_hidden() {
        let gpu = GpuModel::named("h200").unwrap();
        let backward = Duration::from_millis(60);
        let with = |gigabits| Communication::of(2.5e9, backward, 64, &gpu, &Network::with_gigabits(gigabits));
        let (fast, slow) = (with(400.0), with(10.0));
        assert!(fast.hidden() > 0.9, "{fast:?}");
        assert!(slow.hidden() < 0.5, "{slow:?}");
        // The last bucket is complete when the backward pass ends.
        assert!(fast.exposed > Duration::ZERO);
    }

    #[test]
    fn each_member_sends_the_bytes_twice() {
        let seconds = among(1000, 1e9, 1e9 / LINK_SHARE, 0.0);
        assert!((seconds - 2.0).abs() < 0.01, "{seconds}");
        assert_eq!(among(1, 1e9, 1e9, 1.0), 0.0);
        assert_eq!(among(1024, 0.0, 1e9, 1.0), 20.0);
    }
}
