/* Puts, signals and waits on host memory. */
#include "ranks.h"

enum { BLOCK = 4096, LONG = 3000000, MANY = 3000, CROWD = 30000 };
#define CAPTURED ((void*)0xc0de)

static void wait_for_signals(Rank* me, int peer, int count) {
    ncclWaitSignalDesc_t wanted = {count, peer, 0, 0};
    CHECK(ncclWaitSignal(1, &wanted, me->comm, NULL));
}

/* Signals all ranks and waits for all, this one included. */
static void meet(Rank* me) {
    ncclWaitSignalDesc_t wanted[64];
    CHECK(ncclGroupStart());
    for (int r = 0; r < me->size; r++) {
        wanted[r] = (ncclWaitSignalDesc_t){1, r, 0, 0};
        CHECK(ncclSignal(r, 0, 0, 0, me->comm, NULL));
    }
    CHECK(ncclWaitSignal(me->size, wanted, me->comm, NULL));
    CHECK(ncclGroupEnd());
}

static char* window_of(Rank* me, size_t bytes, ncclWindow_t* window) {
    char* memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(memory, 0, bytes);
    CHECK(ncclCommWindowRegister(me->comm, memory, bytes, window, 0));
    return memory;
}

/* The windows of ranks may differ in length. */
static void to_neighbours(Rank* me) {
    const int n = me->size, next = (me->rank + 1) % n, before = (me->rank + n - 1) % n;
    ncclWindow_t window, other;
    char* memory = window_of(me, LONG + me->rank, &window);
    int* numbers = (int*)window_of(me, n * BLOCK, &other);
    char* out = zeroed(LONG);
    memset(out, 'a' + me->rank, LONG);
    CHECK(ncclPutSignal(out, LONG, ncclInt8, next, window, next, 0, 0, 0, me->comm, NULL));
    wait_for_signals(me, before, 1);
    for (int i = 0; i < LONG; i++) MUST(memory[me->rank + i] == 'a' + before);
    meet(me);
    /* In a group, also if the wait is called first. */
    int value = 100 + me->rank;
    CHECK(ncclGroupStart());
    wait_for_signals(me, before, 1);
    CHECK(ncclPutSignal(&value, 1, ncclInt32, next, other, me->rank * sizeof(int), 0, 0, 0, me->comm, NULL));
    CHECK(ncclGroupEnd());
    MUST(numbers[before] == 100 + before);
    meet(me);
    /* All to all. */
    int all[64];
    ncclWaitSignalDesc_t wanted[64];
    CHECK(ncclGroupStart());
    for (int r = 0; r < n; r++) {
        all[r] = 1000 * me->rank + r, wanted[r] = (ncclWaitSignalDesc_t){1, r, 0, 0};
        CHECK(ncclPutSignal(&all[r], 1, ncclInt32, r, other, me->rank * sizeof(int), 0, 0, 0, me->comm, NULL));
    }
    CHECK(ncclGroupEnd());
    CHECK(ncclWaitSignal(n, wanted, me->comm, NULL));
    for (int r = 0; r < n; r++) MUST(numbers[r] == 1000 * r + me->rank);
    meet(me);
    /* Many, which the other waits for in parts. */
    for (int i = 0; i < MANY; i++) CHECK(ncclPutSignal(&i, 1, ncclInt32, next, other, (i % 1000) * 4, 0, 0, 0, me->comm, NULL));
    wait_for_signals(me, before, 1);
    wait_for_signals(me, before, MANY - 2);
    wait_for_signals(me, before, 1);
    for (int i = 0; i < 1000; i++) MUST(numbers[i] == MANY - 1000 + i);
    meet(me);
    /* The target makes no call. */
    if (me->rank == 0) {
        value = -7;
        CHECK(ncclPutSignal(&value, 1, ncclInt32, n - 1, other, 0, 0, 0, 0, me->comm, NULL));
    } else if (me->rank == n - 1) {
        int seen = 0;
        for (int i = 0; i < 60000 && seen != -7; i++) {
            seen = __atomic_load_n(&numbers[0], __ATOMIC_ACQUIRE);
            if (seen != -7) usleep(1000);
        }
        MUST(seen == -7);
    }
    if (me->rank == n - 1) wait_for_signals(me, 0, 1);
    meet(me);
    CHECK(ncclCommWindowDeregister(me->comm, window));
    CHECK(ncclCommWindowDeregister(me->comm, other));
    meet(me);
}

