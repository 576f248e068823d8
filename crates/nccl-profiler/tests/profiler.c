/* Loads the profiler as NCCL does, and reports events as NCCL does. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

enum { GROUP = 1, COLL = 2, P2P = 4, PROXY_OP = 8, PROXY_STEP = 16, PROXY_CTRL = 32, KERNEL_CH = 64, NET_PLUGIN = 128, GROUP_API = 256,
       COLL_API = 512, P2P_API = 1024, KERNEL_LAUNCH = 2048, CE_COLL = 4096, CE_SYNC = 8192, CE_BATCH = 16384, KERNEL_PHASE = 32768 };

/* What versions have in common; their first and second members differ. */
struct profiler {
    text name;
    void* init;
    int (*start_event)(void* context, void** handle, void* descriptor);
    int (*stop_event)(void* handle);
    int (*record_event_state)(void* handle, int state, void* arguments);
    int (*finalize)(void* context);
};

static void* library;
static int version;
static struct profiler* profiler;
static int mask;

struct event {
    uint64_t kind;
    void *parent, *data;
    int rank, function, channel, peer, step, pid, is_send;
    size_t count;
    uint64_t gpu_ns;
    int64_t plugin;
};

static text FUNCTIONS[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"};

#define NUMBER(name, number) (number)
#define NAME(name, number) (name)
#define VERSION(V, PICK, COMMON, SPECIAL) \
    static void* start_v##V(void* context, const struct event* event) { \
        struct descriptor_v##V descriptor; \
        memset(&descriptor, 0, sizeof descriptor); \
        descriptor.kind = event->kind; \
        descriptor.parent = event->parent; \
        descriptor.rank = event->rank; \
        switch (event->kind) { \
        case COLL: \
            descriptor.of.coll.sequence = 17; \
            descriptor.of.coll.function = PICK(FUNCTIONS[event->function], event->function); \
            descriptor.of.coll.send = descriptor.of.coll.receive = (void*)64; \
            descriptor.of.coll.count = event->count; \
            descriptor.of.coll.data_type = PICK("ncclBfloat16", 9); \
            descriptor.of.coll.channels = 2; \
            descriptor.of.coll.warps = 16; \
            descriptor.of.coll.algorithm = PICK("RING", 1); \
            descriptor.of.coll.protocol = PICK("LL128", 1); \
            COMMON(coll); \
            break; \
        case P2P: \
            descriptor.of.p2p.function = PICK(FUNCTIONS[event->function], event->function); \
            descriptor.of.p2p.count = event->count; \
            descriptor.of.p2p.data_type = PICK("ncclFloat32", 7); \
            descriptor.of.p2p.peer = event->peer; \
            COMMON(p2p); \
            break; \
        case PROXY_OP: \
            descriptor.of.proxy_op = \
                (struct proxy_op){event->pid, event->channel, event->peer, 8, 1 << 19, event->is_send}; \
            break; \
        case PROXY_STEP: descriptor.of.proxy_step = event->step; break; \
            SPECIAL \
        default: break; \
        } \
        void* handle = (void*)-7; \
        CHECK(profiler->start_event(context, &handle, &descriptor) == 0 && handle != (void*)-7); \
        return handle; \
    }
#define HASH(member) descriptor.of.member.communicator = 0xabcdef
#define NO_HASH(member) (void)0
#define KERNEL case KERNEL_CH: descriptor.of.kernel_ch.channel = event->channel; break;
#define TIMED_KERNEL \
    case KERNEL_CH: descriptor.of.kernel_ch.channel = event->channel; descriptor.of.kernel_ch.gpu_ns = event->gpu_ns; break;
#define NET \
    case NET_PLUGIN: descriptor.of.net_plugin.plugin = event->plugin; descriptor.of.net_plugin.data = event->data; break;
#define API \
    case GROUP_API: descriptor.of.group_api.depth = 1; break; \
    case COLL_API: \
        descriptor.of.coll_api.function = FUNCTIONS[event->function]; \
        descriptor.of.coll_api.count = event->count; \
        descriptor.of.coll_api.data_type = "ncclBfloat16"; \
        descriptor.of.coll_api.stream = (void*)0xbeef; \
        descriptor.of.coll_api.is_captured = true; \
        break; \
    case P2P_API: \
        descriptor.of.p2p_api.function = FUNCTIONS[event->function]; \
        descriptor.of.p2p_api.count = event->count; \
        descriptor.of.p2p_api.data_type = "ncclFloat32"; \
        break; \
    case KERNEL_LAUNCH: descriptor.of.kernel_launch.stream = (void*)0xbeef; break;
