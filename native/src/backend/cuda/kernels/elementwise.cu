// Element by element, and sums over rows. `n[0]` counts elements unless something else is said.

template <class T, class F> __device__ __forceinline__ void map1(const void* x, void* y, ll n, F f) {
    ll packs = n / Pack<T>::WIDTH;
    EACH(i, packs) {
        Pack<T> px = ((const Pack<T>*)x)[i], py;
        for (int j = 0; j < Pack<T>::WIDTH; j++) py.v[j] = Number<T>::of(f(load(px.v[j])));
        put((Pack<T>*)y + i, py);
    }
    EACH(i, n - packs * Pack<T>::WIDTH) {
        ll at = packs * Pack<T>::WIDTH + i;
        ((T*)y)[at] = Number<T>::of(f(load(((const T*)x)[at])));
    }
}

template <class T, class F> __device__ __forceinline__ void map2(const void* x, const void* z, void* y, ll n, F f) {
    ll packs = n / Pack<T>::WIDTH;
    EACH(i, packs) {
        Pack<T> px = ((const Pack<T>*)x)[i], pz = ((const Pack<T>*)z)[i], py;
        for (int j = 0; j < Pack<T>::WIDTH; j++) py.v[j] = Number<T>::of(f(load(px.v[j]), load(pz.v[j])));
        put((Pack<T>*)y + i, py);
    }
    EACH(i, n - packs * Pack<T>::WIDTH) {
        ll at = packs * Pack<T>::WIDTH + i;
        ((T*)y)[at] = Number<T>::of(f(load(((const T*)x)[at]), load(((const T*)z)[at])));
    }
}

// From floats and to floats. p: x, y.
template <class T> __device__ void cast_to(const Args& a) {
    EACH(i, a.n[0]) ((T*)a.p[1])[i] = Number<T>::of(((const float*)a.p[0])[i]);
}
KERNEL(cast_to)
template <class T> __device__ void cast_from(const Args& a) {
    EACH(i, a.n[0]) ((float*)a.p[1])[i] = load(((const T*)a.p[0])[i]);
}
KERNEL(cast_from)

