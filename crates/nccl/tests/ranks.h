/* Ranks of a test program: threads or processes. */
#pragma once
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "nccl.h"

#define CHECK(call)                                                                                                              \
    do {                                                                                                                         \
        ncclResult_t result_ = (call);                                                                                           \
        if (result_ != ncclSuccess) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: %d, %s: %s\n", __FILE__, __LINE__, #call, result_, ncclGetErrorString(result_), ncclGetLastError(NULL)); \
            exit(1);                                                                                                             \
        }                                                                                                                        \
    } while (0)
#define MUST(what)                                                              \
    do {                                                                        \
        if (!(what)) {                                                          \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);  \
            exit(1);                                                            \
        }                                                                       \
    } while (0)
/* A call that must fail, with this result and these words in its sentence. */
#define FAILS(call, with, words)                                                                              \
    do {                                                                                                      \
        ncclResult_t result_ = (call);                                                                        \
        const char* why_ = ncclGetLastError(NULL);                                                            \
        if (result_ != (with) || strstr(why_, words) == NULL) {                                               \
            fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, result_, why_);                 \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

/* Zeroed memory: of the host or, with TEST_CUDA, of a GPU, for which a library stands in that this program can read. */
static inline void* zeroed(size_t bytes) {
    if (getenv("TEST_CUDA") == NULL) return calloc(1, bytes);
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    MUST(driver != NULL);
    int (*allocate)(uint64_t*, size_t) = (int (*)(uint64_t*, size_t))dlsym(driver, "cuMemAlloc_v2");
    uint64_t address;
    MUST(allocate(&address, bytes) == 0);
    return (void*)address;
}

typedef struct { int rank, size; ncclUniqueId id; ncclComm_t comm; pthread_barrier_t* all; } Rank;
typedef void (*Work)(Rank*);

static inline void joined(Rank* rank) { CHECK(ncclCommInitRank(&rank->comm, rank->size, rank->id, rank->rank)); }

/* Returns when all ranks are here. Collectives do not show it: a rank may return from one before the others have. */
static inline void together(Rank* rank) {
    const int result = pthread_barrier_wait(rank->all);
    MUST(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
}

typedef struct { Rank rank; Work work; } Started;

static inline void* on_thread(void* started) {
    ((Started*)started)->work(&((Started*)started)->rank);
    return NULL;
}

/* Runs work on threads of this process. */
static inline void threads(int size, Work work) {
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id));
    Started all[64];
    pthread_t thread[64];
    pthread_barrier_t barrier;
    MUST(pthread_barrier_init(&barrier, NULL, size) == 0);
    for (int i = 0; i < size; i++) {
        all[i] = (Started){{i, size, id, NULL, &barrier}, work};
        MUST(pthread_create(&thread[i], NULL, on_thread, &all[i]) == 0);
    }
    for (int i = 0; i < size; i++) pthread_join(thread[i], NULL);
}

/* Runs work in processes. This one, which makes the identifier, is no rank. */
static inline void processes(int size, Work work) {
    struct { ncclUniqueId id; pthread_barrier_t all; }* shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t of_processes;
    MUST(shared != MAP_FAILED && pthread_barrierattr_init(&of_processes) == 0);
    MUST(pthread_barrierattr_setpshared(&of_processes, PTHREAD_PROCESS_SHARED) == 0);
    MUST(pthread_barrier_init(&shared->all, &of_processes, size) == 0);
    int go[2];
    MUST(pipe(go) == 0);
    pid_t pids[64];
    for (int i = 0; i < size; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            char byte;
            close(go[1]);
            MUST(read(go[0], &byte, 1) == 0);
            Rank rank = {i, size, shared->id, NULL, &shared->all};
            work(&rank);
            exit(0);
        }
    }
    CHECK(ncclGetUniqueId(&shared->id));
    close(go[1]);
    int failed = 0;
    for (int i = 0; i < size; i++) {
        int status;
        MUST(waitpid(pids[i], &status, 0) == pids[i]);
        failed |= !(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    MUST(!failed);
}

/* Runs work as one rank of several. Rank 0 makes the identifier and writes it to a file. */
static inline void one_rank(int size, int rank, const char* file, Work work) {
    Rank me = {rank, size, {{0}}, NULL, NULL};
    char partial[4096];
    snprintf(partial, sizeof partial, "%s.partial", file);
    if (rank == 0) {
        CHECK(ncclGetUniqueId(&me.id));
        FILE* out = fopen(partial, "w");
        MUST(out != NULL && fwrite(&me.id, sizeof me.id, 1, out) == 1 && fclose(out) == 0 && rename(partial, file) == 0);
    }
    FILE* in = NULL;
    for (int i = 0; i < 60000 && (in = fopen(file, "r")) == NULL; i++) usleep(1000);
    MUST(in != NULL && fread(&me.id, sizeof me.id, 1, in) == 1 && fclose(in) == 0);
    work(&me);
}

/* Runs work as the arguments say: `threads N`, `processes N`, or `rank N R FILE`. */
static inline void as_told(int count, char** arguments, Work work) {
    MUST(count >= 2);
    const int size = atoi(arguments[1]);
    if (strcmp(arguments[0], "threads") == 0) threads(size, work);
    if (strcmp(arguments[0], "processes") == 0) processes(size, work);
    if (strcmp(arguments[0], "rank") == 0) one_rank(size, atoi(arguments[2]), arguments[3], work);
}
