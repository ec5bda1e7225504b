// Stands in for CUDA where the kernels are compiled for the host: a block's threads are fibers on one thread, which
// change places at barriers. Slow, and the same arithmetic: a check that needs no GPU.
#define PIPEPLAN_HOST 1
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(name) unsigned char* name = dynamic_shared
#define DYNAMIC_TILES(name) unsigned char* name = dynamic_shared
#define INFINITE HUGE_VALF

struct Three {
    unsigned x, y, z;
};
static thread_local Three threadIdx, blockIdx, blockDim, gridDim;
static thread_local unsigned char* dynamic_shared;

static inline float float_of_bits(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline unsigned bits_of_float(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}

// A copy that a thread has begun: done when the thread waits for it.
struct Copying {
    void* to;
    size_t bytes;
    unsigned char content[16];
};
// The fibers of the block that runs. They outlive it: a fiber whose thread has ended is the next block's.
struct Fiber {
    ucontext_t context; // where it starts; from then on a jump goes back to it, which costs no call of the system
    jmp_buf jump;
    bool started, ended;
    // Barriers that it has reached: of the block, of its warp.
    uint64_t at_block, at_warp;
    std::vector<Copying> copying;
};
struct Warp {
    uint64_t arrived;
    unsigned live;
    // What lanes hand each other.
    uint64_t handed[32];
    float left[16][16], right[8][16];
};
struct Block {
    jmp_buf scheduler;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::unique_ptr<char[]> stacks;
    std::vector<unsigned char> shared;
    uint64_t arrived;
    unsigned live;
    bool any;
};
// What runs now. Pointers, since each look at a thread's own object that has to be made first asks whether it has been.
static thread_local Block* block;
static thread_local Fiber* fiber;

static inline Warp& own_warp() { return block->warps[threadIdx.x / 32]; }

static inline void give_way() {
    if (_setjmp(fiber->jump) == 0) _longjmp(block->scheduler, 1);
}
// A thread that has ended counts as arrived, as on a GPU.
static inline void __syncthreads() {
    uint64_t reached = ++fiber->at_block;
    block->arrived++;
    while (block->arrived < reached * block->live) give_way();
}
static inline Warp& warp_barrier() {
    Warp& warp = own_warp();
    uint64_t reached = ++fiber->at_warp;
    warp.arrived++;
    while (warp.arrived < reached * warp.live) give_way();
    return warp;
}
static inline float __shfl_xor_sync(unsigned, float value, int distance) {
    unsigned lane = threadIdx.x % 32;
    Warp& warp = own_warp();
    warp.handed[lane] = bits_of_float(value);
    warp_barrier();
    float other = float_of_bits((unsigned)warp.handed[lane ^ distance]);
    warp_barrier();
    return other;
}

static inline unsigned __ballot_sync(unsigned, bool holds) {
    Warp& warp = own_warp();
    warp.handed[threadIdx.x % 32] = holds;
    warp_barrier();
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= (unsigned)(warp.handed[lane] & 1) << lane;
    warp_barrier();
    return bits;
}
static inline int __syncthreads_or(int holds) {
    block->any |= holds != 0;
    __syncthreads();
    int any = block->any;
    __syncthreads();
    // All have read it; whoever is first clears it, and no thread sets it again before the next barrier has passed.
    block->any = false;
    __syncthreads();
    return any;
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
