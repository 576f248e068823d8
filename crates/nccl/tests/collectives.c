/* All collectives, types and reductions, in place and out of place, against a reference. */
#include "ranks.h"

enum { COUNT = 37 };
#define TYPES(X) X(int8_t, ncclInt8) X(uint8_t, ncclUint8) X(int32_t, ncclInt32) X(uint32_t, ncclUint32) X(int64_t, ncclInt64) \
    X(uint64_t, ncclUint64) X(float, ncclFloat32) X(double, ncclFloat64)

/* What rank `r` gives as element `i`: small, so that all types hold products. */
static int given(int r, int i) { return 1 + (r + i) % 2; }

static int expected(int op, int size, int i) {
    int sum = 0, product = 1, most = 0, least = 9;
    for (int r = 0; r < size; r++) {
        const int v = given(r, i);
        sum += v, product *= v, most = v > most ? v : most, least = v < least ? v : least;
    }
    return op == ncclSum ? sum : op == ncclProd ? product : op == ncclMax ? most : least;
}

#define OF_TYPE(T, N)                                                                                          \
    static void reductions_##N(Rank* me) {                                                                     \
        const int n = me->size;                                                                                \
        T *in = zeroed(COUNT * n * sizeof(T)), *out = zeroed(COUNT * n * sizeof(T));                           \
        for (int op = ncclSum; op <= ncclMin; op++) {                                                          \
            for (int i = 0; i < COUNT * n; i++) in[i] = (T)given(me->rank, i), out[i] = 99;                    \
            CHECK(ncclAllReduce(in, out, COUNT, N, op, me->comm, NULL));                                       \
            for (int i = 0; i < COUNT; i++) MUST(out[i] == (T)expected(op, n, i));                             \
            MUST(out[COUNT] == 99 || n == 1);                                                                  \
            CHECK(ncclReduce(in, me->rank == n - 1 ? out : NULL, COUNT, N, op, n - 1, me->comm, NULL));        \
            for (int i = 0; i < COUNT && me->rank == n - 1; i++) MUST(out[i] == (T)expected(op, n, i));        \
            CHECK(ncclReduceScatter(in, out, COUNT, N, op, me->comm, NULL));                                   \
            for (int i = 0; i < COUNT; i++) MUST(out[i] == (T)expected(op, n, me->rank * COUNT + i));          \
            CHECK(ncclReduceScatter(in, in + me->rank * COUNT, COUNT, N, op, me->comm, NULL));                 \
            for (int i = 0; i < COUNT; i++) MUST(in[me->rank * COUNT + i] == out[i]);                          \
            for (int i = 0; i < COUNT; i++) in[i] = (T)given(me->rank, i);                                     \
            CHECK(pncclAllReduce(in, in, COUNT, N, op, me->comm, NULL));                                       \
            for (int i = 0; i < COUNT; i++) MUST(in[i] == (T)expected(op, n, i));                              \
        }                                                                                                      \
    }
TYPES(OF_TYPE)

/* Blocks that move, as 16-bit values. */
static uint16_t block(int from, int to, int i) { return (uint16_t)(from * 1000 + to * 50 + i); }

static void moves(Rank* me) {
    const int n = me->size, r = me->rank, root = n / 2;
    uint16_t *in = zeroed(COUNT * n * 2), *out = zeroed(COUNT * n * 2);
    for (int to = 0; to < n; to++)
        for (int i = 0; i < COUNT; i++) in[to * COUNT + i] = block(r, to, i);
    CHECK(ncclAlltoAll(in, out, COUNT, ncclBfloat16, me->comm, NULL));
    for (int from = 0; from < n; from++)
        for (int i = 0; i < COUNT; i++) MUST(out[from * COUNT + i] == block(from, r, i));
    CHECK(ncclAllGather(in, out, COUNT, ncclFloat16, me->comm, NULL));
    for (int from = 0; from < n; from++)
        for (int i = 0; i < COUNT; i++) MUST(out[from * COUNT + i] == block(from, 0, i));
    memset(out, 0, COUNT * n * 2);
    for (int i = 0; i < COUNT; i++) out[r * COUNT + i] = block(r, 0, i);
    CHECK(ncclAllGather(out + r * COUNT, out, COUNT, ncclFloat16, me->comm, NULL));
    for (int from = 0; from < n; from++)
        for (int i = 0; i < COUNT; i++) MUST(out[from * COUNT + i] == block(from, 0, i));
    memset(out, 0, COUNT * n * 2);
    CHECK(ncclGather(in, r == root ? out : (void*)1, COUNT, ncclFloat16, root, me->comm, NULL));
    for (int from = 0; from < n && r == root; from++)
        for (int i = 0; i < COUNT; i++) MUST(out[from * COUNT + i] == block(from, 0, i));
    CHECK(ncclScatter(r == root ? in : NULL, out, COUNT, ncclFloat16, root, me->comm, NULL));
    for (int i = 0; i < COUNT; i++) MUST(out[i] == block(root, r, i));
    if (r == root) {
        CHECK(ncclScatter(in, in + r * COUNT, COUNT, ncclFloat16, root, me->comm, NULL));
    } else {
        CHECK(ncclScatter(NULL, out, COUNT, ncclFloat16, root, me->comm, NULL));
    }
    /* A buffer that a rank does not use may be anything. */
    CHECK(ncclBroadcast(r == root ? in : (void*)1, out, COUNT, ncclFloat16, root, me->comm, NULL));
    for (int i = 0; i < COUNT; i++) MUST(out[i] == block(root, 0, i));
    out[0] = (uint16_t)r;
    CHECK(ncclBcast(out, COUNT, ncclFloat16, root, me->comm, NULL));
    MUST(out[0] == root);
}

static void averages(Rank* me) {
    float value = (float)me->rank, factor = 0.5F;
    CHECK(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclAvg, me->comm, NULL));
    MUST(value == (float)(me->size - 1) / 2);
    ncclRedOp_t scaled;
    CHECK(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, ncclScalarHostImmediate, me->comm));
    MUST(scaled >= ncclNumOps);
    value = 4, factor = 99;
    CHECK(ncclAllReduce(&value, &value, 1, ncclFloat32, scaled, me->comm, NULL));
    MUST(value == 2 * (float)me->size);
    FAILS(ncclAllReduce(&value, &value, 1, ncclInt32, scaled, me->comm, NULL), ncclInvalidArgument, "was made for f32");
    CHECK(ncclRedOpDestroy(scaled, me->comm));
    FAILS(ncclRedOpDestroy(scaled, me->comm), ncclInvalidArgument, "made no reduction");
    factor = 3;
    CHECK(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, ncclScalarDevice, me->comm));
    value = 1, factor = 7;
    CHECK(ncclAllReduce(&value, &value, 1, ncclFloat32, scaled, me->comm, NULL));
    MUST(value == 7 * (float)me->size);
}

static void run(Rank* me) {
    joined(me);
    int number;
    CHECK(ncclCommCount(me->comm, &number));
    MUST(number == me->size);
    CHECK(ncclCommUserRank(me->comm, &number));
    MUST(number == me->rank);
#define CALL(T, N) reductions_##N(me);
    TYPES(CALL)
    moves(me);
    averages(me);
    CHECK(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, me->comm, NULL));
    CHECK(ncclCommFinalize(me->comm));
    CHECK(ncclCommDestroy(me->comm));
}

int main(int count, char** arguments) {
    MUST(count >= 4);
    as_told(count - 2, arguments + 2, run);
    puts("ok");
}
