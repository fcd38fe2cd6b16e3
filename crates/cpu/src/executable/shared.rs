//! Constants that executables of one device store once: models compiled for several batch sizes have the same weights.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vit_graph::GraphError;
use vit_system::hash::xxh3_128;

use crate::buffer::Buffer;

/// The shared buffers of a device, by the hash of their content. Executables own them: a buffer is freed with the last.
#[derive(Default)]
pub(crate) struct SharedBuffers(Mutex<HashMap<u128, Vec<Weak<Buffer>>>>);

impl SharedBuffers {
    fn lock(&self) -> MutexGuard<'_, HashMap<u128, Vec<Weak<Buffer>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets buffers whose executables were dropped.
    fn sweep(&self) {
        self.lock().retain(|_, buffers| {
            buffers.retain(|buffer| buffer.strong_count() > 0);
            !buffers.is_empty()
        });
    }

    /// The stored buffer with the same bits, or else this one, which is stored; and whether it is this one.
    fn intern(&self, buffer: Buffer) -> (Arc<Buffer>, bool) {
        let bytes: &[u8] = bytemuck::cast_slice(buffer.as_slice());
        let hash = xxh3_128(bytes);
        let candidates: Vec<Arc<Buffer>> =
            self.lock().get(&hash).into_iter().flatten().filter_map(Weak::upgrade).collect();
        let equal = |other: &Arc<Buffer>| bytemuck::cast_slice::<f32, u8>(other.as_slice()) == bytes;
        if let Some(stored) = candidates.into_iter().find(equal) {
            return (stored, false);
        }
        let buffer = Arc::new(buffer);
        self.lock().entry(hash).or_default().push(Arc::downgrade(&buffer));
        (buffer, true)
    }
}

/// Stores the constants of one executable; where another one has an equal buffer, both refer to that.
pub(crate) struct SharedStorage {
    buffers: Arc<SharedBuffers>,
    /// Bytes of new buffers that still fit, those of intermediate constants included, and the error for one that does
    /// not; `None` if the free memory is unknown.
    room: Option<(u64, GraphError)>,
}

impl SharedStorage {
    pub fn new(buffers: Arc<SharedBuffers>, room: Option<(u64, GraphError)>) -> Self {
        buffers.sweep();
        SharedStorage { buffers, room }
    }

    pub fn store(&mut self, buffer: Buffer) -> Result<Arc<Buffer>, GraphError> {
        let (buffer, new) = self.buffers.intern(buffer);
        if let Some((room, too_large)) = self.room.as_mut().filter(|_| new) {
            *room = room.checked_sub(buffer.bytes() as u64).ok_or_else(|| too_large.clone())?;
        }
        Ok(buffer)
    }
}
