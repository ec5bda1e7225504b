// The table of token embeddings. n: tokens, columns.

// Tokens of which this member holds the rows, counted from its first; -1 elsewhere. p: tokens, own (may be tokens).
// n: tokens, rows, the first row.
template <class T> __device__ void own_tokens(const Args& a) {
    EACH(i, a.n[0]) {
        ll own = ((const int*)a.p[0])[i] - a.n[2];
        ((int*)a.p[1])[i] = own >= 0 && own < a.n[1] ? (int)own : -1;
    }
}
KERNEL(own_tokens)

// p: tokens, table, y. A block takes a token; one of another member's rows gives 0.
template <class T> __device__ void embedding(const Args& a) {
    ll columns = a.n[1], row = blockIdx.x;
    int token = ((const int*)a.p[0])[row];
    const T* from = (const T*)a.p[1] + (token < 0 ? 0 : token) * columns;
    T* y = (T*)a.p[2] + row * columns;
    if (token < 0) {
        for (ll j = threadIdx.x; j < columns; j += blockDim.x) y[j] = Number<T>::of(0.0f);
    } else {
        copy_row(from, y, columns);
    }
}
KERNEL(embedding)

// So many columns of a row: packs of them or one by one, as numbers and as floats.
template <class T> struct InPacks {
    static const int WIDTH = Pack<T>::WIDTH;
    static __device__ __forceinline__ void read(const T* from, float* to) {
        Pack<T> pack = *(const Pack<T>*)from;
#pragma unroll
        for (int k = 0; k < WIDTH; k++) to[k] = load(pack.v[k]);
    }
    static __device__ __forceinline__ void read_sums(const float* from, float* to) {
#pragma unroll
        for (int k = 0; k < WIDTH; k += 4) {
            Pack<float> pack = *(const Pack<float>*)(from + k);
#pragma unroll
            for (int i = 0; i < 4; i++) to[k + i] = pack.v[i];
        }
    }
    static __device__ __forceinline__ void write_sums(const float* from, float* to) {
#pragma unroll
        for (int k = 0; k < WIDTH; k += 4) {
            Pack<float> pack;
#pragma unroll
            for (int i = 0; i < 4; i++) pack.v[i] = from[k + i];
            put((Pack<float>*)(to + k), pack);
        }
    }
};
template <class T> struct OneByOne {
    static const int WIDTH = 1;
    static __device__ __forceinline__ void read(const T* from, float* to) { *to = load(*from); }
    static __device__ __forceinline__ void read_sums(const float* from, float* to) { *to = *from; }
    static __device__ __forceinline__ void write_sums(const float* from, float* to) { *to = *from; }
};

// blockIdx.y is the chunk of columns, as many for each thread as `Columns` says. 256 threads look at as many tokens at once,
// and note in one bit each where theirs is. Text has a few tokens that come again and again: an occurrence before this one is
// looked for from here backwards, and several later ones are read before the first is added.
template <class T, class Columns> __device__ __forceinline__ void add_occurrences(const Args& a) {
    const int W = Columns::WIDTH, AT_ONCE = W == 1 ? 8 : 4;
    __shared__ unsigned found[8];
    const T* dy = (const T*)a.p[0];
    const int* tokens = (const int*)a.p[1];
    ll count = a.n[0], columns = a.n[1], row = blockIdx.x;
    ll j = ((ll)blockIdx.y * blockDim.x + threadIdx.x) * W;
    int token = tokens[row];
    if (token < 0) return;
    for (ll end = row; end > 0; end -= blockDim.x) {
        ll at = end - 1 - threadIdx.x;
        if (__syncthreads_or(at >= 0 && tokens[at] == token)) return;
    }
    float* gradient = (float*)a.p[2] + token * columns + j;
    float sums[W] = {};
    if (j < columns) Columns::read_sums(gradient, sums);
    for (ll start = row; start < count; start += blockDim.x) {
        ll at = start + threadIdx.x;
        unsigned of_warp = __ballot_sync(0xffffffffu, at < count && tokens[at] == token);
        // Whoever still reads the last chunk's bits does so before they change.
        __syncthreads();
        if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = of_warp;
        __syncthreads();
        for (int warp = 0; warp < 8; warp++) {
            for (unsigned bits = found[warp]; bits != 0;) {
                float terms[AT_ONCE][W];
                bool is_there[AT_ONCE];
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) {
                    is_there[k] = bits != 0 && j < columns;
                    ll occurrence = start + warp * 32 + __ffs((int)bits) - 1;
                    if (is_there[k]) Columns::read(dy + occurrence * columns + j, terms[k]);
                    bits &= bits - 1;
                }
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) {
#pragma unroll
                    for (int i = 0; i < W; i++) {
                        if (is_there[k]) sums[i] += terms[k][i];
                    }
                }
            }
        }
    }
    if (j < columns) Columns::write_sums(sums, gradient);
}

// p: dy, tokens, G (float). The block of a token's first occurrence adds up all of its occurrences, in their order: so no
// two blocks write one row, and a second run gives the same bits.
template <class T> __device__ void embedding_grad(const Args& a) {
    if (in_packs<T>(a.n[1])) add_occurrences<T, InPacks<T>>(a);
    else add_occurrences<T, OneByOne<T>>(a);
}
KERNEL_OF(embedding_grad, 256)
