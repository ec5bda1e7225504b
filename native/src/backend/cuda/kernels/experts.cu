// Experts. Copies of tokens lie ordered by expert; `place` (int) says where each copy (token by token) lies.

// What a router's logits become: shares of one, or each by itself.
struct Scores {
    bool each;
    float greatest, total;
    template <class T> __device__ __forceinline__ Scores(const T* x, ll experts, bool by_itself) {
        each = by_itself;
        greatest = -INFINITE;
        total = 0.0f;
        if (each) return;
        for (ll j = 0; j < experts; j++) greatest = fmaxf(greatest, load(x[j]));
        for (ll j = 0; j < experts; j++) total += expf(load(x[j]) - greatest);
    }
    __device__ __forceinline__ float operator()(float logit) const {
        return each ? sigmoid(logit) : expf(logit - greatest) / total;
    }
};

// A bit for each group of experts that is chosen from: those whose best expert, or best two scores, are greatest.
template <class T> __device__ __forceinline__ unsigned long long open_groups(const T* x, ll experts, ll groups, ll active, bool each) {
    if (active >= groups) return ~0ull;
    unsigned long long open = 0;
    ll size = experts / groups;
    for (ll round = 0; round < active; round++) {
        // Of equals the first.
        float best = -INFINITE;
        ll at = -1;
        for (ll group = 0; group < groups; group++) {
            if (open >> group & 1) continue;
            float first = -INFINITE, second = -INFINITE;
            for (ll j = group * size; j < (group + 1) * size; j++) {
                float value = load(x[j]);
                if (value > first) {
                    second = first;
                    first = value;
                } else if (value > second) {
                    second = value;
                }
            }
            float merit = each ? sigmoid(first) + sigmoid(second) : first;
            if (at < 0 || merit > best) {
                best = merit;
                at = group;
            }
        }
        open |= 1ull << at;
    }
    return open;
}

// What divides weights: the sum of the chosen scores, which may all be 0; or 1.
template <class T> __device__ __forceinline__ float sum_of(const T* x, const int* chosen, ll active, const Scores& score, bool normed) {
    if (!normed) return 1.0f;
    float sum = 0.0f;
    for (ll slot = 0; slot < active; slot++) sum += score(load(x[chosen[slot]]));
    return sum + 1e-20f;
}

// p: logits, weights, chosen (int). n: rows, experts, active, whether scores are each by themselves, whether those chosen
// are divided by their sum, groups, groups that are chosen from. f[0]: what weights are multiplied with. A thread takes a row.
template <class T> __device__ void route(const Args& a) {
    ll experts = a.n[1], active = a.n[2], size = experts / a.n[5];
    EACH(row, a.n[0]) {
        const T* x = (const T*)a.p[0] + row * experts;
        int* chosen = (int*)a.p[2] + row * active;
        Scores score(x, experts, a.n[3] != 0);
        unsigned long long open = open_groups(x, experts, a.n[5], a.n[6], a.n[3] != 0);
        float last = INFINITE;
        int last_at = -1;
        for (ll slot = 0; slot < active; slot++) {
            // The greatest of those that are left; of equals the first.
            float best = -INFINITE;
            int at = -1;
            for (int j = 0; j < (int)experts; j++) {
                float value = load(x[j]);
                bool is_open = (open >> j / size & 1) && (value < last || (value == last && j > last_at));
                if (is_open && (at < 0 || value > best)) {
                    best = value;
                    at = j;
                }
            }
            if (at < 0) at = (int)slot; // logits that are no numbers: the loss will tell
            chosen[slot] = at;
            last = best;
            last_at = at;
        }
        float sum = sum_of(x, chosen, active, score, a.n[4] != 0);
        for (ll slot = 0; slot < active; slot++) {
            ((T*)a.p[1])[row * active + slot] = Number<T>::of(a.f[0] * score(load(x[chosen[slot]])) / sum);
        }
    }
}
KERNEL(route)

