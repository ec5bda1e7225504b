// A GPU for tests: the driver, NVRTC, cuBLAS and cuBLASLt as far as the runner calls them, in one library that goes by all
// their names. Memory is the host's; kernels are those of the stand-in, compiled for the processor.
//
// It is as strict as the real ones are said to be, and more patient: what is put on a stream is not done until somebody
// waits for it (or asks whether it is done, twice), a capture only notes, calls want a current context, an event wants a
// stream of its own context, and shared memory beyond 48 KiB wants to be asked for. What is wrong ends in an error, or where
// a card would be broken, in abort().
// FAKE_CUDA_KERNELS: the library that holds the kernels. FAKE_CUDA_LOG: calls are noted in this file, with the process'
// number behind its name; where FAKE_CUDA_ORDER is set, also what is put on which stream, and what waits for what.
// FAKE_CUDA_CARDS: how many cards there are. FAKE_CUDA_MEMORY: bytes of one. FAKE_CUDA_PINNED: bytes of the host that one may pin at once. FAKE_CUDA_WITHOUT: a word for each thing that this one cannot
// do: lt (no algorithm is ever found), capture (it fails at its end), launch (no graph starts), green (no parts), own (streams of a part belong to the
// card's context). FAKE_CUDA_FAULT: the kernel that writes where nothing is, after which this process hears of nothing else.
// FAKE_CUDA_GROUPS: there are kernels of attention by groups of warps, and what becomes of them: nothing (they write nothing), fault (as above), endless.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
       NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_ISOLATION = 905 };
enum { KERNEL, COPY, ACROSS, SET, MATMUL, RECORD, WAIT, OUTSIDE };
enum { MEMORY_FENCE = 256, SHARED_LIMIT = 232448, STATIC_SHARED = 1024, MULTIPROCESSORS = 132 };

typedef struct { uint64_t p[10]; int64_t n[12]; float f[10]; } Args;
typedef struct { const char* name; void (*code)(Args); int shared; unsigned threads; } Function;
// `owner`: the thread to which a green one is current.
typedef struct { int is_green, owner; } Context;
typedef struct Event Event;
typedef struct {
    uint64_t a, b, c, d, bias;
    uint64_t m, n, k, ld[4], count, steps[4];
    int transposed[2], types[4];
    float alpha, beta;
} Matmul;
// What another library does on a stream.
typedef struct { int done; } Outside;
typedef struct Work {
    int kind;
    struct Work* next;
    Function* function;
    unsigned grid[3], threads, shared;
    Args args;
    uint64_t to, from, bytes;
    int value;
    char* content;
    Matmul matmul;
    Event* event;
    uint64_t turn;
    Outside* outside;
} Work;
typedef struct { Work *first, *last; } Queue;
typedef struct { Context* context; Queue queue, captured; int capturing, number; } Stream;
// Of its owner and of what waits on streams to record it or for it: `holders`.
struct Event { Context* context; Stream* stream; uint64_t turn, done; int asked, number, holders; double at; };
typedef struct Block { char* start; uint64_t bytes; struct Block* next; } Block;

static pthread_mutex_t lock;
static Context primary;
static Block *blocks, *pinned;
static uint64_t taken;
static int fault;
static __thread Context* current;
static __thread int thread; // its number, from 1
static void* kernels;
static void (*launch)(void (*)(Args), const Args*, const unsigned*, unsigned, unsigned);

__attribute__((constructor)) static void begin(void) {
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &recursive);
}
static void unlock(int* locked) { (void)locked; pthread_mutex_unlock(&lock); }
#define LOCKED pthread_mutex_lock(&lock); __attribute__((cleanup(unlock))) int locked = 0; (void)locked
#define CURRENT LOCKED; if (fault) return fault; if (!current) return NO_CONTEXT

static int cannot(const char* what) {
    const char* list = getenv("FAKE_CUDA_WITHOUT");
    return list && strstr(list, what) != 0;
}
#define LOG "FAKE_CUDA_LOG"
#include "note.h"
#define ORDER(...) do { if (getenv("FAKE_CUDA_ORDER")) note(__VA_ARGS__); } while (0)
static void broken(const char* why) {
    fprintf(stderr, "the card is broken: %s\n", why);
    abort();
}
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

