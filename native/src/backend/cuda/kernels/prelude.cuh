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
#define DYNAMIC_TILES(name) extern __shared__ __align__(1024) unsigned char name[]
#define INFINITE __int_as_float(0x7f800000)
__device__ __forceinline__ float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ unsigned bits_of_float(float x) { return __float_as_uint(x); }
#endif

__device__ __forceinline__ float load(float x) { return x; }
__device__ __forceinline__ float load(bf16 x) { return float_of_bits((unsigned)x.bits << 16); }

// Rounds to the nearest, ties to even; what is no number becomes 0x7fff.
__device__ __forceinline__ unsigned short bf16_bits(float x) {
#if !defined(PIPEPLAN_HOST)
    // One instruction, where the same in whole numbers takes seven.
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(x));
    return (unsigned short)both;
#else
    unsigned bits = bits_of_float(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
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

// *at = x, a pack in one go: left to itself the compiler writes the numbers of some packs one by one, which takes several
// times as long.
template <class U> __device__ __forceinline__ void put(U* at, const U& x) { *at = x; }
template <class T> __device__ __forceinline__ void put(Pack<T>* at, const Pack<T>& x) {
#if !defined(PIPEPLAN_HOST)
    uint4 words = *(const uint4*)&x;
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)), "r"(words.x), "r"(words.y),
                 "r"(words.z), "r"(words.w)
                 : "memory");
#else
    *at = x;
#endif
}

// Whether a row of so many columns is made of whole packs: then all of its tensor's rows start at one.
template <class T> __device__ __forceinline__ bool in_packs(ll columns) { return columns % Pack<T>::WIDTH == 0; }

// Whether a pack may begin there: rows that lie apart in a buffer may begin anywhere.
__device__ __forceinline__ bool may_begin_at(const void* at) { return (ull)at % 16 == 0; }

// y[j] = x[j] for the columns of a row that the block shares.
template <class T> __device__ __forceinline__ void copy_row(const T* x, T* y, ll columns) {
    if (in_packs<T>(columns) && may_begin_at(x) && may_begin_at(y)) {
        for (ll i = threadIdx.x; i < columns / Pack<T>::WIDTH; i += blockDim.x) put((Pack<T>*)y + i, ((const Pack<T>*)x)[i]);
    } else {
        for (ll j = threadIdx.x; j < columns; j += blockDim.x) y[j] = x[j];
    }
}

// f(j, x[j]) for the columns that are this thread's of a row that the block shares, pack by pack where the row is made of such.
template <class T, class F> __device__ __forceinline__ void each_of_row(const T* x, ll columns, F f) {
    if (in_packs<T>(columns)) {
        for (ll i = threadIdx.x; i < columns / Pack<T>::WIDTH; i += blockDim.x) {
            Pack<T> px = ((const Pack<T>*)x)[i];
#pragma unroll
            for (int k = 0; k < Pack<T>::WIDTH; k++) f(i * Pack<T>::WIDTH + k, load(px.v[k]));
        }
    } else {
        for (ll j = threadIdx.x; j < columns; j += blockDim.x) f(j, load(x[j]));
    }
}

// y[j] = f(j, x[j]), the same way; y may be x.
template <class T, class F> __device__ __forceinline__ void map_row(const T* x, T* y, ll columns, F f) {
    if (in_packs<T>(columns)) {
        for (ll i = threadIdx.x; i < columns / Pack<T>::WIDTH; i += blockDim.x) {
            Pack<T> px = ((const Pack<T>*)x)[i];
#pragma unroll
            for (int k = 0; k < Pack<T>::WIDTH; k++) px.v[k] = Number<T>::of(f(i * Pack<T>::WIDTH + k, load(px.v[k])));
            put((Pack<T>*)y + i, px);
        }
    } else {
        for (ll j = threadIdx.x; j < columns; j += blockDim.x) y[j] = Number<T>::of(f(j, load(x[j])));
    }
}

