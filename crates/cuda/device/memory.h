// Loads, stores, flags and clocks: the only file with instructions of the device. `host.h` has the same for a CPU.
#define WEFT_DEVICE __device__ __forceinline__
#define WEFT_COLD inline __device__ __noinline__
#define WEFT_NO_UNROLL _Pragma("unroll 1")
// Conditions that are rarely true: the code that depends on them is placed apart.
#define WEFT_RARE(CONDITION) __builtin_expect(CONDITION, 0)

namespace weft {

// `.gpu` where all ranks share the GPU, `.sys` otherwise.
#ifdef WEFT_ONE_GPU
#define WEFT_SCOPE "gpu"
#else
#define WEFT_SCOPE "sys"
#endif

WEFT_DEVICE u32 thread_index() { return threadIdx.x; }
WEFT_DEVICE u32 thread_count() { return blockDim.x; }
#ifdef WEFT_WINDOW
// The place of a block's report. Kernels of programs may have more blocks than there are places.
WEFT_DEVICE u32 block_index() { return blockIdx.x % (WEFT_REPORTS_MAX - 1); }
#else
WEFT_DEVICE u32 block_index() { return blockIdx.x; }
#endif
// In blocks of several dimensions.
WEFT_DEVICE u32 thread_in_block() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
WEFT_DEVICE u32 threads_in_block() { return blockDim.x * blockDim.y * blockDim.z; }
WEFT_DEVICE void barrier() { __syncthreads(); }
// Whether `value` is true for some thread of the block.
WEFT_DEVICE bool barrier_or(bool value) { return __syncthreads_or(value) != 0; }

WEFT_DEVICE u64 load_acquire(const u64* from) {
    u64 value;
    asm volatile("ld.acquire." WEFT_SCOPE ".global.u64 %0,[%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
WEFT_DEVICE void store_release(u64* to, u64 value) {
    asm volatile("st.release." WEFT_SCOPE ".global.u64 [%0],%1;" ::"l"(to), "l"(value) : "memory");
}
WEFT_DEVICE u64 load_relaxed(const u64* from) {
    u64 value;
    asm volatile("ld.relaxed." WEFT_SCOPE ".global.u64 %0,[%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
WEFT_DEVICE void store_relaxed(u64* to, u64 value) {
    asm volatile("st.relaxed." WEFT_SCOPE ".global.u64 [%0],%1;" ::"l"(to), "l"(value) : "memory");
}
// Words that the host or other GPUs write.
WEFT_DEVICE u32 load_host(const u32* from) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0,[%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
WEFT_DEVICE u32 acquire_host(const u32* from) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0,[%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
WEFT_DEVICE void store_host(u32* to, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0],%1;" ::"l"(to), "r"(value) : "memory");
}
WEFT_DEVICE void publish_host(u32* to, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0],%1;" ::"l"(to), "r"(value) : "memory");
}
// Words of an entry. The loads that see them all are followed by `fence_acquire`.
WEFT_DEVICE u64 load_entry(const u64* from) { return load_relaxed(from); }
WEFT_DEVICE void store_entry(u64* to, u64 value) { store_relaxed(to, value); }
WEFT_DEVICE u64 add_relaxed(u64* to, u64 value) { return atomicAdd(to, value); }
WEFT_DEVICE u64 exchange(u64* to, u64 value) {
    u64 before;
    asm volatile("atom.relaxed." WEFT_SCOPE ".global.exch.b64 %0,[%1],%2;" : "=l"(before) : "l"(to), "l"(value) : "memory");
    return before;
}
// Orders what kernels before this one on the stream have written with what this one stores next. On its own GPU, that is visible when this
// one begins.
#ifdef WEFT_ONE_GPU
WEFT_DEVICE void fence_kernels() {}
#else
WEFT_DEVICE void fence_kernels() { asm volatile("fence.acq_rel." WEFT_SCOPE ";" ::: "memory"); }
#endif
// Orders loads before with what this one accesses next.
WEFT_DEVICE void fence_acquire() { asm volatile("fence.acq_rel." WEFT_SCOPE ";" ::: "memory"); }

// Two packets: 4 bytes and a flag each. Each is one access of 8 bytes, so it is written and read whole.
WEFT_DEVICE Words load_packets(const Words* from) {
    u64 one, other;
    asm volatile("ld.relaxed." WEFT_SCOPE ".global.v2.u64 {%0,%1},[%2];" : "=l"(one), "=l"(other) : "l"(from) : "memory");
    return {{(u32)one, (u32)(one >> 32), (u32)other, (u32)(other >> 32)}};
}
WEFT_DEVICE void store_packets(Words* to, Words v) {
    const u64 one = (u64)v.word[1] << 32 | v.word[0], other = (u64)v.word[3] << 32 | v.word[2];
    asm volatile("st.relaxed." WEFT_SCOPE ".global.v2.u64 [%0],{%1,%2};" ::"l"(to), "l"(one), "l"(other) : "memory");
}

// Parameters or device memory, all threads side by side. Parameters that each thread reads by itself, as constants, take hundreds of cycles
// for each line that no thread has read before.
WEFT_DEVICE Words load_anywhere(const void* from) {
    Words v;
    asm volatile("ld.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(from) : "memory");
    return v;
}

// Loads under a condition without a branch, so that the compiler begins all loads before it uses one; 0 otherwise.
WEFT_DEVICE u64 load_relaxed_if(bool condition, const u64* from) {
    // An input, too: an output that is written before the address is read could share its register.
    u64 value = 0;
    asm volatile("{.reg .pred p; setp.ne.u32 p,%1,0; @p ld.relaxed." WEFT_SCOPE ".global.u64 %0,[%2];}" : "+l"(value) : "r"((u32)condition), "l"(from) : "memory");
    return value;
}
WEFT_DEVICE u32 load_word_if(bool condition, const u32* from) {
    u32 value;
    asm volatile("{.reg .pred p; setp.ne.u32 p,%1,0; mov.u32 %0,0; @p ld.global.u32 %0,[%2];}" : "=r"(value) : "r"((u32)condition), "l"(from) : "memory");
    return value;
}
WEFT_DEVICE Words load_anywhere_if(bool condition, const void* from) {
    Words v;
    asm volatile("{.reg .pred p; setp.ne.u32 p,%4,0; mov.u32 %0,0; mov.u32 %1,0; mov.u32 %2,0; mov.u32 %3,0; @p ld.v4.u32 {%0,%1,%2,%3},[%5];}"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"((u32)condition), "l"(from)
                 : "memory");
    return v;
}
constexpr u32 THREADS_MIN = 32; // Of a block.

// Data that is used once. A hint to the caches, which reductions do better without.
WEFT_DEVICE Words load_plain(const Words* from) {
    Words v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(from) : "memory");
    return v;
}
WEFT_DEVICE Words load_streamed(const Words* from) {
    Words v;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(from) : "memory");
    return v;
}
WEFT_DEVICE void store_streamed(Words* to, Words v) {
    asm volatile("st.global.cs.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(to), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]) : "memory");
}

// Multicast addresses, on sm_90 and later: a load returns the sums over the memory of all GPUs, by elements of 4 bytes or of 2 that are added
// as f32, and a store goes to all of them. Other addresses of the same memory are ordered by `fence_alias`.
WEFT_DEVICE void fence_alias() { asm volatile("fence.proxy.alias;" ::: "memory"); }
WEFT_DEVICE Words multicast_sum_f32(const Words* from) {
    Words v;
    asm volatile(
        "{.reg .f32 a,b,c,d; multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {a,b,c,d},[%4]; mov.b32 %0,a; mov.b32 %1,b; mov.b32 %2,c; mov.b32 %3,d;}"
        : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(from) : "memory");
    return v;
}
#define WEFT_MULTICAST_SUM(NAME, TYPE) \
    WEFT_DEVICE Words NAME(const Words* from) { \
        Words v; \
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4." TYPE " {%0,%1,%2,%3},[%4];" \
                     : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(from) : "memory"); \
        return v; \
    }
WEFT_MULTICAST_SUM(multicast_sum_f16, "f16x2")
WEFT_MULTICAST_SUM(multicast_sum_bf16, "bf16x2")
#undef WEFT_MULTICAST_SUM
WEFT_DEVICE void multicast_store(Words* to, Words v) {
    asm volatile("multimem.st.relaxed.sys.global.v4.f16x2 [%0],{%1,%2,%3,%4};" ::"l"(to), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]) : "memory");
}

WEFT_DEVICE u64 cycles() { return clock64(); }
WEFT_DEVICE u64 nanoseconds() {
    u64 value;
    asm volatile("mov.u64 %0,%globaltimer;" : "=l"(value));
    return value;
}
WEFT_DEVICE void pause() {
    asm volatile("nanosleep.u32 200;");
}

} // namespace weft
