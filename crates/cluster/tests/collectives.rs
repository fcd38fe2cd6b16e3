//! The collectives, with threads as ranks.

use vit_cluster::{Communicator, Reduce, slice, tree_sum};

/// The results of `run` on every rank.
fn on_ranks<R: Send>(size: usize, run: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = Communicator::threads(size)
            .into_iter()
            .map(|mut communicator| scope.spawn(move || run(&mut communicator)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A part's gradient: values of many magnitudes, so that their sum depends on the order of the additions.
fn part(part: usize, len: usize) -> Vec<f32> {
    let bits = |i: usize| (i as u32 + 1).wrapping_mul(0x9e37_79b9).wrapping_mul(part as u32 * 2 + 3);
    // Exponents from -7 to 8, both signs.
    (0..len).map(|i| f32::from_bits(0x3c00_0000 | bits(i) & 0x87ff_ffff)).collect()
}

fn tree(rows: &mut [Vec<f32>]) -> Vec<f32> {
    tree_sum(&mut rows.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    rows[0].clone()
}

#[test]
fn any_power_of_two_of_ranks_gives_the_same_sums() {
    const PARTS: usize = 8;
    // Shorter than the number of ranks, not divisible by it, and longer than a segment of every rank's slice.
    for len in [0, 1, 3, 7, 8, 1001, 4 * 256 * 1024 + 3] {
        let expected = tree(&mut (0..PARTS).map(|i| part(i, len)).collect::<Vec<_>>());
        for size in [1, 2, 4, 8] {
            for (rank, sum) in on_ranks(size, |communicator| {
                let owned = PARTS / size;
                let first = communicator.rank() * owned;
                let mut sum = tree(&mut (first..first + owned).map(|i| part(i, len)).collect::<Vec<_>>());
                let mut scattered = sum.clone();
                communicator.all_reduce(&mut sum, Reduce::Tree).unwrap();
                communicator.reduce_scatter(&mut scattered, Reduce::Tree).unwrap();
                let own = slice(len, communicator.rank(), size);
                assert!(scattered[own.clone()] == sum[own], "{len} elements, {size} ranks: scattered");
                sum
            })
            .into_iter()
            .enumerate()
            {
                assert!(sum == expected, "{len} elements, rank {rank} of {size}");
            }
        }
    }
}

#[test]
fn any_number_of_ranks_agrees_on_a_sum_of_doubles() {
    for size in [3, 5, 6, 7] {
        let sums = on_ranks(size, |communicator| {
            let mut sum: Vec<f64> = (0..1000).map(|i| 1.0 / (i + communicator.rank() + 1) as f64).collect();
            communicator.all_reduce(&mut sum, Reduce::Fast).unwrap();
            sum
        });
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{size} ranks");
        let expected: f64 = (0..size).map(|rank| 1.0 / (rank + 10) as f64).sum();
        assert!((sums[0][9] - expected).abs() < 1e-15);
    }
}

#[test]
fn gathering_broadcasting_and_waiting() {
    for size in 1..=9 {
        on_ranks(size, |communicator| {
            let rank = communicator.rank();
            for root in 0..size {
                let mut values = if rank == root { [root as u16 + 7; 3] } else { [0; 3] };
                communicator.broadcast(root, &mut values).unwrap();
                assert_eq!(values, [root as u16 + 7; 3]);
            }
            let mut values = vec![u32::MAX; 2 * size + 1];
            let own = slice(values.len(), rank, size);
            values[own.clone()].iter_mut().zip(own).for_each(|(value, i)| *value = i as u32);
            communicator.all_gather(&mut values).unwrap();
            assert!(values.iter().enumerate().all(|(i, &value)| value == i as u32), "{values:?}");

            let texts = communicator.all_gather_bytes("x".repeat(rank).as_bytes()).unwrap();
            assert!(texts.iter().enumerate().all(|(rank, text)| text.len() == rank));
            communicator.barrier().unwrap();
        });
    }
}

#[test]
fn a_rank_that_fails_ends_the_calls_of_all_others() {
    let results = on_ranks(4, |communicator| {
        if communicator.rank() == 2 {
            communicator.fail("cat.jpg: not an image");
            return Ok(());
        }
        communicator.barrier()?;
        communicator.all_reduce(&mut [0f32; 100], Reduce::Tree)
    });
    for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 2) {
        let error = result.unwrap_err();
        assert_eq!(error.to_string(), "rank 2 on thread 2 failed: cat.jpg: not an image", "at rank {rank}");
    }
}

#[test]
fn ranks_that_disagree_on_a_length_get_an_error() {
    let results = on_ranks(2, |communicator| {
        if communicator.rank() == 0 { communicator.send(1, &[1, 2, 3]) } else { communicator.recv(0, &mut [0; 4]) }
    });
    let expected = "rank 0 on thread 0 sent 3 bytes where 4 were expected: the ranks do not run the same program";
    assert_eq!(results[1].as_ref().unwrap_err().to_string(), expected);
}
