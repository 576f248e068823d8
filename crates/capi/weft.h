/*
 * Weft: multi-GPU communication, planned from the wiring. The C interface.
 *
 * Generated from crates/capi/src. The guide is docs/c.md; a program is compiled with
 *
 *     cc program.c $(pkg-config --cflags --libs weft) -o program
 */
#ifndef WEFT_H
#define WEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEFT_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif


/* ------------------------------------------------------------------------------------------
 * Errors
 *
 * Every function that can fail returns a status. weft_last_error has the sentence that explains it:
 * what happened, on which rank, and what to do.
 */

/** What a rank did to be blamed for an error. */
typedef enum weft_blame_kind {
  /** Its process ended. */
  WEFT_BLAME_DIED = 0,
  /** It did not do its part before the timeout. */
  WEFT_BLAME_LATE = 1,
  /** It made another call. */
  WEFT_BLAME_DIFFERS = 2,
  /** It left the communicator before the call was over. */
  WEFT_BLAME_LEFT = 3,
  /** It cannot be reached. */
  WEFT_BLAME_UNREACHABLE = 4,
  /** It failed by itself. */
  WEFT_BLAME_FAILED = 5,
  /** Its program aborted the communicator. */
  WEFT_BLAME_ABORTED = 6,
} weft_blame_kind;

/**
 * How a function ended. After WEFT_MISUSE, WEFT_REFUSED and WEFT_QUEUE_FULL a communicator can be
 * used as before. After the others it has failed: shrink it, or free it and make a new one.
 */
typedef enum weft_status {
  /** Success. */
  WEFT_OK = 0,
  /** An argument is wrong. Fix the call; nothing has been sent. */
  WEFT_MISUSE = 1,
  /** The verifier refused a plan, or the plan cannot carry the call. */
  WEFT_REFUSED = 2,
  /** Too many started calls: wait for some of them. */
  WEFT_QUEUE_FULL = 3,
  /** The ranks could not meet. */
  WEFT_RENDEZVOUS = 4,
  /** Ranks make different calls. Fix the program. */
  WEFT_MISMATCH = 5,
  /** A rank did not do its part in time. */
  WEFT_TIMEOUT = 6,
  /** The process of a rank ended. */
  WEFT_DIED = 7,
  /** A rank freed its communicator before the call was over. */
  WEFT_LEFT = 8,
  /** The connection to a rank is broken, or its memory cannot be read. */
  WEFT_LOST = 9,
  /** Another rank failed first. The sentence has its error. */
  WEFT_ABORTED = 10,
  /** A rank aborted the communicator on purpose. */
  WEFT_CANCELLED = 11,
  /** The system refused a thread, a descriptor or memory. */
  WEFT_RESOURCES = 12,
  /** An earlier call failed. */
  WEFT_FAILED = 13,
  /** The GPU, its driver or its compiler failed. */
  WEFT_CUDA = 14,
  /** A defect of Weft. Report it with the text on standard error. */
  WEFT_INTERNAL = 15,
} weft_status;

/** A rank that is the reason for an error. */
typedef struct weft_blame {
  /** The rank. */
  int rank;
  /** What it did. */
  weft_blame_kind kind;
  /** Its process; 0 if unknown. */
  int pid;
  /**
   * Its host; empty if unknown or if all ranks are on one host. Valid until the next error of this
   * thread.
   */
  const char *host;
} weft_blame;

/**
 * The sentence of the last function that failed on this thread; empty if none has. Valid until the
 * next error of this thread.
 */
const char *weft_last_error(void);

/** The rank that caused the last error of this thread, where to look first; -1 if no rank is to blame. */
int weft_last_blamed_rank(void);

/**
 * Writes the ranks that caused the last error of this thread, the first cause first, at most
 * `capacity` of them. Returns how many there are. `blamed` may be null if `capacity` is 0.
 */
size_t weft_last_blamed(weft_blame *blamed, size_t capacity);

/** The name of a status: "WEFT_OK". */
const char *weft_status_name(weft_status status);


/* ------------------------------------------------------------------------------------------
 * Elements and reductions
 */

