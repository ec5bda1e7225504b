// The table of token embeddings. n: tokens, columns.

// p: tokens, table, y. A block takes a token.
template <class T> __device__ void embedding(const Args& a) {
    ll columns = a.n[1], row = blockIdx.x;
    const T* from = (const T*)a.p[1] + ((const int*)a.p[0])[row] * columns;
    T* y = (T*)a.p[2] + row * columns;
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) y[j] = from[j];
}
KERNEL(embedding)

// p: dy, tokens, G (float). The block of a token's first occurrence adds up all of its occurrences, in their order: so no
// two blocks write one row, and a second run gives the same bits. blockIdx.y is the chunk of columns, one a thread.
template <class T> __device__ void embedding_grad(const Args& a) {
    __shared__ int chunk[256];
    __shared__ int seen;
    const T* dy = (const T*)a.p[0];
    const int* tokens = (const int*)a.p[1];
    ll count = a.n[0], columns = a.n[1], row = blockIdx.x;
    ll j = (ll)blockIdx.y * blockDim.x + threadIdx.x;
    int token = tokens[row];
    if (threadIdx.x == 0) seen = 0;
    __syncthreads();
    for (ll at = threadIdx.x; at < row; at += blockDim.x) {
        if (tokens[at] == token) seen = 1;
    }
    __syncthreads();
    if (seen) return;
    float* gradient = (float*)a.p[2] + token * columns + j;
    float sum = j < columns ? *gradient : 0.0f;
    for (ll start = row; start < count; start += blockDim.x) {
        __syncthreads();
        chunk[threadIdx.x] = start + threadIdx.x < count ? tokens[start + threadIdx.x] : -1;
        __syncthreads();
        for (int at = 0; at < (int)blockDim.x && start + at < count; at++) {
            if (chunk[at] == token && j < columns) sum += load(dy[(start + at) * columns + j]);
        }
    }
    if (j < columns) *gradient = sum;
}
KERNEL(embedding_grad)