// Memory.
static int lies_in(const Block* block, uint64_t at, uint64_t bytes) {
    for (; block; block = block->next) {
        uint64_t start = (uint64_t)(uintptr_t)block->start;
        if (at >= start && at + bytes <= start + block->bytes) return 1;
    }
    return 0;
}
static void touch(uint64_t at, uint64_t bytes, const char* who) {
    if (!lies_in(blocks, at, bytes)) broken(who);
}
static uint64_t all_bytes(void) {
    const char* bytes = getenv("FAKE_CUDA_MEMORY");
    return bytes ? strtoull(bytes, 0, 10) : 1ull << 30;
}

// Numbers.
static float wide(const void* at, int type, uint64_t index) {
    if (type == 0) return ((const float*)at)[index];
    uint32_t bits = (uint32_t)((const uint16_t*)at)[index] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static void narrow(void* at, int type, uint64_t index, float value) {
    if (type == 0) {
        ((float*)at)[index] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t half = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    ((uint16_t*)at)[index] = half;
}
static uint64_t width(int type) { return type == 0 ? 4 : 2; }
// Columns behind each other, sums from the first to the last.
static void multiply(const Matmul* x) {
    for (uint64_t of = 0; of < x->count; of++) {
        const char* a = (const char*)(uintptr_t)x->a + of * x->steps[0] * width(x->types[0]);
        const char* b = (const char*)(uintptr_t)x->b + of * x->steps[1] * width(x->types[1]);
        const char* c = (const char*)(uintptr_t)x->c + of * x->steps[2] * width(x->types[2]);
        char* d = (char*)(uintptr_t)x->d + of * x->steps[3] * width(x->types[3]);
        for (uint64_t j = 0; j < x->n; j++) {
            for (uint64_t i = 0; i < x->m; i++) {
                float sum = 0;
                for (uint64_t k = 0; k < x->k; k++) {
                    uint64_t left = x->transposed[0] ? k + i * x->ld[0] : i + k * x->ld[0];
                    uint64_t right = x->transposed[1] ? j + k * x->ld[1] : k + j * x->ld[1];
                    sum += wide(b, x->types[1], right) * wide(a, x->types[0], left);
                }
                float before = x->beta == 0 ? 0 : x->beta * wide(c, x->types[2], i + j * x->ld[2]);
                float value = x->alpha * sum + before;
                if (x->bias) value += wide((const void*)(uintptr_t)x->bias, x->types[3], i);
                narrow(d, x->types[3], i + j * x->ld[3], value);
            }
        }
    }
}

// Whether `what` becomes of kernels that are none.
static int groups(const char* what) {
    const char* word = getenv("FAKE_CUDA_GROUPS");
    return word && !strcmp(word, what);
}

// Streams.
static void perform(Work* work) {
    switch (work->kind) {
        case KERNEL:
            if (!work->function->code) fault = groups("fault") ? ILLEGAL_ADDRESS : fault;
            else if (getenv("FAKE_CUDA_FAULT") && !strcmp(getenv("FAKE_CUDA_FAULT"), work->function->name)) fault = ILLEGAL_ADDRESS;
            else launch(work->function->code, &work->args, work->grid, work->threads, work->shared); break;
        case COPY: {
            const char* from = work->content ? work->content : (const char*)(uintptr_t)work->from;
            touch(work->to, work->bytes, "a copy to where nothing is");
            if (!work->content) touch(work->from, work->bytes, "a copy from where nothing is");
            memmove((void*)(uintptr_t)work->to, from, work->bytes);
            break;
        }
        // One end is the card's, the other pinned.
        case ACROSS:
            if (lies_in(blocks, work->to, work->bytes) + lies_in(pinned, work->to, work->bytes) != 1 ||
                lies_in(blocks, work->from, work->bytes) + lies_in(pinned, work->from, work->bytes) != 1 ||
                lies_in(pinned, work->to, work->bytes) == lies_in(pinned, work->from, work->bytes)) {
                broken("a copy that does not go from the card to pinned memory, or back");
            }
            memmove((void*)(uintptr_t)work->to, (const void*)(uintptr_t)work->from, work->bytes);
            break;
        case SET:
            touch(work->to, work->bytes, "bytes are set where nothing is");
            memset((void*)(uintptr_t)work->to, work->value, work->bytes);
            break;
        case MATMUL: multiply(&work->matmul); break;
        case RECORD:
            work->event->done = work->turn;
            work->event->at = now();
            break;
        default: break;
    }
}
static void let_go(Event* event) {
    if (event && --event->holders == 0) free(event);
}
static void append(Queue* queue, Work* work) {
    work->next = 0;
    if (queue->last) queue->last->next = work;
    else queue->first = work;
    queue->last = work;
}
// Does what is on the stream, up to the event's `turn` or to what comes from outside, where there is one of them. What others
// have to do first is waited for, with the lock open meanwhile; or where that is not `patient`, nothing more is done.
static void drain(Stream* stream, Event* event, uint64_t turn, Outside* outside, int patient) {
    while (stream->queue.first && !(event && event->done >= turn)) {
        Work* work = stream->queue.first;
        if (outside && work->outside == outside) return;
        if (work->kind == WAIT && work->event->done < work->turn) {
            Event* awaited = work->event;
            uint64_t until = work->turn;
            awaited->holders++;
            drain(awaited->stream, awaited, until, 0, patient);
            int is_past = awaited->done >= until;
            let_go(awaited);
            if (!is_past && !patient) return;
            continue;
        }
        int is_endless = work->kind == KERNEL && !work->function->code && groups("endless");
        if (is_endless || (work->kind == OUTSIDE && !work->outside->done)) {
            if (!patient) return;
            pthread_mutex_unlock(&lock);
            usleep(50);
            pthread_mutex_lock(&lock);
            continue;
        }
        stream->queue.first = work->next;
        if (!work->next) stream->queue.last = 0;
        perform(work);
        let_go(work->event);
        free(work->outside);
        free(work->content);
        free(work);
    }
}
static int put(Stream* stream, Work work) {
    Work* own = malloc(sizeof *own);
    *own = work;
    append(stream->capturing ? &stream->captured : &stream->queue, own);
    if (work.kind == KERNEL) ORDER("stream %d: %s", stream->number, work.function->name);
    if (work.kind == MATMUL) ORDER("stream %d: product", stream->number);
    return OK;
}

// For a library that puts work of its own on streams, and does it itself: it is done behind what was there before.
void* fake_card_put(Stream* stream) {
    LOCKED;
    Outside* outside = calloc(1, sizeof *outside);
    put(stream, (Work){OUTSIDE, .outside = outside});
    ORDER("stream %d: from outside", stream->number);
    return outside;
}
void fake_card_reach(Stream* stream, Outside* outside) {
    LOCKED;
    drain(stream, 0, 0, outside, 1);
}
void fake_card_done(Outside* outside) {
    LOCKED;
    outside->done = 1;
}

int cuGetErrorString(int error, const char** text) { *text = "what a card would say"; return OK; }
int cuGetErrorName(int error, const char** text) { *text = "AN_ERROR"; return OK; }
int cuInit(unsigned flags) { return flags == 0 ? OK : INVALID_VALUE; }
int cuDriverGetVersion(int* version) { *version = 13000; return OK; }
static int cards(void) {
    const char* count = getenv("FAKE_CUDA_CARDS");
    return count ? atoi(count) : 1;
}
int cuDeviceGetCount(int* count) { *count = cards(); return OK; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal >= 0 && ordinal < cards() ? OK : 101; }
int cuDeviceGetName(char* name, int room, int device) { snprintf(name, room, "a card that is none"); return OK; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = all_bytes(); return OK; }
int cuDeviceGetP2PAttribute(int* value, int which, int from, int to) { *value = 0; return OK; }
int cuDeviceGetUuid_v2(char* bytes, int device) { memset(bytes, 7 + device, 16); return OK; }
int cuDeviceGetPCIBusId(char* text, int room, int device) { snprintf(text, room, "0000:00:00.0"); return OK; }
int cuDeviceGetAttribute(int* value, int which, int device) {
    switch (which) {
        case 75: *value = 9; return OK;
        case 76: *value = 0; return OK;
        case 16: *value = MULTIPROCESSORS; return OK;
        case 97: *value = SHARED_LIMIT; return OK;
        default: return INVALID_VALUE;
    }
}
int cuDevicePrimaryCtxRetain(Context** context, int device) { *context = &primary; return OK; }
// Green ones are current to one thread at a time, as NVIDIA writes of cuGreenCtxCreate; that a thread lets go of them when it
// ends is nowhere written.
int cuCtxSetCurrent(Context* context) {
    LOCKED;
    static int threads;
    if (!thread) thread = ++threads;
    if (context && context->is_green && context->owner && context->owner != thread) return NO_CONTEXT;
    if (current && current->is_green) current->owner = 0;
    if (context && context->is_green) context->owner = thread;
    current = context;
    return OK;
}

int cuModuleLoadData(void** module, const char* image) {
    CURRENT;
    if (memcmp(image, "\x7f" "ELF", 4)) return 200;
    const char* path = getenv("FAKE_CUDA_KERNELS");
    if (!kernels) kernels = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : 0;
    if (!kernels) return 301;
    launch = (void (*)(void (*)(Args), const Args*, const unsigned*, unsigned, unsigned))dlsym(kernels, "pipeplan_launch");
    *module = kernels;
    return launch ? OK : NOT_FOUND;
}
int cuModuleGetFunctionCount(unsigned* count, void* module) { *count = 0; return OK; }
int cuModuleEnumerateFunctions(Function** list, unsigned count, void* module) { return OK; }
int cuFuncLoad(Function* function) { return OK; }
int cuModuleGetFunction(Function** function, void* module, const char* name) {
    CURRENT;
    void (*code)(Args) = (void (*)(Args))dlsym(module, name);
    if (!strncmp(name, "group_", 6) && getenv("FAKE_CUDA_GROUPS")) {
        *function = malloc(sizeof **function);
        **function = (Function){strdup(name), 0, 48 << 10, 1024};
        return OK;
    }
    if (!code) return NOT_FOUND;
    char most[256];
    snprintf(most, sizeof most, "%s_threads", name);
    const unsigned* threads = dlsym(module, most);
    *function = malloc(sizeof **function);
    **function = (Function){strdup(name), code, 48 << 10, threads ? *threads : 0};
    return OK;
}
int cuFuncGetAttribute(int* value, int which, Function* function) {
    *value = which == 1 ? STATIC_SHARED : function->shared;
    return OK;
}
int cuFuncSetAttribute(Function* function, int which, int value) {
    if (which != 8 || value + STATIC_SHARED > SHARED_LIMIT) return INVALID_VALUE;
    function->shared = value;
    return OK;
}
int cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz, unsigned shared,
                   Stream* stream, void** parameters, void** extra) {
    CURRENT;
    if (!x || !y || !z || x > 0x7fffffff || y > 65535 || z > 65535) return INVALID_VALUE;
    if (!tx || tx > function->threads || tx % 32 || ty != 1 || tz != 1 || (int)shared > function->shared) return INVALID_VALUE;
    Work work = {KERNEL, .function = function, .grid = {x, y, z}, .threads = tx, .shared = shared};
    work.args = *(Args*)parameters[0];
    return put(stream, work);
}

static int new_stream(Stream** stream, Context* context) {
    static int number;
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = context;
    (*stream)->number = number++;
    return OK;
}
int cuStreamCreate(Stream** stream, unsigned flags) { CURRENT; return flags == 1 ? new_stream(stream, current) : INVALID_VALUE; }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { CURRENT; *least = 0; *greatest = -5; return OK; }
int cuStreamCreateWithPriority(Stream** stream, unsigned flags, int priority) {
    CURRENT;
    return flags == 1 && priority >= -5 && priority <= 0 ? new_stream(stream, current) : INVALID_VALUE;
}
int cuStreamDestroy_v2(Stream* stream) {
    CURRENT;
    drain(stream, 0, 0, 0, 1);
    free(stream);
    return OK;
}
int cuStreamSynchronize(Stream* stream) {
    CURRENT;
    if (stream->capturing) return CAPTURE_UNSUPPORTED;
    ORDER("the host waits for stream %d", stream->number);
    drain(stream, 0, 0, 0, 1);
    return fault;
}

int cuEventCreate(Event** event, unsigned flags) {
    CURRENT;
    static int number;
    *event = calloc(1, sizeof **event);
    (*event)->context = current;
    (*event)->number = number++;
    (*event)->holders = 1;
    return OK;
}
// What waits to be recorded, or for what has been, still does.
int cuEventDestroy_v2(Event* event) {
    CURRENT;
    let_go(event);
    return OK;
}
int cuEventRecord(Event* event, Stream* stream) {
    CURRENT;
    if (event->context != stream->context) return INVALID_HANDLE;
    // It would be of the graph alone.
    if (stream->capturing) return CAPTURE_UNSUPPORTED;
    event->stream = stream;
    event->asked = 0;
    event->holders++;
    ORDER("stream %d: mark %d", stream->number, event->number);
    return put(stream, (Work){RECORD, .event = event, .turn = ++event->turn});
}
int cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
    CURRENT;
    if (flags) return INVALID_VALUE;
    if (stream->capturing) return CAPTURE_ISOLATION;
    ORDER("stream %d waits for mark %d", stream->number, event->number);
    if (event->done >= event->turn) return OK;
    event->holders++;
    return put(stream, (Work){WAIT, .event = event, .turn = event->turn});
}
int cuEventQuery(Event* event) {
    CURRENT;
    if (event->done >= event->turn) return OK;
    if (!event->asked++) return NOT_READY;
    drain(event->stream, event, event->turn, 0, 0);
    if (fault) return fault;
    return event->done >= event->turn ? OK : NOT_READY;
}
int cuEventSynchronize(Event* event) {
    CURRENT;
    if (event->done < event->turn) drain(event->stream, event, event->turn, 0, 1);
    return fault;
}
int cuEventElapsedTime_v2(float* milliseconds, Event* from, Event* to) {
    CURRENT;
    if (from->done < from->turn || to->done < to->turn) return NOT_READY;
    *milliseconds = (float)(to->at - from->at);
    return OK;
}

