// Softmax and cross-entropy over rows, a block a row. n: columns.

// p: logits, targets, l (float).
template <class T> __device__ void log_sum_exp(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    const T* x = (const T*)a.p[0] + row * columns;
    // In one pass over what no cache holds: a thread's sum is of exp(x - its greatest so far), scaled anew where that rises.
    // It begins below all that is finite, so that columns of -infinity, which are hidden, add 0.
    float own = -3.402823466e38f, sum = 0.0f;
    each_of_row(x, columns, [&](ll, float value) {
        if (value > own) {
            sum *= expf(own - value);
            own = value;
        }
        sum += expf(value - own);
    });
    float greatest = block_max(own, scratch);
    sum = block_sum(sum * expf(own - greatest), scratch);
    if (threadIdx.x == 0) ((float*)a.p[1])[row] = greatest + logf(sum);
}
KERNEL(log_sum_exp)

// p: logits, targets, l, loss (one float). n: columns, rows. f[0]: the share of one row. One block, so that the order of
// the sum is always the same.
template <class T> __device__ void cross_entropy(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], rows = a.n[1];
    float sum = 0.0f;
    for (ll row = threadIdx.x; row < rows; row += blockDim.x) {
        sum += ((const float*)a.p[2])[row] - load(((const T*)a.p[0])[row * columns + ((const int*)a.p[1])[row]]);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) *(float*)a.p[3] = sum * a.f[0];
}
KERNEL_OF(cross_entropy, 1024)

// p: logits, targets, l, dlogits (may be logits). n: columns. f[0]: the share of one row.
template <class T> __device__ void cross_entropy_grad(const Args& a) {
    ll columns = a.n[0], row = blockIdx.x;
    const T* x = (const T*)a.p[0] + row * columns;
    T* dx = (T*)a.p[3] + row * columns;
    int target = ((const int*)a.p[1])[row];
    float l = ((const float*)a.p[2])[row];
    float share = a.f[0];
    map_row(x, dx, columns, [&](ll j, float value) { return (expf(value - l) - (j == target ? 1.0f : 0.0f)) * share; });
}
KERNEL(cross_entropy_grad)

// p: s, p (may be s).
template <class T> __device__ void softmax(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    const T* s = (const T*)a.p[0] + row * columns;
    T* p = (T*)a.p[1] + row * columns;
    float greatest = -INFINITE, sum = 0.0f;
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) greatest = fmaxf(greatest, load(s[j]));
    greatest = block_max(greatest, scratch);
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) sum += expf(load(s[j]) - greatest);
    sum = block_sum(sum, scratch);
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) p[j] = Number<T>::of(expf(load(s[j]) - greatest) / sum);
}
KERNEL(softmax)

// p: dp, p, ds (may be dp).
template <class T> __device__ void softmax_grad(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    const T *dp = (const T*)a.p[0] + row * columns, *p = (const T*)a.p[1] + row * columns;
    T* ds = (T*)a.p[2] + row * columns;
    float along = 0.0f;
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) along += load(dp[j]) * load(p[j]);
    along = block_sum(along, scratch);
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) ds[j] = Number<T>::of(load(p[j]) * (load(dp[j]) - along));
}
KERNEL(softmax_grad)

// Hides later positions of square score matrices. p: scores. n: columns (the sequence). f[0]: what stands there. A block
// takes a row; its position is its number within a square.
template <class T> __device__ void hide_later(const Args& a) {
    ll columns = a.n[0], row = blockIdx.x;
    T* s = (T*)a.p[0] + row * columns;
    for (ll j = row % columns + 1 + threadIdx.x; j < columns; j += blockDim.x) s[j] = Number<T>::of(a.f[0]);
}
KERNEL(hide_later)

// A vocabulary that members of a group share.

// -infinity in the columns that no token has. p: logits, y (may be logits). n: columns, those that are shown.
template <class T> __device__ void hide_padding(const Args& a) {
    ll columns = a.n[0], row = blockIdx.x;
    const T* x = (const T*)a.p[0] + row * columns;
    T* y = (T*)a.p[1] + row * columns;
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) y[j] = j < a.n[1] ? x[j] : Number<T>::of(-INFINITE);
}
KERNEL(hide_padding)

// p: logits, m (float).
template <class T> __device__ void row_max(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    const T* x = (const T*)a.p[0] + row * columns;
    float greatest = -INFINITE;
    each_of_row(x, columns, [&](ll, float value) { greatest = fmaxf(greatest, value); });
    greatest = block_max(greatest, scratch);
    if (threadIdx.x == 0) ((float*)a.p[1])[row] = greatest;
}
KERNEL(row_max)

// p: logits, m (float), targets, s (two floats a row): the sum of exp(logits - m), and the target's logit, or 0 where the
// target is -1.
template <class T> __device__ void exp_sums(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    const T* x = (const T*)a.p[0] + row * columns;
    float greatest = ((const float*)a.p[1])[row], sum = 0.0f;
    each_of_row(x, columns, [&](ll, float value) { sum += expf(value - greatest); });
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        int target = ((const int*)a.p[2])[row];
        ((float*)a.p[3])[2 * row] = sum;
        ((float*)a.p[3])[2 * row + 1] = target < 0 ? 0.0f : load(x[target]);
    }
}
KERNEL(exp_sums)

// p: m, s, loss (one float), l (all float). n: rows. f[0]: the share of one row. One block, as cross_entropy.
template <class T> __device__ void shared_cross_entropy(const Args& a) {
    __shared__ float scratch[32];
    ll rows = a.n[0];
    float sum = 0.0f;
    for (ll row = threadIdx.x; row < rows; row += blockDim.x) {
        float l = ((const float*)a.p[0])[row] + logf(((const float*)a.p[1])[2 * row]);
        ((float*)a.p[3])[row] = l;
        sum += l - ((const float*)a.p[1])[2 * row + 1];
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) *(float*)a.p[2] = sum * a.f[0];
}
KERNEL_OF(shared_cross_entropy, 1024)
