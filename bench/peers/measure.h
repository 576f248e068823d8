/* How the peers that are C or C++ measure: options, buffers, the loop, the check, the rows. gloo.py does the same in Python.
 *
 *     PROGRAM --collectives all-reduce,scan --sizes 8,512 [--iters auto|N] [--check] [--rotate BYTES]
 *
 * prints `library,VERSION` and for each collective, size and place `row,COLLECTIVE,PLACE,BUFFERS,BYTES,CALLS,TIME_US,WRONG`.
 * Sizes mean what they mean in nccl-tests: of the whole buffer of a rank, so that n ranks gather size / n from each. What
 * is left over after that division is left out, and BYTES says so; a size of less than an element for each rank has no row.
 *
 * Each row: the result is checked; warm-up calls in growing batches; the timed calls, as many as take a tenth of a second,
 * 5 to 200000, the same number on every rank; one more call, checked again. Calls are made in turns, as `weft bench` makes
 * them: each call of a turn has buffers of its own; before a turn all inputs are written anew and the ranks meet; then the
 * calls follow each other, and only they are timed. The time is the total of the slowest rank over the calls. In `cached`
 * rows a turn's buffers fill a level-one cache, 2 to 64 of them; with --rotate they are so many bytes together, to find each
 * one cold.
 *
 * MPI carries what ranks must agree on, also where another library is measured. There are no other types, no other
 * operations than the sum and no other root than rank 0.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum collective {
    ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL,
    GATHER, SCATTER, SCAN, EXCLUSIVE_SCAN, SEND_RECEIVE, BARRIER, COLLECTIVES
};

static const char *const NAMES[COLLECTIVES] = {
    "all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter", "all-to-all",
    "gather", "scatter", "scan", "exclusive-scan", "send-receive", "barrier"
};

enum place { OUT_OF_PLACE, IN_PLACE };

/* A call: `count` elements of a buffer, or of a rank's share where the collective deals in shares. In place, `input` and
 * `output` are the same whole buffer. */
typedef void call_function(enum collective what, enum place place, float *input, float *output, size_t count);

/* Whether the library has the call. */
typedef int has_function(enum collective what, enum place place);

static int rank, ranks;

static int shares(enum collective what) {
    return what == ALL_GATHER || what == REDUCE_SCATTER || what == ALL_TO_ALL || what == GATHER || what == SCATTER;
}


/* The input of rank r repeats after PERIOD elements; its sums are whole numbers, exact in any order. */
enum { PERIOD = 61 };

static float value(int r, size_t element) { return (float)((element % PERIOD * 7 + (size_t)r * 13) % PERIOD + 1); }

/* Writes this rank's input. In place it lies where the result of an all-gather or a gather will have it. */
static void fill(enum collective what, enum place place, float *buffer, size_t count, size_t whole, float salt) {
    size_t elements = what == ALL_GATHER || what == GATHER ? count : whole;
    float *input = place == IN_PLACE && elements < whole ? buffer + (size_t)rank * count : buffer;
    float period[PERIOD];
    for (size_t i = 0; i < PERIOD; i++) period[i] = value(rank, i) + salt;
    for (size_t i = 0; i < elements; i += PERIOD)
        memcpy(input + i, period, sizeof(float) * (elements - i < PERIOD ? elements - i : PERIOD));
}

/* `sums` are over the ranks that count for this one. */
static float expected(enum collective what, size_t count, size_t i, const float *sums) {
    switch (what) {
    case BROADCAST: return value(0, i);
    case ALL_GATHER: case GATHER: return value((int)(i / count), i % count);
    case ALL_TO_ALL: return value((int)(i / count), (size_t)rank * count + i % count);
    case SCATTER: return value(0, (size_t)rank * count + i);
    case SEND_RECEIVE: return value((rank + ranks - 1) % ranks, i);
    case REDUCE_SCATTER: return sums[((size_t)rank * count + i) % PERIOD];
    default: return sums[i % PERIOD];
    }
}

