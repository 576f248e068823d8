/* MPI's collectives, measured as measure.h says: compiled once for each MPI. A plain program: communicator, types and
 * algorithms as they come; persistent and nonblocking calls are not measured. */
#include "measure.h"

static void call(enum collective what, enum place place, float *input, float *output, size_t elements) {
    int count = (int)elements, next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    MPI_Comm all = MPI_COMM_WORLD;
    void *whole = place == IN_PLACE ? MPI_IN_PLACE : (void *)input;
    float *share = place == IN_PLACE ? output + (size_t)rank * elements : input;
    switch (what) {
    case ALL_REDUCE: MPI_Allreduce(whole, output, count, MPI_FLOAT, MPI_SUM, all); break;
    case REDUCE:
        if (rank == 0) MPI_Reduce(whole, output, count, MPI_FLOAT, MPI_SUM, 0, all);
        else MPI_Reduce(input, NULL, count, MPI_FLOAT, MPI_SUM, 0, all);
        break;
    case BROADCAST: MPI_Bcast(output, count, MPI_FLOAT, 0, all); break;
    case ALL_GATHER: MPI_Allgather(whole, count, MPI_FLOAT, output, count, MPI_FLOAT, all); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(whole, output, count, MPI_FLOAT, MPI_SUM, all); break;
    case ALL_TO_ALL: MPI_Alltoall(whole, count, MPI_FLOAT, output, count, MPI_FLOAT, all); break;
    case GATHER:
        if (rank == 0) MPI_Gather(whole, count, MPI_FLOAT, output, count, MPI_FLOAT, 0, all);
        else MPI_Gather(share, count, MPI_FLOAT, NULL, 0, MPI_FLOAT, 0, all);
        break;
    case SCATTER:
        if (rank != 0) MPI_Scatter(NULL, 0, MPI_FLOAT, place == IN_PLACE ? share : output, count, MPI_FLOAT, 0, all);
        else MPI_Scatter(input, count, MPI_FLOAT, place == IN_PLACE ? MPI_IN_PLACE : (void *)output, count, MPI_FLOAT, 0, all);
        break;
    case SCAN: MPI_Scan(whole, output, count, MPI_FLOAT, MPI_SUM, all); break;
    case EXCLUSIVE_SCAN: MPI_Exscan(whole, output, count, MPI_FLOAT, MPI_SUM, all); break;
    case SEND_RECEIVE:
        MPI_Sendrecv(input, count, MPI_FLOAT, next, 0, output, count, MPI_FLOAT, previous, 0, all, MPI_STATUS_IGNORE);
        break;
    default: MPI_Barrier(all);
    }
}

static int has(enum collective what, enum place place) {
    if (what == BROADCAST) return place == IN_PLACE;
    if (what == SEND_RECEIVE || what == BARRIER) return place == OUT_OF_PLACE;
    return 1;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, "\n")] = 0;
    measure_all(argc, argv, library, has, call);
    MPI_Finalize();
    return 0;
}
