// What all kernels share. The same text is compiled for a GPU by NVRTC and, for tests, for the host by its C++
// compiler after host.h, which stands in for the language.
//
// Every kernel takes one `Args` by value: buffers, whole numbers and floats by position. Each file says which is which,
// and the Rust side fills them at one place. `T` is the number format of activations and weights: `float` or `bf16`.
// All arithmetic is in `float`, and no result depends on which thread comes first: sums run in a fixed order.

typedef long long ll;
typedef unsigned long long ull;

struct Args {
    void* p[10];
    ll n[12];
    float f[10];
};

struct bf16 {
    unsigned short bits;
};

#if !defined(PIPEPLAN_HOST)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#define INFINITE __int_as_float(0x7f800000)
__device__ __forceinline__ float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ unsigned bits_of_float(float x) { return __float_as_uint(x); }
#endif

__device__ __forceinline__ float load(float x) { return x; }
__device__ __forceinline__ float load(bf16 x) { return float_of_bits((unsigned)x.bits << 16); }

// Rounds to the nearest, ties to even.
__device__ __forceinline__ unsigned short bf16_bits(float x) {
    unsigned bits = bits_of_float(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu; // no number
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <class T> struct Number;
template <> struct Number<float> {
    static __device__ __forceinline__ float of(float x) { return x; }
};
template <> struct Number<bf16> {
    static __device__ __forceinline__ bf16 of(float x) {
        bf16 y;
        y.bits = bf16_bits(x);
        return y;
    }
};

// 16 bytes at once: what a thread reads best. Buffers start at multiples of 256 bytes.
template <class T> struct __align__(16) Pack {
    static const int WIDTH = 16 / sizeof(T);
    T v[WIDTH];
};

#define EACH(index, count) \
    for (ll index = (ll)blockIdx.x * blockDim.x + threadIdx.x; index < (count); index += (ll)gridDim.x * blockDim.x)

// The sum over the block, the same bits in every thread. `scratch` holds 32 floats and is free again afterwards.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    float total = 0.0f;
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) total += scratch[warp];
    return total;
}

__device__ __forceinline__ float block_max(float x, float* scratch) {
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    float greatest = scratch[0];
    for (int warp = 1; warp < (int)blockDim.x / 32; warp++) greatest = fmaxf(greatest, scratch[warp]);
    return greatest;
}

// A kernel for both number formats, and the most threads of its blocks: so many registers are left for each.
#define KERNEL_OF(name, threads)                                                                \
    extern "C" __global__ void __launch_bounds__(threads) name##_f32(Args a) { name<float>(a); } \
    extern "C" __global__ void __launch_bounds__(threads) name##_bf16(Args a) { name<bf16>(a); }
#define KERNEL(name) KERNEL_OF(name, 512)
