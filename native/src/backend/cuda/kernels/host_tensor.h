// Tensor-core instructions for the host, by the definition of each fragment's layout.
static inline float half_of(unsigned both, int which) { return float_of_bits((both >> (16 * which)) << 16); }

static inline void mma(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    unsigned lane = threadIdx.x % 32, b[2] = {b0, b1};
    Warp& warp = own_warp();
    // Element (row, k) of a: lane by row mod 8 and k / 2 mod 4, register by the halves of rows and of k. b, by columns, as the
    // upper half of it.
    for (int which = 0; which < 2; which++) {
        unsigned row = lane / 4, k = lane % 4 * 2 + which;
        for (int i = 0; i < 4; i++) warp.left[row + i % 2 * 8][k + i / 2 * 8] = half_of(a[i], which);
        for (int i = 0; i < 2; i++) warp.right[row][k + i * 8] = half_of(b[i], which);
    }
    warp_barrier();
    float sums[4] = {};
    for (unsigned k = 0; k < 16; k++)
        for (int i = 0; i < 4; i++) sums[i] += warp.left[lane / 4 + i / 2 * 8][k] * warp.right[lane % 4 * 2 + i % 2][k];
    for (int i = 0; i < 4; i++) c[i] += sums[i];
    warp_barrier();
}
static inline void load_some(unsigned* to, const bf16* row, bool transposed) {
    unsigned lane = threadIdx.x % 32;
    Warp& warp = own_warp();
    warp.handed[lane] = (uint64_t)(uintptr_t)row;
    if ((uintptr_t)row % 16) abort(); // the instruction needs it
    warp_barrier();
    for (int matrix = 0; matrix < 4; matrix++) {
        unsigned both = 0;
        for (int one = 0; one < 2; one++) {
            unsigned i = lane / 4, j = lane % 4 * 2 + one;
            unsigned r = transposed ? j : i, c = transposed ? i : j;
            const bf16* from = (const bf16*)(uintptr_t)warp.handed[matrix * 8 + r];
            both |= (unsigned)from[c].bits << (16 * one);
        }
        to[matrix] = both;
    }
    warp_barrier();
}
static inline void load_matrices(unsigned* to, const bf16* row) { load_some(to, row, false); }
static inline void load_transposed(unsigned* to, const bf16* row) { load_some(to, row, true); }
static inline unsigned pack(float low, float high) { return (unsigned)bf16_bits(high) << 16 | bf16_bits(low); }

// Until a thread waits for its copies what they go to holds no numbers, so that whoever reads too early is found.
static inline void copy_some(void* to, const void* from, size_t bytes, bool is_there) {
    if ((uintptr_t)to % bytes || (uintptr_t)from % bytes) abort(); // the instruction needs it
    Copying copy = {to, bytes, {}};
    if (is_there) memcpy(copy.content, from, bytes);
    memset(to, 0xff, bytes);
    fiber->copying.push_back(copy);
}
static inline void copy_async(void* to, const void* from, bool is_there) { copy_some(to, from, 16, is_there); }
static inline void copy_pair_async(void* to, const void* from) { copy_some(to, from, 8, true); }
static inline void wait_for_copies() {
    for (const Copying& copy : fiber->copying) memcpy(copy.to, copy.content, copy.bytes);
    fiber->copying.clear();
}
static inline float power_of_2(float x) { return exp2f(x); }
static inline float inverse(float x) { return 1.0f / x; }
