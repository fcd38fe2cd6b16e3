//! Buckets between GPUs by NCCL: by its own all-reduce, or by its sends and receives where sums must have a fixed order
//! ([`Exchange::fixed_order`]) or processes have slices ([`SlicedCollective`]).

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use vit_graph::GraphError;
use vit_graph::exchange::{Alone, Collective, Exchange};

use super::{BucketValue, StreamBucket};
use crate::compile::{self, KernelVariant};
use crate::driver::memory::DeviceBuffer;
use crate::driver::{Gpu, Stream};
use crate::nccl::{self, DeviceMessage, DeviceVector, NcclCommunicator, UniqueId};
use crate::run::arguments::KernelArguments;
use crate::run::launch::{KernelLaunch, ReadyLaunch};

/// The threads of a block, as in `exchange.cu`.
const THREADS: usize = 256;

/// Values of at least so many bytes are sent in place; smaller ones are first packed into one message, to save latency.
const MIN_IN_PLACE_BYTES: usize = 1 << 20;

/// The processes that train together, and how NCCL connects their GPUs.
pub(crate) struct ProcessGroup {
    exchange: Arc<dyn Exchange>,
    /// Set by `connect`; `None` where NCCL cannot connect the GPUs.
    nccl: OnceLock<Option<Arc<NcclGroup>>>,
}

/// GPUs that NCCL connects.
pub(crate) struct NcclGroup {
    communicator: Mutex<NcclCommunicator>,
    /// [`Exchange::fixed_order`].
    fixed_order: bool,
}

/// What each process sends to all others, so that they agree on NCCL or the host.
struct NcclHandshake {
    uuid: [u8; 16],
    /// From rank 0 the name of the communicator, from the others zeros; `None` from a process without NCCL.
    id: Option<UniqueId>,
}

const HANDSHAKE_BYTES: usize = 16 + 1 + 128;