/** The type of elements. */
typedef enum weft_type {
  WEFT_I8 = 0,
  WEFT_U8 = 1,
  WEFT_I16 = 2,
  WEFT_U16 = 3,
  WEFT_I32 = 4,
  WEFT_U32 = 5,
  WEFT_I64 = 6,
  WEFT_U64 = 7,
  WEFT_F16 = 8,
  WEFT_BF16 = 9,
  WEFT_F32 = 10,
  WEFT_F64 = 11,
  /** Four bits of exponent, three of mantissa, no infinities. */
  WEFT_F8_E4M3 = 12,
  /** Five bits of exponent, two of mantissa. */
  WEFT_F8_E5M2 = 13,
  /** A byte each, 0 or 1. */
  WEFT_BOOL = 14,
  /** Two floats: real and imaginary part. */
  WEFT_COMPLEX64 = 15,
  /** Two doubles: real and imaginary part. */
  WEFT_COMPLEX128 = 16,
} weft_type;

/** How a call combines elements. weft_op_premultiplied_sum makes more. */
typedef enum weft_op {
  WEFT_SUM = 0,
  WEFT_PROD = 1,
  WEFT_MIN = 2,
  WEFT_MAX = 3,
  /** The sum divided by the number of ranks. */
  WEFT_AVG = 4,
  WEFT_LOGICAL_AND = 5,
  WEFT_LOGICAL_OR = 6,
  WEFT_LOGICAL_XOR = 7,
  WEFT_BIT_AND = 8,
  WEFT_BIT_OR = 9,
  WEFT_BIT_XOR = 10,
  /** For calls that combine nothing: weft_plan_run, weft_chosen_plan. */
  WEFT_NO_OP = 11,
  /** The largest value; operations of weft_op_premultiplied_sum are below it. */
  WEFT_OP_MAX = 2147483647,
} weft_op;

/** The bytes of an element; 0 if there is no such type. */
size_t weft_type_bytes(weft_type data_type);

/** The version of the library, as WEFT_VERSION is that of the header. */
const char *weft_version(void);


/* ------------------------------------------------------------------------------------------
 * Options of communicators
 */

/**
 * Options of a communicator. Call weft_options_init first, then set those that you need; the others
 * come from the environment (`weft knobs` lists the variables) or have their defaults. New options
 * will be added at the end.
 */
typedef struct weft_options {
  /** sizeof(weft_options), set by weft_options_init. */
  size_t size;
  /** Seconds that a call waits for other ranks before it fails; 0: not set. */
  double timeout_s;
  /** Seconds after which a stalled call logs which ranks it waits for; 0: not set. */
  double warn_after_s;
  /** 1: results depend on inputs and the order of ranks alone, bit by bit. 0: no, -1: not set. */
  int deterministic;
  /** 1: waiting ranks spin. 0: they yield, -1: not set. */
  int spin;
  /** 1: the kernel reads peers' memory, which saves a copy. 0: no, -1: not set. */
  int single_copy;
  /** 1: encrypt data between hosts. 0: no, -1: not set. */
  int encrypt;
  /** Connections to each rank on another host, 1 to 16; 0: not set. */
  uint32_t streams;
  /** Calls that the flight recorder keeps, 16 to 65536; 0: not set. */
  uint32_t record;
} weft_options;

/** Initialises options: weft_options_init(&options, sizeof(options)). */
weft_status weft_options_init(weft_options *options, size_t size);


/* ------------------------------------------------------------------------------------------
 * Communicators
 *
 * A communicator is one rank's end of a group. All ranks make the same calls in the same order. Any
 * thread may use it, but only one may free it, when no other uses it. After fork, only the process
 * that made a communicator may use it.
 */

/** A communicator. */
typedef struct weft_comm weft_comm;

/** The rank of the caller, from 0. */
weft_status weft_comm_rank(const weft_comm *comm, int *rank);

/** The number of ranks. */
weft_status weft_comm_size(const weft_comm *comm, int *size);

/**
 * Writes the number that each rank had in the communicator that this one was split or shrunk from.
 * `origins` has weft_comm_size elements.
 */
weft_status weft_comm_origins(const weft_comm *comm, int *origins);

/**
 * Makes communicators of parts of the ranks: ranks that pass the same `part` (color in MPI and NCCL)
 * get one, ordered by `key` and then by rank. A rank that passes a negative part gets none, and *made
 * is null. All ranks call it. Both communicators can be used afterwards.
 */
weft_status weft_comm_split(weft_comm *comm,
                            int part,
                            int64_t key,
                            weft_comm **made);

