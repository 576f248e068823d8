/* A rank of a job: sums a vector over all ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

static void check(weft_status status) {
  if (status == WEFT_OK) return;
  fprintf(stderr, "%s\n", weft_last_error());
  exit(EXIT_FAILURE);
}

int main(void) {
  weft_comm *comm;
  int rank, size;
  float sums[1000];
  check(weft_comm_from_environment(NULL, &comm));
  check(weft_comm_rank(comm, &rank));
  check(weft_comm_size(comm, &size));
  for (int i = 0; i < 1000; i++) sums[i] = (float)rank;
  check(weft_all_reduce(comm, sums, sums, 1000, WEFT_F32, WEFT_SUM));
  if (rank == 0) printf("each of %d ranks holds %g\n", size, sums[0]);
  check(weft_comm_free(comm));
  return EXIT_SUCCESS;
}
