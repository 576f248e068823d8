/* Loads the tuner as NCCL does, and asks it what NCCL asks. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void (*logger_function)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

struct tuner_v2 {
    const char* name;
    int (*init)(size_t ranks, size_t nodes, logger_function, void** context);
    int (*choose)(void* context, int function, size_t bytes, int collnet, int nvls, int operations, int* algorithm, int* protocol,
                  int* channels);
    int (*end)(void* context);
};
struct tuner_v3 {
    const char* name;
    int (*init)(size_t ranks, size_t nodes, logger_function, void** context);
    int (*choose)(void* context, int function, size_t bytes, int operations, float** costs, int algorithms, int protocols, int* channels);
    int (*end)(void* context);
};
struct tuner_v4 {
    const char* name;
    int (*init)(size_t ranks, size_t nodes, logger_function, void** context);
    int (*choose)(void* context, int function, size_t bytes, int operations, float** costs, int algorithms, int protocols, int registered,
                  int* channels);
    int (*end)(void* context);
};
/* Versions 5 to 7; version 5 ends before the last member. */
struct tuner_v5 {
    const char* name;
    int (*init)(void** context, uint64_t communicator, size_t ranks, size_t nodes, logger_function, void* domains, void* constants);
    int (*choose)(void* context, int function, size_t bytes, int operations, float** costs, int algorithms, int protocols, int registered,
                  int* channels);
    int (*end)(void* context);
    int (*chunk)(void* context, int function, size_t bytes, int algorithm, int protocol, int channels, size_t* chunk);
};

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static void* library;
static bool is_silent;

