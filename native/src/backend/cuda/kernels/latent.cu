// Latent attention. A block takes a row; it is copied in packs where all of its pieces are made of such.

template <class U>
__device__ __forceinline__ void split_row(const U* x, U* left, U* right, int first, int second) {
    for (int j = threadIdx.x; j < first + second; j += blockDim.x) put(j < first ? left + j : right + j - first, x[j]);
}

// p: x, left, right. n: columns of left, of right.
template <class T> __device__ void split_columns(const Args& a) {
    ll first = a.n[0], second = a.n[1], row = blockIdx.x;
    const T* x = (const T*)a.p[0] + row * (first + second);
    T *left = (T*)a.p[1] + row * first, *right = (T*)a.p[2] + row * second;
    const int W = Pack<T>::WIDTH;
    if (in_packs<T>(first | second)) {
        split_row((const Pack<T>*)x, (Pack<T>*)left, (Pack<T>*)right, (int)first / W, (int)second / W);
    } else {
        split_row(x, left, right, (int)first, (int)second);
    }
}
KERNEL(split_columns)

template <class U>
__device__ __forceinline__ void join_row(const U* left, const U* right, U* x, int first, int second) {
    for (int j = threadIdx.x; j < first + second; j += blockDim.x) put(x + j, *(j < first ? left + j : right + j - first));
}

// p: left, right, x. n: columns of left, of right.
template <class T> __device__ void join_columns(const Args& a) {
    ll first = a.n[0], second = a.n[1], row = blockIdx.x;
    const T *left = (const T*)a.p[0] + row * first, *right = (const T*)a.p[1] + row * second;
    T* x = (T*)a.p[2] + row * (first + second);
    const int W = Pack<T>::WIDTH;
    if (in_packs<T>(first | second)) {
        join_row((const Pack<T>*)left, (const Pack<T>*)right, (Pack<T>*)x, (int)first / W, (int)second / W);
    } else {
        join_row(left, right, x, (int)first, (int)second);
    }
}
KERNEL(join_columns)

// How many numbers, or packs of them, heads are wide: what of a key is its own, what all heads share, and a value.
struct Latent {
    int heads, own, shared, value;
    __device__ __forceinline__ Latent(const Args& a, int in)
        : heads((int)a.n[0]), own((int)a.n[1] / in), shared((int)a.n[2] / in), value((int)a.n[3] / in) {}
};

template <class U>
__device__ __forceinline__ void keys_of(const Latent& of, const U* up, const U* rotated, U* k, U* v) {
    int width = of.own + of.shared, both = of.own + of.value;
    for (int j = threadIdx.x; j < of.heads * width; j += blockDim.x) {
        int head = j / width, column = j % width;
        put(k + j, *(column < of.own ? up + head * both + column : rotated + column - of.own));
    }
    for (int j = threadIdx.x; j < of.heads * of.value; j += blockDim.x) {
        put(v + j, up[j / of.value * both + of.own + j % of.value]);
    }
}

// p: up, rotated, k, v. n: heads, columns of a key that are its own, that are shared, of a value.
template <class T> __device__ void latent_keys(const Args& a) {
    Latent of(a, 1);
    ll row = blockIdx.x;
    const T *up = (const T*)a.p[0] + row * of.heads * (of.own + of.value), *rotated = (const T*)a.p[1] + row * of.shared;
    T *k = (T*)a.p[2] + row * of.heads * (of.own + of.shared), *v = (T*)a.p[3] + row * of.heads * of.value;
    if (in_packs<T>(of.own | of.shared | of.value)) {
        keys_of(Latent(a, Pack<T>::WIDTH), (const Pack<T>*)up, (const Pack<T>*)rotated, (Pack<T>*)k, (Pack<T>*)v);
    } else {
        keys_of(of, up, rotated, k, v);
    }
}
KERNEL(latent_keys)

template <class U>
__device__ __forceinline__ void keys_back(const Latent& of, const U* dk, const U* dv, U* dup) {
    int width = of.own + of.shared, both = of.own + of.value;
    for (int j = threadIdx.x; j < of.heads * both; j += blockDim.x) {
        int head = j / both, column = j % both;
        put(dup + j, *(column < of.own ? dk + head * width + column : dv + head * of.value + column - of.own));
    }
}

// p: dk, dv, dup, drotated. n: as above.
template <class T> __device__ void latent_keys_grad(const Args& a) {
    Latent of(a, 1);
    ll row = blockIdx.x;
    int width = of.own + of.shared;
    const T *dk = (const T*)a.p[0] + row * of.heads * width, *dv = (const T*)a.p[1] + row * of.heads * of.value;
    T *dup = (T*)a.p[2] + row * of.heads * (of.own + of.value), *drotated = (T*)a.p[3] + row * of.shared;
    if (in_packs<T>(of.own | of.shared | of.value)) {
        keys_back(Latent(a, Pack<T>::WIDTH), (const Pack<T>*)dk, (const Pack<T>*)dv, (Pack<T>*)dup);
    } else {
        keys_back(of, dk, dv, dup);
    }
    for (int j = threadIdx.x; j < of.shared; j += blockDim.x) {
        float sum = 0.0f;
        for (int head = 0; head < of.heads; head++) sum += load(dk[head * width + of.own + j]);
        drotated[j] = Number<T>::of(sum);
    }
}
KERNEL(latent_keys_grad)
