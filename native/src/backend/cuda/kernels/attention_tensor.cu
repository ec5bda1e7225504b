// The same for bf16 on tensor cores, for common widths D of keys and E of values: warps of 16 rows each, by tiles of 64. A
// warp's scores stay in its registers, where the result of one product has the layout that the next one wants on its left
// (arXiv:2307.08691 section 3.3). Tiles come from memory while others are computed with: copies start with `fetch_rows` and
// are there behind `Way::arrive`. Arguments as in attention.cu; n[6]: buffers of what is streamed, 1 or 2.
//
// `Way` is how warps multiply: here each for itself, in blocks of four; attention_groups.cu has another.

#define TILE 64
#define LOG2_E 1.44269504088896341f

#if !defined(PIPEPLAN_HOST)
// c += a * b, 16 x 8 x 16. Lane `4 g + t` holds of c rows g and g + 8, columns 2 t and 2 t + 1.
__device__ __forceinline__ void mma(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices; lane i gives the address of row i mod 8 of matrix i / 8, and gets of each matrix, in row i / 4,
// columns 2 (i mod 4) and the next.
__device__ __forceinline__ void load_matrices(unsigned* to, const bf16* row) {
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}
// The same, each matrix transposed.
__device__ __forceinline__ void load_transposed(unsigned* to, const bf16* row) {
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}
__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
// Begins to copy 16 bytes to shared memory, or zeros where they are not there: then nothing is read.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool is_there) {
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}
// The same of 8 bytes, which are there.
__device__ __forceinline__ void copy_pair_async(void* to, const void* from) {
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from) : "memory");
}
// Waits for all copies that this thread has begun.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// 2 to the power of x, by the one instruction that there is for it; what is too small for it is 0.
__device__ __forceinline__ float power_of_2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
// 1 / x, likewise.
__device__ __forceinline__ float inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

// N rows of one head, D wide, in shared memory. 16 bytes more a row put the rows of a matrix into different banks.
template <int D, int N> struct Padded {
    bf16 v[N][D + 8];
    __device__ __forceinline__ bf16* at(int i, int j) { return &v[i][j]; }
};

// Each warp by itself.
struct ByWarp {
    static const int WARPS = 4, COPIERS = 128;
    template <int D, int N> using Rows = Padded<D, N>;
    // What this thread's copies bring is there for all, behind all that the block has done so far.
    static __device__ __forceinline__ void arrive() {
        wait_for_copies();
        __syncthreads();
    }
    // Behind products: their sums are there.
    template <class... C> static __device__ __forceinline__ void end_products(C&...) {}
    // Whether the queries that are this warp's see some key of a tile, and whether its keys are seen by some query: tiles where
    // no warp's are, are left out.
    static __device__ __forceinline__ bool sees_any_key(const Place&, ll, ll) { return true; }
    static __device__ __forceinline__ bool is_seen_by_any(const Place&, ll, ll) { return true; }
    // Whether each of them sees, or is seen by, each of a tile.
    static __device__ __forceinline__ bool sees_all_keys(const Place& at, ll query, ll key) { return sees_all(at, query, 64, key, TILE); }
    static __device__ __forceinline__ bool is_seen_by_all(const Place& at, ll query, ll key) { return sees_all(at, query, TILE, key, 64); }
};

// Begins to fetch rows, of which so many are there; the others become 0. Of a block with more threads than COPIERS the first
// see to that, or the last.
template <class Way, bool LAST = false, int D, int N, template <int, int> class R>
__device__ __forceinline__ void fetch_rows(R<D, N>& to, const bf16* from, ll row_length, ll rows) {
    const int THREADS = Way::COPIERS, ACROSS = D / 8, AT_ONCE = THREADS / ACROSS;
    int thread = LAST ? threadIdx.x - (Way::WARPS * 32 - THREADS) : threadIdx.x, there = rows < N ? (int)rows : N;
    if (thread < 0 || thread >= THREADS) return;
    if constexpr (THREADS % ACROSS == 0 && N % AT_ONCE == 0) {
        // Each thread goes down some columns.
        int i = thread / ACROSS, j = thread % ACROSS * 8;
        const bf16* row = from + (i * (int)row_length + j);
        ll next = AT_ONCE * row_length;
#pragma unroll 4
        for (int step = 0; step < N / AT_ONCE; step++) {
            copy_async(to.at(i, j), i < there ? row : from, i < there);
            i += AT_ONCE;
            row += next;
        }
    } else {
        // One address at a time: the registers are others'.
#pragma unroll 1
        for (int index = thread; index < N * ACROSS; index += THREADS) {
            int i = index / ACROSS, j = index % ACROSS * 8;
            copy_async(to.at(i, j), from + (i < there ? i : 0) * row_length + j, i < there);
        }
    }
}

