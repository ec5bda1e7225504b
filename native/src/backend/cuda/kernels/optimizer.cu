// AdamW on master weights in float, which also rounds them to the weights' format and may clear the gradient.
// p: weight, master (may be weight), gradient, mean, square. n: elements, whether to clear the gradient.
// f: beta1, beta2, 1 - beta1, 1 - beta2, mean's share, square's share, share kept by decay, learning rate, epsilon.
__device__ __forceinline__ float adamw_one(const Args& a, float master, float g, float& mean, float& square) {
    mean = a.f[0] * mean + a.f[2] * g;
    square = a.f[1] * square + a.f[3] * g * g;
    float direction = mean * a.f[4] / (sqrtf(square * a.f[5]) + a.f[8]);
    return a.f[6] * master - a.f[7] * direction;
}

// Four of a kind, read at once.
template <class T> struct __align__(4 * sizeof(T)) Four {
    T v[4];
};

template <class T> __device__ void adamw(const Args& a) {
    T* weight = (T*)a.p[0];
    float *master = (float*)a.p[1], *gradient = (float*)a.p[2], *means = (float*)a.p[3], *squares = (float*)a.p[4];
    // A share of a weight may begin anywhere.
    ull places = (ull)a.p[0] * (4 / sizeof(T)) | (ull)a.p[1] | (ull)a.p[2] | (ull)a.p[3] | (ull)a.p[4];
    ll fours = places % 16 == 0 ? a.n[0] / 4 : 0;
    EACH(i, fours) {
        Four<float> w = ((Four<float>*)master)[i], g = ((Four<float>*)gradient)[i];
        Four<float> mean = ((Four<float>*)means)[i], square = ((Four<float>*)squares)[i], none;
        Four<T> rounded;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            w.v[k] = adamw_one(a, w.v[k], g.v[k], mean.v[k], square.v[k]);
            rounded.v[k] = Number<T>::of(w.v[k]);
            none.v[k] = 0.0f;
        }
        ((Four<float>*)means)[i] = mean;
        ((Four<float>*)squares)[i] = square;
        if (a.n[1]) ((Four<float>*)gradient)[i] = none;
        ((Four<float>*)master)[i] = w;
        ((Four<T>*)weight)[i] = rounded;
    }
    EACH(at, a.n[0] - 4 * fours) {
        ll i = 4 * fours + at;
        float mean = means[i], square = squares[i];
        float w = adamw_one(a, master[i], gradient[i], mean, square);
        means[i] = mean;
        squares[i] = square;
        if (a.n[1]) gradient[i] = 0.0f;
        master[i] = w;
        weight[i] = Number<T>::of(w);
    }
}
KERNEL(adamw)

// The sum of squares of each block's share of x, for the norm of gradients. p: x, a float for each block. n: elements.
__device__ void sum_squares(const Args& a) {
    __shared__ float scratch[32];
    float sum = 0.0f;
    EACH(i, a.n[0]) {
        float x = ((const float*)a.p[0])[i];
        sum += x * x;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) ((float*)a.p[1])[blockIdx.x] = sum;
}
KERNEL_OF_FLOATS(sum_squares)
