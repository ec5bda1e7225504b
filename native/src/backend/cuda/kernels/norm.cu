// RMSNorm and LayerNorm, a block a row; and sums over rows, a block 32 columns. Statistics and gradients of gains are
// floats.

// p: x, gain, y, r. n: columns. f: eps, what is added to gains.
template <class T> __device__ void rms_norm(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    const T *x = (const T*)a.p[0] + row * columns, *gain = (const T*)a.p[1];
    T* y = (T*)a.p[2] + row * columns;
    float squares = 0.0f;
    each_of_row(x, columns, [&](ll, float value) { squares += value * value; });
    float r = 1.0f / sqrtf(block_sum(squares, scratch) / (float)columns + a.f[0]);
    map_rows(x, gain, gain, y, columns, [&](float value, float gain, float) { return value * r * (gain + a.f[1]); });
    if (threadIdx.x == 0) ((float*)a.p[3])[row] = r;
}
KERNEL(rms_norm)

// p: dy, x, r, gain, dx (may be dy), what is added to dx or nothing. n: columns. f[0]: what is added to gains.
template <class T> __device__ void rms_norm_input_grad(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    const T *dy = (const T*)a.p[0] + row * columns, *x = (const T*)a.p[1] + row * columns, *gain = (const T*)a.p[3];
    T* dx = (T*)a.p[4] + row * columns;
    float r = ((const float*)a.p[2])[row], along = 0.0f;
    each_of_rows(dy, gain, x, columns, [&](float dy, float gain, float x) { along += dy * (gain + a.f[0]) * x; });
    along = r * r * (block_sum(along, scratch) / (float)columns);
    const T* added = a.p[5] != 0 ? (const T*)a.p[5] + row * columns : 0;
    auto of = [&](float dy, float gain, float x) { return r * (dy * (gain + a.f[0]) - x * along); };
    map_rows(dy, gain, x, dx, columns, of, added);
}
KERNEL(rms_norm_input_grad)

// p: x, gain, bias, y, mean, r. n: columns. f[0]: eps.
template <class T> __device__ void layer_norm(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    const T *x = (const T*)a.p[0] + row * columns, *gain = (const T*)a.p[1], *bias = (const T*)a.p[2];
    T* y = (T*)a.p[3] + row * columns;
    float sum = 0.0f, squares = 0.0f;
    each_of_row(x, columns, [&](ll, float value) { sum += value; });
    float mean = block_sum(sum, scratch) / (float)columns;
    each_of_row(x, columns, [&](ll, float value) { squares += (value - mean) * (value - mean); });
    float r = 1.0f / sqrtf(block_sum(squares, scratch) / (float)columns + a.f[0]);
    map_rows(x, gain, bias, y, columns, [&](float value, float gain, float bias) { return (value - mean) * r * gain + bias; });
    if (threadIdx.x == 0) {
        ((float*)a.p[4])[row] = mean;
        ((float*)a.p[5])[row] = r;
    }
}
KERNEL(layer_norm)

// p: dy, x, mean, r, gain, dx (may be dy). n: columns.
template <class T> __device__ void layer_norm_input_grad(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    const T *dy = (const T*)a.p[0] + row * columns, *x = (const T*)a.p[1] + row * columns, *gain = (const T*)a.p[4];
    T* dx = (T*)a.p[5] + row * columns;
    float mean = ((const float*)a.p[2])[row], r = ((const float*)a.p[3])[row], level = 0.0f, along = 0.0f;
    each_of_rows(dy, gain, x, columns, [&](float dy, float gain, float x) {
        level += dy * gain;
        along += dy * gain * (x - mean) * r;
    });
    level = block_sum(level, scratch) / (float)columns;
    along = block_sum(along, scratch) / (float)columns;
    auto of = [&](float dy, float gain, float x) { return r * (dy * gain - level - (x - mean) * r * along); };
    map_rows(dy, gain, x, dx, columns, of);
}
KERNEL(layer_norm_input_grad)

// What one row adds to a column's sum.
struct JustDy {
    template <class T> static __device__ __forceinline__ float of(const Args& a, ll row, ll at) {
        return load(((const T*)a.p[0])[at]);
    }
};
struct DyTimesScaled {
    template <class T> static __device__ __forceinline__ float of(const Args& a, ll row, ll at) {
        return load(((const T*)a.p[0])[at]) * load(((const T*)a.p[2])[at]) * ((const float*)a.p[3])[row];
    }
};
struct DyTimesNormed {
    template <class T> static __device__ __forceinline__ float of(const Args& a, ll row, ll at) {
        float centred = load(((const T*)a.p[2])[at]) - ((const float*)a.p[4])[row];
        return load(((const T*)a.p[0])[at]) * centred * ((const float*)a.p[3])[row];
    }
};

// G[j] += sum over rows. A block of 32 x 32 threads takes 32 columns; thread (lane, part) every 32nd row from `part` on,
// and the 32 parts are added up in order. Where columns are few, blocks share the rows out as well, and leave their sums for
// add_splits: p[5], a row of columns for each blockIdx.y. n: rows, columns.
template <class T, class Term> __device__ __forceinline__ void sum_rows(const Args& a) {
    __shared__ float parts[32][33];
    ll rows = a.n[0], columns = a.n[1];
    int lane = threadIdx.x % 32, part = threadIdx.x / 32;
    ll j = (ll)blockIdx.x * 32 + lane;
    ll first = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    float sum = 0.0f;
    if (j < columns) {
#pragma unroll 4
        for (ll row = first + part; row < end; row += 32) sum += Term::template of<T>(a, row, row * columns + j);
    }
    parts[part][lane] = sum;
    __syncthreads();
    if (part == 0 && j < columns) {
        bool is_all = gridDim.y == 1;
        float* at = is_all ? (float*)a.p[1] + j : (float*)a.p[5] + blockIdx.y * columns + j;
        float total = is_all ? *at : 0.0f;
        for (int other = 0; other < 32; other++) total += parts[other][lane];
        *at = total;
    }
}

// G[j] += sum over rows of what sum_rows has left, in order. p: that, G. n: columns, rows.
__device__ void add_splits(const Args& a) {
    EACH(j, a.n[0]) {
        float total = ((float*)a.p[1])[j];
        for (ll row = 0; row < a.n[1]; row++) total += ((const float*)a.p[0])[row * a.n[0] + j];
        ((float*)a.p[1])[j] = total;
    }
}
KERNEL_OF_FLOATS(add_splits)

// p: dy, G.
template <class T> __device__ void bias_grad(const Args& a) { sum_rows<T, JustDy>(a); }
KERNEL_OF(bias_grad, 1024)
// p: dy, G, x, r.
template <class T> __device__ void rms_norm_gain_grad(const Args& a) { sum_rows<T, DyTimesScaled>(a); }
KERNEL_OF(rms_norm_gain_grad, 1024)
// p: dy, G, x, r, mean.
template <class T> __device__ void layer_norm_gain_grad(const Args& a) { sum_rows<T, DyTimesNormed>(a); }
KERNEL_OF(layer_norm_gain_grad, 1024)