// Rows of one head, tile after tile.
struct Stream {
    const bf16* from;
    ll row_length, rows;
    // Begins to fetch the next tile.
    template <class Way, bool LAST = false, class R> __device__ __forceinline__ void fetch(R& to) {
        fetch_rows<Way, LAST>(to, from, row_length, rows);
        from += TILE * row_length;
        rows -= TILE;
    }
};
// From row `start` of a sequence on.
__device__ __forceinline__ Stream stream_of(const void* all, const Place& at, ll start, ll row_length, int head, int width) {
    return {(const bf16*)all + (at.first + start) * row_length + (ll)head * width, row_length, at.count - start};
}

template <int N> __device__ __forceinline__ void clear_tile(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
}

// c = this warp's 16 rows of `a` times C / 2 times 16 rows of `b` from row `from` on, transposed.
template <int C, int D, int A> __device__ __forceinline__ void rows_times_rows(float (&c)[C][4], const Padded<D, A>& a, const Padded<D, TILE>& b, int from) {
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
    clear_tile(c);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        unsigned left[4], right[4];
        load_matrices(left, &a.v[first + lane % 16][k + lane / 16 * 8]);
#pragma unroll
        for (int n = 0; n < C / 2; n++) {
            load_matrices(right, &b.v[from + n * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
            mma(c[2 * n], left, right[0], right[1]);
            mma(c[2 * n + 1], left, right[2], right[3]);
        }
    }
}

// c += s times C / 2 times 16 rows of `b` from row `from` on, 16 x D, where s is a warp's, in registers.
template <int C, int D> __device__ __forceinline__ void scores_times_rows(float (&c)[D / 8][4], const float (&s)[C][4], const Padded<D, TILE>& b, int from) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < C / 2; k++) {
        unsigned left[4] = {pack(s[2 * k][0], s[2 * k][1]), pack(s[2 * k][2], s[2 * k][3]),
                            pack(s[2 * k + 1][0], s[2 * k + 1][1]), pack(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            unsigned right[4];
            load_transposed(right, &b.v[from + k * 16 + lane % 16][n * 16 + lane / 16 * 8]);
            mma(c[2 * n], left, right[0], right[1]);
            mma(c[2 * n + 1], left, right[2], right[3]);
        }
    }
}

// Writes a warp's 16 x D, rows times `even` and (8 rows on) `odd`, where they are among the first `rows` of the tile.
template <int D> __device__ __forceinline__ void put_tile(void* to, const float (&c)[D / 8][4], ll row_length, ll rows, float even, float odd) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        int j = n * 8 + lane % 4 * 2;
        if (row < rows) *(unsigned*)((bf16*)to + row * row_length + j) = pack(c[n][0] * even, c[n][1] * even);
        if (row + 8 < rows) *(unsigned*)((bf16*)to + (row + 8) * row_length + j) = pack(c[n][2] * odd, c[n][3] * odd);
    }
}

// Adds the same of what is there, divided by `factor`, so that it can be written as above.
template <int D> __device__ __forceinline__ void add_tile(float (&c)[D / 8][4], const void* from, ll row_length, ll rows, float factor) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        const bf16* at = (const bf16*)from + row * row_length + n * 8 + lane % 4 * 2;
        if (row < rows) {
            unsigned both = *(const unsigned*)at;
            c[n][0] += float_of_bits(both << 16) / factor;
            c[n][1] += float_of_bits(both & 0xffff0000u) / factor;
        }
        if (row + 8 < rows) {
            unsigned both = *(const unsigned*)(at + 8 * row_length);
            c[n][2] += float_of_bits(both << 16) / factor;
            c[n][3] += float_of_bits(both & 0xffff0000u) / factor;
        }
    }
}

