// Stands in for CUDA where the kernels are compiled for the host: a block's threads are fibers on one thread, which
// change places at barriers. Slow, and the same arithmetic: a check that needs no GPU.
#define PIPEPLAN_HOST 1
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(name) unsigned char* name = dynamic_shared.data()
#define INFINITE HUGE_VALF

struct Three {
    unsigned x, y, z;
};
static thread_local Three threadIdx, blockIdx, blockDim, gridDim;
static thread_local std::vector<unsigned char> dynamic_shared;

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

// The fibers of the block that runs.
struct Fiber {
    ucontext_t context; // where it starts; from then on a jump goes back to it, which costs no call of the system
    jmp_buf jump;
    unsigned thread;
    bool started, ended;
    // Barriers that it has reached: of the block, of its warp.
    uint64_t at_block, at_warp;
};
struct Warp {
    uint64_t arrived;
    unsigned live;
    // What lanes hand each other.
    uint64_t handed[32];
    unsigned left[32][4], right[32][2];
};
struct Block {
    jmp_buf scheduler;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char> stacks;
    uint64_t arrived;
    unsigned live, running;
    bool any;
};
static thread_local Block block;

static inline void give_way() {
    if (_setjmp(block.fibers[block.running].jump) == 0) _longjmp(block.scheduler, 1);
}
// A thread that has ended counts as arrived, as on a GPU.
static inline void __syncthreads() {
    Fiber& self = block.fibers[block.running];
    self.at_block++;
    block.arrived++;
    while (block.arrived < self.at_block * block.live) give_way();
}
static inline Warp& warp_barrier() {
    Fiber& self = block.fibers[block.running];
    Warp& warp = block.warps[self.thread / 32];
    self.at_warp++;
    warp.arrived++;
    while (warp.arrived < self.at_warp * warp.live) give_way();
    return warp;
}
static inline float __shfl_xor_sync(unsigned, float value, int distance) {
    unsigned lane = threadIdx.x % 32;
    Warp& warp = block.warps[threadIdx.x / 32];
    warp.handed[lane] = bits_of_float(value);
    warp_barrier();
    float other = float_of_bits((unsigned)warp.handed[lane ^ distance]);
    warp_barrier();
    return other;
}

static inline unsigned __ballot_sync(unsigned, bool holds) {
    Warp& warp = block.warps[threadIdx.x / 32];
    warp.handed[threadIdx.x % 32] = holds;
    warp_barrier();
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= (unsigned)(warp.handed[lane] & 1) << lane;
    warp_barrier();
    return bits;
}
static inline int __syncthreads_or(int holds) {
    block.any |= holds != 0;
    __syncthreads();
    int any = block.any;
    __syncthreads();
    // All have read it; whoever is first clears it, and no thread sets it again before the next barrier has passed.
    block.any = false;
    __syncthreads();
    return any;
}
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
