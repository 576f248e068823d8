/* Groups, messages, communicators made from others, and the ends of communicators. */
#include "ranks.h"

static void messages(Rank* me) {
    joined(me);
    const int n = me->size, next = (me->rank + 1) % n, before = (me->rank + n - 1) % n;
    /* Long ones that both sides send first, several between two ranks, one to oneself, only some ranks. */
    enum { LONG = 3000000 };
    char *out = zeroed(LONG), *in = zeroed(LONG);
    memset(out, 'a' + me->rank, LONG);
    int sent[3] = {me->rank, 10 + me->rank, 20 + me->rank}, got[3] = {-1, -1, -1};
    CHECK(ncclGroupStart());
    CHECK(ncclSend(out, LONG, ncclInt8, next, me->comm, NULL));
    CHECK(ncclRecv(in, LONG, ncclInt8, before, me->comm, NULL));
    CHECK(ncclSend(&sent[0], 1, ncclInt32, next, me->comm, NULL));
    CHECK(ncclSend(&sent[1], 1, ncclInt32, next, me->comm, NULL));
    CHECK(ncclRecv(&got[0], 1, ncclInt32, before, me->comm, NULL));
    CHECK(ncclRecv(&got[1], 1, ncclInt32, before, me->comm, NULL));
    CHECK(ncclSend(&sent[2], 1, ncclInt32, me->rank, me->comm, NULL));
    CHECK(ncclRecv(&got[2], 1, ncclInt32, me->rank, me->comm, NULL));
    CHECK(ncclGroupEnd());
    for (int i = 0; i < LONG; i++) MUST(in[i] == 'a' + before);
    MUST(got[0] == before && got[1] == 10 + before && got[2] == 20 + me->rank);
    if (me->rank == 0) CHECK(ncclSend(&sent[1], 1, ncclInt32, n - 1, me->comm, NULL));
    if (me->rank == n - 1) {
        CHECK(ncclRecv(&got[1], 1, ncclInt32, 0, me->comm, NULL));
        MUST(got[1] == 10);
    }
    /* Messages and a collective in one group, nested. */
    float sum = 1;
    CHECK(ncclGroupStart());
    CHECK(ncclGroupStart());
    CHECK(ncclSend(&sent[0], 1, ncclInt32, next, me->comm, NULL));
    CHECK(ncclAllReduce(&sum, &sum, 1, ncclFloat32, ncclSum, me->comm, NULL));
    CHECK(ncclGroupEnd());
    MUST(sum == 1);
    CHECK(ncclRecv(&got[0], 1, ncclInt32, before, me->comm, NULL));
    CHECK(ncclGroupEnd());
    MUST(sum == (float)n && got[0] == before);
    /* An error in a group: nothing of it begins. */
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce(&sum, &sum, 1, ncclFloat32, ncclSum, me->comm, NULL));
    FAILS(ncclAllReduce(&sum, &sum, 1, 77, ncclSum, me->comm, NULL), ncclInvalidArgument, "no data type 77");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "no data type 77");
    MUST(sum == (float)n);
    FAILS(ncclGroupEnd(), ncclInvalidUsage, "without ncclGroupStart");
    FAILS(ncclSend(&sum, 1, ncclFloat32, n, me->comm, NULL), ncclInvalidArgument, "is not one of");
    CHECK(ncclCommDestroy(me->comm));
}

static int sum_of(ncclComm_t comm, int value) {
    CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
    return value;
}