/**
 * Makes a communicator of the surviving ranks after a call has failed. All ranks that still live
 * call it; those that have not within the timeout are left out. The old communicator can only be
 * freed afterwards.
 */
weft_status weft_comm_shrink(weft_comm *comm, weft_comm **made);

/**
 * Aborts the communicator on all ranks, from any thread: their calls end within milliseconds with
 * WEFT_CANCELLED, an error that has the reason (its first 47 bytes on other ranks) and names this
 * rank. Free the communicator afterwards, or shrink it.
 */
weft_status weft_comm_abort(weft_comm *comm, const char *reason);

/** The error of a call on a stream that has failed (ncclCommGetAsyncError), and WEFT_OK if none has. */
weft_status weft_comm_check(const weft_comm *comm);

/**
 * Waits for all started calls, leaves the group and frees the communicator, whatever the status. Does
 * nothing with a null pointer.
 */
weft_status weft_comm_free(weft_comm *comm);


/* ------------------------------------------------------------------------------------------
 * Making communicators
 */

/**
 * Joins the job of this process, as its launcher describes it: `weft run`, torchrun, mpirun, srun, or
 * the variables WEFT_RENDEZVOUS, RANK and WORLD_SIZE. `options` may be null.
 */
weft_status weft_comm_from_environment(const weft_options *options,
                                       weft_comm **comm);

/**
 * Joins a group that meets at an address, without a launcher. All ranks pass the same address
 * ("10.0.0.1:29500", where rank 0 listens, or another form of WEFT_RENDEZVOUS), secret (16 bytes or
 * more) and size. `options` may be null.
 */
weft_status weft_comm_meet(const char *address,
                           const char *secret,
                           int rank,
                           int size,
                           const weft_options *options,
                           weft_comm **comm);

/**
 * Makes a group whose ranks are threads of this process. Writes `size` communicators, one for each
 * thread. `options` may be null.
 */
weft_status weft_comm_threads(int size, const weft_options *options, weft_comm **comms);


/* ------------------------------------------------------------------------------------------
 * Collectives
 *
 * They return when the call is done. `count` is the number of elements of one block, as in NCCL: what
 * one rank contributes to a gather and gets from a scatter. All ranks pass the same count, type,
 * operation and root.
 *
 * A call works in place if input and output are the same address, on all ranks. Where one side is
 * larger (gather and scatter of any kind), that address is the larger buffer, and the rank's own block
 * in it is the smaller side; the address of that block is accepted too, as in NCCL. Otherwise the
 * buffers must not overlap. Elements need not be aligned.
 */

/**
 * Combines the inputs of all ranks, element by element; every rank gets the result, the same bits
 * everywhere. Input and output have `count` elements.
 */
weft_status weft_all_reduce(weft_comm *comm,
                            const void *input,
                            void *output,
                            size_t count,
                            weft_type data_type,
                            weft_op op);

/** Combines the inputs of all ranks into the output of `root`. The other ranks may pass a null output. */
weft_status weft_reduce(weft_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        weft_type data_type,
                        weft_op op,
                        int root);

/**
 * Combines the inputs of all ranks, `count` elements for each rank, and gives rank r block r of the
 * result: `count` elements.
 */
weft_status weft_reduce_scatter(weft_comm *comm,
                                const void *input,
                                void *output,
                                size_t count,
                                weft_type data_type,
                                weft_op op);

/** Gives every rank the combination of the inputs of all ranks up to itself. */
weft_status weft_scan(weft_comm *comm,
                      const void *input,
                      void *output,
                      size_t count,
                      weft_type data_type,
                      weft_op op);

/**
 * Gives every rank the combination of the inputs of all ranks before itself. The output of rank 0 is
 * not written.
 */
weft_status weft_exclusive_scan(weft_comm *comm,
                                const void *input,
                                void *output,
                                size_t count,
                                weft_type data_type,
                                weft_op op);

/** Gives every rank the input of `root`: `count` elements. The other ranks may pass a null input. */
weft_status weft_broadcast(weft_comm *comm,
                           const void *input,
                           void *output,
                           size_t count,
                           weft_type data_type,
                           int root);