struct Sum {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// p: a, b, c.
template <class T> __device__ void add(const Args& a) { map2<T>(a.p[0], a.p[1], a.p[2], a.n[0], Sum()); }
KERNEL(add)

// p: x, y (may be x). f[0]: factor.
struct Scale {
    float factor;
    __device__ __forceinline__ float operator()(float x) const { return factor * x; }
};
template <class T> __device__ void scale(const Args& a) { map1<T>(a.p[0], a.p[1], a.n[0], Scale{a.f[0]}); }
KERNEL(scale)

// A soft cap, and its slope where it gives y. What is hidden, by minus infinity, stays so and has no slope.
__device__ __forceinline__ float within_cap(float x, float cap) { return cap * tanhf(x / cap); }
__device__ __forceinline__ float slope_within(float y, float cap) { return 1.0f - (y / cap) * (y / cap); }

// p: x, y (may be x). f[0]: cap.
struct SoftCap {
    float cap;
    __device__ __forceinline__ float operator()(float x) const { return x == -INFINITE ? x : within_cap(x, cap); }
};
template <class T> __device__ void soft_cap(const Args& a) { map1<T>(a.p[0], a.p[1], a.n[0], SoftCap{a.f[0]}); }
KERNEL(soft_cap)

// p: dy, y, dx (may be dy). f[0]: cap.
struct SoftCapGrad {
    float cap;
    __device__ __forceinline__ float operator()(float dy, float y) const {
        return y == -INFINITE ? 0.0f : dy * slope_within(y, cap);
    }
};
template <class T> __device__ void soft_cap_grad(const Args& a) { map2<T>(a.p[0], a.p[1], a.p[2], a.n[0], SoftCapGrad{a.f[0]}); }
KERNEL(soft_cap_grad)

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct SwiGlu {
    __device__ __forceinline__ float operator()(float gate, float up) const { return gate * sigmoid(gate) * up; }
};

// p: gate, up, y.
template <class T> __device__ void swiglu(const Args& a) { map2<T>(a.p[0], a.p[1], a.p[2], a.n[0], SwiGlu()); }
KERNEL(swiglu)

struct SwiGluGrad {
    static __device__ __forceinline__ void of(float dy, float gate, float up, float& dgate, float& dup) {
        float s = sigmoid(gate);
        dgate = dy * up * s * (1.0f + gate * (1.0f - s));
        dup = dy * gate * s;
    }
};

// p: dy, gate, up, dgate (may be dy), dup.
template <class T, class G> __device__ __forceinline__ void gated_grad(const Args& a) {
    ll n = a.n[0], packs = n / Pack<T>::WIDTH;
    float dgate, dup;
    EACH(i, packs) {
        Pack<T> dy = ((const Pack<T>*)a.p[0])[i], gate = ((const Pack<T>*)a.p[1])[i], up = ((const Pack<T>*)a.p[2])[i];
        for (int j = 0; j < Pack<T>::WIDTH; j++) {
            G::of(load(dy.v[j]), load(gate.v[j]), load(up.v[j]), dgate, dup);
            gate.v[j] = Number<T>::of(dgate);
            up.v[j] = Number<T>::of(dup);
        }
        ((Pack<T>*)a.p[3])[i] = gate;
        ((Pack<T>*)a.p[4])[i] = up;
    }
    EACH(i, n - packs * Pack<T>::WIDTH) {
        ll at = packs * Pack<T>::WIDTH + i;
        G::of(load(((const T*)a.p[0])[at]), load(((const T*)a.p[1])[at]), load(((const T*)a.p[2])[at]), dgate, dup);
        ((T*)a.p[3])[at] = Number<T>::of(dgate);
        ((T*)a.p[4])[at] = Number<T>::of(dup);
    }
}
template <class T> __device__ void swiglu_grad(const Args& a) { gated_grad<T, SwiGluGrad>(a); }
KERNEL(swiglu_grad)

// The tanh form of GELU over its argument: (1 + tanh u) / 2, which is the sigmoid of 2 u.
#define TWICE_ROOT 1.59576912160573071f // 2 sqrt(2 / pi)
__device__ __forceinline__ float gelu_share(float x) { return sigmoid(TWICE_ROOT * (x + 0.044715f * x * x * x)); }

struct GeGlu {
    __device__ __forceinline__ float operator()(float gate, float up) const { return gate * gelu_share(gate) * up; }
};

// p: gate, up, y.
template <class T> __device__ void geglu(const Args& a) { map2<T>(a.p[0], a.p[1], a.p[2], a.n[0], GeGlu()); }
KERNEL(geglu)

struct GeGluGrad {
    static __device__ __forceinline__ void of(float dy, float gate, float up, float& dgate, float& dup) {
        float s = gelu_share(gate), slope = TWICE_ROOT * (1.0f + 3.0f * 0.044715f * gate * gate);
        dgate = dy * up * (s + gate * s * (1.0f - s) * slope);
        dup = dy * gate * s;
    }
};

// As swiglu_grad.
template <class T> __device__ void geglu_grad(const Args& a) { gated_grad<T, GeGluGrad>(a); }
KERNEL(geglu_grad)

// The share of the normal distribution below x.
__device__ __forceinline__ float normal_share(float x) { return 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }

struct Gelu {
    __device__ __forceinline__ float operator()(float x) const { return x * normal_share(x); }
};

// p: x, y.
template <class T> __device__ void gelu(const Args& a) { map1<T>(a.p[0], a.p[1], a.n[0], Gelu()); }
KERNEL(gelu)

struct GeluGrad {
    __device__ __forceinline__ float operator()(float dy, float x) const {
        return dy * (normal_share(x) + x * 0.39894228040143268f * expf(-0.5f * x * x));
    }
};

// p: dy, x, dx (may be dy).
template <class T> __device__ void gelu_grad(const Args& a) { map2<T>(a.p[0], a.p[1], a.p[2], a.n[0], GeluGrad()); }
KERNEL(gelu_grad)

// The tanh form.
struct GeluTanh {
    __device__ __forceinline__ float operator()(float x) const { return x * gelu_share(x); }
};

template <class T> __device__ void gelu_tanh(const Args& a) { map1<T>(a.p[0], a.p[1], a.n[0], GeluTanh()); }
KERNEL(gelu_tanh)

struct GeluTanhGrad {
    __device__ __forceinline__ float operator()(float dy, float x) const {
        float s = gelu_share(x), slope = TWICE_ROOT * (1.0f + 3.0f * 0.044715f * x * x);
        return dy * (s + x * s * (1.0f - s) * slope);
    }
};

template <class T> __device__ void gelu_tanh_grad(const Args& a) {
    map2<T>(a.p[0], a.p[1], a.p[2], a.n[0], GeluTanhGrad());
}
KERNEL(gelu_tanh_grad)

// y[i, j] = x[i, j] + table[position of first + i, j]: learned positions, and biases of sequences of 1. p: x, table, y
// (may be x). n: rows, columns, sequence, first, the rank's part of each sequence, parts.
template <class T> __device__ void add_rows(const Args& a) {
    const T *x = (const T*)a.p[0], *table = (const T*)a.p[1];
    T* y = (T*)a.p[2];
    ll rows = a.n[0], columns = a.n[1];
    for (ll row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* from = table + position_of(a.n[3] + row, a.n[2], a.n[4], a.n[5]) * columns;
        auto sum = [](float x, float added, float) { return x + added; };
        map_rows(x + row * columns, from, from, y + row * columns, columns, sum);
    }
}
KERNEL(add_rows)

// Its gradient for the table: G[c, j] += sum over the rows i at position c, by rising i. p: dy, G (float). n: as above. One
// thread an element of G that the rank has rows for: for positions, of which there are many.
template <class T> __device__ void add_rows_grad(const Args& a) {
    const T* dy = (const T*)a.p[0];
    float* gradient = (float*)a.p[1];
    ll rows = a.n[0], columns = a.n[1], cycle = a.n[2] / a.n[5], first = a.n[3] % cycle;
    EACH(at, cycle * columns) {
        ll of_sequence = at / columns, j = at % columns;
        float* total = gradient + position_of(of_sequence, a.n[2], a.n[4], a.n[5]) * columns + j;
        float sum = *total;
        for (ll row = (of_sequence + cycle - first) % cycle; row < rows; row += cycle) sum += load(dy[row * columns + j]);
        *total = sum;
    }
}
KERNEL(add_rows_grad)

// Rotary positions on the last columns of each head. p: x, table of (sine, cosine) floats by position and half column, y
// (may be x). n: rows, heads, width, sequence, columns that are turned, the rank's part of each sequence, parts. f[0]: 1, or
// -1 to rotate back. A block takes a row.
template <class T> __device__ void rope(const Args& a) {
    const T* x = (const T*)a.p[0];
    const float* table = (const float*)a.p[1];
    T* y = (T*)a.p[2];
    ll rows = a.n[0], heads = a.n[1], width = a.n[2];
    int half = (int)(a.n[4] / 2), pairs = (int)heads * half;
    for (ll row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* angles = table + position_of(row, a.n[3], a.n[5], a.n[6]) * half * 2;
        T *out = y + row * heads * width;
        const T* in = x + row * heads * width;
        // The halves of a head's last columns are packs where their widths are, and where a head begins.
        if (in_packs<T>(half) && in_packs<T>(width)) {
            const int W = Pack<T>::WIDTH;
            for (int pack = threadIdx.x; pack < pairs / W; pack += blockDim.x) {
                int head = pack * W / half, j = pack * W % half;
                ll low = (head + 1) * width - a.n[4] + j, high = low + half;
                Pack<T> u = *(const Pack<T>*)(in + low), v = *(const Pack<T>*)(in + high);
                // As many pairs of a sine and a cosine, two in each pack of floats.
                Pack<float> turns[W / 2];
#pragma unroll
                for (int k = 0; k < W / 2; k++) turns[k] = ((const Pack<float>*)(angles + 2 * j))[k];
#pragma unroll
                for (int k = 0; k < W; k++) {
                    float sine = a.f[0] * turns[k / 2].v[k % 2 * 2], cosine = turns[k / 2].v[k % 2 * 2 + 1];
                    float first = load(u.v[k]), second = load(v.v[k]);
                    u.v[k] = Number<T>::of(first * cosine - second * sine);
                    v.v[k] = Number<T>::of(second * cosine + first * sine);
                }
                put((Pack<T>*)(out + low), u);
                put((Pack<T>*)(out + high), v);
            }
            continue;
        }
        for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
            int head = pair / half, j = pair % half;
            ll low = (head + 1) * width - a.n[4] + j, high = low + half;
            float sine = a.f[0] * angles[2 * j], cosine = angles[2 * j + 1];
            float u = load(in[low]), v = load(in[high]);
            out[low] = Number<T>::of(u * cosine - v * sine);
            out[high] = Number<T>::of(v * cosine + u * sine);
        }
    }
}
KERNEL(rope)

