/* Ranks that die, abort, or call something else. */
#include "ranks.h"

/* Waits until the communicator has an error, and returns it. */
static ncclResult_t error_of(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    for (int i = 0; i < 20000 && (state == ncclSuccess || state == ncclInProgress); i++) {
        CHECK(ncclCommGetAsyncError(comm, &state));
        usleep(1000);
    }
    return state;
}

static void killed(Rank* me) {
    joined(me);
    int one = 1;
    CHECK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, me->comm, NULL));
    together(me);
    if (me->rank == 1) raise(SIGKILL);
    MUST(error_of(me->comm) == ncclRemoteError);
    MUST(strstr(ncclGetLastError(me->comm), "rank 1") != NULL);
    FAILS(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, me->comm, NULL), ncclRemoteError, "rank 1");
    ncclComm_t left;
    int dead = 1, size;
    CHECK(ncclCommShrink(me->comm, &dead, 1, &left, NULL, 1));
    CHECK(ncclCommCount(left, &size));
    MUST(size == me->size - 1);
    one = 1;
    CHECK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, left, NULL));
    MUST(one == size);
    CHECK(ncclCommDestroy(left));
    CHECK(ncclCommAbort(me->comm));
}

static void aborted(Rank* me) {
    joined(me);
    together(me);
    int one = 1;
    if (me->rank == 0) {
        CHECK(ncclCommAbort(me->comm));
        return;
    }
    MUST(error_of(me->comm) == ncclRemoteError);
    MUST(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, me->comm, NULL) == ncclRemoteError);
    MUST(strstr(ncclGetLastError(me->comm), "rank 0") != NULL);
    CHECK(ncclCommDestroy(me->comm));
}

static void revoked(Rank* me) {
    joined(me);
    int one = 1;
    ncclResult_t state;
    CHECK(ncclCommRevoke(me->comm, 0));
    CHECK(ncclCommGetAsyncError(me->comm, &state));
    MUST(state == ncclSuccess);
    FAILS(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, me->comm, NULL), ncclInvalidUsage, "was revoked");
    CHECK(ncclCommDestroy(me->comm));
}

static void different(Rank* me) {
    joined(me);
    int values[2] = {1, 2};
    ncclResult_t result = me->rank == 0 ? ncclAllReduce(values, values, 2, ncclInt32, ncclSum, me->comm, NULL)
                                        : ncclBcast(values, 2, ncclInt32, 0, me->comm, NULL);
    MUST(result == ncclInvalidUsage || result == ncclRemoteError);
    const char* why = ncclGetLastError(me->comm);
    MUST(strstr(why, "all-reduce") != NULL && strstr(why, "broadcast") != NULL);
    CHECK(ncclCommAbort(me->comm));
}

static void wrong_arguments(void) {
    ncclUniqueId id, foreign = {{1, 2, 3}};
    ncclComm_t comm;
    CHECK(ncclGetUniqueId(&id));
    FAILS(ncclGetUniqueId(NULL), ncclInvalidArgument, "is NULL");
    FAILS(ncclCommInitRank(&comm, 2, foreign, 0), ncclInvalidArgument, "was not made by Weft");
    FAILS(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank 2 is not one of 2 ranks");
    FAILS(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument, "is NULL");
    FAILS(ncclAllReduce(&id, &id, 1, ncclInt32, ncclSum, NULL, NULL), ncclInvalidArgument, "the communicator is NULL");
    FAILS(ncclAllReduce(&id, &id, 1, ncclInt32, ncclSum, (void*)&id, NULL), ncclInvalidArgument, "there is no communicator");
    ncclUniqueId alone;
    int count;
    CHECK(ncclGetUniqueId(&alone));
    CHECK(ncclGroupStart());
    CHECK(ncclCommInitRank(&comm, 1, alone, 0));
    FAILS(ncclCommCount(comm, &count), ncclInvalidUsage, "end it first");
    CHECK(ncclGroupEnd());
    CHECK(ncclCommCount(comm, &count));
    CHECK(ncclCommDestroy(comm));
    CHECK(ncclGroupStart());
    FAILS(ncclCommInitRank(&comm, 2, foreign, 0), ncclInvalidArgument, "was not made by Weft");
    FAILS(ncclGroupEnd(), ncclInvalidArgument, "was not made by Weft");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.magic = 5;
    FAILS(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "NCCL_CONFIG_INITIALIZER");
    ncclSimInfo_t info = {sizeof info, 0x74685283, 23007, -1};
    CHECK(ncclGroupStart());
    FAILS(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "no calls to predict");
    CHECK(ncclCommInitRank(&comm, 1, id, 0));
    int device;
    FAILS(ncclCommCuDevice(comm, &device), ncclInvalidUsage, "has no GPU");
    float value = 3;
    FAILS(ncclAllReduce(&value, NULL, 1, ncclFloat32, ncclSum, comm, NULL), ncclInvalidArgument, "is NULL");
    FAILS(ncclAllReduce(&value, &value, 1, ncclFloat32, 9, comm, NULL), ncclInvalidArgument, "there is no reduction 9");
    FAILS(ncclBcast(&value, 1, ncclFloat32, 1, comm, NULL), ncclInvalidArgument, "root 1 is not one of 1 ranks");
    FAILS(ncclAllReduce(&value, &value, SIZE_MAX / 2, ncclFloat32, ncclSum, comm, NULL), ncclInvalidArgument, "more than there is memory");
    CHECK(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, NULL));
    MUST(value == 3);
    CHECK(ncclCommDestroy(comm));
    MUST(strcmp(ncclGetErrorString(ncclRemoteError), "remote process exited or there was a network error") == 0);
    const char **keys, *text;
    int length, version;
    CHECK(ncclParamGetAllParameterKeys(&keys, &length));
    MUST(length > 0 && strcmp(keys[0], "NCCL_COMM_BLOCKING") == 0);
    CHECK(ncclParamGetParameter("NCCL_SOCKET_IFNAME", &text, &length));
    MUST(strcmp(text, "lo") == 0 && length == 2);
    CHECK(ncclGetVersion(&version));
    MUST(version == (getenv("WEFT_NCCL_VERSION") ? atoi(getenv("WEFT_NCCL_VERSION")) : 23007));
}

/* A child has its parent's communicator and none of its threads: its calls fail, and it can make its own. */
static void forked(void) {
    ncclUniqueId id;
    ncclComm_t comm;
    int one = 1, status;
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclCommInitRank(&comm, 1, id, 0));
    CHECK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, comm, NULL));
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        FAILS(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidUsage, "was forked");
        FAILS(ncclCommDestroy(comm), ncclInvalidUsage, "was forked");
        FAILS(ncclCommAbort(comm), ncclInvalidUsage, "was forked");
        ncclComm_t own;
        CHECK(ncclGetUniqueId(&id));
        CHECK(ncclCommInitRank(&own, 1, id, 0));
        CHECK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, own, NULL));
        CHECK(ncclCommDestroy(own));
        exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, comm, NULL));
    CHECK(ncclCommDestroy(comm));
}

int main(int count, char** arguments) {
    MUST(count == 3);
    const int size = atoi(arguments[2]);
    if (strcmp(arguments[1], "killed") == 0) processes(size, killed);
    if (strcmp(arguments[1], "aborted") == 0) processes(size, aborted);
    if (strcmp(arguments[1], "revoked") == 0) processes(size, revoked);
    if (strcmp(arguments[1], "different") == 0) processes(size, different);
    if (strcmp(arguments[1], "forked") == 0) forked();
    if (strcmp(arguments[1], "wrong") == 0) wrong_arguments();
    puts("ok");
}
