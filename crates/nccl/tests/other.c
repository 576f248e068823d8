/* Another NCCL, which does nothing: its functions return 99. */
#define BOTH(name) int p##name(void) { return 99; } int name(void) { return 99; }
BOTH(ncclAllReduce)
BOTH(ncclGetUniqueId)
BOTH(ncclCommInitRank)