int cuMemAlloc_v2(uint64_t* at, size_t bytes) {
    CURRENT;
    if (!bytes) return INVALID_VALUE;
    if (taken + bytes > all_bytes()) return OUT_OF_MEMORY;
    char* memory;
    if (posix_memalign((void**)&memory, 256, bytes + 2 * MEMORY_FENCE)) return OUT_OF_MEMORY;
    // No numbers, and nothing that anybody may change.
    memset(memory, 0xff, bytes + 2 * MEMORY_FENCE);
    Block* block = malloc(sizeof *block);
    *block = (Block){memory + MEMORY_FENCE, bytes, blocks};
    blocks = block;
    taken += bytes;
    *at = (uint64_t)(uintptr_t)block->start;
    note("take %zu", bytes);
    return OK;
}
int cuMemFree_v2(uint64_t at) {
    CURRENT;
    for (Block** place = &blocks; *place; place = &(*place)->next) {
        Block* block = *place;
        if ((uint64_t)(uintptr_t)block->start != at) continue;
        for (int i = 0; i < MEMORY_FENCE; i++) {
            if ((unsigned char)block->start[-1 - i] != 0xff || (unsigned char)block->start[block->bytes + i] != 0xff) {
                broken("something was written beside an allocation");
            }
        }
        *place = block->next;
        taken -= block->bytes;
        note("give back %llu", (unsigned long long)block->bytes);
        free(block->start - MEMORY_FENCE);
        free(block);
        return OK;
    }
    return INVALID_VALUE;
}
// Memory of the host that stays where it is, and is at the same address for the card.
int cuMemHostAlloc(void** at, size_t bytes, unsigned flags) {
    CURRENT;
    // Of all contexts (1), and of kernels (2).
    if (!bytes || flags != 3) return INVALID_VALUE;
    const char* most = getenv("FAKE_CUDA_PINNED");
    if (most && bytes > strtoull(most, 0, 10)) return OUT_OF_MEMORY;
    char* memory;
    if (posix_memalign((void**)&memory, 4096, bytes)) return OUT_OF_MEMORY;
    memset(memory, 0xff, bytes);
    Block* block = malloc(sizeof *block);
    *block = (Block){memory, bytes, pinned};
    pinned = block;
    *at = memory;
    note("pin %zu", bytes);
    return OK;
}
int cuMemFreeHost(void* at) {
    CURRENT;
    for (Block** place = &pinned; *place; place = &(*place)->next) {
        Block* block = *place;
        if (block->start != at) continue;
        *place = block->next;
        note("unpin %llu", (unsigned long long)block->bytes);
        free(block->start);
        free(block);
        return OK;
    }
    return INVALID_VALUE;
}
int cuMemGetInfo_v2(size_t* left, size_t* all) {
    CURRENT;
    *all = all_bytes();
    *left = *all - taken;
    return OK;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
    CURRENT;
    if (stream->capturing) return CAPTURE_UNSUPPORTED;
    char* content = malloc(bytes + 1);
    memcpy(content, from, bytes);
    return put(stream, (Work){COPY, .to = to, .bytes = bytes, .content = content});
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
    CURRENT;
    if (stream->capturing) return CAPTURE_UNSUPPORTED;
    ORDER("the host waits for stream %d", stream->number);
    drain(stream, 0, 0, 0, 1);
    touch(from, bytes, "a copy from where nothing is");
    memcpy(to, (void*)(uintptr_t)from, bytes);
    return OK;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    CURRENT;
    return put(stream, (Work){COPY, .to = to, .from = from, .bytes = bytes});
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    CURRENT;
    if (stream->capturing) return CAPTURE_UNSUPPORTED;
    ORDER("stream %d: %s", stream->number, lies_in(pinned, to, bytes) ? "to the host" : "from the host");
    return put(stream, (Work){ACROSS, .to = to, .from = from, .bytes = bytes});
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, Stream* stream) {
    CURRENT;
    return put(stream, (Work){SET, .to = to, .bytes = bytes, .value = value});
}