/** Gives every rank the inputs of all ranks in rank order: `count` elements of each. */
weft_status weft_all_gather(weft_comm *comm,
                            const void *input,
                            void *output,
                            size_t count,
                            weft_type data_type);

/**
 * Gives `root` the inputs of all ranks in rank order: `count` elements of each. The other ranks may
 * pass a null output.
 */
weft_status weft_gather(weft_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        weft_type data_type,
                        int root);

/** Gives rank r block r of the input of `root`: `count` elements. The other ranks may pass a null input. */
weft_status weft_scatter(weft_comm *comm,
                         const void *input,
                         void *output,
                         size_t count,
                         weft_type data_type,
                         int root);

/**
 * Sends block r of every rank's input to rank r, which stores the blocks in rank order: `count`
 * elements each.
 */
weft_status weft_all_to_all(weft_comm *comm,
                            const void *input,
                            void *output,
                            size_t count,
                            weft_type data_type);

/** Returns when all ranks have called it. */
weft_status weft_barrier(weft_comm *comm);

/**
 * Makes an operation that sums the inputs of all ranks, this rank's multiplied by `factor` first. It
 * belongs to the communicator; ranks may pass different factors. A call in place multiplies the whole
 * buffer.
 */
weft_status weft_op_premultiplied_sum(weft_comm *comm,
                                      double factor,
                                      weft_op *op);

/** Frees an operation that weft_op_premultiplied_sum made. Calls that were started keep it. */
weft_status weft_op_free(weft_comm *comm, weft_op op);


/* ------------------------------------------------------------------------------------------
 * Started calls
 *
 * A function whose name ends in _start returns at once and gives a request. The buffers belong to the
 * call until it is done: do not free or change them, and do not read the output. Calls run in the
 * order in which they were started.
 */

/** A started call. */
typedef struct weft_request weft_request;

/** Waits until the call is done, and returns its status. */
weft_status weft_request_wait(weft_request *request);

/**
 * Waits until the call is done, at most for `timeout_s` seconds. *done says whether it is; the call
 * continues if not. Returns the status of the call if it is done.
 */
weft_status weft_request_wait_for(weft_request *request, double timeout_s, bool *done);

/** Whether the call is done, without waiting. Returns the status of the call if it is. */
weft_status weft_request_test(weft_request *request, bool *done);

/**
 * Frees a request. The call continues if it is not done, and its buffers still belong to it. Does
 * nothing with a null pointer.
 */
weft_status weft_request_free(weft_request *request);


/* ------------------------------------------------------------------------------------------
 * Collectives, started
 *
 * The same calls, which return at once.
 */

/** Starts weft_all_reduce. */
weft_status weft_all_reduce_start(weft_comm *comm,
                                  const void *input,
                                  void *output,
                                  size_t count,
                                  weft_type data_type,
                                  weft_op op,
                                  weft_request **request);

/** Starts weft_reduce. */
weft_status weft_reduce_start(weft_comm *comm,
                              const void *input,
                              void *output,
                              size_t count,
                              weft_type data_type,
                              weft_op op,
                              int root,
                              weft_request **request);

/** Starts weft_reduce_scatter. */
weft_status weft_reduce_scatter_start(weft_comm *comm,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      weft_type data_type,
                                      weft_op op,
                                      weft_request **request);

/** Starts weft_scan. */
weft_status weft_scan_start(weft_comm *comm,
                            const void *input,
                            void *output,
                            size_t count,
                            weft_type data_type,
                            weft_op op,
                            weft_request **request);

/** Starts weft_exclusive_scan. */
weft_status weft_exclusive_scan_start(weft_comm *comm,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      weft_type data_type,
                                      weft_op op,
                                      weft_request **request);

/** Starts weft_broadcast. */
weft_status weft_broadcast_start(weft_comm *comm,
                                 const void *input,
                                 void *output,
                                 size_t count,
                                 weft_type data_type,
                                 int root,
                                 weft_request **request);

/** Starts weft_all_gather. */
weft_status weft_all_gather_start(weft_comm *comm,
                                  const void *input,
                                  void *output,
                                  size_t count,
                                  weft_type data_type,
                                  weft_request **request);

/** Starts weft_gather. */
weft_status weft_gather_start(weft_comm *comm,
                              const void *input,
                              void *output,
                              size_t count,
                              weft_type data_type,
                              int root,
                              weft_request **request);

