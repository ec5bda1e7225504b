// The same on Hopper's tensor cores, which take tiles from shared memory themselves and multiply beside what the warps do:
// `wgmma` (PTX ISA 9.7.15), for four warps at a time. Blocks of two or three such groups, 64 rows each, for widths of whole 64
// columns.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GROUP 128

// N rows of one head, D wide, as descriptors call it with a swizzle of 128 bytes: 64 columns behind each other, of which a row
// has eight pieces of 16 bytes, and piece j of row i lies at j ^ i. Eight rows start at a multiple of 1024 bytes.
template <int D, int N> struct Swizzled {
    bf16 v[D / 64][N][64];
    __device__ __forceinline__ bf16* at(int i, int j) { return &v[j / 64][i][((j / 8) ^ i) % 8 * 8]; }
};

// The first of the block's rows that are this thread's group's.
__device__ __forceinline__ int rows_of_group() { return threadIdx.x / GROUP * 64; }
// The same, which the compiler then knows to be one number for all threads of a warp.
__device__ __forceinline__ int one_of_warp(int number) { return __shfl_sync(0xffffffffu, number, 0); }

// What is computed with these stays before, or behind.
template <int N> __device__ __forceinline__ void keep(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}
template <int N> __device__ __forceinline__ void keep(unsigned (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) asm volatile("" : "+r"(c[n][0]), "+r"(c[n][1]), "+r"(c[n][2]), "+r"(c[n][3])::"memory");
}
// The registers of the products that follow are what they are now.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// G groups of four warps.
template <int G> struct ByGroup {
    // Copies are dealt evenly to powers of two.
    static const int WARPS = 4 * G, COPIERS = 256;
    template <int D, int N> using Rows = Swizzled<D, N>;
    static __device__ __forceinline__ void arrive() {
        wait_for_copies();
        // Tensor cores read on another way than threads write on.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
    }
    template <class... C> static __device__ __forceinline__ void end_products(C&... sums) {
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        // Nobody looks at sums before.
        (keep(sums), ...);
    }
    static __device__ __forceinline__ bool sees_any(const Place& at, ll query, ll key) {
        ll last = query + 63 + at.lead;
        return query < at.count && key < at.count && key <= last && key + 63 + at.window > query + at.lead;
    }
    static __device__ __forceinline__ bool sees_any_key(const Place& at, ll query, ll key) { return sees_any(at, query + rows_of_group(), key); }
    static __device__ __forceinline__ bool is_seen_by_any(const Place& at, ll query, ll key) { return sees_any(at, query, key + rows_of_group()); }
    static __device__ __forceinline__ bool sees_all_keys(const Place& at, ll query, ll key) { return sees_all(at, query + rows_of_group(), 64, key, TILE); }
    static __device__ __forceinline__ bool is_seen_by_all(const Place& at, ll query, ll key) { return sees_all(at, query, TILE, key + rows_of_group(), 64); }
};

// A matrix in shared memory from `first` on, at any 16 columns or (transposed) 16 rows of a tile: 1024 bytes from eight rows
// to the next, swizzled by 128 bytes.
__device__ __forceinline__ ull matrix_at(const bf16* first) {
    unsigned address = (unsigned)one_of_warp((int)__cvta_generic_to_shared(first));
    return (ull)((address & 0x3ffffu) >> 4) | 1ull << 16 | (ull)(1024 >> 4) << 32 | 1ull << 62;
}

#define SUMS(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define ALL_SUMS(c) SUMS(c, 0), SUMS(c, 1), SUMS(c, 2), SUMS(c, 3), SUMS(c, 4), SUMS(c, 5), SUMS(c, 6), SUMS(c, 7)
#define SUM_NAMES                                                                                    \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20," \
    " %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

