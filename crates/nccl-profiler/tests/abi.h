/* The interface of NCCL's profiler plugins, versions 1 to 7, as the tests see it. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef const char* text;
typedef void (*logger_function)(int level, unsigned long flags, text file, int line, text format, ...);

struct proxy_op { int pid; uint8_t channel; int peer, steps, chunk_bytes, is_send; };
struct net_plugin { int64_t plugin; void* data; };
struct group_api { bool is_captured; int depth; };
struct kernel_launch { void* stream; };
struct ce_sync { bool is_complete; int ranks; };
struct ce_batch { int operations; size_t bytes; bool is_synced_inside; };
struct kernel_phase { uint8_t channel, phase; text name; uint64_t gpu_ns; };
struct kernel_ch_v3 { uint8_t channel; };
struct kernel_ch { uint8_t channel; uint64_t gpu_ns; };
struct coll_api { text function; size_t count; text data_type; int root; void* stream; bool is_captured; };
struct p2p_api { text function; size_t count; text data_type; void* stream; bool is_captured; };
struct coll_api_v7 { text function; size_t count; text data_type; int root; void* stream; bool is_captured; uint64_t tag; };
struct p2p_api_v7 { text function; size_t count; text data_type; void* stream; bool is_captured; uint64_t tag; };

#define BUFFERS const void* send; void* receive; size_t count; int root
struct coll_v1 {
    text name; uint64_t communicator, sequence; uint8_t function; BUFFERS; uint8_t data_type; uint32_t operation;
    size_t traffic_bytes; uint8_t channels, warps, algorithm, protocol; int is_collnet, is_nvls;
};
struct coll_v2 {
    text name; uint64_t communicator, sequence; text function; BUFFERS; text data_type; size_t traffic_bytes;
    uint8_t channels, warps; text algorithm, protocol;
};
struct coll_v3 {
    text name; uint64_t communicator, sequence; text function; BUFFERS; text data_type; uint8_t channels, warps;
    text algorithm, protocol;
};
struct coll_v4 { uint64_t sequence; text function; BUFFERS; text data_type; uint8_t channels, warps; text algorithm, protocol; };
struct coll_v5 {
    uint64_t sequence; text function; BUFFERS; text data_type; uint8_t channels, warps; text algorithm, protocol; void* group;
};
struct coll_v7 {
    uint64_t sequence; text function; BUFFERS; text data_type; uint8_t channels, warps; text algorithm, protocol; void* group;
    text kernel; bool is_symmetric; uint64_t tag;
};
struct ce_coll_v6 {
    uint64_t sequence; text function; BUFFERS; text data_type, strategy; bool is_synced_inside;
    uint32_t batch_size, batches, copy_sequence; void* stream;
};
struct ce_coll_v7 {
    uint64_t sequence; text function; BUFFERS; text data_type, strategy; bool is_synced_inside;
    uint32_t batch_size, batches, copy_sequence; void* stream; uint64_t tag;
};
struct p2p_v1 { text name; uint64_t communicator; uint8_t function; void* buffer; uint8_t data_type; size_t count; int peer; };
struct p2p_v2 { text name; uint64_t communicator; text function; void* buffer; text data_type; size_t count; int peer; };
struct p2p_v4 { text function; void* buffer; text data_type; size_t count; int peer; uint8_t channels; };
struct p2p_v5 { text function; void* buffer; text data_type; size_t count; int peer; uint8_t channels; void* group; };
struct p2p_v7 { text function; void* buffer; text data_type; size_t count; int peer; uint8_t channels; void* group; uint64_t tag; };

#define DESCRIPTOR(version, kind_type, ...) \
    struct descriptor_v##version { \
        kind_type kind; void* parent; int rank; \
        union { __VA_ARGS__ struct proxy_op proxy_op; int proxy_step; } of; \
    }
DESCRIPTOR(1, uint8_t, struct coll_v1 coll; struct p2p_v1 p2p;);
DESCRIPTOR(2, uint8_t, struct coll_v2 coll; struct p2p_v2 p2p;);
DESCRIPTOR(3, uint8_t, struct coll_v3 coll; struct p2p_v2 p2p; struct kernel_ch_v3 kernel_ch; struct net_plugin net_plugin;);
DESCRIPTOR(4, uint8_t, struct coll_v4 coll; struct p2p_v4 p2p; struct kernel_ch kernel_ch; struct net_plugin net_plugin;);
#define SINCE_V5 \
    struct kernel_ch kernel_ch; struct net_plugin net_plugin; struct group_api group_api; struct kernel_launch kernel_launch;
#define SINCE_V6 struct ce_sync ce_sync; struct ce_batch ce_batch;
DESCRIPTOR(5, uint64_t, struct coll_v5 coll; struct p2p_v5 p2p; struct coll_api coll_api; struct p2p_api p2p_api; SINCE_V5);
DESCRIPTOR(6, uint64_t, struct coll_v5 coll; struct p2p_v5 p2p; struct coll_api coll_api; struct p2p_api p2p_api; SINCE_V5 SINCE_V6
           struct ce_coll_v6 ce_coll;);
DESCRIPTOR(7, uint64_t, struct coll_v7 coll; struct p2p_v7 p2p; struct coll_api_v7 coll_api; struct p2p_api_v7 p2p_api; SINCE_V5 SINCE_V6
           struct ce_coll_v7 ce_coll; struct kernel_phase kernel_phase;);

union state_v1 { struct { size_t bytes; int steps; } proxy_op; int appended; };
union state_v4 { size_t bytes; int appended; void* data; uint64_t gpu_ns; };

#define PROFILER(version, state, ...) \
    struct profiler_v##version { \
        text name; \
        int (*init)(__VA_ARGS__); \
        int (*start_event)(void* context, void** handle, struct descriptor_v##version*); \
        int (*stop_event)(void* handle); \
        int (*record_event_state)(void* handle, int state_, state*); \
        int (*finalize)(void* context); \
    }
#define SINCE void** context, uint64_t communicator, int* mask, text name, int nodes, int ranks, int rank, logger_function
PROFILER(1, union state_v1, void** context, int* mask);
PROFILER(2, union state_v1, void** context, int* mask);
PROFILER(3, union state_v1, void** context, int* mask);
PROFILER(4, union state_v4, void** context, int* mask, text name, uint64_t communicator, int nodes, int ranks, int rank, logger_function);
PROFILER(5, union state_v4, SINCE);
PROFILER(6, union state_v4, SINCE);
PROFILER(7, union state_v4, SINCE);

struct ib_v1 { uint8_t kind; union { struct { int device; uint64_t request; int opcode, queue_pair; size_t bytes; } of; }; };
struct socket_v1 { uint8_t kind; union { struct { int descriptor, operation; size_t bytes; } of; }; };