static void log_line(int level, unsigned long flags, const char* file, int line, const char* format, ...) {
    (void)file, (void)line;
    if (is_silent) return;
    va_list arguments;
    va_start(arguments, format);
    printf("log %d %lx ", level, flags);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

static void* symbol(int version) {
    char name[40];
    snprintf(name, sizeof name, "ncclTunerPlugin_v%d", version);
    return dlsym(library, name);
}

static void* begin(int version, size_t ranks, size_t nodes, logger_function logger) {
    void* context = (void*)1;
    /* The structures are larger than any that the tuner knows, and it must not write there. */
    char domains[64], constants[4096];
    memset(domains, 0x5a, sizeof domains);
    memset(constants, 0x5a, sizeof constants);
    int done = version < 5 ? ((struct tuner_v3*)symbol(version))->init(ranks, nodes, logger, &context)
                           : ((struct tuner_v5*)symbol(version))->init(&context, 0x1234, ranks, nodes, logger, domains, constants);
    CHECK(done == 0 && context != (void*)1 && context != NULL);
    for (size_t at = 0; at < sizeof constants; at++) CHECK(constants[at] == 0x5a);
    return context;
}

static int ask(int version, void* context, int function, size_t bytes, float* costs, int algorithms, int protocols, int* channels) {
    float** table = (float**)costs;
    if (version == 3) {
        struct tuner_v3* tuner = symbol(version);
        return tuner->choose(context, function, bytes, 1, table, algorithms, protocols, channels);
    }
    struct tuner_v4* tuner = symbol(version); /* the member is at the same place since version 3 */
    return tuner->choose(context, function, bytes, 1, table, algorithms, protocols, 0, channels);
}

static int end(int version, void* context) {
    return ((struct tuner_v3*)symbol(version))->end(context);
}

/* As NCCL: ways at growing costs, with all protocols for trees and rings, and one for the others. */
static void fill(float* costs, int algorithms, int protocols) {
    for (int at = 0; at < algorithms * protocols; at++) costs[at] = 100.0f + at;
    for (int algorithm = 2; algorithm < algorithms && algorithm < 7; algorithm++) {
        for (int protocol = 0; protocol < 2; protocol++) costs[algorithm * protocols + protocol] = -1.0f;
    }
}

static int cheapest(const float* costs, int count) {
    int best = -1;
    for (int at = 0; at < count; at++) {
        if (costs[at] >= 0 && (best < 0 || costs[at] < costs[best])) best = at;
    }
    return best;
}

static const size_t SIZES[] = {0, 8, 1000, 4096, 65536, 1 << 20, 3 << 20, 1 << 26, (size_t)1 << 33};
enum { NUMBER_OF_SIZES = sizeof SIZES / sizeof *SIZES };

static void choices(int version) {
    void* context = begin(version, 8, 1, log_line);
    for (int function = 0; function < 5; function++) {
        for (int at = 0; at < NUMBER_OF_SIZES; at++) {
            int algorithm, protocol, channels = 0;
            if (version == 2) {
                struct tuner_v2* tuner = symbol(2);
                algorithm = protocol = -1;
                CHECK(tuner->choose(context, function, SIZES[at], 1, 1, 1, &algorithm, &protocol, &channels) == 0);
            } else {
                float costs[21];
                fill(costs, 7, 3);
                /* Only all-reduces have trees. */
                if (function != 4) costs[0] = costs[1] = costs[2] = -1.0f;
                CHECK(ask(version, context, function, SIZES[at], costs, 7, 3, &channels) == 0);
                algorithm = cheapest(costs, 21) / 3, protocol = cheapest(costs, 21) % 3;
                for (int other = 2; other < 7; other++) CHECK(costs[3 * other] == -1.0f && costs[3 * other + 1] == -1.0f);
            }
            printf("choice %d %zu %d %d %d\n", function, SIZES[at], algorithm, protocol, channels);
        }
    }
    CHECK(end(version, context) == 0);
}

/* Whatever NCCL passes: success, and nothing is written that was not asked for. */
static void edges(int version) {
    void* context = begin(version, 8, 1, NULL);
    float costs[64], before[64];
    int channels = 77;
    const int functions[] = {-1, -2147483647, 5, 6, 14, 15, 99, 2147483647};
    for (size_t at = 0; at < sizeof functions / sizeof *functions; at++) {
        if (version == 2) {
            struct tuner_v2* tuner = symbol(2);
            int algorithm = -1, protocol = -1;
            CHECK(tuner->choose(context, functions[at], 4096, 1, 1, 1, &algorithm, &protocol, &channels) == 0);
            CHECK(algorithm == -1 && protocol == -1 && channels == 77);
            continue;
        }
        fill(costs, 7, 3);
        memcpy(before, costs, sizeof costs);
        CHECK(ask(version, context, functions[at], 4096, costs, 7, 3, &channels) == 0);
        CHECK(memcmp(before, costs, 21 * sizeof *costs) == 0 && channels == 77);
    }
    if (version == 2) {
        struct tuner_v2* tuner = symbol(2);
        int algorithm = -1, protocol = -1;
        CHECK(tuner->choose(NULL, 4, 4096, 1, 1, 1, &algorithm, &protocol, &channels) == 0);
        CHECK(tuner->choose(context, 4, 4096, 1, 1, 1, NULL, &protocol, &channels) == 0);
        CHECK(tuner->choose(context, 4, 4096, 1, 1, 1, &algorithm, NULL, &channels) == 0);
        CHECK(algorithm == -1 && protocol == -1);
        CHECK(tuner->choose(context, 4, 4096, 1, 1, 1, &algorithm, &protocol, NULL) == 0);
        CHECK(algorithm >= 0 && protocol >= 0);
        CHECK(tuner->init(8, 1, NULL, NULL) == 0 && tuner->end(NULL) == 0);
    } else {
        const int numbers[][2] = {{0, 3}, {7, 0}, {-7, 3}, {7, -3}, {65, 3}, {2147483647, 2147483647}};
        for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
            fill(costs, 7, 3);
            memcpy(before, costs, sizeof costs);
            CHECK(ask(version, context, 4, 4096, costs, numbers[at][0], numbers[at][1], &channels) == 0);
            CHECK(memcmp(before, costs, 21 * sizeof *costs) == 0);
        }
        CHECK(ask(version, context, 4, 4096, NULL, 7, 3, &channels) == 0);
        CHECK(ask(version, NULL, 4, 4096, costs, 7, 3, &channels) == 0);
        CHECK(ask(version, context, 4, 4096, costs, 7, 3, NULL) == 0);
        /* Nothing is allowed. */
        for (int at = 0; at < 21; at++) costs[at] = -1.0f;
        CHECK(ask(version, context, 4, 4096, costs, 7, 3, &channels) == 0);
        for (int at = 0; at < 21; at++) CHECK(costs[at] == -1.0f);
        /* Fewer and more algorithms and protocols than today: the choice is at the right place, and nothing beyond the table is written. */
        const int shapes[][2] = {{1, 1}, {2, 3}, {6, 3}, {7, 3}, {8, 3}, {9, 4}, {12, 5}};
        for (size_t at = 0; at < sizeof shapes / sizeof *shapes; at++) {
            int algorithms = shapes[at][0], protocols = shapes[at][1], count = algorithms * protocols;
            fill(costs, algorithms, protocols);
            memcpy(before, costs, sizeof costs);
            CHECK(ask(version, context, 4, (size_t)1 << 30, costs, algorithms, protocols, &channels) == 0);
            int best = cheapest(costs, count), changed = 0;
            for (int entry = 0; entry < 64; entry++) {
                changed += costs[entry] != before[entry] && entry != best;
                CHECK(entry < count || entry >= 64 || memcmp(&costs[entry], &before[entry], sizeof *costs) == 0);
            }
            CHECK(changed == 0 && before[best] >= 0);
            printf("shape %d %d: %d %d\n", algorithms, protocols, best / protocols, best % protocols);
        }
        if (version == 3 || version == 4) {
            CHECK(((struct tuner_v3*)symbol(version))->init(8, 1, NULL, NULL) == 0);
        } else {
            CHECK(((struct tuner_v5*)symbol(version))->init(NULL, 1, 8, 1, NULL, NULL, NULL) == 0);
        }
        if (version >= 6) CHECK(((struct tuner_v5*)symbol(version))->chunk == NULL);
        CHECK(end(version, NULL) == 0);
    }
    CHECK(end(version, context) == 0);
    /* A communicator for which there is no prediction. */
    context = begin(version, 1, 1, log_line);
    CHECK(end(version, context) == 0);
    context = begin(version, (size_t)1 << 40, 3, log_line);
    CHECK(end(version, context) == 0);
}

