// A libnccl for tests: the same functions, moving the host's memory between threads or processes of this machine over
// sockets. It keeps what matters of NCCL: calls return before they are done, a group starts together, the operations of
// one communicator run in order, a send ends only when it has been received, and what is aborted ends.
//
// A stream is the address of two 64-bit counters: operations queued, and done; or, where FAKE_NCCL_CARD names the library of
// a card that is none (cuda.c), one of its streams.
// FAKE_NCCL_LOG: calls are noted in this file, with the process' number behind its name.
// FAKE_NCCL_FAIL=rank:n:mode: in the process whose RANK that is, the n-th message (from 0) ends in a remote error
// (`remote`) or never (`hang`); or the process ends while it joins its n-th communicator (`die`).
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM = 2, INTERNAL = 3, INVALID = 4, REMOTE = 6, IN_PROGRESS = 7 };
enum { SEND, RECEIVE, REDUCE, BROADCAST, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER };

typedef struct { char text[128]; } Id;
typedef struct { _Atomic uint64_t queued, done; } Stream;

typedef struct Operation {
    int kind, peer, type, reduction, fault;
    const char* from;
    char* to;
    size_t count;
    Stream* stream;
    // Where it stands on a card's stream.
    void* place;
    struct Comm* comm;
    struct Operation* next;
} Operation;

typedef struct Batch {
    Operation* first;
    struct Batch* next;
} Batch;

typedef struct Comm {
    int rank, size;
    Id id;
    int *out, *in;
    _Atomic int state, aborted, ending, asked;
    pthread_t worker;
    pthread_mutex_t lock;
    pthread_cond_t more;
    Batch *first, *last;
    int busy;
} Comm;

// All of this process.
static Comm* all_comms[1024];
static int comms;
static pthread_mutex_t comms_lock = PTHREAD_MUTEX_INITIALIZER;

#define LOG "FAKE_NCCL_LOG"
#include "note.h"

// The card's own functions for what others put on its streams; none where a stream is the two counters.
typedef struct {
    void* (*put)(void*);
    void (*reach)(void*, void*);
    void (*done)(void*);
} Card;
static const Card* card(void) {
    static Card found;
    static int looked;
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one);
    const char* path = getenv("FAKE_NCCL_CARD");
    void* library = path && !looked ? dlopen(path, RTLD_NOW) : 0;
    looked = 1;
    if (library) {
        *(void**)&found.put = dlsym(library, "fake_card_put");
        *(void**)&found.reach = dlsym(library, "fake_card_reach");
        *(void**)&found.done = dlsym(library, "fake_card_done");
    }
    pthread_mutex_unlock(&one);
    return found.put ? &found : 0;
}

static int whole(int socket, void* bytes, size_t count, int writing) {
    char* at = bytes;
    while (count > 0) {
        ssize_t moved = writing ? send(socket, at, count, MSG_NOSIGNAL) : recv(socket, at, count, 0);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return REMOTE;
        at += moved;
        count -= (size_t)moved;
    }
    return SUCCESS;
}

static int give(Comm* comm, int peer, const void* bytes, uint64_t count) {
    char taken;
    int code = whole(comm->out[peer], &count, 8, 1);
    if (code == SUCCESS) code = whole(comm->out[peer], (void*)bytes, count, 1);
    return code == SUCCESS ? whole(comm->out[peer], &taken, 1, 0) : code;
}

static int take(Comm* comm, int peer, void* bytes, uint64_t count) {
    uint64_t found;
    char taken = 1;
    int code = whole(comm->in[peer], &found, 8, 0);
    if (code == SUCCESS && found != count) return INVALID;
    if (code == SUCCESS) code = whole(comm->in[peer], bytes, count, 0);
    return code == SUCCESS ? whole(comm->in[peer], &taken, 1, 1) : code;
}

static size_t width(int type) { return type == 8 ? 8 : type == 7 ? 4 : type == 9 ? 2 : 1; }

