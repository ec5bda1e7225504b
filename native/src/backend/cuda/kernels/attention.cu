// Causal attention whose scores are never all held (arXiv:2205.14135, arXiv:2307.08691), for any head width, in float
// from shared memory. Tiles of 32 queries by 32 keys; 256 threads, 8 a row. No sum crosses blocks, so gradients repeat
// bit for bit.
// n: rows from one sequence to the next, query heads, key heads, width of keys, width of values, window (a query sees so
// many keys, its own included); of attention on tensor cores one more; then, of what meets here, rows of a sequence, of
// queries as of keys, how much later in it the queries lie than the keys, and whether this adds to what is there. f[0]: what
// products of queries and keys are multiplied with; f[1]: what scores are capped by, or 0.
//
// Queries meet all keys of their sequence at once, or one piece of it after the other, where ranks pass those around a ring:
// o and l then hold what the pieces before have made, and gradients add up.

#define SMALL_TILE 32
// Floats from row to row of scores: the four rows that a warp takes the softmax of, eight columns each, lie in different banks.
#define SCORES (SMALL_TILE + 8)

struct Place {
    ll count, lead, query_row, key_row, out_row, value_row, first, window;
    bool adds;
    int width, pitch, value, value_pitch, head, key_head, heads, group;
};

// blockIdx: head, sequence of the microbatch, tile. Blocks start by tile, of all heads and sequences alike, so that the short
// ones come last.
__device__ __forceinline__ Place place_of(const Args& a, bool by_key) {
    Place at;
    at.count = a.n[7];
    at.lead = a.n[8];
    at.adds = a.n[9] != 0;
    at.heads = (int)a.n[1];
    at.width = (int)a.n[3];
    at.value = (int)a.n[4];
    at.window = a.n[5];
    // An odd pitch, so that a column lies in different banks.
    at.pitch = at.width | 1;
    at.value_pitch = at.value | 1;
    at.query_row = a.n[1] * a.n[3];
    at.key_row = a.n[2] * a.n[3];
    at.out_row = a.n[1] * a.n[4];
    at.value_row = a.n[2] * a.n[4];
    at.first = (ll)blockIdx.y * a.n[0];
    at.group = (int)(a.n[1] / a.n[2]);
    at.key_head = by_key ? blockIdx.x : (int)(blockIdx.x * a.n[2] / a.n[1]);
    at.head = by_key ? at.key_head * at.group : blockIdx.x;
    return at;
}

// Whether the query of one row sees the key of another, which is there.
__device__ __forceinline__ bool sees_key(const Place& at, ll query, ll key) {
    ll last = query + at.lead;
    return key <= (last < at.count ? last : at.count - 1) && key + at.window > last;
}

// Whether every one of so many queries sees every one of so many keys, and all of them are there.
__device__ __forceinline__ bool sees_all(const Place& at, ll query, int queries, ll key, int keys) {
    ll first = query + at.lead, last = first + queries - 1;
    return query + queries <= at.count && key + keys <= at.count && key + keys - 1 <= first && key + at.window > last;
}

// The first key, at the start of a tile, that some query from `query` on sees.
__device__ __forceinline__ ll first_key(const Place& at, ll query, int tile) {
    ll first = query + at.lead + 1 - at.window;
    return first > 0 ? first / tile * tile : 0;
}

// The end of the keys that some query of the tile at `query` sees.
__device__ __forceinline__ ll end_of_keys(const Place& at, ll query, int tile) {
    ll end = query + tile + at.lead;
    return end < at.count ? end : at.count;
}

// The first query, at the start of a tile, that sees some key from `key` on.
__device__ __forceinline__ ll first_query(const Place& at, ll key, int tile) {
    ll first = key - at.lead;
    return first > 0 ? first / tile * tile : 0;
}

// The end of the queries that see some key of the tile at `key`.
__device__ __forceinline__ ll end_of_queries(const Place& at, ll key, int tile) {
    ll end = key + tile - 1 + at.window - at.lead;
    return end < at.count ? end : at.count;
}

// Rows `start` to `start + 32` of one head; zeros beyond those that are there.
template <class T> __device__ __forceinline__ void fetch(float* to, const void* from, const Place& at, ll start, ll row, int head, int width) {
    for (int index = threadIdx.x; index < SMALL_TILE * width; index += blockDim.x) {
        int i = index / width, j = index % width;
        ll source = (at.first + start + i) * row + (ll)head * width + j;
        to[i * (width | 1) + j] = start + i < at.count ? load(((const T*)from)[source]) : 0.0f;
    }
}

// Back again, times `factor`, and where it `adds` on top of what is there.
template <class T>
__device__ __forceinline__ void put(void* to, const float* from, const Place& at, ll start, ll row, int head, int width, float factor, bool adds) {
    for (int index = threadIdx.x; index < SMALL_TILE * width; index += blockDim.x) {
        int i = index / width, j = index % width;
        ll target = (at.first + start + i) * row + (ll)head * width + j;
        if (start + i >= at.count) continue;
        T* there = (T*)to + target;
        *there = Number<T>::of(from[i * (width | 1) + j] * factor + (adds ? load(*there) : 0.0f));
    }
}

