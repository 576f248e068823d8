/* Loads libraries as programs do, and sees which NCCL is used. It is not linked to one. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nccl.h"

#define MUST(what)                                                              \
    do {                                                                        \
        if (!(what)) {                                                          \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);  \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

static int threads(void) {
    DIR* tasks = opendir("/proc/self/task");
    MUST(tasks != NULL);
    int count = -2;
    while (readdir(tasks) != NULL) count++;
    closedir(tasks);
    return count;
}

static int is_mapped(const char* name) {
    FILE* maps = fopen("/proc/self/maps", "r");
    MUST(maps != NULL);
    char line[8192];
    int found = 0;
    while (fgets(line, sizeof line, maps) != NULL) found |= strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

static void* opened(const char* path, int flags) {
    void* library = dlopen(path, RTLD_NOW | flags);
    if (library == NULL) fprintf(stderr, "%s\n", dlerror());
    MUST(library != NULL);
    return library;
}

/* Makes a communicator of one rank by the functions of a library. */
static ncclResult_t made(void* library, const char** why) {
    ncclResult_t (*identify)(ncclUniqueId*) = dlsym(library, "ncclGetUniqueId");
    ncclResult_t (*join)(ncclComm_t*, int, ncclUniqueId, int) = dlsym(library, "ncclCommInitRank");
    const char* (*last)(ncclComm_t) = dlsym(library, "ncclGetLastError");
    ncclComm_t comm;
    ncclUniqueId id;
    MUST(identify(&id) == ncclSuccess);
    ncclResult_t result = join(&comm, 1, id, 0);
    *why = last(NULL);
    return result;
}

/* The mode, Weft's library, another one, and a library that was linked to NCCL. */
int main(int count, char** arguments) {
    MUST(count == 5);
    const char *mode = arguments[1], *weft = arguments[2], *other = arguments[3], *user = arguments[4], *why = "";
    const int before = threads();
    if (strcmp(mode, "alone") == 0) {
        void* library = opened(weft, RTLD_LOCAL);
        MUST(threads() == before && before == 1);
        MUST(!is_mapped("libcuda"));
        MUST(made(library, &why) == ncclSuccess);
        MUST(threads() > before);
    } else if (strcmp(mode, "preloaded") == 0) {
        /* The loader does not open a second library of this name for the user's sake. */
        int (*version)(void) = dlsym(opened(user, RTLD_LOCAL), "users_version");
        MUST(version() == 23007);
        MUST(is_mapped(weft) && !is_mapped(other));
        /* By its path, it does. Nobody uses it. */
        opened(other, RTLD_GLOBAL);
        MUST(is_mapped(other) && version() == 23007);
        MUST(made(RTLD_DEFAULT, &why) == ncclSuccess);
    } else {
        /* "global": the program's libraries use the other one. "local": the one who loaded it uses it. */
        opened(other, strcmp(mode, "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL);
        MUST(made(opened(weft, RTLD_LOCAL), &why) == ncclInvalidUsage);
        MUST(strstr(why, weft) != NULL && strstr(why, other) != NULL);
        MUST(strstr(why, "two NCCLs") != NULL && strstr(why, "grep libnccl /proc/") != NULL);
    }
    puts("ok");
}
