/* Prints where the members of the structures are. */
#include <stdio.h>

#include "abi.h"

#define SIZE(name, type) printf("%s %zu\n", name, sizeof(type))
#define AT(name, type, member) printf("%s.%s %zu\n", name, #member, offsetof(type, member))
#define VERSION(version) \
    do { \
        SIZE("v" #version, struct descriptor_v##version); \
        AT("v" #version, struct descriptor_v##version, parent); \
        AT("v" #version, struct descriptor_v##version, rank); \
        AT("v" #version, struct descriptor_v##version, of); \
        AT("v" #version, struct descriptor_v##version, of.coll.sequence); \
        AT("v" #version, struct descriptor_v##version, of.coll.function); \
        AT("v" #version, struct descriptor_v##version, of.coll.count); \
        AT("v" #version, struct descriptor_v##version, of.coll.root); \
        AT("v" #version, struct descriptor_v##version, of.coll.data_type); \
        AT("v" #version, struct descriptor_v##version, of.coll.channels); \
        AT("v" #version, struct descriptor_v##version, of.coll.warps); \
        AT("v" #version, struct descriptor_v##version, of.coll.algorithm); \
        AT("v" #version, struct descriptor_v##version, of.coll.protocol); \
        AT("v" #version, struct descriptor_v##version, of.p2p.function); \
        AT("v" #version, struct descriptor_v##version, of.p2p.data_type); \
        AT("v" #version, struct descriptor_v##version, of.p2p.count); \
        AT("v" #version, struct descriptor_v##version, of.p2p.peer); \
        SIZE("v" #version ".profiler", struct profiler_v##version); \
        AT("v" #version ".profiler", struct profiler_v##version, init); \
        AT("v" #version ".profiler", struct profiler_v##version, start_event); \
        AT("v" #version ".profiler", struct profiler_v##version, record_event_state); \
        AT("v" #version ".profiler", struct profiler_v##version, finalize); \
    } while (0)

int main(void) {
    VERSION(1); VERSION(2); VERSION(3); VERSION(4); VERSION(5); VERSION(6); VERSION(7);
    AT("v1", struct descriptor_v1, of.coll.communicator);
    AT("v3", struct descriptor_v3, of.p2p.communicator);
    AT("v4", struct descriptor_v4, of.p2p.channels);
    AT("v7", struct descriptor_v7, of.p2p.tag);
    AT("v7", struct descriptor_v7, of.coll.kernel);
    AT("v7", struct descriptor_v7, of.coll.tag);
    AT("v7", struct descriptor_v7, of.coll_api.is_captured);
    AT("v7", struct descriptor_v7, of.coll_api.tag);
    AT("v7", struct descriptor_v7, of.p2p_api.stream);
    AT("v7", struct descriptor_v7, of.p2p_api.tag);
    AT("v6", struct descriptor_v6, of.ce_coll.strategy);
    AT("v6", struct descriptor_v6, of.ce_coll.batch_size);
    AT("v6", struct descriptor_v6, of.ce_coll.stream);
    AT("v7", struct descriptor_v7, of.ce_coll.tag);
    AT("v6", struct descriptor_v6, of.ce_sync.ranks);
    AT("v6", struct descriptor_v6, of.ce_batch.bytes);
    AT("v7", struct descriptor_v7, of.kernel_phase.name);
    AT("v7", struct descriptor_v7, of.kernel_phase.gpu_ns);
    AT("v5", struct descriptor_v5, of.group_api.depth);
    AT("v5", struct descriptor_v5, of.kernel_ch.gpu_ns);
    AT("v5", struct descriptor_v5, of.net_plugin.data);
    SIZE("proxy_op", struct proxy_op);
    AT("proxy_op", struct proxy_op, channel);
    AT("proxy_op", struct proxy_op, peer);
    AT("proxy_op", struct proxy_op, is_send);
    SIZE("state_v1", union state_v1);
    SIZE("state_v4", union state_v4);
    SIZE("ib", struct ib_v1);
    AT("ib", struct ib_v1, of.device);
    AT("ib", struct ib_v1, of.request);
    AT("ib", struct ib_v1, of.queue_pair);
    AT("ib", struct ib_v1, of.bytes);
    SIZE("socket", struct socket_v1);
    AT("socket", struct socket_v1, of.descriptor);
    AT("socket", struct socket_v1, of.bytes);
    return 0;
}
