/* Ranks that are threads: every collective, blocking and started, in place and not; operations; messages; parts; plans. */
#include <pthread.h>

#include "check.h"

enum { RANKS = 3, COUNT = 1000 };

static int rank_of(weft_comm *comm) {
  int rank, size;
  OK(weft_comm_rank(comm, &rank));
  OK(weft_comm_size(comm, &size));
  CHECK(size == RANKS);
  return rank;
}

static void reductions(weft_comm *comm, int rank) {
  float in[COUNT * RANKS], out[COUNT * RANKS];
  for (int i = 0; i < COUNT * RANKS; i++) in[i] = (float)(rank + 1);
  OK(weft_all_reduce(comm, in, out, COUNT, WEFT_F32, WEFT_SUM));
  CHECK(out[0] == 6 && out[COUNT - 1] == 6 && in[0] == rank + 1);
  OK(weft_all_reduce(comm, out, out, COUNT, WEFT_F32, WEFT_MAX));
  CHECK(out[7] == 6);
  OK(weft_reduce(comm, in, rank == 1 ? out : NULL, COUNT, WEFT_F32, WEFT_AVG, 1));
  CHECK(out[3] == (rank == 1 ? 2 : 6));
  OK(weft_reduce_scatter(comm, in, out, COUNT, WEFT_F32, WEFT_PROD));
  CHECK(out[0] == 6 && out[COUNT - 1] == 6);
  OK(weft_scan(comm, in, out, COUNT, WEFT_F32, WEFT_SUM));
  CHECK(out[5] == (rank + 1) * (rank + 2) / 2);
  memcpy(out, in, sizeof out);
  OK(weft_exclusive_scan(comm, out, out, COUNT, WEFT_F32, WEFT_SUM));
  CHECK(out[5] == (rank == 0 ? 1 : rank * (rank + 1) / 2));

  weft_op op;
  OK(weft_op_premultiplied_sum(comm, rank == 0 ? 10 : 0.5, &op));
  OK(weft_all_reduce(comm, in, out, COUNT, WEFT_F32, op));
  CHECK(out[0] == 12.5f);
  OK(weft_op_free(comm, op));
  REFUSED(weft_all_reduce(comm, in, out, COUNT, WEFT_F32, op), WEFT_MISUSE, "there is no operation");
}

static void movements(weft_comm *comm, int rank) {
  int in[4 * RANKS], out[4 * RANKS];
  for (int i = 0; i < 4 * RANKS; i++) in[i] = 100 * rank + i;
  OK(weft_broadcast(comm, rank == 2 ? in : NULL, out, 4, WEFT_I32, 2));
  CHECK(out[3] == 203);
  OK(weft_all_gather(comm, in, out, 4, WEFT_I32));
  CHECK(out[0] == 0 && out[4] == 100 && out[11] == 203);
  for (int i = 0; i < 4; i++) out[4 * rank + i] = rank;
  OK(weft_all_gather(comm, out, out, 4, WEFT_I32));
  CHECK(out[0] == 0 && out[4] == 1 && out[11] == 2);
  OK(weft_gather(comm, in, rank == 0 ? out : NULL, 4, WEFT_I32, 0));
  CHECK(rank != 0 || out[8] == 200);
  OK(weft_scatter(comm, rank == 0 ? in : NULL, out, 4, WEFT_I32, 0));
  CHECK(out[0] == 4 * rank);
  OK(weft_all_to_all(comm, in, out, 4, WEFT_I32));
  CHECK(out[4] == 100 + 4 * rank);
  for (int i = 0; i < 4; i++) out[4 * rank + i] = rank;
  OK(weft_all_gather(comm, out + 4 * rank, out, 4, WEFT_I32));
  CHECK(out[0] == 0 && out[4] == 1 && out[11] == 2);
  OK(weft_reduce_scatter(comm, out, out + 4 * rank, 4, WEFT_I32, WEFT_SUM));
  CHECK(out[4 * rank] == 3 * rank);
  REFUSED(weft_all_gather(comm, out + 4 * rank + 1, out, 4, WEFT_I32), WEFT_MISUSE,
          "input and output overlap: pass the same address for a call in place");

  size_t counts[RANKS] = {1, 0, 2}, ones[RANKS] = {1, 1, 1};
  OK(weft_all_gather_v(comm, in, out, counts, WEFT_I32));
  CHECK(out[0] == 0 && out[1] == 200 && out[2] == 201);
  out[rank == 2 ? 1 : 0] = 10 + rank;
  OK(weft_all_gather_v(comm, out + (rank == 0 ? 0 : 1), out, counts, WEFT_I32));
  CHECK(out[0] == 10 && out[1] == 12);
  OK(weft_reduce_scatter_v(comm, in, out, counts, WEFT_I32, WEFT_SUM));
  CHECK(rank == 1 || out[0] == (rank == 0 ? 300 : 303));
  OK(weft_all_to_all_v(comm, in, out, ones, ones, WEFT_I32));
  CHECK(out[2] == 200 + rank);
  OK(weft_gather_v(comm, in, out, counts, WEFT_I32, 1));
  CHECK(rank != 1 || out[2] == 201);
  OK(weft_scatter_v(comm, in, out, counts, WEFT_I32, 1));
  CHECK(rank != 2 || (out[0] == 101 && out[1] == 102));
  OK(weft_barrier(comm));
}

