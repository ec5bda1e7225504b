// Runs a kernel on the host, block after block.
static thread_local void (*current_kernel)(Args);
static thread_local const Args* current_args;

static void fiber_main() {
    current_kernel(*current_args);
    Fiber& self = block.fibers[block.running];
    self.ended = true;
    // Whoever still waits at a barrier waits for one less, from the start on.
    Warp& warp = block.warps[self.thread / 32];
    warp.arrived -= self.at_warp;
    warp.live--;
    block.arrived -= self.at_block;
    block.live--;
    _longjmp(block.scheduler, 1);
}

// Lets a fiber run until it gives way.
static __attribute__((noinline)) void resume(Fiber& fiber) {
    if (_setjmp(block.scheduler) != 0) return;
    if (fiber.started) _longjmp(fiber.jump, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}

extern "C" void pipeplan_launch(void (*kernel)(Args), const Args* args, const unsigned* grid, unsigned threads, unsigned shared) {
    const size_t STACK = 128 << 10;
    current_kernel = kernel;
    current_args = args;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    // Shared memory starts as whatever was there: here, as no numbers.
    dynamic_shared.assign(shared + 64, 0xff);
    // Which thread comes first is nobody's to count on: another one each time, and upwards or downwards.
    static thread_local unsigned launches = 0;
    unsigned draw = (launches += 1) * 2654435761u;
    unsigned first = (draw >> 8) % threads, step = draw >> 31 ? 1 : threads - 1;
    if (block.stacks.size() < STACK * threads) block.stacks.resize(STACK * threads);
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                block.fibers.assign(threads, Fiber());
                block.warps.assign((threads + 31) / 32, Warp());
                block.arrived = 0;
                block.live = threads;
                block.any = false;
                copying.assign(threads, {});
                for (unsigned t = 0; t < threads; t++) {
                    block.warps[t / 32].live++;
                    Fiber& fiber = block.fibers[t];
                    fiber.thread = t;
                    getcontext(&fiber.context);
                    fiber.context.uc_stack.ss_sp = &block.stacks[STACK * t];
                    fiber.context.uc_stack.ss_size = STACK;
                    fiber.context.uc_link = 0;
                    makecontext(&fiber.context, fiber_main, 0);
                }
                while (block.live > 0) {
                    unsigned t = first;
                    for (unsigned turn = 0; turn < threads; turn++, t = (t + step) % threads) {
                        if (block.fibers[t].ended) continue;
                        block.running = t;
                        threadIdx = {t, 0, 0};
                        resume(block.fibers[t]);
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
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < columns; j++) {
                float sum = 0.0f;
                for (uint64_t k = 0; k < inner; k++) sum += load(a[i * down_a + k * along_a]) * load(b[k * down_b + j * along_b]);
                C& result = c[i * m[2].row + j];
                const C& before = addend ? addend[i * m[2].row + j] : result;
                float value = alpha * sum + (beta == 0.0f ? 0.0f : beta * load(before));
                result = Number<C>::of(bias ? value + load(bias[j]) : value);
            }
    }
}
// sizes: rows, inner, columns, count; d and the biases, or 0. operands and result: whether the operands are bf16, and whether the result is.
extern "C" void pipeplan_product(const uint64_t* sizes, const HostMatrix* m, float alpha, float beta, int operands, int result) {
    if (operands && result) product_of<bf16, bf16>(sizes, m, alpha, beta);
    else if (operands) product_of<bf16, float>(sizes, m, alpha, beta);
    else product_of<float, float>(sizes, m, alpha, beta);
}
