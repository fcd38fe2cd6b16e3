// Instructions that every GPU since Ampere has: mma, ldmatrix, cp.async. All kernels of this folder are for bf16.

// sums[16][8] += A[16][16] B[16][8]. Of `sums`, a lane has columns lane % 4 * 2 and the next of row lane / 4, then of
// row lane / 4 + 8.
static __device__ __forceinline__ void mma_m16n8k16(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices from shared memory; lane l passes the address of row l % 8 of matrix l / 8. Of matrix i, m[i] has
// columns l % 4 * 2 and the next of row l / 4.
static __device__ __forceinline__ void ldmatrix_x4(u32 (&m)[4], const unsigned char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// The same, each matrix transposed.
static __device__ __forceinline__ void ldmatrix_x4_trans(u32 (&m)[4], const unsigned char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// Asynchronous copies of 16 and 4 bytes from global into shared memory. Unless `valid`, zeros are written and nothing
// is read; callers then pass the start of the operand.
static __device__ __forceinline__ void cp_async_16(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void cp_async_4(void* to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

// Waits for all asynchronous copies of this thread.
static __device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
