// Runs a kernel on the host, block after block.
static thread_local void (*current_kernel)(Args);
static thread_local const Args* current_args;

static void fiber_main() {
    for (;;) {
        current_kernel(*current_args);
        fiber->ended = true;
        // Whoever still waits at a barrier waits for one less, from the start on.
        Warp& warp = own_warp();
        warp.arrived -= fiber->at_warp;
        warp.live--;
        block->arrived -= fiber->at_block;
        block->live--;
        // Until there is another block.
        give_way();
    }
}

// Lets the fiber run until it gives way.
static __attribute__((noinline)) void resume() {
    if (_setjmp(block->scheduler) != 0) return;
    if (fiber->started) _longjmp(fiber->jump, 1);
    fiber->started = true;
    setcontext(&fiber->context);
}

// At least so many fibers, each with a stack of its own. None of them may be in the midst of a thread.
static void have_fibers(unsigned threads) {
    const size_t STACK = 128 << 10;
    if (block->fibers.size() >= threads) return;
    block->stacks.reset(new char[STACK * threads]);
    block->fibers.assign(threads, Fiber());
    for (unsigned t = 0; t < threads; t++) {
        ucontext_t& context = block->fibers[t].context;
        getcontext(&context);
        context.uc_stack.ss_sp = &block->stacks[STACK * t];
        context.uc_stack.ss_size = STACK;
        context.uc_link = 0;
        makecontext(&context, fiber_main, 0);
    }
}

extern "C" void pipeplan_launch(void (*kernel)(Args), const Args* args, const unsigned* grid, unsigned threads, unsigned shared) {
    static thread_local Block of_this_thread;
    block = &of_this_thread;
    current_kernel = kernel;
    current_args = args;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    // Shared memory starts as whatever was there: here, as no numbers.
    block->shared.assign(shared + 64, 0xff);
    dynamic_shared = block->shared.data();
    // Which thread comes first is nobody's to count on: another one each time, and upwards or downwards.
    static thread_local unsigned launches = 0;
    unsigned draw = (launches += 1) * 2654435761u;
    unsigned first = (draw >> 8) % threads, step = draw >> 31 ? 1 : threads - 1;
    have_fibers(threads);
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                block->warps.assign((threads + 31) / 32, Warp());
                block->arrived = 0;
                block->live = threads;
                block->any = false;
                for (unsigned t = 0; t < threads; t++) {
                    block->warps[t / 32].live++;
                    Fiber& next = block->fibers[t];
                    next.ended = false;
                    next.at_block = next.at_warp = 0;
                    next.copying.clear();
                }
                while (block->live > 0) {
                    unsigned t = first;
                    for (unsigned turn = 0; turn < threads; turn++) {
                        fiber = &block->fibers[t];
                        threadIdx = {t, 0, 0};
                        if (!fiber->ended) resume();
                        t += step;
                        if (t >= threads) t -= threads;
                    }
                }
            }
}

// What cuBLAS does: c = alpha a b + beta d + a row of biases, sums in float from the first to the last; d is c or lies
// elsewhere.
struct HostMatrix {
    uint64_t at, row, step, transposed;
};
template <class T, class C>
static void product_of(const uint64_t* sizes, const HostMatrix* m, float alpha, float beta) {
    uint64_t rows = sizes[0], inner = sizes[1], columns = sizes[2], count = sizes[3];
    const C *addend = (const C*)sizes[4], *bias = (const C*)sizes[5];
    for (uint64_t step = 0; step < count; step++) {
        const T *a = (const T*)m[0].at + step * m[0].step, *b = (const T*)m[1].at + step * m[1].step;
        C* c = (C*)m[2].at + step * m[2].step;
        uint64_t down_a = m[0].transposed ? 1 : m[0].row, along_a = m[0].transposed ? m[0].row : 1;
        uint64_t down_b = m[1].transposed ? 1 : m[1].row, along_b = m[1].transposed ? m[1].row : 1;
        // Some columns at a time, whose sums do not wait for each other.
        const uint64_t SIDE_BY_SIDE = 16;
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t start = 0; start < columns; start += SIDE_BY_SIDE) {
                uint64_t wide = columns - start < SIDE_BY_SIDE ? columns - start : SIDE_BY_SIDE;
                float sums[SIDE_BY_SIDE] = {};
                for (uint64_t k = 0; k < inner; k++) {
                    float left = load(a[i * down_a + k * along_a]);
                    const T* right = b + k * down_b + start * along_b;
                    for (uint64_t at = 0; at < wide; at++) sums[at] += left * load(right[at * along_b]);
                }
                for (uint64_t j = start; j < start + wide; j++) {
                    C& result = c[i * m[2].row + j];
                    const C& before = addend ? addend[i * m[2].row + j] : result;
                    float value = alpha * sums[j - start] + (beta == 0.0f ? 0.0f : beta * load(before));
                    result = Number<C>::of(bias ? value + load(bias[j]) : value);
                }
            }
    }
}
// sizes: rows, inner, columns, count; d and the biases, or 0. operands and result: whether the operands are bf16, and whether the result is.
extern "C" void pipeplan_product(const uint64_t* sizes, const HostMatrix* m, float alpha, float beta, int operands, int result) {
    if (operands && result) product_of<bf16, bf16>(sizes, m, alpha, beta);
    else if (operands) product_of<bf16, float>(sizes, m, alpha, beta);
    else product_of<float, float>(sizes, m, alpha, beta);
}