__device__ __forceinline__ void clear(float* tile, int pitch) {
    for (int index = threadIdx.x; index < SMALL_TILE * pitch; index += blockDim.x) tile[index] = 0.0f;
}

// c[i][j] = factor * sum over k of a[i][k] * b[j][k], 32 x 32.
__device__ __forceinline__ void rows_by_rows(float (*c)[SCORES], const float* a, const float* b, int width, float factor) {
    for (int index = threadIdx.x; index < SMALL_TILE * SMALL_TILE; index += blockDim.x) {
        int i = index / SMALL_TILE, j = index % SMALL_TILE;
        float sum = 0.0f;
        for (int k = 0; k < width; k++) sum += a[i * (width | 1) + k] * b[j * (width | 1) + k];
        c[i][j] = factor * sum;
    }
}

// c[i][k] += sum over j of s[i][j] * b[j][k], or of s[j][i] * b[j][k] where transposed.
__device__ __forceinline__ void scores_by_rows(float* c, const float (*s)[SCORES], bool transposed, const float* b, int width) {
    for (int index = threadIdx.x; index < SMALL_TILE * width; index += blockDim.x) {
        int i = index / width, k = index % width;
        float sum = 0.0f;
        for (int j = 0; j < SMALL_TILE; j++) sum += (transposed ? s[j][i] : s[i][j]) * b[j * (width | 1) + k];
        c[i * (width | 1) + k] += sum;
    }
}

// p: q, k, v, o, l (float).
template <class T> __device__ void attention(const Args& a) {
    DYNAMIC_SHARED(memory);
    __shared__ float s[SMALL_TILE][SCORES];
    Place at = place_of(a, false);
    int tile = SMALL_TILE * at.pitch, value_tile = SMALL_TILE * at.value_pitch;
    float *q = (float*)memory, *k = q + tile, *v = k + tile, *o = v + value_tile;
    ll query = (ll)(gridDim.z - 1 - blockIdx.z) * SMALL_TILE;
    int i = threadIdx.x / 8, part = threadIdx.x % 8;
    float greatest = -INFINITE, total = 0.0f, *l = (float*)a.p[4] + (at.first + query + i) * at.heads + at.head;
    fetch<T>(q, a.p[0], at, query, at.query_row, at.head, at.width);
    if (at.adds) {
        // A sum of 1, relative to what it was.
        fetch<T>(o, a.p[3], at, query, at.out_row, at.head, at.value);
        if (query + i < at.count) {
            greatest = *l;
            total = 1.0f;
        }
    } else {
        clear(o, at.value_pitch);
    }
    for (ll key = first_key(at, query, SMALL_TILE); key < end_of_keys(at, query, SMALL_TILE); key += SMALL_TILE) {
        __syncthreads();
        fetch<T>(k, a.p[1], at, key, at.key_row, at.key_head, at.width);
        fetch<T>(v, a.p[2], at, key, at.value_row, at.key_head, at.value);
        __syncthreads();
        rows_by_rows(s, q, k, at.width, a.f[0]);
        __syncthreads();
        // The softmax so far, corrected where a greater score turns up.
        float now = greatest;
        for (int j = part; j < SMALL_TILE; j += 8) {
            if (a.f[1] > 0.0f) s[i][j] = within_cap(s[i][j], a.f[1]);
            if (sees_key(at, query + i, key + j)) now = fmaxf(now, s[i][j]);
        }
        for (int distance = 4; distance > 0; distance /= 2) now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, distance));
        // A row that has seen no key yet holds nothing that a correction could change.
        float base = now == -INFINITE ? 0.0f : now, correction = expf(greatest - base), sum = 0.0f;
        for (int j = part; j < SMALL_TILE; j += 8) {
            s[i][j] = sees_key(at, query + i, key + j) ? expf(s[i][j] - base) : 0.0f;
            sum += s[i][j];
        }
        for (int distance = 4; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        total = total * correction + sum;
        greatest = now;
        for (int j = part; j < at.value; j += 8) o[i * at.value_pitch + j] *= correction;
        __syncthreads();
        scores_by_rows(o, s, false, v, at.value);
    }
    __syncthreads();
    for (int j = part; j < at.value; j += 8) o[i * at.value_pitch + j] /= total;
    // All of a row have read what it was.
    __syncthreads();
    if (part == 0 && query + i < at.count) *l = greatest + logf(total);
    put<T>(a.p[3], o, at, query, at.out_row, at.head, at.value, 1.0f, false);
}
KERNEL_OF(attention, 256)