// Graphs.
int cuStreamBeginCapture_v2(Stream* stream, int mode) {
    CURRENT;
    if (stream->capturing) return 401;
    stream->capturing = 1;
    note("begin capture in mode %d", mode);
    return OK;
}
int cuStreamEndCapture(Stream* stream, Queue** graph) {
    CURRENT;
    if (!stream->capturing) return 401;
    stream->capturing = 0;
    *graph = malloc(sizeof **graph);
    **graph = stream->captured;
    stream->captured = (Queue){0, 0};
    note("end capture");
    return cannot("capture") ? CAPTURE_INVALIDATED : OK;
}
static Queue* copy_of(const Queue* queue) {
    Queue* copy = calloc(1, sizeof *copy);
    for (Work* work = queue->first; work; work = work->next) {
        Work* own = malloc(sizeof *own);
        *own = *work;
        append(copy, own);
    }
    return copy;
}
static void scrap(Queue* queue) {
    for (Work *work = queue->first, *next; work; work = next) {
        next = work->next;
        free(work);
    }
    free(queue);
}
int cuGraphInstantiateWithFlags(Queue** made, Queue* graph, unsigned long long flags) {
    CURRENT;
    *made = copy_of(graph);
    int nodes = 0;
    for (Work* work = graph->first; work; work = work->next) nodes++;
    note("instantiate");
    return OK;
}
int cuGraphDestroy(Queue* graph) {
    CURRENT;
    scrap(graph);
    note("destroy the capture");
    return OK;
}
int cuGraphLaunch(Queue* made, Stream* stream) {
    CURRENT;
    if (cannot("launch")) return NOT_SUPPORTED;
    Queue* copy = copy_of(made);
    for (Work *work = copy->first, *next; work; work = next) {
        next = work->next;
        append(&stream->queue, work);
    }
    free(copy);
    note("launch");
    return OK;
}
int cuGraphExecDestroy(Queue* made) {
    CURRENT;
    scrap(made);
    note("destroy");
    return OK;
}