// The two rows of one head that a thread's results belong to: do times o, over the columns. Four threads share a row, and take
// 16 bytes each at a time, of which AHEAD are on their way together.
template <int D, int AHEAD> __device__ __forceinline__ float along_row(const void* d_o, const void* o, ll at) {
    const int W = Pack<bf16>::WIDTH;
    float sum = 0.0f;
#pragma unroll AHEAD
    for (int j = threadIdx.x % 4 * W; j < D; j += 4 * W) {
        Pack<bf16> left = *(const Pack<bf16>*)((const bf16*)d_o + at + j), right = *(const Pack<bf16>*)((const bf16*)o + at + j);
#pragma unroll
        for (int k = 0; k < W; k++) sum += load(left.v[k]) * load(right.v[k]);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

// Products of queries and keys as they have to be for their scores to be capped; nothing where they are not.
template <int N> __device__ __forceinline__ void cap_products(float (&s)[N][4], const Args& a) {
    if (a.f[1] <= 0.0f) return;
    // The hyperbolic tangent of x is 1 - 2 / (1 + e^2x): exact enough beside 1, which is the cap, and not beside itself.
    float twice = 2.0f * LOG2_E * a.f[0] / a.f[1], whole = a.f[1] / a.f[0];
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) s[n][c] = whole - 2.0f * whole * inverse(1.0f + power_of_2(s[n][c] * twice));
    }
}

// Products of queries that are not there, or do not see a key, give no weight: queries are rows from `query` on and keys
// columns from `key` on, or the other way round.
template <bool QUERIES_ARE_ROWS, int N> __device__ __forceinline__ void hide_unseen(float (&s)[N][4], const Place& at, ll query, ll key) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, from[2], to[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // The first and the last column that this row has to do with.
        ll i = row + half * 8, own = QUERIES_ARE_ROWS ? query + i : key + i, other = QUERIES_ARE_ROWS ? key : query;
        ll first = QUERIES_ARE_ROWS ? own + at.lead + 1 - at.window : own - at.lead, last = first + at.window - 1;
        if (last > at.count - 1) last = at.count - 1;
        if (own >= at.count) last = -1;
        first -= other;
        last -= other;
        from[half] = first > TILE ? TILE : (int)(first > 0 ? first : 0);
        to[half] = last < 0 ? -1 : (int)(last < TILE ? last : TILE);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int j = n * 8 + lane % 4 * 2 + c % 2;
            if (j < from[c / 2] || j > to[c / 2]) s[n][c] = -INFINITE;
        }
    }
}

// Gradients of scores become those of what was capped: the slope lacks of 1 the square of a score's share of its cap. What is
// hidden stays within it.
template <int N> __device__ __forceinline__ void within_slopes(float (&ds)[N][4], const float (&products)[N][4], const Args& a) {
    if (a.f[1] <= 0.0f) return;
    float share = a.f[0] / a.f[1];
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float of_cap = fmaxf(products[n][c] * share, -1.0f);
            ds[n][c] *= 1.0f - of_cap * of_cap;
        }
    }
}

// The first row of a block's queries: long rows first, since blocks that start last should be short.
template <class Way> __device__ __forceinline__ ll first_query_of_block() { return (ll)(gridDim.z - 1 - blockIdx.z) * (Way::WARPS * 16); }

// A thread's two rows of a softmax: the greatest product so far, in powers of 2, and the sum relative to it of what the thread
// has seen.
struct Softmax {
    float greatest[2], total[2];
};

// Nothing so far, or where attention adds to what is there, that.
template <int E>
__device__ __forceinline__ void begin_softmax(Softmax& so_far, float (&o)[E / 8][4], const Args& a, const Place& at, ll query, ll out_at, const float* l) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    so_far.greatest[0] = so_far.greatest[1] = -INFINITE;
    so_far.total[0] = so_far.total[1] = 0.0f;
    clear_tile(o);
    if (!at.adds) return;
    // Sums of 1, relative to what they were: one thread's of the four that share a row.
    add_tile<E>(o, (const bf16*)a.p[3] + out_at, at.out_row, at.count - query, 1.0f);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // The thread that will write it reads it, for the four of its row.
        bool is_first = lane % 4 == 0 && query + row + half * 8 < at.count;
        float before = is_first ? l[half * 8 * at.heads] * LOG2_E : -INFINITE;
        before = fmaxf(before, __shfl_xor_sync(0xffffffffu, before, 1));
        so_far.greatest[half] = fmaxf(before, __shfl_xor_sync(0xffffffffu, before, 2));
        so_far.total[half] = is_first ? 1.0f : 0.0f;
    }
}

// Products become weights, and the outputs so far relative to what is the greatest now.
template <int N, int M> __device__ __forceinline__ void take_products(Softmax& so_far, float (&s)[N][4], float (&o)[M][4], float factor) {
    float now[2] = {-INFINITE, -INFINITE}, sum[2] = {0.0f, 0.0f}, correction[2];
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) now[c / 2] = fmaxf(now[c / 2], s[n][c]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        now[half] = fmaxf(now[half], __shfl_xor_sync(0xffffffffu, now[half], 1));
        now[half] = fmaxf(now[half], __shfl_xor_sync(0xffffffffu, now[half], 2));
        now[half] = fmaxf(so_far.greatest[half], now[half] * factor);
    }
    // A row that has seen no key yet holds nothing that a correction could change.
    float base[2] = {now[0] == -INFINITE ? 0.0f : now[0], now[1] == -INFINITE ? 0.0f : now[1]};
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            s[n][c] = power_of_2(s[n][c] * factor - base[c / 2]);
            sum[c / 2] += s[n][c];
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        correction[half] = power_of_2(so_far.greatest[half] - base[half]);
        so_far.total[half] = so_far.total[half] * correction[half] + sum[half];
        so_far.greatest[half] = now[half];
    }
    // Mostly, the greatest stays what it was.
    if (__ballot_sync(0xffffffffu, correction[0] != 1.0f || correction[1] != 1.0f) == 0) return;
#pragma unroll
    for (int n = 0; n < M; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) o[n][c] *= correction[c / 2];
    }
}

// Writes outputs and log-sum-exps.
template <int E>
__device__ __forceinline__ void end_softmax(Softmax& so_far, const float (&o)[E / 8][4], const Args& a, const Place& at, ll query, ll out_at, float* l) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    float* total = so_far.total;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(0xffffffffu, total[half], 1);
        total[half] += __shfl_xor_sync(0xffffffffu, total[half], 2);
        if (lane % 4 == 0 && query + row + half * 8 < at.count) l[half * 8 * at.heads] = so_far.greatest[half] / LOG2_E + logf(total[half]);
    }
    put_tile<E>((bf16*)a.p[3] + out_at, o, at.out_row, at.count - query, 1.0f / total[0], 1.0f / total[1]);
}

// p: q, k, v, o, l. Values come while scores are computed, and the next keys while values are: one buffer of each does.
template <int D, int E> __device__ __forceinline__ void tensor_attention(const Args& a) {
    typedef ByWarp Way;
    const int ROWS = Way::WARPS * 16;
    DYNAMIC_TILES(shared);
    Place at = place_of(a, false);
    typename Way::Rows<D, ROWS>& q = *(typename Way::Rows<D, ROWS>*)shared;
    typename Way::Rows<D, TILE>& k = *(typename Way::Rows<D, TILE>*)(&q + 1);
    typename Way::Rows<E, TILE>& v = *(typename Way::Rows<E, TILE>*)(&k + 1);
    ll query = first_query_of_block<Way>();
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    ll query_at = (at.first + query) * at.query_row + (ll)at.head * D, start = first_key(at, query, TILE);
    ll out_at = (at.first + query) * at.out_row + (ll)at.head * E, end = end_of_keys(at, query, ROWS);
    float factor = a.f[0] * LOG2_E, o[E / 8][4], s[8][4], *l = (float*)a.p[4] + (at.first + query + row) * at.heads + at.head;
    Stream keys = stream_of(a.p[1], at, start, at.key_row, at.key_head, D);
    Stream values = stream_of(a.p[2], at, start, at.value_row, at.key_head, E);
    fetch_rows<Way>(q, (const bf16*)a.p[0] + query_at, at.query_row, at.count - query);
    // Where no query of the block sees a key, the first one may lie behind the last row of all.
    if (start < end) keys.fetch<Way>(k);
    Softmax so_far;
    begin_softmax<E>(so_far, o, a, at, query, out_at, l);
    for (ll key = start; key < end; key += TILE) {
        // The keys are there, and nobody reads the values before any more.
        Way::arrive();
        values.fetch<Way>(v);
        rows_times_rows(s, q, k, 0);
        cap_products(s, a);
        if (!ByWarp::sees_all_keys(at, query, key)) hide_unseen<true>(s, at, query, key);
        take_products(so_far, s, o, factor);
        // The values are there, and nobody reads these keys any more.
        Way::arrive();
        if (key + TILE < end) keys.fetch<Way>(k);
        scores_times_rows(o, s, v, 0);
    }
    // Where no query sees a key here, copies are still under way.
    wait_for_copies();
    end_softmax<E>(so_far, o, a, at, query, out_at, l);
}

