// What tensor cores have offered since Ampere: mma, ldmatrix, asynchronous copies; and fast exponentials.

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;

// What operands are stored in.

static __device__ __forceinline__ u32 pair_of(float low, float high) { return pack_bf16(low, high); }

#ifdef __CUDACC__
#define QUOTED(x) #x
#define TEXT(x) QUOTED(x)

static __device__ __forceinline__ float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

static __device__ __forceinline__ float log2_fast(float x) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// sums[16][8] += A[16][16] B[16][8]. A lane has rows lane / 4 and lane / 4 + 8 and two neighbouring columns of `sums`.
static __device__ __forceinline__ void multiply_add(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TEXT(ELEMENT) "." TEXT(ELEMENT) ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8; lane l says where row l % 8 of matrix l / 8 starts.
static __device__ __forceinline__ void load_matrices(u32 (&m)[4], const unsigned char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// The same, each matrix transposed.
static __device__ __forceinline__ void load_transposed(u32 (&m)[4], const unsigned char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// Starts to copy 16 bytes into shared memory; zeros where nothing is wanted.
static __device__ __forceinline__ void copy_16(void* to, const void* from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(wanted ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_4(void* to, const void* from, bool wanted) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(wanted ? 4 : 0)
                 : "memory");
}

// Waits for all copies that this thread has started.
static __device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif
