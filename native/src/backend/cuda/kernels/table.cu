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
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) y[j] = token < 0 ? Number<T>::of(0.0f) : from[j];
}
KERNEL(embedding)

// p: dy, tokens, G (float). The block of a token's first occurrence adds up all of its occurrences, in their order: so no
// two blocks write one row, and a second run gives the same bits. blockIdx.y is the chunk of columns, one a thread; 256
// threads look at as many tokens at once, and note in one bit each where theirs is. Text has a few tokens that come again and
// again: an occurrence before this one is looked for from here backwards, and eight later ones are read before the first is
// added.
template <class T> __device__ void embedding_grad(const Args& a) {
    __shared__ unsigned found[8];
    const T* dy = (const T*)a.p[0];
    const int* tokens = (const int*)a.p[1];
    ll count = a.n[0], columns = a.n[1], row = blockIdx.x;
    ll j = (ll)blockIdx.y * blockDim.x + threadIdx.x;
    int token = tokens[row];
    if (token < 0) return;
    for (ll end = row; end > 0; end -= blockDim.x) {
        ll at = end - 1 - threadIdx.x;
        if (__syncthreads_or(at >= 0 && tokens[at] == token)) return;
    }
    float* gradient = (float*)a.p[2] + token * columns + j;
    float sum = j < columns ? *gradient : 0.0f;
    for (ll start = row; start < count; start += blockDim.x) {
        ll at = start + threadIdx.x;
        unsigned of_warp = __ballot_sync(0xffffffffu, at < count && tokens[at] == token);
        // Whoever still reads the last chunk's bits does so before they change.
        __syncthreads();
        if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = of_warp;
        __syncthreads();
        for (int warp = 0; warp < 8; warp++) {
            for (unsigned bits = found[warp]; bits != 0;) {
                float terms[8];
                bool is_there[8];
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    is_there[k] = bits != 0 && j < columns;
                    ll occurrence = start + warp * 32 + __ffs((int)bits) - 1;
                    terms[k] = is_there[k] ? load(dy[occurrence * columns + j]) : 0.0f;
                    bits &= bits - 1;
                }
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    if (is_there[k]) sum += terms[k];
                }
            }
        }
    }
    if (j < columns) *gradient = sum;
}
KERNEL_OF(embedding_grad, 256)