/* How many elements of this rank's result are wrong. MPI leaves the first rank's result of an exclusive scan open. */
static long wrong_elements(enum collective what, enum place place, const float *output, size_t count, size_t whole) {
    if (what == BARRIER || (what == EXCLUSIVE_SCAN && rank == 0)) return 0;
    if ((what == REDUCE || what == GATHER) && rank != 0) return 0;
    size_t elements = what == REDUCE_SCATTER || what == SCATTER ? count : whole;
    if (what == SCATTER && place == IN_PLACE) output += (size_t)rank * count;
    float sums[PERIOD] = {0};
    int last = what == SCAN ? rank + 1 : what == EXCLUSIVE_SCAN ? rank : ranks;
    for (int r = 0; r < last; r++)
        for (size_t i = 0; i < PERIOD; i++) sums[i] += value(r, i);
    long wrong = 0;
    for (size_t i = 0; i < elements; i++) wrong += !(output[i] == expected(what, count, i, sums));
    return wrong;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double slowest(double seconds) {
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

/* Buffers of the same size, used in turn. */
enum { CACHE_BYTES = 24 << 10 };

struct buffers { char *memory; size_t stride, sets; };

static struct buffers allocate(size_t bytes, size_t rotate_bytes) {
    struct buffers b;
    size_t unit = bytes < 4096 ? 128 : 4096;
    b.stride = (bytes + unit - 1) / unit * unit;
    if (b.stride == 0) b.stride = unit;
    b.sets = (rotate_bytes ? rotate_bytes : CACHE_BYTES) / b.stride;
    if (b.sets < 2) b.sets = 2;
    if (!rotate_bytes && b.sets > 64) b.sets = 64;
    void *memory = mmap(NULL, b.stride * b.sets, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "no memory for %zu buffers of %zu bytes\n", b.sets, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    b.memory = (char *)memory;
    return b;
}

static float *set(const struct buffers *b, size_t call) { return (float *)(b->memory + call % b->sets * b->stride); }

static void free_buffers(struct buffers *b) { munmap(b->memory, b->stride * b->sets); }

struct options { long iters; int check; size_t rotate_bytes; };

struct job { call_function *call; enum collective what; enum place place; struct buffers in, out; size_t count, whole; };

static double timed(const struct job *j, long calls) {
    static int turn;
    double seconds = 0;
    for (long done = 0; done < calls; turn++) {
        size_t now_made = (size_t)(calls - done) < j->in.sets ? (size_t)(calls - done) : j->in.sets;
        for (size_t s = 0; s < now_made; s++)
            fill(j->what, j->place, set(&j->in, s), j->count, j->whole, (float)(turn % 8));
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now();
        for (size_t s = 0; s < now_made; s++) j->call(j->what, j->place, set(&j->in, s), set(&j->out, s), j->count);
        seconds += now() - start;
        done += (long)now_made;
    }
    return slowest(seconds);
}

/* How many calls take a tenth of a second, going by the fastest of the batches, so that one interruption does not count. */
static long warm_up(const struct job *j) {
    long batch = 5;
    double seconds = timed(j, batch), fastest = seconds / (double)batch;
    for (int batches = 1; seconds < 0.1 && (batches < 3 || fastest * (double)batch < 0.01) && batch < 50000; batches++) {
        seconds = timed(j, batch *= 4);
        if (seconds / (double)batch < fastest) fastest = seconds / (double)batch;
    }
    double calls = 0.1 / fastest;
    return calls < 5 ? 5 : calls > 200000 ? 200000 : (long)calls;
}

static void measure(call_function *call, enum collective what, enum place place, size_t size, const struct options *o) {
    size_t whole = what == BARRIER ? 0 : size / sizeof(float), count = whole;
    if (shares(what)) whole = (count = whole / (size_t)ranks) * (size_t)ranks;
    if (whole == 0 && what != BARRIER) return;
    size_t bytes = whole * sizeof(float);
    long calls = 0;
    double seconds = 0;

    /* In place both are the same buffers. */
    struct buffers out = allocate(bytes, o->rotate_bytes), in = out;
    if (place == OUT_OF_PLACE) in = allocate(bytes, o->rotate_bytes);
    struct job j = {call, what, place, in, out, count, whole};

    long wrong = 0;
    for (int again = 0; again < 2; again++) {
        memset(set(&out, 0), 0xff, bytes);
        fill(what, place, set(&in, 0), count, whole, 0);
        call(what, place, set(&in, 0), set(&out, 0), count);
        if (o->check) wrong += wrong_elements(what, place, set(&out, 0), count, whole);
        if (again) break;
        calls = warm_up(&j);
        if (o->iters) calls = o->iters;
        seconds = timed(&j, calls);
    }
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("row,%s,%s,%s,%zu,%ld,%.6g,%ld\n", NAMES[what], place == IN_PLACE ? "in-place" : "out-of-place",
               o->rotate_bytes ? "rotating" : "cached", bytes, calls, seconds / (double)calls * 1e6, wrong), fflush(stdout);
    free_buffers(&out);
    if (place == OUT_OF_PLACE) free_buffers(&in);
}

static void misuse(const char *why, const char *what) {
    if (rank == 0) fprintf(stderr, "%s: %s\n", why, what);
    MPI_Finalize();
    exit(2);
}

static enum collective named(const char *name) {
    for (int what = 0; what < COLLECTIVES; what++)
        if (!strcmp(name, NAMES[what])) return (enum collective)what;
    misuse("no such collective", name);
    return COLLECTIVES;
}

/* The whole program, between MPI_Init and MPI_Finalize. */
static void measure_all(int argc, char **argv, const char *library, has_function *has, call_function *call) {
    struct options o = {0, 0, 0};
    char *collectives = NULL, *sizes = NULL;
    for (int i = 1; i < argc; i++) {
        char *option = argv[i];
        if (!strcmp(option, "--check")) { o.check = 1; continue; }
        if (++i == argc) misuse("an option without its value, or none of ours", option);
        if (!strcmp(option, "--collectives")) collectives = argv[i];
        else if (!strcmp(option, "--sizes")) sizes = argv[i];
        else if (!strcmp(option, "--iters")) {
            o.iters = strcmp(argv[i], "auto") ? atol(argv[i]) : 0;
            if (o.iters < 1 && strcmp(argv[i], "auto")) misuse("--iters is a number or auto, not", argv[i]);
        }
        else if (!strcmp(option, "--rotate")) o.rotate_bytes = strtoull(argv[i], NULL, 10);
        else misuse("no such option", option);
    }
    if (!collectives || !sizes) misuse("needed", "--collectives and --sizes");
    if (rank == 0) printf("library,%s\n", library), fflush(stdout);
    for (char *name = strtok(collectives, ","); name; name = strtok(NULL, ",")) {
        enum collective what = named(name);
        for (char *size = sizes; size; size = what == BARRIER ? NULL : strchr(size, ',')) {
            if (*size == ',') size++;
            for (int place = OUT_OF_PLACE; place <= IN_PLACE; place++)
                if (has(what, (enum place)place)) measure(call, what, (enum place)place, strtoull(size, NULL, 10), &o);
        }
    }
}

#endif