// What a tile of queries brings to a gradient: the scores' probabilities `s` and their gradients `ds`.
// p: do, q, k, v, o, l.
template <class T>
__device__ __forceinline__ void score_grads(const Args& a, const Place& at, int head, ll query, ll key, const float* d_o, const float* q,
                                            const float* k, const float* v, float (*s)[SCORES], float (*ds)[SCORES]) {
    int i = threadIdx.x / 8, part = threadIdx.x % 8;
    rows_by_rows(s, q, k, at.width, a.f[0]);
    rows_by_rows(ds, d_o, v, at.value, 1.0f);
    bool is_there = query + i < at.count;
    ll row = at.first + query + i;
    float along = 0.0f;
    for (int j = part; j < at.value; j += 8) {
        if (is_there) along += d_o[i * at.value_pitch + j] * load(((const T*)a.p[4])[row * at.out_row + (ll)head * at.value + j]);
    }
    for (int distance = 4; distance > 0; distance /= 2) along += __shfl_xor_sync(0xffffffffu, along, distance);
    float l = is_there ? ((const float*)a.p[5])[row * at.heads + head] : 0.0f;
    __syncthreads();
    for (int j = part; j < SMALL_TILE; j += 8) {
        bool sees = is_there && sees_key(at, query + i, key + j);
        float score = a.f[1] > 0.0f ? within_cap(s[i][j], a.f[1]) : s[i][j];
        float p = sees ? expf(score - l) : 0.0f;
        s[i][j] = p;
        ds[i][j] = p * (ds[i][j] - along);
        if (a.f[1] > 0.0f) ds[i][j] *= slope_within(score, a.f[1]);
    }
    __syncthreads();
}

// p: do, q, k, v, o, l, dq.
template <class T> __device__ void attention_grad_query(const Args& a) {
    DYNAMIC_SHARED(memory);
    __shared__ float s[SMALL_TILE][SCORES], ds[SMALL_TILE][SCORES];
    Place at = place_of(a, false);
    int tile = SMALL_TILE * at.pitch, value_tile = SMALL_TILE * at.value_pitch;
    float *d_o = (float*)memory, *q = d_o + value_tile, *k = q + tile, *v = k + tile, *dq = v + value_tile;
    ll query = (ll)(gridDim.z - 1 - blockIdx.z) * SMALL_TILE;
    fetch<T>(d_o, a.p[0], at, query, at.out_row, at.head, at.value);
    fetch<T>(q, a.p[1], at, query, at.query_row, at.head, at.width);
    clear(dq, at.pitch);
    for (ll key = first_key(at, query, SMALL_TILE); key < end_of_keys(at, query, SMALL_TILE); key += SMALL_TILE) {
        __syncthreads();
        fetch<T>(k, a.p[2], at, key, at.key_row, at.key_head, at.width);
        fetch<T>(v, a.p[3], at, key, at.value_row, at.key_head, at.value);
        __syncthreads();
        score_grads<T>(a, at, at.head, query, key, d_o, q, k, v, s, ds);
        scores_by_rows(dq, ds, false, k, at.width);
    }
    __syncthreads();
    put<T>(a.p[6], dq, at, query, at.query_row, at.head, at.width, a.f[0], at.adds);
}
KERNEL_OF(attention_grad_query, 256)

// p: do, q, k, v, o, l, dk, dv. A block sums over the query heads that share its keys.
template <class T> __device__ void attention_grad_key(const Args& a) {
    DYNAMIC_SHARED(memory);
    __shared__ float s[SMALL_TILE][SCORES], ds[SMALL_TILE][SCORES];
    Place at = place_of(a, true);
    int tile = SMALL_TILE * at.pitch, value_tile = SMALL_TILE * at.value_pitch;
    float *d_o = (float*)memory, *q = d_o + value_tile, *k = q + tile, *v = k + tile, *dk = v + value_tile, *dv = dk + tile;
    ll key = (ll)blockIdx.z * SMALL_TILE;
    fetch<T>(k, a.p[2], at, key, at.key_row, at.key_head, at.width);
    fetch<T>(v, a.p[3], at, key, at.value_row, at.key_head, at.value);
    clear(dk, at.pitch);
    clear(dv, at.value_pitch);
    for (int head = at.head; head < at.head + at.group; head++) {
        for (ll query = first_query(at, key, SMALL_TILE); query < end_of_queries(at, key, SMALL_TILE); query += SMALL_TILE) {
            __syncthreads();
            fetch<T>(d_o, a.p[0], at, query, at.out_row, head, at.value);
            fetch<T>(q, a.p[1], at, query, at.query_row, head, at.width);
            __syncthreads();
            score_grads<T>(a, at, head, query, key, d_o, q, k, v, s, ds);
            scores_by_rows(dv, s, true, d_o, at.value);
            scores_by_rows(dk, ds, true, q, at.width);
        }
    }
    __syncthreads();
    put<T>(a.p[6], dk, at, key, at.key_row, at.key_head, at.width, a.f[0], at.adds);
    put<T>(a.p[7], dv, at, key, at.value_row, at.key_head, at.value, 1.0f, at.adds);
}
KERNEL_OF(attention_grad_key, 256)