#define COPIES \
    case CE_COLL: \
        descriptor.of.ce_coll.function = FUNCTIONS[event->function]; \
        descriptor.of.ce_coll.count = event->count; \
        descriptor.of.ce_coll.data_type = "ncclBfloat16"; \
        descriptor.of.ce_coll.strategy = "MC"; \
        descriptor.of.ce_coll.batches = 3; \
        break; \
    case CE_SYNC: descriptor.of.ce_sync = (struct ce_sync){true, 8}; break; \
    case CE_BATCH: descriptor.of.ce_batch = (struct ce_batch){5, 12345, false}; break;
#define PHASE \
    case KERNEL_PHASE: descriptor.of.kernel_phase = (struct kernel_phase){event->channel, 1, "compute", event->gpu_ns}; break;
VERSION(1, NUMBER, HASH, )
VERSION(2, NAME, HASH, )
VERSION(3, NAME, HASH, KERNEL NET)
VERSION(4, NAME, NO_HASH, TIMED_KERNEL NET)
VERSION(5, NAME, NO_HASH, TIMED_KERNEL NET API)
VERSION(6, NAME, NO_HASH, TIMED_KERNEL NET API COPIES)
VERSION(7, NAME, NO_HASH, TIMED_KERNEL NET API COPIES PHASE)

static void* start(void* context, struct event event) {
    void* (*of_version[])(void*, const struct event*) = {NULL,     start_v1, start_v2, start_v3,
                                                         start_v4, start_v5, start_v6, start_v7};
    return of_version[version](context, &event);
}

static void stop(void* handle) {
    CHECK(profiler->stop_event(handle) == 0);
}

static void state(void* handle, int state, uint64_t value) {
    union state_v4 arguments = {.gpu_ns = value};
    CHECK(profiler->record_event_state(handle, state, &arguments) == 0);
}

