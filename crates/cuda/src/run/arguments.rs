//! Kernel arguments in the layout of C.

/// A C struct, whose fields are aligned to their size.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CStruct {
    bytes: Vec<u8>,
    alignment: usize,
    too_large: Option<usize>,
}

impl CStruct {
    pub fn new() -> Self {
        CStruct::default()
    }

    fn push(mut self, field: &[u8]) -> Self {
        self.alignment = self.alignment.max(field.len());
        self.bytes.resize(self.bytes.len().next_multiple_of(field.len()), 0);
        self.bytes.extend_from_slice(field);
        self
    }

    /// A value that 32 bits do not hold is cut; [`KernelArguments::too_large`] tells.
    pub fn u32(mut self, value: usize) -> Self {
        self.too_large = self.too_large.or(too_large(value));
        self.push(&(value as u32).to_ne_bytes())
    }

    /// As [`CStruct::u32`], for values that may be negative.
    pub fn i32s(self, values: &[isize]) -> Self {
        values.iter().fold(self, |mut fields, &value| {
            let beyond = i32::try_from(value).is_err().then_some(value.unsigned_abs());
            fields.too_large = fields.too_large.or(beyond);
            fields.push(&(value as i32).to_ne_bytes())
        })
    }

    pub fn u64(self, value: u64) -> Self {
        self.push(&value.to_ne_bytes())
    }

    pub fn f32(self, value: f32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    pub fn u32s(self, values: &[usize]) -> Self {
        values.iter().fold(self, |fields, &n| fields.u32(n))
    }

    pub fn u64s(self, values: &[usize]) -> Self {
        values.iter().fold(self, |fields, &n| fields.u64(n as u64))
    }

    /// The struct with the padding at its end.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len().next_multiple_of(self.alignment.max(1)), 0);
        self.bytes
    }
}

/// The arguments of one launch.
#[derive(Debug, Clone, Default)]
pub(crate) struct KernelArguments {
    /// Each argument starts at a word, which aligns it.
    words: Vec<u64>,
    /// The first word of each argument.
    offsets: Vec<usize>,
    too_large: Option<usize>,
}

impl KernelArguments {
    pub fn new() -> Self {
        KernelArguments::default()
    }

    fn push(mut self, bytes: &[u8]) -> Self {
        self.offsets.push(self.words.len());
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.words.push(u64::from_ne_bytes(word));
        }
        self
    }

    pub fn pointer(self, address: u64) -> Self {
        self.push(&address.to_ne_bytes())
    }

    pub fn pointers(self, addresses: &[u64]) -> Self {
        addresses.iter().fold(self, |arguments, &a| arguments.pointer(a))
    }

    /// A value that 32 bits do not hold is cut; [`KernelArguments::too_large`] tells.
    pub fn u32(mut self, value: usize) -> Self {
        self.too_large = self.too_large.or(too_large(value));
        self.push(&(value as u32).to_ne_bytes())
    }

    pub fn u64(self, value: usize) -> Self {
        self.push(&(value as u64).to_ne_bytes())
    }

    pub fn f32(self, value: f32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    pub fn fields(mut self, fields: CStruct) -> Self {
        self.too_large = self.too_large.or(fields.too_large);
        self.push(&fields.finish())
    }

    /// Puts structs of 128 bytes (tensor maps) before these arguments.
    pub fn prepend(self, structs: &[[u64; 16]]) -> Self {
        let first = structs.iter().fold(KernelArguments::new(), |arguments, words| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            arguments.push(&bytes)
        });
        let (mut words, mut offsets) = (first.words, first.offsets);
        offsets.extend(self.offsets.iter().map(|offset| offset + words.len()));
        words.extend(self.words);
        KernelArguments { words, offsets, too_large: self.too_large }
    }

    /// The first value that was cut to 32 bits, if any was: such arguments must not be used.
    pub fn too_large(&self) -> Option<usize> {
        self.too_large
    }

    /// The address of each argument, for `cuLaunchKernel`. Valid while `self` is neither changed nor dropped.
    pub fn addresses(&self) -> Vec<*mut std::ffi::c_void> {
        self.offsets.iter().map(|&offset| std::ptr::from_ref(&self.words[offset]).cast_mut().cast()).collect()
    }
}

fn too_large(value: usize) -> Option<usize> {
    (value > u32::MAX as usize).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_32_bits_are_noticed() {
        let largest = u32::MAX as usize;
        let arguments = KernelArguments::new().u32(largest).fields(CStruct::new().u32s(&[1, largest]));
        assert_eq!(arguments.too_large(), None);
        assert_eq!(arguments.clone().u32(largest + 1).u32(1).prepend(&[]).too_large(), Some(largest + 1));
        assert_eq!(arguments.clone().fields(CStruct::new().u32(1 << 40)).too_large(), Some(1 << 40));
        assert_eq!(arguments.clone().fields(CStruct::new().i32s(&[-1 << 31])).too_large(), None);
        assert_eq!(arguments.fields(CStruct::new().i32s(&[-1, -1 << 33])).too_large(), Some(1 << 33));
    }

    #[test]
    fn structs_are_laid_out_as_in_c() {
        let bytes = CStruct::new().u32(1).u64(2).u32(3).finish();
        assert_eq!(bytes.len(), 24);
        assert_eq!(bytes[8], 2);
        assert_eq!(bytes[16], 3);
        assert_eq!(CStruct::new().u32(1).f32(0.5).u32(7).finish().len(), 12);
        assert_eq!(CStruct::new().i32s(&[-1]).finish(), [255; 4]);
    }
}
