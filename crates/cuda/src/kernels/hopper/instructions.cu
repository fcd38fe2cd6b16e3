// Instructions of Hopper: mbarrier, TMA, wgmma, setmaxnreg. Shared memory is addressed by 32-bit shared addresses.

typedef unsigned short u16;
typedef long long i64;

// CUtensorMap: the layout of a tensor in global memory, and the box of it that TMA copies.
struct __align__(64) TensorMap {
    u64 words[16];
};

// TEXT(ELEMENT) is the operand type of wgmma as a string, bf16 or f16.
#define QUOTED(x) #x
#define TEXT(x) QUOTED(x)

// exp2_approx(x) if `active`, else x: predicated for warps without valid rows, whose results are unused, since a branch
// around the loop would cost registers.
static __device__ __forceinline__ float exp2_if(float x, int active) {
    asm("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p ex2.approx.ftz.f32 %0, %0;\n}" : "+f"(x) : "r"(active));
    return x;
}

static __device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void mbarrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

static __device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase wait for so many bytes of TMA.
static __device__ __forceinline__ void mbarrier_expect_tx(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits until the phase of this parity is complete; of a new barrier, that of parity 1 is.
static __device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// Copies a box of a tensor [samples, rows, heads, columns], from these coordinates on, from global to shared memory,
// with zeros outside the tensor; `barrier` counts its bytes. Called by one thread.
static __device__ __forceinline__ void tma_load(u32 to, const TensorMap *map, u32 barrier, int column, int head,
                                                int row, int sample) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
                 "%6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(row), "r"(sample)
                 : "memory");
}

static __device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING committed groups are incomplete.
template <int PENDING> static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Hides how x was computed from the compiler, so that expressions of x are computed where they are used instead of
// being kept in registers across a loop.
static __device__ __forceinline__ u32 opaque(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Keeps the compiler from moving reads of accumulators before the wgmma_wait that completes them.
template <int COUNT> static __device__ __forceinline__ void fence_accumulators(float *sums) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// wgmma m64nNk16, asynchronous, by all threads of a warpgroup: d += A B, or where `add` is 0, d = A B. u64 operands are
// matrix descriptors. `ss`: A and B in shared memory, both K-major: tiles [m][k] and [n][k]. `tt`: both MN-major, tiles
// [k][m] and [k][n]; always adds. `rs`: A in registers, B MN-major.
//
// LIST is the accumulators d[0 .. N / 2 - 1] in the assembly text, SUMS(d) their constraints, I0 to I5 the numbers of
// the operands after them, from N / 2 on.
template <int N> struct Wgmma;
#define WGMMA(N, LIST, SUMS, I0, I1, I2, I3, I4, I5)                                                                     \
    template <> struct Wgmma<N> {                                                                                      \
        static __device__ __forceinline__ void ss(float *d, u64 a, u64 b, int add) {                                   \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I2 ", 0;\n"                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TEXT(ELEMENT) "." TEXT(ELEMENT) " {" LIST "}, %" #I0 ", %" #I1          \
                         ", p, 1, 1, 0, 0;\n}"                                                                         \
                         : SUMS(d)                                                                                     \
                         : "l"(a), "l"(b), "r"(add));                                                                  \
        }                                                                                                              \
        static __device__ __forceinline__ void tt(float *d, u64 a, u64 b) {                                            \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST "}, %" #I0 ", %" #I1          \
                         ", 1, 1, 1, 1, 1;"                                                                            \
                         : SUMS(d)                                                                                     \
                         : "l"(a), "l"(b));                                                                            \
        }                                                                                                              \
        static __device__ __forceinline__ void rs(float *d, const u32 *a, u64 b, int add) {                            \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I5 ", 0;\n"                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TEXT(ELEMENT) "." TEXT(ELEMENT) " {" LIST "}, {%" #I0 ",%" #I1 ",%" #I2 \
                         ",%" #I3 "}, %" #I4 ", p, 1, 1, 1;\n}"                                                          \
                         : SUMS(d)                                                                                     \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                              \
        }                                                                                                              \
    }
#define LIST0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LIST1 LIST0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LIST2 LIST1 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define LIST3 LIST2 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST4 LIST3 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define LIST5 LIST4 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define LIST6 LIST5 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define LIST7 LIST6 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define LIST8 LIST7 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define LIST9 LIST8 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define LIST10 LIST9 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define LIST11 LIST10 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define SUMS0(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define SUMS1(d) SUMS0(d), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),                 \
    "+f"(d[14]), "+f"(d[15])
#define SUMS2(d) SUMS1(d), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),               \
    "+f"(d[22]), "+f"(d[23])
#define SUMS3(d) SUMS2(d), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),               \
    "+f"(d[30]), "+f"(d[31])
#define SUMS4(d) SUMS3(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]),               \
    "+f"(d[38]), "+f"(d[39])
#define SUMS5(d) SUMS4(d), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]),               \
    "+f"(d[46]), "+f"(d[47])
#define SUMS6(d) SUMS5(d), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),               \
    "+f"(d[54]), "+f"(d[55])
#define SUMS7(d) SUMS6(d), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]),               \
    "+f"(d[62]), "+f"(d[63])
#define SUMS8(d) SUMS7(d), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]),                            \
    "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define SUMS9(d) SUMS8(d), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),                            \
    "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define SUMS10(d) SUMS9(d), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]),                           \
    "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define SUMS11(d) SUMS10(d), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]),                          \
    "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
WGMMA(16, LIST0, SUMS0, 8, 9, 10, 11, 12, 13);
WGMMA(32, LIST1, SUMS1, 16, 17, 18, 19, 20, 21);
WGMMA(48, LIST2, SUMS2, 24, 25, 26, 27, 28, 29);
WGMMA(64, LIST3, SUMS3, 32, 33, 34, 35, 36, 37);
WGMMA(80, LIST4, SUMS4, 40, 41, 42, 43, 44, 45);
WGMMA(96, LIST5, SUMS5, 48, 49, 50, 51, 52, 53);
WGMMA(112, LIST6, SUMS6, 56, 57, 58, 59, 60, 61);
WGMMA(128, LIST7, SUMS7, 64, 65, 66, 67, 68, 69);
WGMMA(192, LIST11, SUMS11, 96, 97, 98, 99, 100, 101);

// setmaxnreg; CONSUMER_REGS is 0 or undefined where all threads keep the registers that they were compiled with.
#if CONSUMER_REGS
static __device__ __forceinline__ void increase_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGS));
}
static __device__ __forceinline__ void decrease_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGS));
}
#else
static __device__ __forceinline__ void increase_registers() {}
static __device__ __forceinline__ void decrease_registers() {}
#endif
