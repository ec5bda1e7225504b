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
    dynamic_shared.assign(shared + 64, 0);
    if (block.stacks.size() < STACK * threads) block.stacks.resize(STACK * threads);
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                block.fibers.assign(threads, Fiber());
                block.warps.assign((threads + 31) / 32, Warp());
                block.arrived = 0;
                block.live = threads;
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
                    for (unsigned t = 0; t < threads; t++) {
                        if (block.fibers[t].ended) continue;
                        block.running = t;
                        threadIdx = {t, 0, 0};
                        resume(block.fibers[t]);
                    }
                }
            }
}