static void families(Rank* me) {
    joined(me);
    ncclComm_t half, none, fewer, more;
    CHECK(ncclCommSplit(me->comm, me->rank % 2, -me->rank, &half, NULL));
    int rank, size;
    CHECK(ncclCommUserRank(half, &rank));
    CHECK(ncclCommCount(half, &size));
    MUST(rank == size - 1 - me->rank / 2);
    MUST(sum_of(half, 1) == size);
    CHECK(ncclCommSplit(me->comm, me->rank == 0 ? -1 : 5, 0, &none, NULL));
    MUST((none == NULL) == (me->rank == 0));
    if (none != NULL) MUST(sum_of(none, 1) == me->size - 1);
    CHECK(ncclCommDestroy(none));
    CHECK(ncclCommDestroy(half));
    /* Several of one parent in a group: on all ranks in the same order. */
    ncclComm_t all, again;
    CHECK(ncclGroupStart());
    CHECK(ncclCommSplit(me->comm, me->rank % 2, 0, &half, NULL));
    CHECK(ncclCommSplit(me->comm, 0, -me->rank, &all, NULL));
    CHECK(ncclCommSplit(me->comm, 1 - me->rank % 2, 0, &again, NULL));
    CHECK(ncclGroupEnd());
    MUST(sum_of(all, 1) == me->size);
    CHECK(ncclCommUserRank(all, &rank));
    MUST(rank == me->size - 1 - me->rank);
    MUST(sum_of(half, 1) == sum_of(again, 1));
    CHECK(ncclCommDestroy(again));
    CHECK(ncclCommDestroy(all));
    CHECK(ncclCommDestroy(half));
    /* The last rank does not take part. */
    int excluded = me->size - 1;
    if (me->rank != excluded) {
        CHECK(ncclCommShrink(me->comm, &excluded, 1, &fewer, NULL, 0));
        MUST(sum_of(fewer, 1) == me->size - 1);
        CHECK(ncclCommDestroy(fewer));
    }
    MUST(sum_of(me->comm, 1) == me->size);
    /* Grows by one, which is a thread of the last rank's process. */
    ncclUniqueId id;
    if (me->rank == 0) CHECK(ncclCommGetUniqueId(me->comm, &id));
    CHECK(ncclBcast(&id, 128, ncclInt8, 0, me->comm, NULL));
    ncclComm_t extra = NULL;
    CHECK(ncclGroupStart());
    CHECK(ncclCommGrow(me->comm, me->size + 1, me->rank == 0 ? &id : NULL, -1, &more, NULL));
    if (me->rank == me->size - 1) CHECK(ncclCommGrow(NULL, me->size + 1, &id, me->size, &extra, NULL));
    CHECK(ncclGroupEnd());
    int one = 1, other = 1;
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, more, NULL));
    if (extra != NULL) CHECK(ncclAllReduce(&other, &other, 1, ncclInt32, ncclSum, extra, NULL));
    CHECK(ncclGroupEnd());
    MUST(one == me->size + 1 && (extra == NULL || other == me->size + 1));
    CHECK(ncclCommDestroy(extra));
    CHECK(ncclCommDestroy(more));
    CHECK(ncclCommDestroy(me->comm));
    FAILS(ncclCommDestroy(me->comm), ncclInvalidArgument, "it was destroyed, or never made");
}

static void wait_for(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    for (int i = 0; i < 60000 && state == ncclInProgress; i++) {
        CHECK(ncclCommGetAsyncError(comm, &state));
        usleep(1000);
    }
    MUST(state == ncclSuccess);
}

static void without_blocking(Rank* me) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "mine";
    MUST(ncclCommInitRankConfig(&me->comm, me->size, me->id, me->rank, &config) == ncclInProgress);
    wait_for(me->comm);
    int value = 1;
    MUST(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, me->comm, NULL) == ncclInProgress);
    wait_for(me->comm);
    MUST(value == me->size);
    ncclComm_t child;
    MUST(ncclCommSplit(me->comm, 0, 0, &child, NULL) == ncclInProgress);
    wait_for(me->comm);
    wait_for(child);
    /* Destroying waits for a call that the program has not waited for. */
    MUST(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, child, NULL) == ncclInProgress);
    CHECK(ncclCommDestroy(child));
    MUST(value == me->size * me->size);
    MUST(ncclCommFinalize(me->comm) == ncclInProgress);
    wait_for(me->comm);
    CHECK(ncclCommDestroy(me->comm));
}

