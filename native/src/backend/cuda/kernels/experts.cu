// Experts. Copies of tokens lie ordered by expert; `place` (int) says where each copy (token by token) lies.

// p: logits, weights, chosen (int). n: rows, experts, active. A thread takes a row.
template <class T> __device__ void route(const Args& a) {
    ll experts = a.n[1], active = a.n[2];
    EACH(row, a.n[0]) {
        const T* x = (const T*)a.p[0] + row * experts;
        float greatest = -INFINITE, total = 0.0f, last = INFINITE;
        int last_at = -1;
        for (ll j = 0; j < experts; j++) greatest = fmaxf(greatest, load(x[j]));
        for (ll j = 0; j < experts; j++) total += expf(load(x[j]) - greatest);
        for (ll slot = 0; slot < active; slot++) {
            // The greatest of those that are left; of equals the first.
            float best = -INFINITE;
            int at = -1;
            for (int j = 0; j < (int)experts; j++) {
                float value = load(x[j]);
                bool is_open = value < last || (value == last && j > last_at);
                if (is_open && (at < 0 || value > best)) {
                    best = value;
                    at = j;
                }
            }
            if (at < 0) at = (int)slot; // logits that are no numbers: the loss will tell
            ((T*)a.p[1])[row * active + slot] = Number<T>::of(expf(best - greatest) / total);
            ((int*)a.p[2])[row * active + slot] = at;
            last = best;
            last_at = at;
        }
    }
}
KERNEL(route)

// p: dweights, logits, chosen, dlogits. n: rows, experts, active. A thread takes a row.
template <class T> __device__ void route_grad(const Args& a) {
    ll experts = a.n[1], active = a.n[2];
    EACH(row, a.n[0]) {
        const T *dweights = (const T*)a.p[0] + row * active, *x = (const T*)a.p[1] + row * experts;
        const int* chosen = (const int*)a.p[2] + row * active;
        float greatest = -INFINITE, total = 0.0f, along = 0.0f;
        for (ll j = 0; j < experts; j++) greatest = fmaxf(greatest, load(x[j]));
        for (ll j = 0; j < experts; j++) total += expf(load(x[j]) - greatest);
        for (ll slot = 0; slot < active; slot++) along += load(dweights[slot]) * (expf(load(x[chosen[slot]]) - greatest) / total);
        for (int j = 0; j < (int)experts; j++) {
            float own = 0.0f;
            for (ll slot = 0; slot < active; slot++) own += chosen[slot] == j ? load(dweights[slot]) : 0.0f;
            ((T*)a.p[3])[row * experts + j] = Number<T>::of(expf(load(x[j]) - greatest) / total * (own - along));
        }
    }
}
KERNEL(route_grad)

// p: x, place, rows. n: columns, active, from row to row. A block takes a copy.
template <class T> __device__ void dispatch(const Args& a) {
    ll columns = a.n[0], copy = blockIdx.x;
    const T* x = (const T*)a.p[0] + copy / a.n[1] * columns;
    T* row = (T*)a.p[2] + ((const int*)a.p[1])[copy] * a.n[2];
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) row[j] = x[j];
}
KERNEL(dispatch)

// p: drows, place, dx. n: columns, active. A block takes a token.
template <class T> __device__ void dispatch_grad(const Args& a) {
    ll columns = a.n[0], active = a.n[1], token = blockIdx.x;
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) {
        float sum = 0.0f;
        for (ll copy = token * active; copy < (token + 1) * active; copy++) {
            sum += load(((const T*)a.p[0])[((const int*)a.p[1])[copy] * columns + j]);
        }
        ((T*)a.p[2])[token * columns + j] = Number<T>::of(sum);
    }
}
KERNEL(dispatch_grad)

// p: rows, weights, place, y. n: columns, active. A block takes a token.
template <class T> __device__ void combine(const Args& a) {
    ll columns = a.n[0], active = a.n[1], token = blockIdx.x;
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) {
        float sum = 0.0f;
        for (ll copy = token * active; copy < (token + 1) * active; copy++) {
            sum += load(((const T*)a.p[1])[copy]) * load(((const T*)a.p[0])[((const int*)a.p[2])[copy] * columns + j]);
        }
        ((T*)a.p[3])[token * columns + j] = Number<T>::of(sum);
    }
}
KERNEL(combine)

// p: dy, rows, weights, place, drows, dweights. n: columns, active, from one of dy to the next, from one of the weights to
// the next. A block takes a copy.
template <class T> __device__ void combine_grad(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], copy = blockIdx.x, place = ((const int*)a.p[3])[copy];
    const T *dy = (const T*)a.p[0] + copy / a.n[1] * a.n[2], *row = (const T*)a.p[1] + place * columns;
    T* drow = (T*)a.p[4] + place * columns;
    float weight = load(((const T*)a.p[2])[copy * a.n[3]]), along = 0.0f;
    for (ll j = threadIdx.x; j < columns; j += blockDim.x) {
        along += load(dy[j]) * load(row[j]);
        drow[j] = Number<T>::of(weight * load(dy[j]));
    }
    along = block_sum(along, scratch);
    if (threadIdx.x == 0) ((T*)a.p[5])[copy] = Number<T>::of(along);
}
KERNEL(combine_grad)

// Each row by its gate. p: x, gate, y. n: columns. A block takes a row.
template <class T> __device__ void row_gate(const Args& a) {
    ll columns = a.n[0], row = blockIdx.x;
    float share = sigmoid(load(((const T*)a.p[1])[row]));
    for (ll j = row * columns + threadIdx.x; j < (row + 1) * columns; j += blockDim.x) {
        ((T*)a.p[2])[j] = Number<T>::of(share * load(((const T*)a.p[0])[j]));
    }
}
KERNEL(row_gate)

// p: dy, x, gate, dx, dgate. n: columns. A block takes a row.
template <class T> __device__ void row_gate_grad(const Args& a) {
    __shared__ float scratch[32];
    ll columns = a.n[0], row = blockIdx.x;
    float share = sigmoid(load(((const T*)a.p[2])[row])), along = 0.0f;
    for (ll j = row * columns + threadIdx.x; j < (row + 1) * columns; j += blockDim.x) {
        float dy = load(((const T*)a.p[0])[j]);
        along += dy * load(((const T*)a.p[1])[j]);
        ((T*)a.p[3])[j] = Number<T>::of(share * dy);
    }
    along = block_sum(along, scratch);
    if (threadIdx.x == 0) ((T*)a.p[4])[row] = Number<T>::of(share * (1.0f - share) * along);
}
KERNEL(row_gate_grad)