// Begins c = a * b or, where it adds, c += a * b: 64 x 64 x 16, of rows of both. Each warp has 16 rows of c, as of `mma`.
__device__ __forceinline__ void begin_rows(float (*c)[4], ull a, ull b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUM_NAMES ", %32, %33, p, 1, 1, 0, 0;\n}\n"
        : ALL_SUMS(c)
        : "l"(a), "l"(b), "r"(adds));
}
// Begins c += a * b: the same of a warp's 16 x 16 of `a` in registers, as of `mma`, and of columns of `b`.
__device__ __forceinline__ void begin_scores(float (*c)[4], const unsigned* a, ull b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUM_NAMES ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
        : ALL_SUMS(c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// As of `Padded`; whole tiles. Descriptors count addresses by 16 bytes.
template <int C, int D, int A> __device__ __forceinline__ void rows_times_rows(float (&c)[C][4], const Swizzled<D, A>& a, const Swizzled<D, TILE>& b, int) {
    static_assert(C == TILE / 8, "a tile at a time");
    ull left = matrix_at(&a.v[0][rows_of_group()][0]), right = matrix_at(&b.v[0][0][0]);
    keep(c);
    begin_products();
#pragma unroll
    for (int k = 0; k < D; k += 16) begin_rows(c, left + k / 64 * A * 8 + k % 64 / 8, right + k / 64 * TILE * 8 + k % 64 / 8, k > 0);
}
template <int C, int D> __device__ __forceinline__ void scores_times_rows(float (&c)[D / 8][4], const float (&s)[C][4], const Swizzled<D, TILE>& b, int) {
    static_assert(C == TILE / 8, "a tile at a time");
    ull right = matrix_at(&b.v[0][0][0]);
    unsigned left[C / 2][4];
#pragma unroll
    for (int k = 0; k < C / 2; k++) {
        left[k][0] = pack(s[2 * k][0], s[2 * k][1]);
        left[k][1] = pack(s[2 * k][2], s[2 * k][3]);
        left[k][2] = pack(s[2 * k + 1][0], s[2 * k + 1][1]);
        left[k][3] = pack(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
    keep(left);
    keep(c);
    begin_products();
#pragma unroll
    for (int k = 0; k < C / 2; k++) {
#pragma unroll
        for (int n = 0; n < D / 64; n++) begin_scores(&c[8 * n], left[k], right + n * TILE * 8 + 16 * k * 8);
    }
}

// p: q, k, v, o, l. Keys and values of the next tile come while this one's are computed with, where there are two buffers.
template <class Way, int D, int E> __device__ __forceinline__ void group_attention(const Args& a) {
    const int ROWS = Way::WARPS * 16;
    DYNAMIC_TILES(shared);
    Place at = place_of(a, false);
    int buffers = (int)a.n[6], now = 0;
    Swizzled<D, ROWS>& q = *(Swizzled<D, ROWS>*)shared;
    Swizzled<D, TILE>* k = (Swizzled<D, TILE>*)(&q + 1);
    Swizzled<E, TILE>* v = (Swizzled<E, TILE>*)(k + buffers);
    ll query = first_query_of_block<Way>();
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    ll query_at = (at.first + query) * at.query_row + (ll)at.head * D;
    ll out_at = (at.first + query) * at.out_row + (ll)at.head * E, end = end_of_keys(at, query, ROWS);
    ll start = first_key(at, query, TILE);
    float factor = a.f[0] * LOG2_E, o[E / 8][4], s[8][4], *l = (float*)a.p[4] + (at.first + query + row) * at.heads + at.head;
    Stream keys = stream_of(a.p[1], at, start, at.key_row, at.key_head, D);
    Stream values = stream_of(a.p[2], at, start, at.value_row, at.key_head, E);
    auto fetch = [&](int to) {
        keys.fetch<Way>(k[to]);
        values.fetch<Way, true>(v[to]);
    };
    fetch_rows<Way>(q, (const bf16*)a.p[0] + query_at, at.query_row, at.count - query);
    // Where no query of the block sees a key, the first one may lie behind the last row of all.
    if (start < end) fetch(0);
    Softmax so_far;
    begin_softmax<E>(so_far, o, a, at, query, out_at, l);
    for (ll key = start; key < end; key += TILE) {
        // This tile is there, and nobody reads the other buffer any more.
        Way::arrive();
        bool goes_on = key + TILE < end;
        if (goes_on && buffers == 2) fetch(1 - now);
        if (Way::sees_any_key(at, query, key)) {
            rows_times_rows(s, q, k[now], 0);
            Way::end_products(s);
            cap_products(s, a);
            if (!Way::sees_all_keys(at, query, key)) hide_unseen<true>(s, at, query, key);
            take_products(so_far, s, o, factor);
            scores_times_rows(o, s, v[now], 0);
            Way::end_products(o);
        }
        if (buffers == 2) {
            now = 1 - now;
        } else if (goes_on) {
            __syncthreads();
            fetch(0);
        }
    }
    // Where no query sees a key here, copies are still under way.
    wait_for_copies();
    end_softmax<E>(so_far, o, a, at, query, out_at, l);
}

#define GROUP_KERNEL(name, D, E, G) extern "C" __global__ void __launch_bounds__(G * GROUP) group_##name##_##D##_##E(Args a)
// G: groups of a block of attention; of gradients there are two.
#define GROUP_KERNELS(D, E, G)                                                \
    GROUP_KERNEL(attention, D, E, G) { group_attention<ByGroup<G>, D, E>(a); } \
    GROUP_KERNEL(attention_grad_query, D, E, 2) { tensor_attention_grad_query<ByGroup<2>, D, E, 4>(a); }
#define GROUP_GRADS_AT_ONCE(D, E) \
    GROUP_KERNEL(attention_grad_key, D, E, 2) { tensor_attention_grad_key<ByGroup<2>, D, E, 4, true, true>(a); }
#define GROUP_GRADS_APART(D, E)                                                                                      \
    GROUP_KERNEL(attention_grad_key, D, E, 2) { tensor_attention_grad_key<ByGroup<2>, D, E, 4, true, false>(a); } \
    GROUP_KERNEL(attention_grad_value, D, E, 2) { tensor_attention_grad_key<ByGroup<2>, D, E, 4, false, true>(a); }

// Two blocks of a multiprocessor, or one of three groups: as many as the registers allow.
GROUP_KERNELS(64, 64, 2)
GROUP_GRADS_AT_ONCE(64, 64)
GROUP_KERNELS(128, 128, 3)
GROUP_GRADS_AT_ONCE(128, 128)
GROUP_KERNELS(192, 128, 3)
GROUP_GRADS_APART(192, 128)
GROUP_KERNELS(256, 256, 2)
GROUP_GRADS_APART(256, 256)
#endif