static void registered(Rank* me) {
    ncclUniqueId ids[2] = {me->id, me->id};
    CHECK(ncclCommInitRankScalable(&me->comm, me->size, me->rank, 2, ids, NULL));
    void *memory, *handle, *found;
    ncclWindow_t window;
    CHECK(ncclMemAlloc(&memory, 1 << 20));
    CHECK(ncclCommRegister(me->comm, memory, 1 << 20, &handle));
    memset(memory, 1, 1 << 20);
    CHECK(ncclAllReduce(memory, memory, 1 << 20, ncclUint8, ncclSum, me->comm, NULL));
    MUST(((char*)memory)[12345] == me->size);
    CHECK(ncclCommDeregister(me->comm, handle));
    FAILS(ncclCommDeregister(me->comm, handle), ncclInvalidArgument, "did not return the handle");
    char* aligned = aligned_alloc(4096, 8192);
    CHECK(ncclCommWindowRegister(me->comm, aligned, 4096, &window, 1));
    CHECK(ncclWinGetUserPtr(me->comm, window, &found));
    MUST(found == aligned);
    CHECK(ncclCommWindowDeregister(me->comm, window));
    FAILS(ncclCommWindowRegister(me->comm, aligned + 1, 4096, &window, 0), ncclInvalidArgument, "a multiple of 4096");
    free(aligned);
    CHECK(ncclMemFree(memory));
    FAILS(ncclMemFree(memory), ncclInvalidArgument, "or it was freed");
    ncclCommProperties_t properties = {sizeof properties, 0xcafebeef, 23007, 0, 0, 0, 0, 1, 1, 9, 9, 0, 9};
    CHECK(ncclCommQueryProperties(me->comm, &properties));
    MUST(properties.rank == me->rank && properties.nRanks == me->size && !properties.deviceApiSupport && properties.nLsaTeams == 1);
    ncclTeam_t world = ncclTeamWorld(me->comm);
    MUST(world.nRanks == me->size && world.rank == me->rank && ncclTeamRankToWorld(me->comm, world, 1) == 1);
    MUST(properties.hostRmaSupport);
    /* Predicted, and not made. */
    ncclSimInfo_t info = {sizeof info, 0x74685283, 23007, -1};
    int value = 1;
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, me->comm, NULL));
    CHECK(ncclGroupSimulateEnd(&info));
    MUST(info.estimatedTime > 0 && value == 1);
    const float one = info.estimatedTime;
    CHECK(ncclGroupStart());
    for (int i = 0; i < 2; i++) CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, me->comm, NULL));
    CHECK(ncclGroupSimulateEnd(&info));
    MUST(info.estimatedTime > 1.9 * one && info.estimatedTime < 2.1 * one);
    CHECK(ncclGroupStart());
    CHECK(ncclSend(&value, 1, ncclInt32, 0, me->comm, NULL));
    FAILS(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "messages are not predicted");
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce(&value, &value, (size_t)1 << 58, ncclInt32, ncclSum, me->comm, NULL));
    FAILS(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "more than 1 TiB are not predicted");
    /* An error of a call in the group. */
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, me->comm, NULL));
    FAILS(ncclAllReduce(&value, &value, 1, 77, ncclSum, me->comm, NULL), ncclInvalidArgument, "no data type 77");
    FAILS(ncclGroupSimulateEnd(&info), ncclInvalidArgument, "no data type 77");
    /* An inner group: its calls and those before are made when the outermost one ends. */
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, me->comm, NULL));
    CHECK(ncclGroupStart());
    FAILS(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "the outermost group");
    CHECK(ncclGroupEnd());
    MUST(value == me->size);
    FAILS(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "without ncclGroupStart");
    FAILS(ncclDevCommCreate(me->comm, NULL, NULL), ncclInvalidUsage, "the device API (nccl_device.h) is not offered");
    CHECK(ncclCommDestroy(me->comm));
}

/* One thread makes the calls of all ranks. */
static void all_in_one(int size) {
    ncclComm_t comms[16];
    CHECK(ncclCommInitAll(comms, size, NULL));
    float values[16];
    int sent[16], got[16];
    for (int round = 0; round < 3; round++) {
        CHECK(ncclGroupStart());
        for (int i = 0; i < size; i++) {
            values[i] = (float)i, sent[i] = 10 * round + i;
            CHECK(ncclAllReduce(&values[i], &values[i], 1, ncclFloat32, ncclSum, comms[i], NULL));
            CHECK(ncclSend(&sent[i], 1, ncclInt32, (i + 1) % size, comms[i], NULL));
            CHECK(ncclRecv(&got[i], 1, ncclInt32, (i + size - 1) % size, comms[i], NULL));
        }
        CHECK(ncclGroupEnd());
        for (int i = 0; i < size; i++) MUST(values[i] == (float)(size * (size - 1) / 2) && got[i] == 10 * round + (i + size - 1) % size);
    }
    for (int i = 0; i < size; i++) CHECK(ncclCommDestroy(comms[i]));
}

int main(int count, char** arguments) {
    MUST(count >= 4);
    const char* names[] = {"messages", "families", "without_blocking", "registered"};
    const Work works[] = {messages, families, without_blocking, registered};
    for (int i = 0; i < 4; i++)
        if (strcmp(arguments[1], names[i]) == 0) as_told(count - 2, arguments + 2, works[i]);
    if (strcmp(arguments[1], "all") == 0) all_in_one(atoi(arguments[3]));
    puts("ok");
}
