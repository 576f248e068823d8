/* Errors: wrong arguments, different calls, an abort, predictions that are impossible, streams without a GPU. */
#include <pthread.h>

#include "check.h"

static weft_comm *comms[2];

static void arguments(weft_comm *comm) {
  int value = 0;
  weft_options options;
  CHECK(strcmp(weft_last_error(), "") == 0 && weft_last_blamed_rank() == -1);
  REFUSED(weft_comm_rank(NULL, &value), WEFT_MISUSE, "the argument comm is a null pointer");
  REFUSED(weft_comm_rank(comm, NULL), WEFT_MISUSE, "the argument rank is a null pointer");
  REFUSED(weft_all_reduce(NULL, &value, &value, 1, WEFT_I32, WEFT_SUM), WEFT_MISUSE, "comm");
  REFUSED(weft_all_reduce(comm, NULL, &value, 1, WEFT_I32, WEFT_SUM), WEFT_MISUSE, "null address");
  REFUSED(weft_all_reduce(comm, &value, &value, 1, (weft_type)17, WEFT_SUM), WEFT_MISUSE, "no element type 17");
  REFUSED(weft_all_reduce(comm, &value, &value, 1, WEFT_I32, (weft_op)12), WEFT_MISUSE, "no operation 12");
  REFUSED(weft_all_reduce(comm, &value, &value, SIZE_MAX, WEFT_I32, WEFT_SUM), WEFT_MISUSE, "address space");
  REFUSED(weft_all_reduce(comm, &value, &value, 1, WEFT_F32, WEFT_BIT_OR), WEFT_MISUSE, "no bit-or of f32");
  REFUSED(weft_broadcast(comm, &value, &value, 1, WEFT_I32, 2), WEFT_MISUSE, "impossible on 2 ranks");
  REFUSED(weft_broadcast(comm, &value, &value, 1, WEFT_I32, -1), WEFT_MISUSE, "root is negative");
  REFUSED(weft_all_reduce_start(comm, &value, &value, 1, WEFT_I32, WEFT_SUM, NULL), WEFT_MISUSE, "request");
  REFUSED(weft_comm_meet("nowhere", "too short", 0, 2, NULL, comms), WEFT_MISUSE, "");
  REFUSED(weft_comm_from_environment(NULL, comms), WEFT_MISUSE, "not started as a rank of a job");
  REFUSED(weft_options_init(&options, sizeof options + 1), WEFT_MISUSE, "a later version");
  REFUSED(weft_options_init(&options, 8), WEFT_MISUSE, "not sizeof(weft_options)");
  memset(&options, 0, sizeof options);
  REFUSED(weft_comm_threads(2, &options, comms), WEFT_MISUSE, "is it initialised?");
  OK(weft_options_init(&options, sizeof options));
  options.spin = 7;
  REFUSED(weft_comm_threads(2, &options, comms), WEFT_MISUSE, "spin = 7: it is 1 (yes), 0 (no) or -1 (not set)");
  options.spin = -1;
  options.timeout_s = -1;
  REFUSED(weft_comm_threads(2, &options, comms), WEFT_MISUSE, "timeout_s = -1 s is not possible");
  CHECK(weft_last_blamed_rank() == -1 && weft_last_blamed(NULL, 0) == 0);
  CHECK(strcmp(weft_status_name((weft_status)99), "unknown status") == 0);
  CHECK(weft_type_bytes(WEFT_COMPLEX128) == 16 && weft_type_bytes((weft_type)99) == 0);
}

/* Rank 0 sums and rank 1 broadcasts: both are told, and blame the other. */
static void *differ(void *argument) {
  weft_comm *comm = argument;
  int rank, value = 0;
  OK(weft_comm_rank(comm, &rank));
  weft_status status = rank == 0 ? weft_all_reduce(comm, &value, &value, 1, WEFT_I32, WEFT_SUM)
                                 : weft_broadcast(comm, &value, &value, 1, WEFT_I32, 0);
  CHECK(status == WEFT_MISMATCH || status == WEFT_ABORTED);
  CHECK(strstr(weft_last_error(), "does not match") != NULL);
  weft_blame blamed[4];
  CHECK(weft_last_blamed(blamed, 4) >= 1 && blamed[0].rank == weft_last_blamed_rank() && blamed[0].pid > 0);
  CHECK(status != WEFT_MISMATCH || (blamed[0].rank == 1 - rank && blamed[0].kind == WEFT_BLAME_DIFFERS));
  REFUSED(weft_barrier(comm), WEFT_FAILED, "failed before");
  OK(weft_comm_free(comm));
  return NULL;
}

/* Rank 1 aborts, while a call of rank 0 waits for it. */
static void *abort_it(void *argument) {
  weft_comm *comm = argument;
  int rank;
  OK(weft_comm_rank(comm, &rank));
  if (rank == 1) {
    OK(weft_comm_abort(comm, "a test"));
  } else {
    REFUSED(weft_barrier(comm), WEFT_CANCELLED, "a test");
    CHECK(weft_last_blamed_rank() == 1);
  }
  OK(weft_comm_free(comm));
  return NULL;
}

static void on_threads(void *(*work)(void *)) {
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, work, comms[i]) == 0);
  for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void predictions(void) {
  weft_prediction predicted;
  OK(weft_predict("all-reduce", "hgx-h100", NULL, 1 << 30, &predicted, sizeof predicted));
  CHECK(predicted.time_us > 1000 && predicted.ranks == 8 && strncmp(predicted.library, "nccl ", 5) == 0);
  CHECK(predicted.busbw_gb_per_s > 100 && predicted.low90_us <= predicted.low50_us && predicted.low50_us < predicted.time_us &&
        predicted.time_us < predicted.high50_us && predicted.high50_us <= predicted.high90_us);
  CHECK(strstr(predicted.origin, "published measurements") != NULL && strlen(predicted.algorithm) > 0);
  printf("%.3f\n", predicted.time_us);
  OK(weft_predict("broadcast", "hgx-h100", "nccl:2.27", 1 << 20, &predicted, sizeof predicted));
  CHECK(strcmp(predicted.library, "nccl 2.27") == 0);
  REFUSED(weft_predict("all-reduce", "hgx-h100", NULL, 8, &predicted, 8), WEFT_MISUSE, "weft_prediction");
  REFUSED(weft_predict("all-produce", "hgx-h100", NULL, 8, &predicted, sizeof predicted), WEFT_MISUSE, "all-produce");
  REFUSED(weft_predict("all-reduce", "hgx-x100", NULL, 8, &predicted, sizeof predicted), WEFT_MISUSE, "hgx-x100");
  REFUSED(weft_predict("all-reduce", "hgx-h100", "rccl", 8, &predicted, sizeof predicted), WEFT_MISUSE, "rccl");
}

/* Without a GPU the driver is missing; with one, host memory is refused. */
static void streams(weft_comm *comm) {
  float value = 1;
  weft_status status = weft_all_reduce_on_stream(comm, &value, &value, 1, WEFT_F32, WEFT_SUM, NULL);
  CHECK(status == WEFT_CUDA || status == WEFT_MISUSE);
  CHECK(strstr(weft_last_error(), "driver") != NULL || strstr(weft_last_error(), "not in memory of a GPU") != NULL);
  OK(weft_comm_check(comm));
}

int main(void) {
  OK(weft_comm_threads(2, NULL, comms));
  arguments(comms[0]);
  streams(comms[0]);
  on_threads(differ);
  OK(weft_comm_threads(2, NULL, comms));
  on_threads(abort_it);
  OK(weft_comm_free(NULL));
  predictions();
  puts("ok");
  return 0;
}