// What the gradients need of a row of one head: do times o, over the columns, and the log-sum-exp in powers of 2.
struct __align__(8) OfRow {
    float along, l;
};
// Those of one head lie behind each other, in the order of all rows of all sequences.
__device__ __forceinline__ OfRow* rows_of_head(void* all, const Args& a, const Place& at, int head) {
    return (OfRow*)all + (ll)head * gridDim.y * a.n[0] + at.first;
}

// p: do, q, k, v, o, l, dq, rows (out). 16 N keys at a time, as registers allow.
template <class Way, int D, int E, int N> __device__ __forceinline__ void tensor_attention_grad_query(const Args& a) {
    const int ROWS = Way::WARPS * 16;
    DYNAMIC_TILES(shared);
    Place at = place_of(a, false);
    int buffers = (int)a.n[6], now = 0;
    typename Way::template Rows<D, ROWS>& q = *(typename Way::template Rows<D, ROWS>*)shared;
    typename Way::template Rows<E, ROWS>& d_o = *(typename Way::template Rows<E, ROWS>*)(&q + 1);
    typename Way::template Rows<D, TILE>* k = (typename Way::template Rows<D, TILE>*)(&d_o + 1);
    typename Way::template Rows<E, TILE>* v = (typename Way::template Rows<E, TILE>*)(k + buffers);
    ll query = first_query_of_block<Way>();
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    ll query_at = (at.first + query) * at.query_row + (ll)at.head * D;
    ll out_at = (at.first + query) * at.out_row + (ll)at.head * E;
    float factor = a.f[0] * LOG2_E, dq[D / 8][4], s[2 * N][4], ds[2 * N][4], along[2], l[2];
    ll start = first_key(at, query, TILE), end = end_of_keys(at, query, ROWS);
    Stream keys = stream_of(a.p[2], at, start, at.key_row, at.key_head, D);
    Stream values = stream_of(a.p[3], at, start, at.value_row, at.key_head, E);
    auto fetch = [&](int to) {
        keys.fetch<Way>(k[to]);
        values.fetch<Way, true>(v[to]);
    };
    fetch_rows<Way>(d_o, (const bf16*)a.p[0] + out_at, at.out_row, at.count - query);
    fetch_rows<Way>(q, (const bf16*)a.p[1] + query_at, at.query_row, at.count - query);
    if (start < end) fetch(0);
    for (int half = 0; half < 2; half++) {
        // Rows beyond the last one stand in for it; what they get is not written.
        bool is_there = query + row + half * 8 < at.count;
        ll i = is_there ? row + half * 8 : at.count - 1 - query;
        ll of_row = (at.first + query + i) * at.heads + at.head;
        along[half] = along_row<E, 4>(a.p[0], a.p[4], out_at + i * at.out_row);
        l[half] = ((const float*)a.p[5])[of_row] * LOG2_E;
        if (is_there && lane % 4 == 0) rows_of_head(a.p[7], a, at, at.head)[query + i] = {along[half], l[half]};
    }
    clear_tile(dq);
    for (ll key = start; key < end; key += TILE) {
        // This tile is there, and nobody reads the other buffer any more.
        Way::arrive();
        bool goes_on = key + TILE < end;
        if (goes_on && buffers == 2) fetch(1 - now);
        bool all = Way::sees_all_keys(at, query, key);
#pragma unroll 1
        for (int from = 0; from < TILE && Way::sees_any_key(at, query, key); from += 16 * N) {
            rows_times_rows(s, q, k[now], from);
            rows_times_rows(ds, d_o, v[now], from);
            Way::end_products(s, ds);
            cap_products(s, a);
            if (!all) hide_unseen<true>(s, at, query, key + from);
#pragma unroll
            for (int n = 0; n < 2 * N; n++) {
#pragma unroll
                for (int c = 0; c < 4; c++) ds[n][c] = power_of_2(s[n][c] * factor - l[c / 2]) * (ds[n][c] - along[c / 2]);
            }
            within_slopes(ds, s, a);
            scores_times_rows(dq, ds, k[now], from);
            Way::end_products(dq);
        }
        if (buffers == 2) {
            now = 1 - now;
        } else if (goes_on) {
            __syncthreads();
            fetch(0);
        }
    }
    wait_for_copies();
    if (at.adds) add_tile<D>(dq, (const bf16*)a.p[6] + query_at, at.query_row, at.count - query, a.f[0]);
    put_tile<D>((bf16*)a.p[6] + query_at, dq, at.query_row, at.count - query, a.f[0], a.f[0]);
}