// Parts, in the layout of CUDA 13.0.
typedef struct { uint32_t type; char pad[92]; uint32_t count; char rest[44]; } Resource;
int cuDeviceGetDevResource(int device, Resource* resource, int type) {
    if (cannot("green") || type != 1) return NOT_SUPPORTED;
    memset(resource, 0, sizeof *resource);
    resource->type = 1;
    resource->count = MULTIPROCESSORS;
    return OK;
}
int cuDevSmResourceSplitByCount(Resource* list, unsigned* groups, const Resource* all, Resource* rest, unsigned flags, unsigned least) {
    if (all->type != 1 || all->count != MULTIPROCESSORS || least % 8) return INVALID_VALUE;
    unsigned most = all->count / least;
    if (*groups > most) *groups = most;
    for (unsigned i = 0; i < *groups; i++) {
        list[i] = *all;
        list[i].count = least;
    }
    return OK;
}
int cuDevResourceGenerateDesc(void** description, Resource* list, unsigned count) {
    *description = malloc(sizeof *list);
    memcpy(*description, list, sizeof *list);
    return list->type == 1 && count == 1 ? OK : INVALID_VALUE;
}
int cuGreenCtxCreate(Context** context, void* description, int device, unsigned flags) {
    if (flags != 1) return INVALID_VALUE;
    *context = calloc(1, sizeof **context);
    (*context)->is_green = 1;
    note("a part of %u", ((Resource*)description)->count);
    return OK;
}
int cuCtxFromGreenCtx(Context** context, Context* green) { *context = green; return OK; }
int cuGreenCtxStreamCreate(Stream** stream, Context* green, unsigned flags, int priority) {
    LOCKED;
    if (flags != 1 || !green->is_green) return INVALID_VALUE;
    return new_stream(stream, cannot("own") ? &primary : green);
}