/** Starts weft_scatter. */
weft_status weft_scatter_start(weft_comm *comm,
                               const void *input,
                               void *output,
                               size_t count,
                               weft_type data_type,
                               int root,
                               weft_request **request);

/** Starts weft_all_to_all. */
weft_status weft_all_to_all_start(weft_comm *comm,
                                  const void *input,
                                  void *output,
                                  size_t count,
                                  weft_type data_type,
                                  weft_request **request);

/** Starts weft_barrier. */
weft_status weft_barrier_start(weft_comm *comm, weft_request **request);


/* ------------------------------------------------------------------------------------------
 * Collectives with blocks of different lengths
 *
 * Counts are in elements, one for each rank. Blocks lie one after the other, without gaps.
 */

/** weft_all_gather with blocks of different lengths: `counts` has the elements of each rank's block. */
weft_status weft_all_gather_v(weft_comm *comm,
                              const void *input,
                              void *output,
                              const size_t *counts,
                              weft_type data_type);

/** weft_reduce_scatter with blocks of different lengths: `counts` has the elements of each rank's block. */
weft_status weft_reduce_scatter_v(weft_comm *comm,
                                  const void *input,
                                  void *output,
                                  const size_t *counts,
                                  weft_type data_type,
                                  weft_op op);

/**
 * weft_all_to_all with blocks of different lengths: the number of elements sent to each rank, and
 * received from each. In place, both are the same.
 */
weft_status weft_all_to_all_v(weft_comm *comm,
                              const void *input,
                              void *output,
                              const size_t *sent,
                              const size_t *received,
                              weft_type data_type);

/**
 * weft_gather with blocks of different lengths: `counts` has the elements of each rank's block. Ranks
 * other than `root` read only their own.
 */
weft_status weft_gather_v(weft_comm *comm,
                          const void *input,
                          void *output,
                          const size_t *counts,
                          weft_type data_type,
                          int root);

/**
 * weft_scatter with blocks of different lengths: `counts` has the elements of each rank's block. Ranks
 * other than `root` read only their own.
 */
weft_status weft_scatter_v(weft_comm *comm,
                           const void *input,
                           void *output,
                           const size_t *counts,
                           weft_type data_type,
                           int root);

/** Starts weft_all_gather_v. */
weft_status weft_all_gather_v_start(weft_comm *comm,
                                    const void *input,
                                    void *output,
                                    const size_t *counts,
                                    weft_type data_type,
                                    weft_request **request);

/** Starts weft_reduce_scatter_v. */
weft_status weft_reduce_scatter_v_start(weft_comm *comm,
                                        const void *input,
                                        void *output,
                                        const size_t *counts,
                                        weft_type data_type,
                                        weft_op op,
                                        weft_request **request);

/** Starts weft_all_to_all_v. */
weft_status weft_all_to_all_v_start(weft_comm *comm,
                                    const void *input,
                                    void *output,
                                    const size_t *sent,
                                    const size_t *received,
                                    weft_type data_type,
                                    weft_request **request);

/** Starts weft_gather_v. */
weft_status weft_gather_v_start(weft_comm *comm,
                                const void *input,
                                void *output,
                                const size_t *counts,
                                weft_type data_type,
                                int root,
                                weft_request **request);

/** Starts weft_scatter_v. */
weft_status weft_scatter_v_start(weft_comm *comm,
                                 const void *input,
                                 void *output,
                                 const size_t *counts,
                                 weft_type data_type,
                                 int root,
                                 weft_request **request);


/* ------------------------------------------------------------------------------------------
 * Messages between ranks
 */

/** Sender and receiver of a message. */
typedef struct weft_pair {
  /** The sender. */
  int from;
  /** The receiver. */
  int to;
} weft_pair;

/** A message to send in a group. */
typedef struct weft_outgoing {
  /** The receiver. */
  int to;
  /** What it gets. */
  const void *data;
  /** Its length. */
  size_t bytes;
} weft_outgoing;

/** A message to receive in a group. */
typedef struct weft_incoming {
  /** The sender. */
  int from;
  /** Where its message goes. */
  void *data;
  /** Its length. */
  size_t bytes;
} weft_incoming;

/**
 * Exchanges messages of `count` elements: `messages` lists sender and receiver of each, the same list
 * on all ranks. The input has the messages that this rank sends and the output those that it receives,
 * in the order of the list. They must not overlap.
 */