impl NcclHandshake {
    fn to_bytes(&self) -> [u8; HANDSHAKE_BYTES] {
        let mut bytes = [0; HANDSHAKE_BYTES];
        bytes[..16].copy_from_slice(&self.uuid);
        if let Some(UniqueId(id)) = &self.id {
            bytes[16] = 1;
            bytes[17..].copy_from_slice(id);
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<NcclHandshake> {
        let (uuid, rest) = bytes.split_first_chunk()?;
        let (has_nccl, id) = rest.split_first()?;
        Some(NcclHandshake { uuid: *uuid, id: (*has_nccl == 1).then_some(UniqueId(id.try_into().ok()?)) })
    }
}

/// The name of the communicator if every process has NCCL and a GPU to itself.
fn common_id(handshakes: &[NcclHandshake]) -> Option<UniqueId> {
    let shared = |i: usize| handshakes[..i].iter().any(|earlier| earlier.uuid == handshakes[i].uuid);
    let any_shared = (1..handshakes.len()).any(shared);
    if any_shared || handshakes.iter().any(|handshake| handshake.id.is_none()) { None } else { handshakes.first()?.id }
}

impl ProcessGroup {
    pub fn new(exchange: Arc<dyn Exchange>) -> ProcessGroup {
        ProcessGroup { exchange, nccl: OnceLock::new() }
    }

    /// One rank of NCCL, without other processes: to test NCCL, and to measure its cost, in a run of one process.
    pub fn one_nccl_rank(gpu: &Gpu) -> Result<ProcessGroup, GraphError> {
        gpu.enter()?;
        // SAFETY: the context is current; there is no other rank.
        let communicator = unsafe { NcclCommunicator::join(UniqueId::new()?, 0, 1) }?;
        let group = NcclGroup { communicator: Mutex::new(communicator), fixed_order: false };
        Ok(ProcessGroup { exchange: Arc::new(Alone), nccl: OnceLock::from(Some(Arc::new(group))) })
    }

    pub fn exchange(&self) -> &Arc<dyn Exchange> {
        &self.exchange
    }

    /// Connects the GPUs by NCCL if every process has it and a GPU to itself. It waits for all processes, which must
    /// call it before they compile a graph.
    pub fn connect(&self, gpu: &Gpu) -> Result<(), GraphError> {
        if self.nccl.get().is_some() {
            return Ok(());
        }
        let (rank, size) = (self.exchange.rank(), self.exchange.processes());
        let id = match (nccl::version().is_ok(), rank) {
            (false, _) => None,
            (true, 0) => Some(UniqueId::new()?),
            (true, _) => Some(UniqueId([0; 128])),
        };
        let handshake = NcclHandshake { uuid: gpu.uuid()?, id };
        let received = self.exchange.all_gather(&handshake.to_bytes())?;
        let handshakes: Option<Vec<NcclHandshake>> =
            received.iter().map(|bytes| NcclHandshake::from_bytes(bytes)).collect();
        let group = match handshakes.as_deref().and_then(common_id) {
            Some(id) => {
                gpu.enter()?;
                // SAFETY: the context is current, and no two ranks have the same GPU.
                let communicator = Mutex::new(unsafe { NcclCommunicator::join(id, rank, size) }?);
                Some(Arc::new(NcclGroup { communicator, fixed_order: self.exchange.fixed_order() }))
            }
            None => None,
        };
        self.nccl.get_or_init(|| group);
        Ok(())
    }

    /// The connected GPUs; `None` where messages travel through the host, as before `connect`.
    pub fn nccl(&self) -> Option<Arc<NcclGroup>> {
        self.nccl.get().cloned().flatten()
    }
}

impl NcclGroup {
    /// This process's rank, and the number of ranks.
    fn rank_and_size(&self) -> (usize, usize) {
        let communicator = self.lock();
        (communicator.rank(), communicator.size())
    }

    fn lock(&self) -> MutexGuard<'_, NcclCommunicator> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct NcclCarrier {
    group: Arc<NcclGroup>,
    buckets: Vec<NcclBucket>,
    gpu: Arc<Gpu>,
    /// The packed small values of the bucket that is being exchanged: one stream runs all buckets, one after another.
    _packed: DeviceBuffer,
    /// The contributions of the other ranks to this rank's slices, likewise.
    _contributions: DeviceBuffer,
}

/// The work of one bucket.
struct NcclBucket {
    /// Copies of small values to one vector and back.
    pack: Vec<ReadyLaunch>,
    unpack: Vec<ReadyLaunch>,
    /// The large values, and the packed small ones as one vector.
    vectors: Vec<DeviceVector>,
    /// `[vector][rank]`: the elements that the rank owns.
    slices: Vec<Vec<Range<usize>>>,
    collective: Collective,
    /// `None` where NCCL's own all-reduce adds, and in a group of one rank.
    sliced: Option<SlicedCollective>,
}

/// Reduce-scatter, in which the owner of a slice adds the contributions of all ranks in the order of
/// `vit_cluster::tree_sum`, then all-gather, both by sends and receives. A [`Collective::ReduceScatter`] runs the first
/// half, an `AllGather` the second, an `AllReduce` both.
#[derive(Default)]
struct SlicedCollective {
    /// Sent: this rank's contributions to the slices of other ranks.
    slices_to_owners: Vec<DeviceMessage>,
    /// Received: the other ranks' contributions to this rank's slices.
    contributions: Vec<DeviceMessage>,
    /// The additions of these contributions to this rank's slices, in place.
    adds: Vec<ReadyLaunch>,
    /// Sent.
    own_slice_to_all: Vec<DeviceMessage>,
    /// Received.
    slices_of_owners: Vec<DeviceMessage>,
}

/// The elements that a rank owns: contiguous, and as many as those of any other to within one.
fn slice(elements: usize, rank: usize, size: usize) -> Range<usize> {
    // In u128: the product may exceed 64 bits.
    let start = |rank: usize| (elements as u128 * rank as u128 / size as u128) as usize;
    start(rank)..start(rank + 1)
}

/// Whether a value is packed with other small ones; one that processes have slices of never is.
fn is_small(value: &BucketValue) -> bool {
    value.bytes < MIN_IN_PLACE_BYTES && value.shards.is_none()
}

impl NcclBucket {
    /// Without [`NcclBucket::sliced`]. Small values are packed at the address `packed`; there are `size` ranks.
    fn new(bucket: &StreamBucket, packed: u64, size: usize) -> NcclBucket {
        let even = |elements: usize| (0..size).map(|rank| slice(elements, rank, size)).collect::<Vec<_>>();
        let (mut vectors, mut slices) = (Vec::new(), Vec::new());
        for value in bucket.values.iter().filter(|value| value.bytes > 0 && !is_small(value)) {
            let elements = value.bytes / 4;
            vectors.push(DeviceVector { address: value.address, elements });
            slices.push(match &value.shards {
                Some(shards) => (0..size).map(|rank| shards.range(rank)).collect(),
                None => even(elements),
            });
        }
        let (mut pack, mut unpack, mut end) = (Vec::new(), Vec::new(), packed);
        for &BucketValue { address, bytes, .. } in
            bucket.values.iter().filter(|value| value.bytes > 0 && is_small(value))
        {
            pack.push(ReadyLaunch::Copy { to: end, from: address, bytes });
            unpack.push(ReadyLaunch::Copy { to: address, from: end, bytes });
            end += bytes as u64;
        }
        if end > packed {
            let elements = (end - packed) as usize / 4;
            vectors.push(DeviceVector { address: packed, elements });
            slices.push(even(elements));
        }
        NcclBucket { pack, unpack, vectors, slices, collective: bucket.collective, sliced: None }
    }
}

impl NcclCarrier {
    pub fn new(gpu: &Arc<Gpu>, buckets: &[StreamBucket], group: Arc<NcclGroup>) -> Result<NcclCarrier, GraphError> {
        let (rank, size) = group.rank_and_size();
        let small = |bucket: &&StreamBucket| bucket.values.iter().filter(|v| is_small(v)).map(|v| v.bytes).sum();
        let packed_bytes = buckets.iter().map(|bucket| small(&bucket)).max().unwrap_or(0);
        let packed = DeviceBuffer::new(gpu, packed_bytes, "messages to other GPUs")?;
        let mut buckets: Vec<NcclBucket> =
            buckets.iter().map(|bucket| NcclBucket::new(bucket, packed.address, size)).collect();
        let own_bytes = |bucket: &NcclBucket| bucket.slices.iter().map(|slices| 4 * slices[rank].len()).sum();
        let largest = buckets.iter().map(own_bytes).max().unwrap_or(0);
        let contributions = DeviceBuffer::new(gpu, (size - 1) * largest, "messages of other GPUs")?;
        // NCCL's own reduce-scatter and all-gather need slices of equal lengths.
        let is_sliced = |bucket: &NcclBucket| group.fixed_order || bucket.collective != Collective::AllReduce;
        for bucket in buckets.iter_mut().filter(|bucket| size > 1 && is_sliced(bucket)) {
            let vectors = bucket.vectors.iter().zip(&bucket.slices);
            bucket.sliced = Some(SlicedCollective::new(gpu, rank, vectors, contributions.address)?);
        }
        Ok(NcclCarrier { group, buckets, gpu: gpu.clone(), _packed: packed, _contributions: contributions })
    }

    /// # Safety
    ///
    /// The context must be current. All buckets must be enqueued in the same stream, since they share buffers. `self` and
    /// the memory of the values must live until the stream is synchronised, or if it is being captured, until the last
    /// launch of the captured graph has ended.
    pub unsafe fn enqueue(&self, index: usize, stream: &Stream) -> Result<(), GraphError> {
        let bucket = &self.buckets[index];
        let communicator = self.group.lock();
        let raw = stream.raw().cast();
        // SAFETY: the caller guarantees context and values; copies and messages stay inside the values and buffers,
        // whose lengths they were made for, and the stream runs one bucket after the other.
        unsafe {
            bucket.pack.iter().try_for_each(|copy| copy.enqueue(&self.gpu, stream))?;
            match &bucket.sliced {
                Some(sliced) => {
                    if bucket.collective != Collective::AllGather {
                        communicator.send_receive(&sliced.slices_to_owners, &sliced.contributions, raw)?;
                        sliced.adds.iter().try_for_each(|add| add.enqueue(&self.gpu, stream))?;
                    }
                    if bucket.collective != Collective::ReduceScatter {
                        communicator.send_receive(&sliced.own_slice_to_all, &sliced.slices_of_owners, raw)?;
                    }
                }
                None if bucket.collective == Collective::AllReduce => communicator.all_reduce(&bucket.vectors, raw)?,
                // The only rank has all slices.
                None => {}
            }
            bucket.unpack.iter().try_for_each(|copy| copy.enqueue(&self.gpu, stream))
        }
    }

    pub fn failure(&self) -> Result<(), GraphError> {
        self.group.lock().failure()
    }
}

impl SlicedCollective {
    /// Of vectors with the slice of each rank. At the address `contributions`, the other ranks' contributions to this
    /// rank's slices are received.
    fn new<'a>(
        gpu: &Gpu,
        rank: usize,
        vectors: impl Iterator<Item = (&'a DeviceVector, &'a Vec<Range<usize>>)>,
        mut contributions: u64,
    ) -> Result<SlicedCollective, GraphError> {
        let mut sliced = SlicedCollective::default();
        for (vector, slices) in vectors {
            let size = slices.len();
            let slice_of = |owner: usize, peer: usize| {
                let range = &slices[owner];
                DeviceMessage { peer, address: vector.address + 4 * range.start as u64, bytes: 4 * range.len() }
            };
            let (own, received) = (slice_of(rank, rank), contributions);
            for peer in (0..size).filter(|&peer| peer != rank) {
                sliced.slices_to_owners.push(slice_of(peer, peer));
                sliced.contributions.push(DeviceMessage { peer, address: contributions, bytes: own.bytes });
                sliced.own_slice_to_all.push(slice_of(rank, peer));
                sliced.slices_of_owners.push(slice_of(peer, peer));
                contributions += own.bytes as u64;
            }
            let elements = own.bytes / 4;
            if elements > 0 {
                let arguments =
                    KernelArguments::new().pointers(&[own.address, received]).u32(rank).u32(size).u64(elements);
                let add = KernelLaunch {
                    variant: KernelVariant::new(&compile::EXCHANGE),
                    name: "tree_sum",
                    grid: [elements.div_ceil(THREADS), 1, 1],
                    threads: THREADS,
                    shared: 0,
                    maps: Vec::new(),
                    arguments,
                };
                sliced.adds.push(add.resolve(gpu)?);
            }
        }
        // Both ends leave out an empty slice.
        for messages in [
            &mut sliced.slices_to_owners,
            &mut sliced.contributions,
            &mut sliced.own_slice_to_all,
            &mut sliced.slices_of_owners,
        ] {
            messages.retain(|message| message.bytes > 0);
        }
        Ok(sliced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_is_used_where_every_process_has_it_and_a_gpu() {
        let process = |uuid: u8, id: Option<u8>| {
            let handshake = NcclHandshake { uuid: [uuid; 16], id: id.map(|id| UniqueId([id; 128])) };
            NcclHandshake::from_bytes(&handshake.to_bytes()).unwrap()
        };
        let id = |handshakes: &[NcclHandshake]| common_id(handshakes).map(|id| id.0[0]);
        assert_eq!(id(&[process(1, Some(7)), process(2, Some(0)), process(3, Some(0))]), Some(7));
        let shared = [process(1, Some(7)), process(2, Some(0)), process(1, Some(0))];
        assert_eq!(id(&shared), None, "two processes share a GPU");
        assert_eq!(id(&[process(1, Some(7)), process(2, None)]), None, "a process has no NCCL");
        assert!(NcclHandshake::from_bytes(&[0; 20]).is_none());
    }

    #[test]
    fn slices_are_those_of_other_transports() {
        for (elements, rank, size) in [(10, 0, 3), (10, 1, 3), (10, 2, 3), (0, 1, 2), (usize::MAX, 7, 8)] {
            assert_eq!(slice(elements, rank, size), vit_cluster::slice(elements, rank, size));
        }
    }

    #[test]
    fn a_gpu_adds_contributions_as_the_host_does() {
        let Ok(gpu) = Gpu::open(0) else {
            println!("no GPU: nothing is tested");
            return;
        };
        let elements = 1003;
        let value = |rank: usize, i: usize| {
            let hash = (i as u32 + 1).wrapping_mul(0x9e37_79b9).wrapping_mul(2 * rank as u32 + 3);
            f32::from_bits(0x3c00_0000 | hash & 0x87ff_ffff)
        };
        for (rank, size) in [(0, 2), (1, 2), (1, 3), (3, 4), (0, 7), (6, 8)] {
            let own = slice(elements, rank, size);
            let row = |rank: usize| own.clone().map(|i| value(rank, i)).collect::<Vec<f32>>();
            let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
            let message = DeviceBuffer::new(&gpu, 4 * elements, "a message").unwrap();
            let others: Vec<f32> = (0..size).filter(|&peer| peer != rank).flat_map(row).collect();
            let contributions = DeviceBuffer::new(&gpu, 4 * others.len(), "contributions").unwrap();
            let start = message.address + 4 * own.start as u64;
            message.upload(start, &bytes(&row(rank))).unwrap();
            contributions.upload(contributions.address, &bytes(&others)).unwrap();
            let vector = DeviceVector { address: message.address, elements };
            let slices = (0..size).map(|rank| slice(elements, rank, size)).collect();
            let vectors = [(&vector, &slices)].into_iter();
            let sliced = SlicedCollective::new(&gpu, rank, vectors, contributions.address).unwrap();
            let stream = Stream::new().unwrap();
            // SAFETY: the context is current, and both buffers have the lengths that the kernel was prepared for.
            unsafe { sliced.adds[0].enqueue(&gpu, &stream) }.unwrap();
            stream.synchronize().unwrap();
            let mut found = vec![0; 4 * own.len()];
            message.download(start, &mut found).unwrap();
            let mut rows: Vec<Vec<f32>> = (0..size).map(row).collect();
            vit_cluster::tree_sum(&mut rows.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            assert_eq!(found, bytes(&rows[0]), "rank {rank} of {size}");
        }
    }
}