static void puts_and_signals(Rank* me) {
    joined(me);
    meet(me);
    to_neighbours(me);
    /* Collectives and messages are as before. */
    int one = 1;
    CHECK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, me->comm, NULL));
    MUST(one == me->size);
    CHECK(ncclCommDestroy(me->comm));
}

/* Memory of GPUs of several hosts. */
static void apart(Rank* me) {
    char* memory = zeroed(2 * BLOCK);
    memory += BLOCK - (uintptr_t)memory % BLOCK;
    joined(me);
    ncclWindow_t window;
    FAILS(ncclCommWindowRegister(me->comm, memory, 2 * BLOCK, &window, 0), ncclInvalidArgument, "exceed their allocation");
    CHECK(ncclCommWindowRegister(me->comm, memory, BLOCK, &window, 0));
    FAILS(ncclPutSignal(memory, 1, ncclInt8, 0, window, 0, 0, 0, 0, me->comm, NULL), ncclInvalidUsage, "on several hosts");
    ncclCommProperties_t properties = {sizeof properties, 0xcafebeef, 23007, 0, 0, 0, 0, 1, 1, 9, 9, 1, 9};
    CHECK(ncclCommQueryProperties(me->comm, &properties));
    MUST(!properties.hostRmaSupport);
    meet(me);
    /* The stand-in captures this stream. The error ends the calls of all. */
    ncclWaitSignalDesc_t wanted = {1, 0, 0, 0};
    if (me->rank == 0) {
        CHECK(ncclSignal(0, 0, 0, 0, me->comm, NULL));
        FAILS(ncclWaitSignal(1, &wanted, me->comm, CAPTURED), ncclInvalidUsage, "cannot be captured");
    } else {
        FAILS(ncclWaitSignal(1, &wanted, me->comm, NULL), ncclRemoteError, "rank 0");
    }
    CHECK(ncclCommWindowDeregister(me->comm, window));
    CHECK(ncclCommAbort(me->comm));
}