// NVRTC, of a version that no other has.
int nvrtcVersion(int* major, int* minor) { *major = 99; *minor = 0; return 0; }
int nvrtcCreateProgram(void** program, const char* source, const char* name, int headers, const char** texts, const char** names) {
    *program = strdup(source);
    return 0;
}
int nvrtcCompileProgram(void* program, int count, const char** options) { return 0; }
int nvrtcGetCUBINSize(void* program, size_t* size) { *size = 8; return 0; }
int nvrtcGetCUBIN(void* program, char* image) { memcpy(image, "\x7f" "ELFcode", 8); return 0; }
int nvrtcGetProgramLogSize(void* program, size_t* size) { *size = 1; return 0; }
int nvrtcGetProgramLog(void* program, char* text) { *text = 0; return 0; }
int nvrtcDestroyProgram(void** program) { free(*program); *program = 0; return 0; }

// cuBLAS: 7 is a wrong value, 15 what it does not support.
typedef struct { Stream* stream; uint64_t workspace; } Blas;
int cublasGetProperty(int which, int* value) { *value = which == 0 ? 13 : 0; return 0; }
int cublasCreate_v2(Blas** handle) { *handle = calloc(1, sizeof **handle); return current ? 0 : 1; }
int cublasDestroy_v2(Blas* handle) { free(handle); return 0; }
int cublasSetStream_v2(Blas* handle, Stream* stream) { handle->stream = stream; return 0; }
int cublasSetMathMode(Blas* handle, int mode) { return mode == 16 ? 0 : 7; }
int cublasSetSmCountTarget(Blas* handle, int count) { return count > 0 && count <= MULTIPROCESSORS ? 0 : 7; }
int cublasSetWorkspace_v2(Blas* handle, uint64_t workspace, size_t bytes) {
    LOCKED;
    if (workspace % 256) return 7;
    touch(workspace, bytes, "a workspace where nothing is");
    handle->workspace = workspace;
    return 0;
}
static int is_type(int type) { return type == 0 || type == 14; }
static int queue_product(Stream* stream, const Matmul* matmul) {
    return put(stream, (Work){MATMUL, .matmul = *matmul}) == OK ? 0 : 13;
}
int cublasGemmStridedBatchedEx(Blas* handle, int way_a, int way_b, int m, int n, int k, const float* alpha, uint64_t a, int type_a,
                               int lda, long long step_a, uint64_t b, int type_b, int ldb, long long step_b, const float* beta,
                               uint64_t c, int type_c, int ldc, long long step_c, int count, int compute, int algorithm) {
    LOCKED;
    if (!current || !handle->workspace || compute != 68) return 7;
    if (!is_type(type_a) || type_a != type_b || (type_a == 0 && type_c != 0)) return 15;
    if (lda < (way_a ? k : m) || ldb < (way_b ? n : k) || ldc < m) return 7;
    Matmul matmul = {a, b, c, c, 0, m, n, k, {lda, ldb, ldc, ldc}, count, {step_a, step_b, step_c, step_c}, {way_a, way_b},
                     {type_a, type_b, type_c, type_c}, *alpha, *beta};
    note("plain product");
    return queue_product(handle->stream, &matmul);
}