static void started(weft_comm *comm, int rank) {
  double first[COUNT], second[COUNT];
  for (int i = 0; i < COUNT; i++) first[i] = second[i] = rank;
  weft_request *a, *b, *c;
  bool done = false;
  OK(weft_all_reduce_start(comm, first, first, COUNT, WEFT_F64, WEFT_SUM, &a));
  OK(weft_broadcast_start(comm, second, second, COUNT, WEFT_F64, 1, &b));
  OK(weft_barrier_start(comm, &c));
  OK(weft_request_wait(b));
  OK(weft_request_test(a, &done));
  CHECK(done && first[9] == 3 && second[9] == 1);
  for (done = false; !done;) OK(weft_request_wait_for(c, 10, &done));
  OK(weft_request_wait(c));
  REFUSED(weft_request_wait_for(c, -1, &done), WEFT_MISUSE, "a timeout of -1 s is not possible");
  OK(weft_request_free(a));
  OK(weft_request_free(b));
  OK(weft_request_free(c));
  OK(weft_request_free(NULL));
}

static void messages(weft_comm *comm, int rank) {
  int in[12], out[12], torus[3] = {1, 1, RANKS};
  for (int i = 0; i < 12; i++) in[i] = 10 * rank + i, out[i] = -1;
  weft_pair ring[RANKS] = {{0, 1}, {1, 2}, {2, 0}};
  OK(weft_send_receive(comm, in, out, ring, RANKS, 2, WEFT_I32));
  CHECK(out[1] == 10 * ((rank + 2) % 3) + 1);
  OK(weft_neighbours(comm, in, out, torus, 2, WEFT_I32));
  CHECK(out[8] == 10 * ((rank + 2) % 3) + 10);
  weft_outgoing sends[1] = {{2, in, sizeof(int)}};
  weft_incoming receives[1] = {{0, out, sizeof(int)}};
  OK(weft_group(comm, sends, rank == 0 ? 1 : 0, receives, rank == 2 ? 1 : 0));
  CHECK(rank != 2 || out[0] == 0);
  if (rank == 0) OK(weft_group(comm, sends, 1, NULL, 0));
  if (rank == 2) OK(weft_group(comm, NULL, 0, receives, 1));
}

static void parts(weft_comm *comm, int rank) {
  weft_comm *part = comm;
  OK(weft_comm_split(comm, rank == 1 ? -1 : 0, -rank, &part));
  CHECK((part == NULL) == (rank == 1));
  if (part == NULL) return;
  int own, origins[2];
  OK(weft_comm_rank(part, &own));
  OK(weft_comm_origins(part, origins));
  CHECK(own == (rank == 2 ? 0 : 1) && origins[0] == 2 && origins[1] == 0);
  int value = rank;
  OK(weft_all_reduce(part, &value, &value, 1, WEFT_I32, WEFT_SUM));
  CHECK(value == 2);
  OK(weft_comm_free(part));
}

static void plans(weft_comm *comm, int rank, const char *file) {
  weft_plan *ring, *chosen;
  float in[COUNT], out[COUNT];
  for (int i = 0; i < COUNT; i++) in[i] = (float)rank;
  OK(weft_plan_read(file, &ring));
  CHECK(weft_plan_ranks(ring) == RANKS && strcmp(weft_plan_collective(ring), "all-reduce") == 0);
  OK(weft_plan_run(comm, ring, in, out, COUNT, WEFT_F32, WEFT_SUM));
  CHECK(out[1] == 3);
  weft_request *request;
  OK(weft_plan_start(comm, ring, out, out, COUNT, WEFT_F32, WEFT_SUM, &request));
  OK(weft_request_wait(request));
  OK(weft_request_free(request));
  CHECK(out[1] == 9);
  REFUSED(weft_plan_run(comm, ring, in, out, COUNT, WEFT_F32, WEFT_NO_OP), WEFT_MISUSE, "needs an operation");
  OK(weft_chosen_plan(comm, "all_reduce", in, out, COUNT, WEFT_F32, WEFT_SUM, 0, &chosen));
  CHECK(strlen(weft_plan_name(chosen)) > 0 && weft_plan_ranks(chosen) == RANKS);
  if (rank == 0) printf("%s %s\n", weft_plan_name(ring), weft_plan_name(chosen));
  REFUSED(weft_plan_parse("<x", &chosen), WEFT_MISUSE, "");
  REFUSED(weft_plan_parse("plan", &chosen), WEFT_MISUSE, "not a plan");
  REFUSED(weft_plan_read("/nowhere/plan.json", &chosen), WEFT_MISUSE, "cannot read /nowhere/plan.json");
  OK(weft_plan_free(ring));
}

static const char *plan_file;

static void *run(void *argument) {
  weft_comm *comm = argument;
  int rank = rank_of(comm);
  reductions(comm, rank);
  movements(comm, rank);
  started(comm, rank);
  messages(comm, rank);
  parts(comm, rank);
  plans(comm, rank, plan_file);
  OK(weft_comm_check(comm));
  OK(weft_comm_free(comm));
  return NULL;
}

int main(int count, char **arguments) {
  CHECK(count == 2);
  plan_file = arguments[1];
  CHECK(strcmp(weft_version(), WEFT_VERSION) == 0);
  weft_comm *comms[RANKS];
  weft_options options;
  OK(weft_options_init(&options, sizeof options));
  options.timeout_s = 60;
  OK(weft_comm_threads(RANKS, &options, comms));
  pthread_t threads[RANKS];
  for (int i = 0; i < RANKS; i++) CHECK(pthread_create(&threads[i], NULL, run, comms[i]) == 0);
  for (int i = 0; i < RANKS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  puts("ok");
  return 0;
}