// p: dweights, logits, chosen, dlogits. n: rows, experts, active, whether scores are each by themselves, whether those
// chosen were divided by their sum. f[0]: what weights were multiplied with. A thread takes a row.
template <class T> __device__ void route_grad(const Args& a) {
    ll experts = a.n[1], active = a.n[2];
    bool each = a.n[3] != 0, normed = a.n[4] != 0;
    EACH(row, a.n[0]) {
        const T *dweights = (const T*)a.p[0] + row * active, *x = (const T*)a.p[1] + row * experts;
        const int* chosen = (const int*)a.p[2] + row * active;
        Scores score(x, experts, each);
        float sum = sum_of(x, chosen, active, score, normed), along = 0.0f;
        for (ll slot = 0; slot < active; slot++) along += load(dweights[slot]) * score(load(x[chosen[slot]]));
        // What a greater sum takes from every weight, and what a greater logit takes from every share.
        float shared = normed ? along / sum : 0.0f, back = 0.0f;
        for (ll slot = 0; slot < active && !each; slot++) {
            back += a.f[0] * (load(dweights[slot]) - shared) / sum * score(load(x[chosen[slot]]));
        }
        for (int j = 0; j < (int)experts; j++) {
            float own = 0.0f, value = score(load(x[j]));
            for (ll slot = 0; slot < active; slot++) {
                own += chosen[slot] == j ? a.f[0] * (load(dweights[slot]) - shared) / sum : 0.0f;
            }
            ((T*)a.p[3])[row * experts + j] = Number<T>::of(value * (each ? own * (1.0f - value) : own - back));
        }
    }
}
KERNEL(route_grad)

// Tokens to their copies. p: x, place, rows, weights, shares; the last two or none. n: columns, active, and from one to the
// next of x, rows, weights and shares. A block takes a copy.
template <class T> __device__ void dispatch(const Args& a) {
    ll columns = a.n[0], copy = blockIdx.x, place = ((const int*)a.p[1])[copy];
    const T* x = (const T*)a.p[0] + copy / a.n[1] * a.n[2];
    T* row = (T*)a.p[2] + place * a.n[3];
    copy_row(x, row, columns);
    if (a.p[3] != 0 && threadIdx.x == 0) ((T*)a.p[4])[place * a.n[5]] = ((const T*)a.p[3])[copy * a.n[4]];
}
KERNEL(dispatch)

// And back. p: rows, place, y, shares, weights; the last two or none. n: columns, active, and from one to the next of rows, y,
// shares and weights. A block takes a token.
template <class T> __device__ void combine(const Args& a) {
    ll columns = a.n[0], active = a.n[1], token = blockIdx.x;
    const int* place = (const int*)a.p[1] + token * active;
    const T* rows = (const T*)a.p[0];
    T* y = (T*)a.p[2] + token * a.n[3];
    const int W = Pack<T>::WIDTH;
    if (in_packs<T>(columns) && in_packs<T>(a.n[2]) && may_begin_at(rows) && may_begin_at(y)) {
        for (ll j = threadIdx.x * W; j < columns; j += blockDim.x * W) {
            float sums[W] = {};
            for (ll copy = 0; copy < active; copy++) {
                Pack<T> pack = *(const Pack<T>*)(rows + place[copy] * a.n[2] + j);
#pragma unroll
                for (int k = 0; k < W; k++) sums[k] += load(pack.v[k]);
            }
            Pack<T> pack;
#pragma unroll
            for (int k = 0; k < W; k++) pack.v[k] = Number<T>::of(sums[k]);
            put((Pack<T>*)(y + j), pack);
        }
    } else {
        for (ll j = threadIdx.x; j < columns; j += blockDim.x) {
            float sum = 0.0f;
            for (ll copy = 0; copy < active; copy++) sum += load(rows[place[copy] * a.n[2] + j]);
            y[j] = Number<T>::of(sum);
        }
    }
    for (ll copy = threadIdx.x; a.p[3] != 0 && copy < active; copy += blockDim.x) {
        ((T*)a.p[4])[(token * active + copy) * a.n[5]] = ((const T*)a.p[3])[place[copy] * a.n[4]];
    }
}
KERNEL(combine)

