/* A library that was linked to NCCL, as PyTorch is, and finds it by a path inside itself. */
#include "nccl.h"

int users_version(void) {
    int version = 0;
    ncclUniqueId id;
    return ncclGetUniqueId(&id) == ncclSuccess && ncclGetVersion(&version) == ncclSuccess ? version : -1;
}