weft_status weft_send_receive(weft_comm *comm,
                              const void *input,
                              void *output,
                              const weft_pair *messages,
                              size_t message_count,
                              size_t count,
                              weft_type data_type);

/** Starts weft_send_receive. */
weft_status weft_send_receive_start(weft_comm *comm,
                                    const void *input,
                                    void *output,
                                    const weft_pair *messages,
                                    size_t message_count,
                                    size_t count,
                                    weft_type data_type,
                                    weft_request **request);

/**
 * Exchanges a block of `count` elements with each neighbour on a torus of the ranks: six blocks in and
 * out, from and to the previous and the next rank in each of three dimensions. A ring is {1, 1, size}.
 */
weft_status weft_neighbours(weft_comm *comm,
                            const void *input,
                            void *output,
                            const int *torus,
                            size_t count,
                            weft_type data_type);

/**
 * Sends and receives messages as one group (ncclGroupStart, ncclSend, ncclRecv, ncclGroupEnd), and
 * waits for them. All ranks call the first group of a communicator, which opens connections; from then
 * on only ranks that have messages. Messages from one rank to another are received in the order in
 * which they were sent, and a message must be as long as its receive.
 */
weft_status weft_group(weft_comm *comm,
                       const weft_outgoing *sends,
                       size_t send_count,
                       const weft_incoming *receives,
                       size_t receive_count);


/* ------------------------------------------------------------------------------------------
 * Collectives on a stream of a GPU
 *
 * The same calls on memory of an NVIDIA GPU, enqueued on a CUDA stream (a cudaStream_t or CUstream):
 * they return when the call is enqueued, and the buffers belong to the call until it has ended there.
 * The first one joins the ranks on their GPUs and the first one of a kind loads its plan: both wait
 * for the other ranks. weft_comm_check has the error of a call that failed. Ranks that are threads of
 * one process need a stream each, not the default stream. These functions are unverified on a GPU.
 */

/** Enqueues weft_all_reduce. */
weft_status weft_all_reduce_on_stream(weft_comm *comm,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      weft_type data_type,
                                      weft_op op,
                                      void *stream);

/** Enqueues weft_reduce. */
weft_status weft_reduce_on_stream(weft_comm *comm,
                                  const void *input,
                                  void *output,
                                  size_t count,
                                  weft_type data_type,
                                  weft_op op,
                                  int root,
                                  void *stream);

/** Enqueues weft_reduce_scatter. */
weft_status weft_reduce_scatter_on_stream(weft_comm *comm,
                                          const void *input,
                                          void *output,
                                          size_t count,
                                          weft_type data_type,
                                          weft_op op,
                                          void *stream);

/** Enqueues weft_scan. */
weft_status weft_scan_on_stream(weft_comm *comm,
                                const void *input,
                                void *output,
                                size_t count,
                                weft_type data_type,
                                weft_op op,
                                void *stream);

/** Enqueues weft_exclusive_scan. */
weft_status weft_exclusive_scan_on_stream(weft_comm *comm,
                                          const void *input,
                                          void *output,
                                          size_t count,
                                          weft_type data_type,
                                          weft_op op,
                                          void *stream);

/** Enqueues weft_broadcast. */
weft_status weft_broadcast_on_stream(weft_comm *comm,
                                     const void *input,
                                     void *output,
                                     size_t count,
                                     weft_type data_type,
                                     int root,
                                     void *stream);

/** Enqueues weft_all_gather. */
weft_status weft_all_gather_on_stream(weft_comm *comm,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      weft_type data_type,
                                      void *stream);

/** Enqueues weft_gather. */
weft_status weft_gather_on_stream(weft_comm *comm,
                                  const void *input,
                                  void *output,
                                  size_t count,
                                  weft_type data_type,
                                  int root,
                                  void *stream);

/** Enqueues weft_scatter. */
weft_status weft_scatter_on_stream(weft_comm *comm,
                                   const void *input,
                                   void *output,
                                   size_t count,
                                   weft_type data_type,
                                   int root,
                                   void *stream);

/** Enqueues weft_all_to_all. */
weft_status weft_all_to_all_on_stream(weft_comm *comm,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      weft_type data_type,
                                      void *stream);