// p: do, q, k, v, o, l, dk, dv, rows (of the kernel before). Rows of scores are keys here; 16 N queries at a time, as registers
// allow. Where these hold no sums of both, one kernel makes the gradients of keys and another those of values.
template <class Way, int D, int E, int N, bool KEYS, bool VALUES> __device__ __forceinline__ void tensor_attention_grad_key(const Args& a) {
    const int ROWS = Way::WARPS * 16;
    DYNAMIC_TILES(shared);
    __shared__ OfRow of_rows[2][TILE];
    Place at = place_of(a, true);
    int buffers = (int)a.n[6], now = 0;
    typename Way::template Rows<D, ROWS>& k = *(typename Way::template Rows<D, ROWS>*)shared;
    typename Way::template Rows<D, TILE>* q = (typename Way::template Rows<D, TILE>*)(&k + 1);
    typename Way::template Rows<E, TILE>* d_o = (typename Way::template Rows<E, TILE>*)(q + buffers);
    typename Way::template Rows<E, ROWS>& v = *(typename Way::template Rows<E, ROWS>*)(d_o + buffers);
    ll key = (ll)blockIdx.z * ROWS;
    int lane = threadIdx.x % 32;
    ll key_at = (at.first + key) * at.key_row + (ll)at.key_head * D;
    ll value_at = (at.first + key) * at.value_row + (ll)at.key_head * E;
    float factor = a.f[0] * LOG2_E, s[2 * N][4];
    float dk[KEYS ? D / 8 : 1][4], dv[VALUES ? E / 8 : 1][4], ds[KEYS ? 2 * N : 1][4];
    // Tiles of queries, head by head of those that share these keys.
    ll first = first_query(at, key, TILE), last = end_of_queries(at, key, ROWS);
    int tiles = (int)((last - first + TILE - 1) / TILE), steps = tiles * at.group;
    // Where no query sees any of them, there is nothing to add.
    if (tiles <= 0) return;
    int fetched = 0, head = at.head;
    Stream outs, queries;
    const OfRow* rows;
    auto fetch = [&](int to) {
        if (fetched == 0) {
            outs = stream_of(a.p[0], at, first, at.out_row, head, E);
            queries = stream_of(a.p[1], at, first, at.query_row, head, D);
            rows = rows_of_head(a.p[8], a, at, head) + first;
        }
        if (threadIdx.x < TILE) {
            // Rows beyond the last one get what is the last one's.
            int there = queries.rows < TILE ? (int)queries.rows : TILE, i = threadIdx.x < there ? threadIdx.x : there - 1;
            copy_pair_async(&of_rows[to][threadIdx.x], rows + i);
        }
        rows += TILE;
        outs.fetch<Way>(d_o[to]);
        queries.fetch<Way, true>(q[to]);
        if (++fetched == tiles) {
            fetched = 0;
            head++;
        }
    };
    clear_tile(dk);
    clear_tile(dv);
    fetch_rows<Way>(k, (const bf16*)a.p[2] + key_at, at.key_row, at.count - key);
    if (KEYS) fetch_rows<Way>(v, (const bf16*)a.p[3] + value_at, at.value_row, at.count - key);
    fetch(0);
    ll query = first;
    for (int step = 0; step < steps; step++) {
        // This tile is there, and nobody reads the other buffer any more.
        Way::arrive();
        bool goes_on = step + 1 < steps;
        if (goes_on && buffers == 2) fetch(1 - now);
        bool all = Way::is_seen_by_all(at, query, key);
#pragma unroll 1
        for (int from = 0; from < TILE && Way::is_seen_by_any(at, query, key); from += 16 * N) {
            rows_times_rows(s, k, q[now], from);
            if constexpr (KEYS) rows_times_rows(ds, v, d_o[now], from);
            Way::end_products(s, ds);
            cap_products(s, a);
            if (!all) hide_unseen<false>(s, at, query + from, key);
            if constexpr (KEYS) {
#pragma unroll
                for (int n = 0; n < 2 * N; n++) {
#pragma unroll
                    for (int c = 0; c < 4; c++) ds[n][c] -= of_rows[now][from + n * 8 + lane % 4 * 2 + c % 2].along;
                }
                within_slopes(ds, s, a);
            }
#pragma unroll
            for (int n = 0; n < 2 * N; n++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    s[n][c] = power_of_2(s[n][c] * factor - of_rows[now][from + n * 8 + lane % 4 * 2 + c % 2].l);
                    if constexpr (KEYS) ds[n][c] *= s[n][c];
                }
            }
            if constexpr (VALUES) scores_times_rows(dv, s, d_o[now], from);
            if constexpr (KEYS) scores_times_rows(dk, ds, q[now], from);
            Way::end_products(dv, dk);
        }
        if (buffers == 2) {
            now = 1 - now;
        } else if (goes_on) {
            __syncthreads();
            fetch(0);
        }
        query += TILE;
        if (query >= last) query = first;
    }
    if constexpr (KEYS) {
        if (at.adds) add_tile<D>(dk, (const bf16*)a.p[6] + key_at, at.key_row, at.count - key, a.f[0]);
        put_tile<D>((bf16*)a.p[6] + key_at, dk, at.key_row, at.count - key, a.f[0], a.f[0]);
    }
    if constexpr (VALUES) {
        if (at.adds) add_tile<E>(dv, (const bf16*)a.p[7] + value_at, at.value_row, at.count - key, 1.0f);
        put_tile<E>((bf16*)a.p[7] + value_at, dv, at.value_row, at.count - key, 1.0f, 1.0f);
    }
}