// The generator of the runner (SplitMix64), whose n-th draw can be worked out at once.
__device__ __forceinline__ ull split_mix(ull seed, ull draw) {
    ull mixed = seed + (draw + 1) * 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    return mixed ^ (mixed >> 31);
}

// The upper half of a product with 10: a draw below 10.
__device__ __forceinline__ bool kept_by_dropout(ull draw) {
    ull high = (draw >> 32) * 10 + (((draw & 0xffffffffull) * 10) >> 32);
    return (high >> 32) > 0;
}

// p: x, y (may be x), kept (bytes). n: elements, the seed's bits, elements of a block, members, this member: block k here
// is block k * members + member of the whole. Where ranks hold parts of sequences, blocks are rows, and a row draws as its
// token's does: then n goes on with the number of the first row among those of members, the sequence, part and parts.
template <class T> __device__ void dropout(const Args& a) {
    const T* x = (const T*)a.p[0];
    T* y = (T*)a.p[1];
    unsigned char* kept = (unsigned char*)a.p[2];
    ll block = a.n[2];
    EACH(i, a.n[0]) {
        ll at = i / block * a.n[3] + a.n[4];
        if (a.n[8] > 1) {
            ll row = a.n[5] + i / block;
            at = row / (a.n[6] / a.n[8]) * a.n[6] + position_of(row, a.n[6], a.n[7], a.n[8]);
        }
        ll of_whole = at * block + i % block;
        bool keep = kept_by_dropout(split_mix((ull)a.n[1], (ull)of_whole));
        kept[i] = keep ? 1 : 0;
        y[i] = Number<T>::of(keep ? load(x[i]) * (1.0f / 0.9f) : 0.0f);
    }
}
KERNEL(dropout)