static void wrong(Rank* me) {
    joined(me);
    const int n = me->size;
    ncclWindow_t window;
    char* memory = window_of(me, BLOCK, &window);
    ncclComm_t comm = me->comm;
    FAILS(ncclPutSignal(memory, 1, ncclInt8, n, window, 0, 0, 0, 0, comm, NULL), ncclInvalidArgument, "is not one of");
    FAILS(ncclPutSignal(memory, 1, ncclInt8, 0, NULL, 0, 0, 0, 0, comm, NULL), ncclInvalidArgument, "did not return the window");
    FAILS(ncclPutSignal(memory, 1, ncclInt8, 0, window, BLOCK, 0, 0, 0, comm, NULL), ncclInvalidArgument, "exceed the window of rank 0");
    FAILS(ncclPutSignal(memory, 1, ncclInt8, 0, window, SIZE_MAX, 0, 0, 0, comm, NULL), ncclInvalidArgument, "exceed the window of rank 0");
    FAILS(ncclPutSignal(memory, SIZE_MAX, ncclInt32, 0, window, 0, 0, 0, 0, comm, NULL), ncclInvalidArgument, "more than there is memory");
    FAILS(ncclPutSignal(memory, 1, ncclInt8, 0, window, 0, 1, 0, 0, comm, NULL), ncclInvalidArgument, "there is no signal 1");
    FAILS(ncclPutSignal(memory, 1, ncclInt8, 0, window, 0, 0, 1, 0, comm, NULL), ncclInvalidArgument, "there is no context 1");
    FAILS(ncclPutSignal(memory, 1, ncclInt8, 0, window, 0, 0, 0, 1, comm, NULL), ncclInvalidArgument, "the flags are 0x1");
    FAILS(ncclPutSignal(NULL, 1, ncclInt8, 0, window, 0, 0, 0, 0, comm, NULL), ncclInvalidArgument, "is NULL");
    FAILS(ncclPutSignal(memory, 1, 77, 0, window, 0, 0, 0, 0, comm, NULL), ncclInvalidArgument, "no data type 77");
    FAILS(ncclSignal(-1, 0, 0, 0, comm, NULL), ncclInvalidArgument, "is not one of");
    FAILS(ncclSignal(0, 0, 0, 0, NULL, NULL), ncclInvalidArgument, "the communicator is NULL");
    ncclWaitSignalDesc_t wanted = {-1, 0, 0, 0};
    FAILS(ncclWaitSignal(1, &wanted, comm, NULL), ncclInvalidArgument, "waits for -1 signals");
    FAILS(ncclWaitSignal(-1, &wanted, comm, NULL), ncclInvalidArgument, "there are -1 descriptors");
    FAILS(ncclWaitSignal(1, NULL, comm, NULL), ncclInvalidArgument, "is NULL");
    CHECK(ncclGroupStart());
    FAILS(ncclSignal(0, 3, 0, 0, comm, NULL), ncclInvalidArgument, "there is no signal 3");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "there is no signal 3");
    CHECK(ncclGroupStart());
    ncclWindow_t early;
    CHECK(ncclCommWindowRegister(comm, memory, BLOCK, &early, 0));
    FAILS(ncclPutSignal(memory, 1, ncclInt8, 0, early, 0, 0, 0, 0, comm, NULL), ncclInvalidUsage, "its group has not ended");
    FAILS(ncclCommWindowDeregister(comm, early), ncclInvalidUsage, "its group has not ended");
    FAILS(ncclGroupEnd(), ncclInvalidUsage, "its group has not ended");
    CHECK(ncclCommWindowDeregister(comm, early));
    /* An error in a group: nothing of it begins, on no rank. */
    FAILS(ncclCommWindowRegister(comm, memory, SIZE_MAX, &early, 0), ncclInvalidArgument, "more than there is memory");
    CHECK(ncclGroupStart());
    FAILS(ncclCommWindowRegister(comm, memory, 0, &early, 0), ncclInvalidArgument, "at least one byte");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "at least one byte");
    /* Nothing of it has ended the communicator. Without bytes, a put is a signal. */
    CHECK(ncclWaitSignal(0, NULL, comm, NULL));
    CHECK(ncclPutSignal(NULL, 0, ncclInt8, me->rank, window, 0, 0, 0, 0, comm, NULL));
    wait_for_signals(me, me->rank, 1);
    meet(me);
    uint64_t bytes = 1;
    CHECK(ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
    MUST(bytes == 0);
    FAILS(ncclCommMemStats(comm, 4, &bytes), ncclInvalidArgument, "there is no statistic 4");
    FAILS(ncclCommMemStats(comm, ncclStatGpuMemTotal, NULL), ncclInvalidArgument, "is NULL");
    FAILS(ncclCommSuspend(comm, 1), ncclInvalidUsage, "cannot be suspended");
    CHECK(ncclCommWindowDeregister(comm, window));
    FAILS(ncclPutSignal(memory, 1, ncclInt8, 0, window, 0, 0, 0, 0, comm, NULL), ncclInvalidArgument, "it was deregistered");
    CHECK(ncclCommDestroy(comm));
}

/* A put to a window that its owner has deregistered. */
static void deregistered(Rank* me) {
    joined(me);
    ncclWindow_t window;
    char* memory = window_of(me, BLOCK, &window);
    if (me->rank == 1) {
        CHECK(ncclCommWindowDeregister(me->comm, window));
        CHECK(ncclSignal(0, 0, 0, 0, me->comm, NULL));
        ncclWaitSignalDesc_t wanted = {1, 0, 0, 0};
        FAILS(ncclWaitSignal(1, &wanted, me->comm, NULL), ncclInvalidUsage, "this rank has deregistered");
        MUST(memory[0] == 0);
    } else {
        wait_for_signals(me, 1, 1);
        CHECK(ncclPutSignal("x", 1, ncclInt8, 1, window, 0, 0, 0, 0, me->comm, NULL));
        ncclWaitSignalDesc_t wanted = {1, 1, 0, 0};
        FAILS(ncclWaitSignal(1, &wanted, me->comm, NULL), ncclRemoteError, "rank 1");
    }
    CHECK(ncclCommAbort(me->comm));
}

