/* A program that uses CUDA after its first calls on host memory. */
#include "ranks.h"

static int searches;

/* The library's searches for others come here. */
void* dlopen(const char* name, int flags) {
    void* (*next)(const char*, int) = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
    __atomic_add_fetch(&searches, 1, __ATOMIC_RELAXED);
    return next(name, flags);
}

static void late(Rank* me) {
    joined(me);
    int value = 1;
    CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, me->comm, NULL));
    const int before = __atomic_load_n(&searches, __ATOMIC_RELAXED);
    MUST(before > 0);
    for (int i = 0; i < 100; i++) CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclMax, me->comm, NULL));
    MUST(__atomic_load_n(&searches, __ATOMIC_RELAXED) == before);
    char* memory = zeroed(8192);
    memory += 4096 - (uintptr_t)memory % 4096;
    ncclWindow_t window;
    FAILS(ncclCommWindowRegister(me->comm, memory, 8192, &window, 0), ncclInvalidArgument, "exceed their allocation");
    CHECK(ncclCommDestroy(me->comm));
}

int main(int count, char** arguments) {
    MUST(count >= 3);
    as_told(count - 1, arguments + 1, late);
    puts("ok");
}