// A gate and what it lets through, each row times its share. p: gate, up, shares, y. n: columns. A block takes a row.
template <class T, class G> __device__ __forceinline__ void weighted_glu(const Args& a) {
    ll columns = a.n[0], row = blockIdx.x * columns;
    float share = load(((const T*)a.p[2])[blockIdx.x]);
    const T *gate = (const T*)a.p[0] + row, *up = (const T*)a.p[1] + row;
    map_rows(gate, up, up, (T*)a.p[3] + row, columns, [&](float gate, float up, float) { return share * G()(gate, up); });
}

// p: dy, gate, up, shares, dgate (may be dy), dup, dshares. n: columns. A block takes a row.
template <class T, class G, class Grad> __device__ __forceinline__ void weighted_glu_grad(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x * columns;
    float share = load(((const T*)a.p[3])[blockIdx.x]), along = 0.0f;
    const T *dy = (const T*)a.p[0] + row, *gate = (const T*)a.p[1] + row, *up = (const T*)a.p[2] + row;
    T *dgate = (T*)a.p[4] + row, *dup = (T*)a.p[5] + row;
    // A thread alone reads and writes its columns, so that dgate may be dy.
    auto of = [&](T& dy, T& gate, const T& up) {
        float own = load(dy), by_gate, by_up;
        along += own * G()(load(gate), load(up));
        Grad::of(share * own, load(gate), load(up), by_gate, by_up);
        dy = Number<T>::of(by_gate);
        gate = Number<T>::of(by_up);
    };
    if (in_packs<T>(columns)) {
        for (ll i = threadIdx.x; i < columns / Pack<T>::WIDTH; i += blockDim.x) {
            Pack<T> pd = ((const Pack<T>*)dy)[i], pg = ((const Pack<T>*)gate)[i], pu = ((const Pack<T>*)up)[i];
#pragma unroll
            for (int k = 0; k < Pack<T>::WIDTH; k++) of(pd.v[k], pg.v[k], pu.v[k]);
            put((Pack<T>*)dgate + i, pd);
            put((Pack<T>*)dup + i, pg);
        }
    } else {
        for (ll j = threadIdx.x; j < columns; j += blockDim.x) {
            T d = dy[j], g = gate[j];
            of(d, g, up[j]);
            dgate[j] = d;
            dup[j] = g;
        }
    }
    along = block_sum(along, scratch);
    if (threadIdx.x == 0) ((T*)a.p[6])[blockIdx.x] = Number<T>::of(along);
}

template <class T> __device__ void weighted_swiglu(const Args& a) { weighted_glu<T, SwiGlu>(a); }
KERNEL(weighted_swiglu)
template <class T> __device__ void weighted_swiglu_grad(const Args& a) { weighted_glu_grad<T, SwiGlu, SwiGluGrad>(a); }
KERNEL(weighted_swiglu_grad)
template <class T> __device__ void weighted_geglu(const Args& a) { weighted_glu<T, GeGlu>(a); }
KERNEL(weighted_geglu)
template <class T> __device__ void weighted_geglu_grad(const Args& a) { weighted_glu_grad<T, GeGlu, GeGluGrad>(a); }
KERNEL(weighted_geglu_grad)

// Each row by its gate. p: x, gate, y. n: columns. A block takes a row.
template <class T> __device__ void row_gate(const Args& a) {
    ll columns = a.n[0], row = blockIdx.x;
    float share = sigmoid(load(((const T*)a.p[1])[row]));
    const T* x = (const T*)a.p[0] + row * columns;
    map_row(x, (T*)a.p[2] + row * columns, columns, [&](ll, float value) { return share * value; });
}
KERNEL(row_gate)

// p: dy, x, gate, dx, dgate. n: columns. A block takes a row.
template <class T> __device__ void row_gate_grad(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    float share = sigmoid(load(((const T*)a.p[2])[row])), along = 0.0f;
    const T *dy = (const T*)a.p[0] + row * columns, *x = (const T*)a.p[1] + row * columns;
    auto of = [&](float dy, float x, float) {
        along += dy * x;
        return share * dy;
    };
    map_rows(dy, x, x, (T*)a.p[3] + row * columns, columns, of);
    along = block_sum(along, scratch);
    if (threadIdx.x == 0) ((T*)a.p[4])[row] = Number<T>::of(share * (1.0f - share) * along);
}
KERNEL(row_gate_grad)