// p: dy, kept, dx (may be dy).
template <class T> __device__ void dropout_grad(const Args& a) {
    const T* dy = (const T*)a.p[0];
    const unsigned char* kept = (const unsigned char*)a.p[1];
    T* dx = (T*)a.p[2];
    EACH(i, a.n[0]) dx[i] = Number<T>::of(kept[i] ? load(dy[i]) * (1.0f / 0.9f) : 0.0f);
}
KERNEL(dropout_grad)

// What members of a group have, combined in their order, in float, and rounded once. n: elements, members.
// p: y, then up to 9 members' x; y is none of them.
template <class T, class F> __device__ __forceinline__ void combine_members(const Args& a, F f) {
    EACH(i, a.n[0]) {
        float all = load(((const T*)a.p[1])[i]);
        for (int member = 1; member < (int)a.n[1]; member++) all = f(all, load(((const T*)a.p[1 + member])[i]));
        ((T*)a.p[0])[i] = Number<T>::of(all);
    }
}
template <class T> __device__ void sum_members(const Args& a) { combine_members<T>(a, Sum()); }
KERNEL(sum_members)

// The greater of two, or the one that is no number.
struct Greatest {
    __device__ __forceinline__ float operator()(float a, float b) const { return a != a || b <= a ? a : b; }
};
template <class T> __device__ void max_members(const Args& a) { combine_members<T>(a, Greatest()); }
KERNEL(max_members)
