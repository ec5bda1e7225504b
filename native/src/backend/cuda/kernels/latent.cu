// Latent attention. A block takes a row.

// p: x, left, right. n: columns of left, of right.
template <class T> __device__ void split_columns(const Args& a) {
    ll first = a.n[0], second = a.n[1], row = blockIdx.x;
    const T* x = (const T*)a.p[0] + row * (first + second);
    for (ll j = threadIdx.x; j < first + second; j += blockDim.x) {
        if (j < first) ((T*)a.p[1])[row * first + j] = x[j];
        else ((T*)a.p[2])[row * second + j - first] = x[j];
    }
}
KERNEL(split_columns)

// p: left, right, x. n: columns of left, of right.
template <class T> __device__ void join_columns(const Args& a) {
    ll first = a.n[0], second = a.n[1], row = blockIdx.x;
    T* x = (T*)a.p[2] + row * (first + second);
    for (ll j = threadIdx.x; j < first + second; j += blockDim.x) {
        x[j] = j < first ? ((const T*)a.p[0])[row * first + j] : ((const T*)a.p[1])[row * second + j - first];
    }
}
KERNEL(join_columns)

// p: up, rotated, k, v. n: heads, columns of a key that are its own, that are shared, of a value.
template <class T> __device__ void latent_keys(const Args& a) {
    ll heads = a.n[0], own = a.n[1], shared = a.n[2], value = a.n[3], row = blockIdx.x, width = own + shared;
    const T *up = (const T*)a.p[0] + row * heads * (own + value), *rotated = (const T*)a.p[1] + row * shared;
    T *k = (T*)a.p[2] + row * heads * width, *v = (T*)a.p[3] + row * heads * value;
    for (ll j = threadIdx.x; j < heads * width; j += blockDim.x) {
        ll head = j / width, column = j % width;
        k[j] = column < own ? up[head * (own + value) + column] : rotated[column - own];
    }
    for (ll j = threadIdx.x; j < heads * value; j += blockDim.x) v[j] = up[j / value * (own + value) + own + j % value];
}
KERNEL(latent_keys)

// p: dk, dv, dup, drotated. n: as above.
template <class T> __device__ void latent_keys_grad(const Args& a) {
    ll heads = a.n[0], own = a.n[1], shared = a.n[2], value = a.n[3], row = blockIdx.x, width = own + shared;
    const T *dk = (const T*)a.p[0] + row * heads * width, *dv = (const T*)a.p[1] + row * heads * value;
    T *dup = (T*)a.p[2] + row * heads * (own + value), *drotated = (T*)a.p[3] + row * shared;
    for (ll j = threadIdx.x; j < heads * (own + value); j += blockDim.x) {
        ll head = j / (own + value), column = j % (own + value);
        dup[j] = column < own ? dk[head * width + column] : dv[head * value + column - own];
    }
    for (ll j = threadIdx.x; j < shared; j += blockDim.x) {
        float sum = 0.0f;
        for (ll head = 0; head < heads; head++) sum += load(dk[head * width + own + j]);
        drotated[j] = Number<T>::of(sum);
    }
}
KERNEL(latent_keys_grad)
