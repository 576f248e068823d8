// A program in C++: it sees the same structures and calls the same functions.
#include <cstdio>
#include "nccl.h"

#define SIZE(type, bytes) static_assert(sizeof(type) == bytes, #type);
#define FIELD(type, field, at) static_assert(offsetof(type, field) == at, #type "." #field);
#include "layout.h"

int main() {
    ncclComm_t comm;
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    float value = 3;
    bool works = ncclGetUniqueId(&id) == ncclSuccess && ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclSuccess
        && ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess && value == 3
        && ncclTeamWorld(comm).nRanks == 1 && ncclCommDestroy(comm) == ncclSuccess;
    std::puts(works ? "ok" : ncclGetLastError(nullptr));
    return !works;
}