#define TENSOR_KERNEL(name, D, E)               \
    MOST_THREADS(tensor_##name##_##D##_##E, 128) \
    extern "C" __global__ void __launch_bounds__(128) tensor_##name##_##D##_##E(Args a)
#define TENSOR_KERNELS(D, E, Q)                                                          \
    TENSOR_KERNEL(attention, D, E) { tensor_attention<D, E>(a); }                        \
    TENSOR_KERNEL(attention_grad_query, D, E) { tensor_attention_grad_query<ByWarp, D, E, Q>(a); }
// The gradients of keys and values, by one kernel or by two.
#define TENSOR_GRADS_AT_ONCE(D, E, N) \
    TENSOR_KERNEL(attention_grad_key, D, E) { tensor_attention_grad_key<ByWarp, D, E, N, true, true>(a); }
#define TENSOR_GRADS_APART(D, E, N)                                                                         \
    TENSOR_KERNEL(attention_grad_key, D, E) { tensor_attention_grad_key<ByWarp, D, E, N, true, false>(a); } \
    TENSOR_KERNEL(attention_grad_value, D, E) { tensor_attention_grad_key<ByWarp, D, E, N, false, true>(a); }

TENSOR_KERNELS(32, 32, 4)
TENSOR_GRADS_AT_ONCE(32, 32, 4)
TENSOR_KERNELS(64, 64, 4)
TENSOR_GRADS_AT_ONCE(64, 64, 4)
TENSOR_KERNELS(96, 96, 4)
TENSOR_GRADS_AT_ONCE(96, 96, 4)
TENSOR_KERNELS(128, 128, 4)
TENSOR_GRADS_AT_ONCE(128, 128, 2)
// Latent attention of DeepSeek.
TENSOR_KERNELS(192, 128, 2)
TENSOR_GRADS_AT_ONCE(192, 128, 1)
// Gemma.
TENSOR_KERNELS(256, 256, 2)
TENSOR_GRADS_APART(256, 256, 2)