// bfloat16, to the nearest, ties to even.
static float wide(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static uint16_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Sums by position, whoever is first: as the runner's own collectives do.
static int reduce(Comm* comm, const char* from, char* to, size_t count, int type, int reduction, int root) {
    size_t bytes = count * width(type);
    if (comm->rank != root) return give(comm, root, from, bytes);
    if (type < 7 || type > 9 || (type == 9 && reduction == 4)) return INVALID;
    char *other = malloc(bytes + 1), *mine = malloc(bytes + 1);
    memcpy(mine, from, bytes);
    int code = SUCCESS;
    for (int member = 0; member < comm->size && code == SUCCESS; member++) {
        char* next = mine;
        if (member != root) {
            code = take(comm, member, other, bytes);
            next = other;
        }
        if (member == 0) {
            memmove(to, next, bytes);
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            if (type == 9) {
                uint16_t* sum = (uint16_t*)to + i;
                float here = wide(*sum), value = wide(((uint16_t*)next)[i]);
                *sum = narrow(reduction == 2 ? (value > here ? value : here) : here + value);
            } else if (type == 7) {
                float *sum = (float*)to + i, value = ((float*)next)[i];
                *sum = reduction == 2 ? (value > *sum ? value : *sum) : *sum + value;
            } else {
                double *sum = (double*)to + i, value = ((double*)next)[i];
                *sum = reduction == 2 ? (value > *sum ? value : *sum) : *sum + value;
            }
        }
    }
    for (size_t i = 0; reduction == 4 && i < count; i++) {
        if (type == 7) ((float*)to)[i] /= (float)comm->size;
        else ((double*)to)[i] /= (double)comm->size;
    }
    free(other);
    free(mine);
    return code;
}

static int broadcast(Comm* comm, const char* from, char* to, size_t bytes, int root) {
    if (comm->rank != root) return take(comm, root, to, bytes);
    int code = SUCCESS;
    if (from != to) memmove(to, from, bytes);
    for (int member = 0; member < comm->size && code == SUCCESS; member++) {
        if (member != root) code = give(comm, member, to, bytes);
    }
    return code;
}

static int perform(Operation* op) {
    Comm* comm = op->comm;
    size_t bytes = op->count * width(op->type);
    int code = SUCCESS;
    if (op->fault == 1) return REMOTE;
    while (op->fault == 2 && !comm->aborted) usleep(1000);
    if (comm->aborted) return SYSTEM;
    switch (op->kind) {
    case SEND: return give(comm, op->peer, op->from, bytes);
    case RECEIVE: return take(comm, op->peer, op->to, bytes);
    case REDUCE: return reduce(comm, op->from, op->to, op->count, op->type, op->reduction, op->peer);
    case BROADCAST: return broadcast(comm, op->from, op->to, bytes, op->peer);
    case ALL_REDUCE:
        code = reduce(comm, op->from, op->to, op->count, op->type, op->reduction, 0);
        return code == SUCCESS ? broadcast(comm, op->to, op->to, bytes, 0) : code;
    case REDUCE_SCATTER:
        for (int root = 0; root < comm->size && code == SUCCESS; root++) {
            code = reduce(comm, op->from + (size_t)root * bytes, op->to, op->count, op->type, op->reduction, root);
        }
        return code;
    default:
        for (int root = 0; root < comm->size && code == SUCCESS; root++) {
            code = broadcast(comm, op->from, op->to + (size_t)root * bytes, bytes, root);
        }
        return code;
    }
}

static void* run_one(void* at) {
    Operation* op = at;
    int code = perform(op), before = SUCCESS;
    if (code != SUCCESS) atomic_compare_exchange_strong(&op->comm->state, &before, code);
    return 0;
}

static void* work(void* at);

static void join_others(Comm* comm) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), code = SUCCESS;
    snprintf(place.sun_path, sizeof place.sun_path, "%.90s.%d", comm->id.text, comm->rank);
    if (bind(listener, (struct sockaddr*)&place, sizeof place) || listen(listener, comm->size)) code = SYSTEM;
    // A rank may send to itself.
    int self[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, self)) code = SYSTEM;
    else comm->out[comm->rank] = self[0], comm->in[comm->rank] = self[1];
    for (int peer = 0; peer < comm->size && code == SUCCESS; peer++) {
        if (peer == comm->rank) continue;
        struct sockaddr_un there = {.sun_family = AF_UNIX};
        snprintf(there.sun_path, sizeof there.sun_path, "%.90s.%d", comm->id.text, peer);
        for (;;) {
            if (comm->aborted) {
                code = SYSTEM;
                break;
            }
            comm->out[peer] = socket(AF_UNIX, SOCK_STREAM, 0);
            if (connect(comm->out[peer], (struct sockaddr*)&there, sizeof there) == 0) break;
            close(comm->out[peer]);
            usleep(1000);
        }
        if (code == SUCCESS) code = whole(comm->out[peer], &comm->rank, sizeof(int), 1);
    }
    for (int peer = 1; peer < comm->size && code == SUCCESS; peer++) {
        int from = -1, socket = accept(listener, 0, 0);
        code = socket < 0 ? SYSTEM : whole(socket, &from, sizeof(int), 0);
        if (code == SUCCESS) comm->in[from] = socket;
    }
    unlink(place.sun_path);
    close(listener);
    comm->state = code;
}

