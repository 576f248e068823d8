/* A rank that is a process: processes ADDRESS SECRET RANK SIZE [FAULT]. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* A forked process is refused, and its parent goes on. */
static void fork_it(weft_comm *comm) {
  int value = 1, ended;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    REFUSED(weft_all_reduce(comm, &value, &value, 1, WEFT_I32, WEFT_SUM), WEFT_MISUSE, "was forked");
    OK(weft_comm_free(comm));
    weft_comm *own;
    OK(weft_comm_threads(1, NULL, &own));
    OK(weft_all_reduce(own, &value, &value, 1, WEFT_I32, WEFT_SUM));
    _exit(0);
  }
  CHECK(waitpid(child, &ended, 0) == child && ended == 0);
}

int main(int count, char **arguments) {
  CHECK(count >= 5);
  int rank = atoi(arguments[3]), size = atoi(arguments[4]);
  const char *fault = count > 5 ? arguments[5] : "";
  weft_options options;
  OK(weft_options_init(&options, sizeof options));
  options.timeout_s = 60;
  weft_comm *comm, *survivors;
  OK(weft_comm_meet(arguments[1], arguments[2], rank, size, &options, &comm));
  double values[1000];
  for (int i = 0; i < 1000; i++) values[i] = rank;
  OK(weft_all_reduce(comm, values, values, 1000, WEFT_F64, WEFT_SUM));
  CHECK(values[999] == size * (size - 1) / 2);
  if (strcmp(fault, "fork") == 0) fork_it(comm);
  if (strcmp(fault, "die") == 0) {
    if (rank == 2) raise(SIGKILL);
    weft_status status = weft_all_reduce(comm, values, values, 1000, WEFT_F64, WEFT_SUM);
    CHECK(status == WEFT_DIED || status == WEFT_ABORTED);
    CHECK(strstr(weft_last_error(), "rank 2") != NULL && weft_last_blamed_rank() == 2);
    OK(weft_comm_shrink(comm, &survivors));
    REFUSED(weft_barrier(comm), WEFT_MISUSE, "the communicator was shrunk");
    OK(weft_comm_free(comm));
    comm = survivors;
    OK(weft_comm_size(comm, &size));
  }
  for (int i = 0; i < 1000; i++) values[i] = 1;
  OK(weft_all_reduce(comm, values, values, 1000, WEFT_F64, WEFT_SUM));
  printf("%g\n", values[0]);
  OK(weft_comm_free(comm));
  return 0;
}