// The same of three rows: y[j] = f(a[j], b[j], c[j]); y may be a. Where there is `added`, y is rounded, and then the sum of it
// and that: what two launches would leave, to the bit. So no compiler may round a product and that sum once.
template <class T, class F>
__device__ __forceinline__ void map_rows(const T* a, const T* b, const T* c, T* y, ll columns, F f, const T* added = 0) {
    if (in_packs<T>(columns)) {
        for (ll i = threadIdx.x; i < columns / Pack<T>::WIDTH; i += blockDim.x) {
            Pack<T> pa = ((const Pack<T>*)a)[i], pb = ((const Pack<T>*)b)[i], pc = ((const Pack<T>*)c)[i];
#pragma unroll
            for (int k = 0; k < Pack<T>::WIDTH; k++) pa.v[k] = Number<T>::of(f(load(pa.v[k]), load(pb.v[k]), load(pc.v[k])));
            if (added != 0) {
                Pack<T> more = ((const Pack<T>*)added)[i];
#pragma unroll
                for (int k = 0; k < Pack<T>::WIDTH; k++) pa.v[k] = Number<T>::of(__fadd_rn(load(pa.v[k]), load(more.v[k])));
            }
            put((Pack<T>*)y + i, pa);
        }
    } else {
        for (ll j = threadIdx.x; j < columns; j += blockDim.x) {
            T value = Number<T>::of(f(load(a[j]), load(b[j]), load(c[j])));
            y[j] = added != 0 ? Number<T>::of(__fadd_rn(load(value), load(added[j]))) : value;
        }
    }
}

// f(a[j], b[j], c[j]) for the columns that are this thread's.
template <class T, class F>
__device__ __forceinline__ void each_of_rows(const T* a, const T* b, const T* c, ll columns, F f) {
    if (in_packs<T>(columns)) {
        for (ll i = threadIdx.x; i < columns / Pack<T>::WIDTH; i += blockDim.x) {
            Pack<T> pa = ((const Pack<T>*)a)[i], pb = ((const Pack<T>*)b)[i], pc = ((const Pack<T>*)c)[i];
#pragma unroll
            for (int k = 0; k < Pack<T>::WIDTH; k++) f(load(pa.v[k]), load(pb.v[k]), load(pc.v[k]));
        }
    } else {
        for (ll j = threadIdx.x; j < columns; j += blockDim.x) f(load(a[j]), load(b[j]), load(c[j]));
    }
}

#define EACH(index, count) \
    for (ll index = (ll)blockIdx.x * blockDim.x + threadIdx.x; index < (count); index += (ll)gridDim.x * blockDim.x)

// Where in its sequence a row lies, one sequence after the other, on a rank that has pieces `part` and 2 parts - 1 - `part`
// of the 2 parts that each is cut into; with one part, all of them.
__device__ __forceinline__ ll position_of(ll row, ll sequence, ll part, ll parts) {
    ll piece = sequence / parts / 2, at = row % (sequence / parts);
    return at < piece ? part * piece + at : (2 * parts - 1 - part) * piece + at - piece;
}

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

// The most threads of a kernel's blocks, where whoever stands in for a card looks for it.
#if defined(PIPEPLAN_HOST)
#define MOST_THREADS(name, threads) extern "C" { extern const unsigned name##_threads = threads; }
#else
#define MOST_THREADS(name, threads)
#endif

// A kernel for both number formats, and the most threads of its blocks: so many registers are left for each.
#define KERNEL_OF(name, threads)                                                                \
    MOST_THREADS(name##_f32, threads)                                                            \
    MOST_THREADS(name##_bf16, threads)                                                           \
    extern "C" __global__ void __launch_bounds__(threads) name##_f32(Args a) { name<float>(a); } \
    extern "C" __global__ void __launch_bounds__(threads) name##_bf16(Args a) { name<bf16>(a); }
#define KERNEL(name) KERNEL_OF(name, 512)
// One of floats alone.
#define KERNEL_OF_FLOATS(name) \
    MOST_THREADS(name##_f32, 512) \
    extern "C" __global__ void __launch_bounds__(512) name##_f32(Args a) { name(a); }