static void* work(void* at) {
    Comm* comm = at;
    join_others(comm);
    pthread_mutex_lock(&comm->lock);
    for (;;) {
        while (!comm->first && !comm->ending) pthread_cond_wait(&comm->more, &comm->lock);
        Batch* batch = comm->first;
        if (!batch) break;
        comm->first = batch->next;
        comm->busy = 1;
        pthread_mutex_unlock(&comm->lock);
        pthread_t threads[64];
        int count = 0;
        // A group is one thing on a stream: it begins where its first operation stands there.
        for (Operation* op = batch->first; op && card(); op = op->next) {
            int is_first = 1;
            for (Operation* other = batch->first; other != op; other = other->next) is_first &= other->stream != op->stream;
            if (is_first) card()->reach(op->stream, op->place);
        }
        for (Operation* op = batch->first; op; op = op->next) {
            // Messages of a group go at the same time, collectives one after the other.
            if (op->kind <= RECEIVE && count < 64) pthread_create(&threads[count++], 0, run_one, op);
            else run_one(op);
        }
        for (int i = 0; i < count; i++) pthread_join(threads[i], 0);
        for (Operation *op = batch->first, *next; op; op = next) {
            next = op->next;
            if (op->place) card()->done(op->place);
            else op->stream->done++;
            free(op);
        }
        free(batch);
        pthread_mutex_lock(&comm->lock);
        comm->busy = 0;
    }
    pthread_mutex_unlock(&comm->lock);
    return 0;
}

static _Thread_local int depth;
static _Thread_local Operation* group;

static int start_group(void) {
    while (group) {
        // The operations of one communicator, in their order.
        Comm* comm = group->comm;
        Batch* batch = calloc(1, sizeof(Batch));
        Operation **place = &group, **end = &batch->first;
        while (*place) {
            Operation* op = *place;
            if (op->comm != comm) {
                place = &op->next;
                continue;
            }
            *place = op->next;
            op->next = 0;
            *end = op;
            end = &op->next;
        }
        pthread_mutex_lock(&comm->lock);
        if (comm->first) comm->last->next = batch;
        else comm->first = batch;
        comm->last = batch;
        comm->asked = 0;
        pthread_cond_signal(&comm->more);
        pthread_mutex_unlock(&comm->lock);
    }
    return IN_PROGRESS;
}