/* Rank 1 dies, or leaves, while the others wait for its second signal. */
static void ended(Rank* me, int is_killed) {
    joined(me);
    ncclWindow_t window;
    window_of(me, BLOCK, &window);
    together(me);
    if (me->rank == 1) {
        for (int r = 0; r < me->size; r++) CHECK(ncclSignal(r, 0, 0, 0, me->comm, NULL));
        if (is_killed) raise(SIGKILL);
        CHECK(ncclCommDestroy(me->comm));
        return;
    }
    ncclWaitSignalDesc_t wanted = {2, 1, 0, 0};
    FAILS(ncclWaitSignal(1, &wanted, me->comm, NULL), ncclRemoteError, "rank 1");
    FAILS(ncclSignal(1, 0, 0, 0, me->comm, NULL), ncclRemoteError, "rank 1");
    if (is_killed) {
        /* Those that are left go on. */
        Rank rest = {me->rank == 0 ? 0 : me->rank - 1, me->size - 1, me->id, NULL, me->all};
        int dead = 1;
        CHECK(ncclCommShrink(me->comm, &dead, 1, &rest.comm, NULL, 1));
        to_neighbours(&rest);
        CHECK(ncclCommDestroy(rest.comm));
    }
    CHECK(ncclCommAbort(me->comm));
}

enum { HUGE = 1 << 27 };

enum { DEREGISTERS, LEAVES, ABORTS };

/* A put is under way while its target ends the window or the communicator, and then uses the memory for something else. */
static void under_way(Rank* me, int how) {
    joined(me);
    ncclWindow_t window;
    volatile char* memory = window_of(me, HUGE, &window);
    meet(me);
    if (me->rank == 0) {
        char* out = malloc(HUGE);
        memset(out, 'x', HUGE);
        const ncclResult_t put = ncclPutSignal(out, HUGE, ncclInt8, 1, window, 0, 0, 0, 0, me->comm, NULL);
        MUST(put == ncclSuccess || (how != DEREGISTERS && put == ncclRemoteError));
    } else {
        for (int i = 0; i < 60000000 && memory[0] != 'x'; i++) usleep(1);
        MUST(memory[0] == 'x');
        if (how == DEREGISTERS) CHECK(ncclCommWindowDeregister(me->comm, window));
        if (how == LEAVES) CHECK(ncclCommDestroy(me->comm));
        if (how == ABORTS) CHECK(ncclCommAbort(me->comm));
        memset((char*)memory, '-', HUGE);
        usleep(300000);
        for (int i = 0; i < HUGE; i++) MUST(memory[i] == '-');
    }
    if (how == DEREGISTERS) {
        /* It has arrived. */
        if (me->rank == 1) wait_for_signals(me, 0, 1);
        meet(me);
    }
    if (how == DEREGISTERS || me->rank == 0) CHECK(ncclCommAbort(me->comm));
}

static void under_way_to_a_window(Rank* me) { under_way(me, DEREGISTERS); }
static void under_way_to_a_rank(Rank* me) { under_way(me, LEAVES); }
static void under_way_at_an_abort(Rank* me) { under_way(me, ABORTS); }

/* Messages of the library itself are not taken for signals. */
static void shrunk(Rank* me) {
    joined(me);
    ncclWindow_t window;
    window_of(me, BLOCK, &window);
    int last = me->size - 1;
    if (me->rank != last) {
        Rank rest = {me->rank, me->size - 1, me->id, NULL, me->all};
        CHECK(ncclCommShrink(me->comm, &last, 1, &rest.comm, NULL, 0));
        to_neighbours(&rest);
        CHECK(ncclCommDestroy(rest.comm));
    }
    to_neighbours(me);
    CHECK(ncclCommDestroy(me->comm));
}

/* All ranks send more signals than fit between two of them, without a window, before any waits. */
static void crowd(Rank* me) {
    joined(me);
    const int next = (me->rank + 1) % me->size, before = (me->rank + me->size - 1) % me->size;
    for (int i = 0; i < CROWD; i++) CHECK(ncclSignal(next, 0, 0, 0, me->comm, NULL));
    wait_for_signals(me, before, CROWD);
    CHECK(ncclCommDestroy(me->comm));
}