/* ------------------------------------------------------------------------------------------
 * Plans
 *
 * A plan is an algorithm for one collective and a number of ranks. A plan is verified when it is read:
 * it computes its collective on every schedule, without deadlocks and data races.
 */

/** A verified plan. */
typedef struct weft_plan weft_plan;

/**
 * Reads a plan from text: MSCCL's XML or Weft's JSON (`weft plan --emit json`), and verifies it. A plan
 * that is refused is an error that names rank, lane and step.
 */
weft_status weft_plan_parse(const char *text,
                            weft_plan **plan);

/** Reads a plan from a file, and verifies it. */
weft_status weft_plan_read(const char *path, weft_plan **plan);

/**
 * The plan that the communicator would choose for a call: `collective` by its name ("all-reduce"), and
 * the arguments of its function. Pass WEFT_NO_OP or root 0 where it has none. All ranks ask for the
 * same call. The buffers are not changed.
 */
weft_status weft_chosen_plan(weft_comm *comm,
                             const char *collective,
                             const void *input,
                             void *output,
                             size_t count,
                             weft_type data_type,
                             weft_op op,
                             int root,
                             weft_plan **plan);

/**
 * Runs a plan, and waits for it. `count` is the number of elements of a block, as for the function of
 * its collective; `op` is WEFT_NO_OP if that combines nothing. The first call with a plan loads it: all
 * ranks make it, and wait for each other.
 */
weft_status weft_plan_run(weft_comm *comm,
                          const weft_plan *plan,
                          const void *input,
                          void *output,
                          size_t count,
                          weft_type data_type,
                          weft_op op);

/** Starts weft_plan_run. The first call with a plan still waits for the other ranks. */
weft_status weft_plan_start(weft_comm *comm,
                            const weft_plan *plan,
                            const void *input,
                            void *output,
                            size_t count,
                            weft_type data_type,
                            weft_op op,
                            weft_request **request);

/** The name of a plan, valid until it is freed; null for a null pointer. */
const char *weft_plan_name(const weft_plan *plan);

/**
 * The collective of a plan, as "all-reduce" or "broadcast from rank 1", valid until the plan is freed;
 * null for a null pointer.
 */
const char *weft_plan_collective(const weft_plan *plan);

/** The number of ranks of a plan; 0 for a null pointer. */
int weft_plan_ranks(const weft_plan *plan);

/** Frees a plan. Communicators that have loaded it keep it. Does nothing with a null pointer. */
weft_status weft_plan_free(weft_plan *plan);


/* ------------------------------------------------------------------------------------------
 * Predictions
 */

/** The predicted time of a call, and where it comes from. */
typedef struct weft_prediction {
  /** Microseconds of the call. */
  double time_us;
  /** Bytes over time, in 1e9 bytes per second. */
  double algbw_gb_per_s;
  /** Bus bandwidth as nccl-tests defines it, in 1e9 bytes per second. */
  double busbw_gb_per_s;
  /**
   * The time is expected between low50_us and high50_us on half of all machines like this. Microseconds; -1 if there are no
   * published measurements of the library.
   */
  double low50_us;
  /** See low50_us. */
  double high50_us;
  /** The time is expected between low90_us and high90_us on nine of ten machines like this. -1 as for low50_us. */
  double low90_us;
  /** See low90_us. */
  double high90_us;
  /** The GPUs of the fabric. */
  int ranks;
  /** The library that makes the call, with its version: "nccl 2.32". */
  char library[128];
  /** The algorithm that it chooses. */
  char algorithm[128];
  /** The protocol that it chooses. */
  char protocol[128];
  /** Where the prediction comes from: the measurements that the model was compared with. */
  char origin[128];
} weft_prediction;

/**
 * Predicts the time of a collective, as `weft sim` does. `collective` is its name ("all-reduce"),
 * `fabric` a preset ("hgx-h100"; `weft topo --list` prints them), a cluster ("2x hgx-h100 + 8x ndr") or
 * the path of a topology file, `library` the library that makes the call ("nccl:2.27"; null: the newest
 * known one for these GPUs). `bytes` counts as in nccl-tests. `size` is sizeof(weft_prediction).
 */
weft_status weft_predict(const char *collective,
                         const char *fabric,
                         const char *library,
                         uint64_t bytes,
                         weft_prediction *prediction,
                         size_t size);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_H */
