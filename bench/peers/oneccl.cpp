/* oneCCL's collectives, measured as measure.h says. Linked with the library's CPU part; oneCCL has no scans, no gather and
 * (in this interface) no scatter. */
#include <oneapi/ccl.hpp>

#include "measure.h"

/* The static library calls a profiler through these if one has set them; none does. */
extern "C" {
#define PROFILER_HOOK(name) void *__itt_##name##_ptr__3_0 = nullptr;
PROFILER_HOOK(domain_create)
PROFILER_HOOK(event_create)
PROFILER_HOOK(event_end)
PROFILER_HOOK(event_start)
PROFILER_HOOK(metadata_add)
PROFILER_HOOK(string_handle_create)
PROFILER_HOOK(task_begin)
PROFILER_HOOK(task_end)
PROFILER_HOOK(thread_set_name)
}

static const ccl::communicator *all;

static void call(enum collective what, enum place place, float *input, float *output, size_t count) {
    const ccl::reduction sum = ccl::reduction::sum;
    switch (what) {
    case ALL_REDUCE: ccl::allreduce(input, output, count, sum, *all).wait(); break;
    case REDUCE: ccl::reduce(input, output, count, sum, 0, *all).wait(); break;
    case BROADCAST:
        if (place == IN_PLACE) ccl::broadcast(output, count, 0, *all).wait();
        else ccl::broadcast(input, output, count, 0, *all).wait();
        break;
    case ALL_GATHER:
        ccl::allgather(place == IN_PLACE ? output + (size_t)rank * count : input, output, count, *all).wait();
        break;
    case REDUCE_SCATTER: ccl::reduce_scatter(input, output, count, sum, *all).wait(); break;
    case ALL_TO_ALL: ccl::alltoall(input, output, count, *all).wait(); break;
    case SEND_RECEIVE: {
        ccl::event sent = ccl::send(input, count, (rank + 1) % ranks, *all);
        ccl::recv(output, count, (rank + ranks - 1) % ranks, *all).wait();
        sent.wait();
        break;
    }
    default: ccl::barrier(*all).wait();
    }
}

static int has(enum collective what, enum place place) {
    switch (what) {
    case ALL_REDUCE: case REDUCE: case BROADCAST: case ALL_GATHER: return 1;
    case REDUCE_SCATTER: case ALL_TO_ALL: case SEND_RECEIVE: case BARRIER: return place == OUT_OF_PLACE;
    default: return 0;
    }
}

int main(int argc, char **argv) {
    ccl::init();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    {
        ccl::shared_ptr_class<ccl::kvs> store;
        ccl::kvs::address_type address;
        if (rank == 0) {
            store = ccl::create_main_kvs();
            address = store->get_address();
        }
        MPI_Bcast(address.data(), (int)address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
        if (rank != 0) store = ccl::create_kvs(address);
        ccl::communicator communicator = ccl::create_communicator(ranks, rank, store);
        all = &communicator;
        char library[64];
        ccl::library_version version = ccl::get_library_version();
        snprintf(library, sizeof library, "oneCCL %u.%u.%u", version.major, version.minor, version.update);
        measure_all(argc, argv, library, has, call);
    }
    MPI_Finalize();
    return 0;
}