static void log_line(int level, unsigned long flags, text file, int line, text format, ...) {
    (void)file, (void)line;
    va_list arguments;
    va_start(arguments, format);
    printf("log %d %lx ", level, flags);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

static void* begin(uint64_t communicator, text name, int ranks, int rank) {
    void* context = (void*)1;
    int done;
    mask = -1;
    if (version <= 3) done = ((struct profiler_v3*)profiler)->init(&context, &mask);
    else if (version == 4) done = ((struct profiler_v4*)profiler)->init(&context, &mask, name, communicator, 1, ranks, rank, log_line);
    else done = ((struct profiler_v5*)profiler)->init(&context, communicator, &mask, name, 1, ranks, rank, log_line);
    CHECK(done == 0 && context && context != (void*)1 && mask != -1);
    return context;
}

/* A collective with all that belongs to it; with `until` 0 nothing of it ends. Stops come in another order than starts. */
static void collective(void* context, int rank, int function, size_t count, int until) {
    void* group_api = start(context, (struct event){.kind = GROUP_API});
    void* api = start(context, (struct event){.kind = COLL_API, .parent = group_api, .function = function, .count = count});
    if (group_api) state(group_api, 23, 0);
    if (api) stop(api);
    void* group = start(context, (struct event){.kind = GROUP});
    void* coll = start(context, (struct event){.kind = COLL, .parent = api, .rank = rank, .function = function, .count = count});
    CHECK(coll);
    stop(group);
    if (until > 0) stop(coll);
    if (group_api) stop(group_api);
    void *kernels[2], *operations[2], *steps[2];
    for (int channel = 0; channel < 2; channel++) {
        kernels[channel] = start(context, (struct event){.kind = KERNEL_CH, .parent = coll, .channel = channel, .gpu_ns = 1000});
        operations[channel] = start(context, (struct event){.kind = PROXY_OP, .parent = coll, .rank = rank, .channel = channel, .peer = 1 - rank,
                                                            .pid = getpid(), .is_send = channel});
        steps[channel] = start(context, (struct event){.kind = PROXY_STEP, .parent = operations[channel], .rank = rank, .step = 3});
        state(steps[channel], channel ? 8 : 10, 4096);
    }
    if (until < 2) return;
    struct ib_v1 transfer = {.kind = 1, .of = {.device = 2, .request = 99, .opcode = 1, .queue_pair = 77, .bytes = 4096}};
    void* net = start(context, (struct event){.kind = NET_PLUGIN, .parent = steps[0], .plugin = 0x10001, .data = &transfer});
    if (net) stop(net);
    stop(operations[0]);
    for (int channel = 0; channel < 2; channel++) {
        state(steps[channel], 9, 8192);
        stop(steps[channel]);
        if (kernels[channel]) {
            state(kernels[channel], 22, 5000);
            stop(kernels[channel]);
        }
    }
    stop(operations[1]);
}

struct rank { int rank; uint64_t communicator; int rounds; };

static void* run(void* argument) {
    struct rank* of = argument;
    void* context = begin(of->communicator, "data parallel", 2, of->rank);
    for (int round = 0; round < of->rounds; round++) {
        collective(context, of->rank, round % 5, 1000 + round % 3, 2);
        void* message = start(context, (struct event){.kind = P2P, .rank = of->rank, .function = 6, .count = 5, .peer = 1 - of->rank});
        stop(message);
    }
    CHECK(profiler->finalize(context) == 0);
    CHECK(profiler->finalize(context) == 0); /* NCCL does not, and if it did */
    return NULL;
}

/* Four communicators of two ranks, each in a thread. */
static void threads(void) {
    pthread_t all[8];
    struct rank ranks[8];
    for (int at = 0; at < 8; at++) {
        ranks[at] = (struct rank){at % 2, 0x1000 + at / 2, 60};
        CHECK(pthread_create(&all[at], NULL, run, &ranks[at]) == 0);
    }
    for (int at = 0; at < 8; at++) pthread_join(all[at], NULL);
}

/* All kinds, also those that the version does not have. */
static void kinds(void) {
    void* context = begin(0xfeed, NULL, 8, 3);
    void* coll = start(context, (struct event){.kind = COLL, .rank = 3, .function = 4, .count = 1 << 20});
    int known = 0;
    for (int bit = 0; bit < 18; bit++) {
        if (version <= 4 && bit > 7) break; /* a byte */
        void* handle = start(context, (struct event){.kind = 1u << bit, .parent = coll, .rank = 3, .function = 4, .count = 7, .pid = getpid()});
        if (handle) {
            known++;
            state(handle, bit, 12345);
            stop(handle);
        }
    }
    /* A type of several bits. */
    CHECK(start(context, (struct event){.kind = 3}) == NULL);
    struct socket_v1 transfer = {.kind = 1, .of = {.descriptor = 5, .operation = 1, .bytes = 4096}};
    void* net = start(context, (struct event){.kind = NET_PLUGIN, .plugin = 0x20001, .data = &transfer});
    if (net) stop(net);
    /* Made by the proxy of another process: its parent is not ours. */
    void* operation = start(context, (struct event){.kind = PROXY_OP, .parent = coll, .rank = 3, .pid = 1, .peer = 4});
    stop(operation);
    /* Of a communicator of another process, whose address or number is not ours. */
    operation = start((void*)0x7fff00000010, (struct event){.kind = PROXY_OP, .parent = coll, .rank = 0, .pid = 1, .peer = 4});
    void* step = start((void*)0x7fff00000010, (struct event){.kind = PROXY_STEP, .parent = operation, .rank = 0, .step = 2});
    CHECK(operation && step && !start((void*)0x7fff00000010, (struct event){.kind = COLL, .rank = 0}));
    stop(operation);
    stop(step);
    stop(coll);
    printf("kinds %d mask %x\n", known, mask);
    CHECK(profiler->finalize(context) == 0);
}

/* Whatever NCCL passes: success. */
static void edges(void) {
    void* context = begin(0x1, "edges", 2, 0);
    void* handle = (void*)7;
    CHECK(profiler->start_event(context, &handle, NULL) == 0 && handle == NULL);
    struct descriptor_v7 zeros;
    memset(&zeros, 0, sizeof zeros);
    handle = (void*)7;
    CHECK(profiler->start_event(context, &handle, &zeros) == 0 && handle == NULL);
    CHECK(profiler->start_event(context, NULL, &zeros) == 0);
    handle = (void*)7;
    CHECK(profiler->start_event(NULL, &handle, &zeros) == 0 && handle == NULL);
    CHECK(profiler->finalize(NULL) == 0);
    /* Handles that are none. */
    void* strange[] = {NULL, (void*)1, (void*)0x7fffdeadbeef, (void*)-1, context, &zeros};
    for (size_t at = 0; at < sizeof strange / sizeof *strange; at++) {
        stop(strange[at]);
        state(strange[at], 8, 1);
        CHECK(profiler->record_event_state(strange[at], 23, NULL) == 0);
    }
    /* Descriptors without texts. */
    if (version >= 2) {
        memset(&zeros, 0, sizeof zeros);
        zeros.kind = COLL;
        CHECK(profiler->start_event(context, &handle, &zeros) == 0 && handle);
        stop(handle);
        stop(handle);
        state(handle, 99999, 1);
        state(handle, -5, 1);
    }
    CHECK(profiler->finalize(context) == 0);
    /* Events after the end of a communicator. */
    CHECK(start(context, (struct event){.kind = COLL, .rank = 0, .function = 4}) == NULL);
    if (version <= 3) {
        int unset = 5;
        CHECK(((struct profiler_v3*)profiler)->init(NULL, &unset) == 0);
        CHECK(((struct profiler_v3*)profiler)->init(&context, NULL) == 0);
    } else if (version > 4) {
        CHECK(((struct profiler_v5*)profiler)->init(NULL, 1, &mask, NULL, 1, 2, 0, NULL) == 0);
        CHECK(((struct profiler_v5*)profiler)->init(&context, 1, NULL, NULL, 1, 2, 0, NULL) == 0);
        /* Ranks that make no sense: no flight record, and no crash. */
        CHECK(((struct profiler_v5*)profiler)->init(&context, 1, &mask, NULL, -1, -2, 7, NULL) == 0);
        CHECK(profiler->finalize(context) == 0);
    }
    /* More running events than there is room for. */
    context = begin(0x2, "full", 2, 0);
    int dropped = 0;
    for (int at = 0; at < 3000; at++) dropped += !start(context, (struct event){.kind = PROXY_STEP, .rank = 0});
    printf("dropped %d\n", dropped);
    CHECK(profiler->finalize(context) == 0);
}

/* A job that hangs: rank 0 has enqueued #3 and its kernel runs, rank 1 only #2. Then both are killed. */
static void hang(int rank) {
    void* context = begin(0xbad, "hangs", 2, rank);
    collective(context, rank, 4, 1000, 2);
    collective(context, rank, 2, 500, 2);
    if (rank == 0) collective(context, rank, 4, 1000, 1);
    printf("ok\n");
    fflush(stdout);
    kill(getpid(), SIGKILL);
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void cost(void) {
    void* context = begin(0xc0, "cost", 2, 0);
    enum { CALLS = 20000 };
    double began = now_ns();
    for (int call = 0; call < CALLS; call++) stop(start(context, (struct event){.kind = COLL, .rank = 0, .function = 4, .count = 9}));
    double of_coll = (now_ns() - began) / CALLS;
    void* operation = start(context, (struct event){.kind = PROXY_OP, .rank = 0, .pid = getpid()});
    began = now_ns();
    for (int call = 0; call < CALLS; call++) {
        void* step = start(context, (struct event){.kind = PROXY_STEP, .rank = 0, .parent = operation});
        state(step, 8, 1), state(step, 9, 1);
        stop(step);
    }
    printf("a collective: %.0f ns; a step of a proxy with two states: %.0f ns\n", of_coll, (now_ns() - began) / CALLS);
    CHECK(profiler->finalize(context) == 0);
}

int main(int count, char** arguments) {
    CHECK(count >= 4);
    library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    version = atoi(arguments[3]);
    char name[40];
    snprintf(name, sizeof name, "ncclProfiler_v%d", version);
    profiler = dlsym(library, name);
    CHECK(profiler && strcmp(profiler->name, "Weft") == 0);
    CHECK(!dlsym(library, "ncclProfiler_v0") && !dlsym(library, "ncclProfiler_v8"));
    text mode = arguments[2];
    if (!strcmp(mode, "threads")) threads();
    else if (!strcmp(mode, "kinds")) kinds();
    else if (!strcmp(mode, "edges")) edges();
    else if (!strcmp(mode, "cost")) cost();
    else if (!strcmp(mode, "hang")) hang(atoi(arguments[4]));
    else if (!strcmp(mode, "exit")) collective(begin(0xe, "exits", 2, 1), 1, 4, 1000, 2);
    else return 1;
    /* NCCL closes the library and may load it again. */
    if (strcmp(mode, "exit")) {
        CHECK(dlclose(library) == 0);
        library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(profiler == dlsym(library, name));
    }
    printf("ok\n");
    return 0;
}