struct ranks { int version; long sum; };

static void* rank(void* argument) {
    struct ranks* ranks = argument;
    void* context = begin(ranks->version, 8, 1, NULL);
    for (int round = 0; round < 500; round++) {
        for (int at = 0; at < NUMBER_OF_SIZES; at++) {
            float costs[21];
            int channels = 0;
            fill(costs, 7, 3);
            CHECK(ask(ranks->version, context, round % 5, SIZES[at], costs, 7, 3, &channels) == 0);
            ranks->sum = ranks->sum * 31 + cheapest(costs, 21) * 100 + channels;
        }
    }
    CHECK(end(ranks->version, context) == 0);
    return NULL;
}

static void threads(int version) {
    enum { RANKS = 8 };
    pthread_t all[RANKS];
    struct ranks ranks[RANKS];
    for (int at = 0; at < RANKS; at++) {
        ranks[at] = (struct ranks){version, 0};
        CHECK(pthread_create(&all[at], NULL, rank, &ranks[at]) == 0);
    }
    for (int at = 0; at < RANKS; at++) {
        pthread_join(all[at], NULL);
        CHECK(ranks[at].sum == ranks[0].sum);
    }
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void cost(int version) {
    is_silent = true;
    void* context = begin(version, 8, 1, log_line);
    float costs[21];
    int channels = 0;
    double began = now_ns();
    fill(costs, 7, 3);
    ask(version, context, 4, 1 << 20, costs, 7, 3, &channels);
    double first = now_ns() - began;
    enum { CALLS = 100000 };
    began = now_ns();
    for (int call = 0; call < CALLS; call++) fill(costs, 7, 3);
    double filled = now_ns() - began;
    began = now_ns();
    for (int call = 0; call < CALLS; call++) {
        fill(costs, 7, 3);
        ask(version, context, 4, 1 << 20, costs, 7, 3, &channels);
    }
    double all = now_ns() - began;
    printf("first call of a class: %.0f ns; later calls: %.0f ns (with dlsym)\n", first, (all - filled) / CALLS);
    struct tuner_v4* tuner = symbol(version);
    began = now_ns();
    for (int call = 0; call < CALLS; call++) {
        fill(costs, 7, 3);
        tuner->choose(context, 4, 1 << 20, 1, (float**)costs, 7, 3, 0, &channels);
    }
    printf("later calls: %.0f ns\n", (now_ns() - began - filled) / CALLS);
    CHECK(end(version, context) == 0);
}

int main(int count, char** arguments) {
    CHECK(count == 4);
    library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int version = atoi(arguments[3]);
    CHECK(symbol(1) == NULL && symbol(8) == NULL && symbol(version) != NULL);
    CHECK(strcmp(((struct tuner_v3*)symbol(version))->name, "Weft") == 0);
    const char* mode = arguments[2];
    if (!strcmp(mode, "choices")) choices(version);
    else if (!strcmp(mode, "edges")) edges(version);
    else if (!strcmp(mode, "threads")) threads(version);
    else if (!strcmp(mode, "cost")) cost(version);
    else return 1;
    /* NCCL closes the library and may load it again. */
    CHECK(dlclose(library) == 0);
    library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    void* context = begin(version, 8, 1, NULL);
    CHECK(end(version, context) == 0);
    printf("ok\n");
    return 0;
}