typedef struct { int type; uint64_t rows, columns; int64_t ld, step; int count; } Layout;
typedef struct { int compute, scale, ways[2], epilogue, bias_type, multiprocessors; uint64_t bias; } Description;
typedef struct { uint64_t workspace; uint32_t reductions, alignments[4]; } Preference;
typedef struct { uint64_t data[8]; } Algorithm;
typedef struct { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; } Found;

int cublasLtCreate(void** handle) { *handle = malloc(1); return current ? 0 : 1; }
int cublasLtDestroy(void* handle) { free(handle); return 0; }
int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    *layout = malloc(sizeof **layout);
    **layout = (Layout){type, rows, columns, ld, 0, 1};
    return ld >= (int64_t)rows ? 0 : 7;
}
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int which, const void* value, size_t size) {
    if (which == 5 && size == 4) layout->count = *(const int*)value;
    else if (which == 6 && size == 8) layout->step = *(const int64_t*)value;
    else return 7;
    return 0;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) { free(layout); return 0; }
int cublasLtMatmulDescCreate(Description** description, int compute, int scale) {
    *description = calloc(1, sizeof **description);
    (*description)->compute = compute;
    (*description)->epilogue = 1;
    return compute == 68 && scale == 0 ? 0 : 15;
}
int cublasLtMatmulDescSetAttribute(Description* description, int which, const void* value, size_t size) {
    if (size != (which == 8 ? 8u : 4u)) return 7;
    switch (which) {
        case 3: description->ways[0] = *(const int*)value; return 0;
        case 4: description->ways[1] = *(const int*)value; return 0;
        case 7: description->epilogue = *(const int*)value; return 0;
        case 8: description->bias = *(const uint64_t*)value; return 0;
        case 15: description->multiprocessors = *(const int*)value; return 0;
        case 26: description->bias_type = *(const int*)value; return 0;
        default: return 7;
    }
}
int cublasLtMatmulDescDestroy(Description* description) { free(description); return 0; }
int cublasLtMatmulPreferenceCreate(Preference** preference) { *preference = calloc(1, sizeof **preference); return 0; }
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int which, const void* value, size_t size) {
    if (which == 1 && size == 8) preference->workspace = *(const uint64_t*)value;
    else if (which == 3 && size == 4) preference->reductions = *(const uint32_t*)value;
    else if (which >= 5 && which <= 8 && size == 4) preference->alignments[which - 5] = *(const uint32_t*)value;
    else return 7;
    return 0;
}
int cublasLtMatmulPreferenceDestroy(Preference* preference) { free(preference); return 0; }
static int fits(const Description* of, const Layout* a, const Layout* b, const Layout* c, const Layout* d) {
    uint64_t m = of->ways[0] ? a->columns : a->rows, k = of->ways[0] ? a->rows : a->columns;
    uint64_t n = of->ways[1] ? b->rows : b->columns, inner = of->ways[1] ? b->columns : b->rows;
    if (k != inner || c->rows != m || c->columns != n || d->rows != m || d->columns != n) return 7;
    if (!is_type(a->type) || a->type != b->type || (a->type == 0 && d->type != 0) || c->type != d->type) return 15;
    if (of->epilogue != 1 && (of->epilogue != 4 || of->bias_type != d->type)) return 15;
    return a->count == b->count && b->count == c->count && c->count == d->count ? 0 : 7;
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, Description* of, Layout* a, Layout* b, Layout* c, Layout* d, Preference* preference,
                                   int asked, Found* found, int* count) {
    *count = 0;
    if (fits(of, a, b, c, d)) return fits(of, a, b, c, d);
    for (int i = 0; i < 4; i++) {
        if (!preference->alignments[i]) return 7;
    }
    // Sums in the type of the result, or in place, would round more than once.
    if (preference->reductions != 2) return 7;
    if (cannot("lt")) return 15;
    // An algorithm for these alignments alone.
    *found = (Found){.workspace = preference->workspace / 2};
    for (int i = 0; i < 4; i++) found->algorithm.data[i] = preference->alignments[i];
    *count = 1;
    note("choose for %llu x %llu x %llu%s", (unsigned long long)c->columns,
         (unsigned long long)(of->ways[0] ? a->rows : a->columns), (unsigned long long)c->rows, of->epilogue == 4 ? " and a bias" : "");
    return 0;
}
int cublasLtMatmul(void* handle, Description* of, const float* alpha, uint64_t a, Layout* la, uint64_t b, Layout* lb, const float* beta,
                   uint64_t c, Layout* lc, uint64_t d, Layout* ld, const Algorithm* algorithm, uint64_t workspace, size_t bytes,
                   Stream* stream) {
    LOCKED;
    uint64_t places[4] = {a, b, c, d};
    if (!current || fits(of, la, lb, lc, ld)) return 7;
    for (int i = 0; i < 4; i++) {
        if (places[i] % algorithm->data[i]) return 15;
    }
    touch(workspace, bytes, "a workspace where nothing is");
    Matmul matmul = {a, b, c, d, of->epilogue == 4 ? of->bias : 0, ld->rows, ld->columns, of->ways[0] ? la->rows : la->columns,
                     {la->ld, lb->ld, lc->ld, ld->ld}, ld->count, {la->step, lb->step, lc->step, ld->step},
                     {of->ways[0], of->ways[1]}, {la->type, lb->type, lc->type, ld->type}, *alpha, *beta};
    if (of->epilogue == 4 && (!of->bias || of->bias % width(ld->type))) return 7;
    note("product%s%s", of->epilogue == 4 ? " and a bias" : "", c != d ? " and what lies elsewhere" : "");
    return queue_product(stream, &matmul);
}