// What the library's own documentation asks of arguments, and a GPU would only answer with wrong numbers or a fault.
static int is_sound(const Operation* op) {
    size_t bytes = op->count * width(op->type), rank = (size_t)op->comm->rank, size = (size_t)op->comm->size;
    const char *from = op->from, *to = op->to;
    if (op->count == 0 || !op->stream || op->peer < 0 || op->peer >= op->comm->size) return 0;
    if ((uintptr_t)from % width(op->type) || (uintptr_t)to % width(op->type)) return 0;
    if (op->kind == SEND) return from != 0;
    if (op->kind == RECEIVE) return to != 0;
    if (!from || !to) return 0;
    // Where buffers overlap, they lie as a call in place has them.
    size_t reads = op->kind == REDUCE_SCATTER ? bytes * size : bytes, writes = op->kind == ALL_GATHER ? bytes * size : bytes;
    if (from + reads <= to || to + writes <= from) return 1;
    if (op->kind == REDUCE_SCATTER) return to == from + rank * bytes;
    if (op->kind == ALL_GATHER) return from == to + rank * bytes;
    return from == to;
}

// How the n-th thing of this process is to fail; an empty text where it is not.
static const char* failing(int number) {
    static _Thread_local char mode[16];
    const char *fail = getenv("FAKE_NCCL_FAIL"), *rank = getenv("RANK");
    int where = -1, which = -1;
    int is_said = fail && rank && sscanf(fail, "%d:%d:%15s", &where, &which, mode) == 3;
    return is_said && where == atoi(rank) && which == number ? mode : "";
}

static int queue(Operation op) {
    static _Atomic int messages;
    if (op.comm->state != SUCCESS || !is_sound(&op)) return INVALID;
    Operation* one = malloc(sizeof(Operation));
    // Each connection is tried out once before the run: those messages do not count.
    if (op.kind <= RECEIVE && op.count > 1) {
        const char* mode = failing(messages++);
        op.fault = !strcmp(mode, "hang") ? 2 : !strcmp(mode, "remote") ? 1 : 0;
    }
    *one = op;
    if (card()) one->place = card()->put(one->stream);
    else one->stream->queued++;
    Operation** end = &group;
    while (*end) end = &(*end)->next;
    *end = one;
    return depth == 0 ? start_group() : SUCCESS;
}

int ncclGetVersion(int* version) {
    *version = 23203;
    return SUCCESS;
}

int ncclGetUniqueId(Id* id) {
    static _Atomic int count;
    memset(id, 0, sizeof *id);
    snprintf(id->text, sizeof id->text, "/tmp/fake-nccl-%d-%d", (int)getpid(), count++);
    return SUCCESS;
}

const char* ncclGetErrorString(int code) {
    return code == REMOTE ? "remote process exited or there was a network error" : "an error";
}

const char* ncclGetLastError(void* comm) {
    (void)comm;
    return "the fake says so";
}

int ncclCommInitRankConfig(Comm** made, int size, Id id, int rank, void* config) {
    int* fields = config;
    // Not to block; and what a later version reads behind its own fields is not set.
    if (fields[4] != 0 || *(size_t*)config != 48 || fields[10] != INT_MIN || fields[11] != INT_MIN) return INVALID;
    if (rank < 0 || rank >= size) return INVALID;
    static _Atomic int joined;
    if (!strcmp(failing(joined++), "die")) _exit(3);
    Comm* comm = calloc(1, sizeof(Comm));
    comm->rank = rank;
    comm->size = size;
    comm->id = id;
    comm->out = malloc(sizeof(int) * (size_t)size);
    comm->in = malloc(sizeof(int) * (size_t)size);
    for (int peer = 0; peer < size; peer++) comm->out[peer] = comm->in[peer] = -1;
    comm->state = IN_PROGRESS;
    comm->asked = 1;
    pthread_mutex_init(&comm->lock, 0);
    pthread_cond_init(&comm->more, 0);
    note("init %d of %d", rank, size);
    pthread_mutex_lock(&comms_lock);
    if (comms < 1024) all_comms[comms++] = comm;
    pthread_mutex_unlock(&comms_lock);
    *made = comm;
    return pthread_create(&comm->worker, 0, work, comm) ? SYSTEM : IN_PROGRESS;
}