static void killed(Rank* me) { ended(me, 1); }
static void left(Rank* me) { ended(me, 0); }

static void settled(ncclComm_t comm, ncclResult_t result) {
    MUST(result == ncclInProgress);
    for (int i = 0; i < 60000 && result == ncclInProgress; i++) {
        CHECK(ncclCommGetAsyncError(comm, &result));
        usleep(1000);
    }
    MUST(result == ncclSuccess);
}

static void without_blocking(Rank* me) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t started = ncclCommInitRankConfig(&me->comm, me->size, me->id, me->rank, &config);
    settled(me->comm, started);
    ncclWindow_t window;
    char* memory = aligned_alloc(4096, 4096);
    settled(me->comm, ncclCommWindowRegister(me->comm, memory, 4096, &window, 0));
    const int next = (me->rank + 1) % me->size, before = (me->rank + me->size - 1) % me->size;
    ncclWaitSignalDesc_t wanted = {1, before, 0, 0};
    settled(me->comm, ncclPutSignal(&next, 1, ncclInt32, next, window, 0, 0, 0, 0, me->comm, NULL));
    settled(me->comm, ncclWaitSignal(1, &wanted, me->comm, NULL));
    MUST(*(int*)memory == me->rank);
    /* Deregistering waits until the window is registered. */
    ncclWindow_t brief;
    const ncclResult_t registered = ncclCommWindowRegister(me->comm, memory, 4096, &brief, 0);
    CHECK(ncclCommWindowDeregister(me->comm, brief));
    settled(me->comm, registered);
    settled(me->comm, ncclSignal(next, 0, 0, 0, me->comm, NULL));
    settled(me->comm, ncclWaitSignal(1, &wanted, me->comm, NULL));
    CHECK(ncclCommDestroy(me->comm));
}

/* One thread makes the calls of all ranks. */
static void all_in_one(int size) {
    ncclComm_t comms[16];
    ncclWindow_t windows[16];
    int* memory[16];
    CHECK(ncclCommInitAll(comms, size, NULL));
    CHECK(ncclGroupStart());
    for (int i = 0; i < size; i++) {
        memory[i] = aligned_alloc(4096, 4096);
        CHECK(ncclCommWindowRegister(comms[i], memory[i], 4096, &windows[i], 1));
    }
    CHECK(ncclGroupEnd());
    for (int round = 0; round < 3; round++) {
        ncclWaitSignalDesc_t wanted[16];
        int values[16];
        CHECK(ncclGroupStart());
        for (int i = 0; i < size; i++) {
            values[i] = 10 * round + i, wanted[i] = (ncclWaitSignalDesc_t){1, (i + size - 1) % size, 0, 0};
            CHECK(ncclPutSignal(&values[i], 1, ncclInt32, (i + 1) % size, windows[i], 0, 0, 0, 0, comms[i], NULL));
            CHECK(ncclWaitSignal(1, &wanted[i], comms[i], NULL));
        }
        CHECK(ncclGroupEnd());
        for (int i = 0; i < size; i++) MUST(memory[i][0] == 10 * round + (i + size - 1) % size);
    }
    for (int i = 0; i < size; i++) CHECK(ncclCommDestroy(comms[i]));
}

int main(int count, char** arguments) {
    MUST(count >= 4);
    const char* names[] = {"puts", "wrong", "deregistered", "killed", "left", "without_blocking", "apart", "under_way", "under_way_leaves", "under_way_aborts", "shrunk", "crowd"};
    const Work works[] = {puts_and_signals, wrong, deregistered, killed, left, without_blocking, apart, under_way_to_a_window, under_way_to_a_rank, under_way_at_an_abort, shrunk, crowd};
    for (int i = 0; i < 12; i++)
        if (strcmp(arguments[1], names[i]) == 0) as_told(count - 2, arguments + 2, works[i]);
    if (strcmp(arguments[1], "all") == 0) all_in_one(atoi(arguments[3]));
    puts("ok");
}
