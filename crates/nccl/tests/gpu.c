/* Calls on memory of the first GPU, which all ranks share. Needs a GPU: `crates/cuda/gpu-test.sh` runs it. Compiles without CUDA.
 *
 *   gpu all N        one thread has the communicators of ncclCommInitAll, with a device that repeats
 *   gpu threads N    a thread for each rank
 *   gpu processes N  a process for each rank, under MPS
 *   gpu killed N     rank 1 is killed; the others see it within a second
 *   gpu puts_threads N, gpu puts_processes N, gpu puts_all N
 *                    puts, signals and waits, in the same ways */
#include <time.h>

#include "ranks.h"

typedef uint64_t Address;

static struct {
    int (*init)(unsigned), (*retain)(void**, int), (*enter)(void*), (*allocate)(Address*, size_t), (*stream)(void**, unsigned),
        (*copy)(Address, Address, size_t, void*), (*wait)(void*);
} cu;

#define CU(call)                                                                        \
    do {                                                                                \
        int code_ = (call);                                                             \
        if (code_ != 0) {                                                               \
            fprintf(stderr, "%s:%d: %s: CUDA error %d\n", __FILE__, __LINE__, #call, code_); \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static void use_gpu(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static void* context;
    pthread_mutex_lock(&lock);
    if (context == NULL) {
        void* library = dlopen("libcuda.so.1", RTLD_NOW);
        MUST(library != NULL);
#define FIND(field, name) *(void**)&cu.field = dlsym(library, name); MUST(cu.field != NULL)
        FIND(init, "cuInit"); FIND(retain, "cuDevicePrimaryCtxRetain"); FIND(enter, "cuCtxSetCurrent"); FIND(allocate, "cuMemAlloc_v2");
        FIND(stream, "cuStreamCreate"); FIND(copy, "cuMemcpyAsync"); FIND(wait, "cuStreamSynchronize");
        CU(cu.init(0));
        CU(cu.retain(&context, 0));
    }
    pthread_mutex_unlock(&lock);
    CU(cu.enter(context));
}

enum { COUNT = 100000, ROUNDS = 20 };

/* A rank's buffers: input and output have space for a block of each rank. */
typedef struct { Rank* me; void* stream; Address in, out; float* host; } Buffers;

static Buffers buffers_of(Rank* me) {
    Buffers buffers = {me, NULL, 0, 0, malloc(COUNT * sizeof(float) * me->size)};
    const size_t bytes = COUNT * sizeof(float) * me->size;
    CU(cu.stream(&buffers.stream, 1));
    CU(cu.allocate(&buffers.in, bytes));
    CU(cu.allocate(&buffers.out, bytes));
    return buffers;
}

static float value(int rank, int round, int at) { return (float)(rank + 1) * (float)(at % 97 + round); }

/* Writes the rank's blocks of a round. */
static void give(Buffers* buffers, int round) {
    const int length = COUNT * buffers->me->size;
    for (int i = 0; i < length; i++) buffers->host[i] = value(buffers->me->rank, round, i);
    CU(cu.copy(buffers->in, (Address)(uintptr_t)buffers->host, length * sizeof(float), buffers->stream));
    CU(cu.wait(buffers->stream));
}

static void get(Buffers* buffers, Address from, int length) {
    CU(cu.wait(buffers->stream));
    CU(cu.copy((Address)(uintptr_t)buffers->host, from, length * sizeof(float), buffers->stream));
    CU(cu.wait(buffers->stream));
}

#define AT(address) ((void*)(uintptr_t)(address))

/* Makes a call of one of these kinds. */
static ncclResult_t call(Buffers* buffers, int kind) {
    void *in = AT(buffers->in), *out = AT(buffers->out), *stream = buffers->stream;
    ncclComm_t comm = buffers->me->comm;
    const int rank = buffers->me->rank, size = buffers->me->size;
    switch (kind) {
    case 0: return ncclAllReduce(in, out, COUNT, ncclFloat32, ncclSum, comm, stream);
    case 1: return ncclAllReduce(in, in, COUNT, ncclFloat32, ncclSum, comm, stream);
    case 2: return ncclAllGather(in, out, COUNT, ncclFloat32, comm, stream);
    case 3: return ncclReduceScatter(in, out, COUNT, ncclFloat32, ncclSum, comm, stream);
    case 4: return ncclAlltoAll(in, out, COUNT, ncclFloat32, comm, stream);
    case 5: return ncclAlltoAll(in, in, COUNT, ncclFloat32, comm, stream);
    case 6: return ncclBroadcast(in, out, COUNT, ncclFloat32, size - 1, comm, stream);
    default: {
        CHECK(ncclGroupStart());
        CHECK(ncclSend(in, COUNT, ncclFloat32, (rank + 1) % size, comm, stream));
        CHECK(ncclRecv(out, COUNT, ncclFloat32, (rank + size - 1) % size, comm, stream));
        return ncclGroupEnd();
    }
    }
}
enum { KINDS = 8 };

static void check(Buffers* buffers, int kind, int round) {
    const int rank = buffers->me->rank, size = buffers->me->size, is_long = kind == 2 || kind == 4 || kind == 5;
    get(buffers, kind == 1 || kind == 5 ? buffers->in : buffers->out, is_long ? COUNT * size : COUNT);
    for (int i = 0; i < (is_long ? COUNT * size : COUNT); i++) {
        const int block = i / COUNT, at = i % COUNT;
        float wanted = 0;
        if (kind < 2) for (int r = 0; r < size; r++) wanted += value(r, round, i);
        if (kind == 2) wanted = value(block, round, at);
        if (kind == 3) for (int r = 0; r < size; r++) wanted += value(r, round, rank * COUNT + at);
        if (kind == 4 || kind == 5) wanted = value(block, round, rank * COUNT + at);
        if (kind == 6) wanted = value(size - 1, round, i);
        if (kind == 7) wanted = value((rank + size - 1) % size, round, i);
        if (buffers->host[i] != wanted) {
            fprintf(stderr, "rank %d of %d, call %d, round %d: element %d is %g, not %g\n", rank, size, kind, round, i, buffers->host[i], wanted);
            exit(1);
        }
    }
}

static void work(Rank* me) {
    use_gpu();
    joined(me);
    Buffers buffers = buffers_of(me);
    for (int round = 0; round < ROUNDS; round++)
        for (int kind = 0; kind < KINDS; kind++) {
            give(&buffers, round);
            CHECK(call(&buffers, kind));
            check(&buffers, kind, round);
        }
    CHECK(ncclCommDestroy(me->comm));
}

/* One thread makes the calls of all ranks, in groups. */
static void all(int size) {
    use_gpu();
    int devices[64] = {0};
    ncclComm_t comms[64];
    Rank ranks[64];
    Buffers buffers[64];
    CHECK(ncclCommInitAll(comms, size, devices));
    for (int r = 0; r < size; r++) {
        ranks[r] = (Rank){.rank = r, .size = size, .comm = comms[r]};
        buffers[r] = buffers_of(&ranks[r]);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int kind = 0; kind < KINDS; kind++) {
            for (int r = 0; r < size; r++) give(&buffers[r], round);
            CHECK(ncclGroupStart());
            for (int r = 0; r < size; r++) CHECK(call(&buffers[r], kind));
            CHECK(ncclGroupEnd());
            for (int r = 0; r < size; r++) check(&buffers[r], kind, round);
        }
    for (int r = 0; r < size; r++) CHECK(ncclCommDestroy(comms[r]));
}

enum { SIGNALS = 100 };

/* A window with a block of each rank. */
static void* new_window(Rank* me, ncclWindow_t* window) {
    void* memory;
    CHECK(ncclMemAlloc(&memory, COUNT * sizeof(float) * me->size));
    CHECK(ncclCommWindowRegister(me->comm, memory, COUNT * sizeof(float) * me->size, window, 1));
    return memory;
}

/* Enqueues a put to the next rank, and a wait for that of the one before; or signals in the other direction, which say that it was read. */
static void enqueue_put(Buffers* buffers, ncclWindow_t window, int is_read) {
    const int rank = buffers->me->rank, size = buffers->me->size, next = (rank + 1) % size, before = (rank + size - 1) % size;
    ncclComm_t comm = buffers->me->comm;
    ncclWaitSignalDesc_t wanted = {is_read ? SIGNALS : 1, is_read ? next : before, 0, 0};
    if (is_read)
        for (int i = 0; i < SIGNALS; i++) CHECK(ncclSignal(before, 0, 0, 0, comm, buffers->stream));
    else
        CHECK(ncclPutSignal(AT(buffers->in), COUNT, ncclFloat32, next, window, COUNT * sizeof(float) * rank, 0, 0, 0, comm, buffers->stream));
    CHECK(ncclWaitSignal(1, &wanted, comm, buffers->stream));
}

static void check_put(Buffers* buffers, void* memory, int round) {
    const int size = buffers->me->size, before = (buffers->me->rank + size - 1) % size;
    get(buffers, (Address)(uintptr_t)memory + COUNT * sizeof(float) * before, COUNT);
    for (int i = 0; i < COUNT; i++) MUST(buffers->host[i] == value(before, round, i));
}

static void puts_of(Rank* me) {
    use_gpu();
    joined(me);
    Buffers buffers = buffers_of(me);
    ncclWindow_t window;
    void* memory = new_window(me, &window);
    for (int round = 0; round < ROUNDS; round++) {
        give(&buffers, round);
        enqueue_put(&buffers, window, 0);
        check_put(&buffers, memory, round);
        enqueue_put(&buffers, window, 1);
        CU(cu.wait(buffers.stream));
    }
    uint64_t bytes = 0;
    CHECK(ncclCommMemStats(me->comm, ncclStatGpuMemTotal, &bytes));
    MUST(bytes > 0);
    CHECK(ncclCommWindowDeregister(me->comm, window));
    CHECK(ncclCommDestroy(me->comm));
    CHECK(ncclMemFree(memory));
}

static void puts_of_all(int size) {
    use_gpu();
    int devices[64] = {0};
    ncclComm_t comms[64];
    ncclWindow_t windows[64];
    void* memory[64];
    Rank ranks[64];
    Buffers buffers[64];
    CHECK(ncclCommInitAll(comms, size, devices));
    CHECK(ncclGroupStart());
    for (int r = 0; r < size; r++) {
        ranks[r] = (Rank){.rank = r, .size = size, .comm = comms[r]};
        buffers[r] = buffers_of(&ranks[r]);
        memory[r] = new_window(&ranks[r], &windows[r]);
    }
    CHECK(ncclGroupEnd());
    for (int round = 0; round < ROUNDS; round++) {
        for (int r = 0; r < size; r++) give(&buffers[r], round);
        for (int is_read = 0; is_read < 2; is_read++) {
            CHECK(ncclGroupStart());
            for (int r = 0; r < size; r++) enqueue_put(&buffers[r], windows[r], is_read);
            CHECK(ncclGroupEnd());
            for (int r = 0; r < size && !is_read; r++) check_put(&buffers[r], memory[r], round);
        }
        for (int r = 0; r < size; r++) CU(cu.wait(buffers[r].stream));
    }
    for (int r = 0; r < size; r++) CHECK(ncclCommDestroy(comms[r]));
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Rank 1 dies while the kernels of the others wait for it. */
static void killed(Rank* me) {
    use_gpu();
    joined(me);
    Buffers buffers = buffers_of(me);
    give(&buffers, 0);
    CHECK(call(&buffers, 0));
    check(&buffers, 0, 0);
    if (me->rank == 1) raise(SIGKILL);
    const double began = now();
    ncclResult_t state = call(&buffers, 0);
    if (state == ncclSuccess)
        do {
            CHECK(ncclCommGetAsyncError(me->comm, &state));
            if (state == ncclSuccess) usleep(1000);
        } while (state == ncclSuccess && now() - began < 10);
    const double took = now() - began;
    printf("rank %d: %s after %.3f s: %s\n", me->rank, ncclGetErrorString(state), took, ncclGetLastError(me->comm));
    MUST(state == ncclRemoteError && took < 1);
    MUST(strstr(ncclGetLastError(me->comm), "rank 1") != NULL);
    CHECK(ncclCommAbort(me->comm));
}

int main(int count, char** arguments) {
    MUST(count == 3);
    const int size = atoi(arguments[2]);
    if (strcmp(arguments[1], "all") == 0) all(size);
    if (strcmp(arguments[1], "threads") == 0) threads(size, work);
    if (strcmp(arguments[1], "processes") == 0) processes(size, work);
    if (strcmp(arguments[1], "killed") == 0) processes(size, killed);
    if (strcmp(arguments[1], "puts_threads") == 0) threads(size, puts_of);
    if (strcmp(arguments[1], "puts_processes") == 0) processes(size, puts_of);
    if (strcmp(arguments[1], "puts_all") == 0) puts_of_all(size);
    puts("ok");
}