int ncclCommGetAsyncError(Comm* comm, int* state) {
    *state = comm->state;
    // What was queued takes a moment.
    if (*state == SUCCESS && comm->asked++ == 0) *state = IN_PROGRESS;
    return SUCCESS;
}

static void end(Comm* comm) {
    pthread_mutex_lock(&comm->lock);
    comm->ending = 1;
    pthread_cond_signal(&comm->more);
    pthread_mutex_unlock(&comm->lock);
    pthread_join(comm->worker, 0);
    for (int peer = 0; peer < comm->size; peer++) {
        if (comm->out[peer] >= 0) close(comm->out[peer]);
        if (comm->in[peer] >= 0) close(comm->in[peer]);
    }
}

int ncclCommFinalize(Comm* comm) {
    (void)comm;
    note("finalize");
    return SUCCESS;
}

int ncclCommDestroy(Comm* comm) {
    note("destroy");
    end(comm);
    return SUCCESS;
}

int ncclCommAbort(Comm* comm) {
    note("abort");
    comm->aborted = 1;
    for (int peer = 0; peer < comm->size; peer++) {
        if (comm->out[peer] >= 0) shutdown(comm->out[peer], SHUT_RDWR);
        if (comm->in[peer] >= 0) shutdown(comm->in[peer], SHUT_RDWR);
    }
    end(comm);
    // Memory that is given back waits for all kernels of the card: those of communicators that nobody has ended yet run on.
    for (int runs = 1; runs;) {
        runs = 0;
        pthread_mutex_lock(&comms_lock);
        for (int i = 0; i < comms; i++) {
            Comm* other = all_comms[i];
            pthread_mutex_lock(&other->lock);
            runs |= !other->aborted && (other->busy || other->first);
            pthread_mutex_unlock(&other->lock);
        }
        pthread_mutex_unlock(&comms_lock);
        if (runs) usleep(1000);
    }
    return SUCCESS;
}

int ncclGroupStart(void) {
    depth++;
    note("group start");
    return SUCCESS;
}

int ncclGroupEnd(void) {
    note("group end");
    return --depth == 0 ? start_group() : SUCCESS;
}

int ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, Stream* stream) {
    note("send %zu", count);
    return queue((Operation){.kind = SEND, .from = from, .count = count, .type = type, .peer = peer, .comm = comm, .stream = stream});
}

int ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, Stream* stream) {
    note("receive %zu", count);
    return queue((Operation){.kind = RECEIVE, .to = to, .count = count, .type = type, .peer = peer, .comm = comm, .stream = stream});
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, Comm* comm, Stream* stream) {
    note("all-reduce %zu by %d", count, reduction);
    return queue((Operation){.kind = ALL_REDUCE, .from = from, .to = to, .count = count, .type = type, .reduction = reduction, .comm = comm, .stream = stream});
}

int ncclReduce(const void* from, void* to, size_t count, int type, int reduction, int root, Comm* comm, Stream* stream) {
    note("reduce %zu by %d to %d", count, reduction, root);
    return queue((Operation){.kind = REDUCE, .from = from, .to = to, .count = count, .type = type, .reduction = reduction, .peer = root, .comm = comm, .stream = stream});
}

int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Comm* comm, Stream* stream) {
    note("broadcast %zu from %d", count, root);
    return queue((Operation){.kind = BROADCAST, .from = from, .to = to, .count = count, .type = type, .peer = root, .comm = comm, .stream = stream});
}

int ncclReduceScatter(const void* from, void* to, size_t count, int type, int reduction, Comm* comm, Stream* stream) {
    note("reduce-scatter %zu by %d", count, reduction);
    return queue((Operation){.kind = REDUCE_SCATTER, .from = from, .to = to, .count = count, .type = type, .reduction = reduction, .comm = comm, .stream = stream});
}

int ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, Stream* stream) {
    note("all-gather %zu", count);
    return queue((Operation){.kind = ALL_GATHER, .from = from, .to = to, .count = count, .type = type, .comm = comm, .stream = stream});
}
