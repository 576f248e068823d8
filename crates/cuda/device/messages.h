// Messages between two ranks, in a window. Only these two take part.
//
// A rank has slots for the messages of each peer, in channels: the chunks of a message go to the channels in turn, and the slots of a channel
// are used in turn. A sender fills a slot of the receiver's memory and then writes the slot's head; the receiver copies the chunk to its
// buffer and then writes the sender's credit, the number of chunks that it has taken from the channel. Each word has one writer. A head has
// the length of the message, and every message has a chunk in the first channel, also an empty one: the receiver finds out there if its buffer
// has another length.
//
// A queue is one direction of one channel of a peer. Its chunks are counted over all groups, in device memory, so that a captured group can be
// launched again. A block has some queues of its group and never waits for one while another can proceed: any number of blocks completes a
// group, and sends and receives of a group do not wait for each other.
namespace weft {

constexpr u32 MESSAGE_SENT = 5, MESSAGE_TAKEN = 6; // PollKinds.
constexpr u32 GROUP_BYTES = 4096;                  // All parameters of a kernel.
constexpr u32 QUEUES_MAX = 256;                    // Of a group.
constexpr u64 WORD_BYTES = 32;                     // From a head or a credit to the next.

struct Group {
    Window window;
    u64 heads, credits, counters; // Offsets in each rank's memory, which begins with the slots.
    u64 table;                    // The address of pairs and messages, or 0 if they follow.
    u32 slot_bytes, slots, channels;
    u32 pairs;         // Peers that this rank sends to, and those that it receives from.
    u32 channels_used; // The others have no chunk.
    u32 blocks;
};

// The messages of one direction of a peer, in order.
struct Pair {
    u32 peer, receives, first, count;
};

struct Message {
    u64 address, bytes;
};

struct alignas(16) GroupCall {
    Group group;
    u8 rest[GROUP_BYTES - sizeof(Group)]; // The table if it fits.
};
static_assert(sizeof(Group) % 16 == 0 && sizeof(Pair) == 16 && sizeof(Message) == 16, "the table has records of 16 bytes");

// A part of a table that does not fit, which a kernel copies to device memory.
struct alignas(16) TablePart {
    u64 to;
    u32 records, reserved;
    u8 rest[GROUP_BYTES - 16];
};

struct Queue {
    u64 number; // Chunks so far, over all groups.
    u64 credit; // Chunks that the receiver has taken, when last seen.
    u64 offset; // Of the next chunk in its message.
    u64 address, bytes; // Of the message.
    u32 message, end;   // Of the table.
    u32 peer, channel, receives, reserved;
};

// What all threads of a block do next.
struct Turn {
    u64 to, from, bytes;
    u32 queue;
    u32 has_ended;
};

struct GroupShared {
    Queue queues[QUEUES_MAX];
    Turn turn;
};

struct Table {
    const Pair* pairs;
    const Message* messages;
};

WEFT_DEVICE Table table_of(const GroupCall& call) {
    const u8* first = call.group.table != 0 ? (const u8*)call.group.table : call.rest;
    return {(const Pair*)first, (const Message*)(first + call.group.pairs * sizeof(Pair))};
}

WEFT_DEVICE u64 lane_of(const Group& group, u32 rank, u32 channel) { return (u64)rank * group.channels + channel; }
WEFT_DEVICE u8* memory_of(const Group& group, u32 rank) { return (u8*)peer_pointer(group.window, rank); }

WEFT_DEVICE u64* counter_of(const Group& group, const Queue& queue) {
    const u64 first = (u64)queue.receives * group.window.ranks * group.channels;
    return (u64*)(memory_of(group, group.window.rank) + group.counters) + first + lane_of(group, queue.peer, queue.channel);
}

// The credit of a sender, in its own memory.
WEFT_DEVICE u64* credit_of(const Group& group, u32 sender, u32 receiver, u32 channel) {
    return (u64*)(memory_of(group, sender) + group.credits + lane_of(group, receiver, channel) * WORD_BYTES);
}

// The slot of a chunk, in the receiver's memory.
WEFT_DEVICE u64 slot_of(const Group& group, u32 sender, u32 channel, u64 number) { return lane_of(group, sender, channel) * group.slots + number % group.slots; }
WEFT_DEVICE u64* head_of(const Group& group, u32 receiver, u64 slot) { return (u64*)(memory_of(group, receiver) + group.heads + slot * WORD_BYTES); }

// Moves on to the next message that has a chunk in the channel, if the current one has no more.
WEFT_DEVICE void find_chunk(const Group& group, const Message* messages, Queue& queue) {
    while (queue.message < queue.end && queue.offset >= queue.bytes && queue.offset > 0) {
        if (++queue.message == queue.end) return;
        queue.offset = (u64)queue.channel * group.slot_bytes;
        queue.address = messages[queue.message].address, queue.bytes = messages[queue.message].bytes;
    }
}

// The queue of a place: the first channel of all pairs, then the second, and so on.
WEFT_DEVICE Queue queue_at(const Group& group, const Table& table, u32 place) {
    const Pair pair = table.pairs[place % group.pairs];
    Queue queue = {};
    queue.peer = pair.peer, queue.receives = pair.receives, queue.channel = place / group.pairs;
    queue.message = pair.first, queue.end = pair.first + pair.count;
    queue.offset = (u64)queue.channel * group.slot_bytes;
    queue.address = table.messages[pair.first].address, queue.bytes = table.messages[pair.first].bytes;
    queue.number = *counter_of(group, queue);
    find_chunk(group, table.messages, queue);
    return queue;
}

// Two lengths take the fields that a step of a plan has.
WEFT_COLD void fail_length(Position at, const Queue& queue, u64 sent) {
    at.signature = (u32)queue.bytes, at.ordinal = (u32)(queue.bytes >> 32), at.slice = (u32)(sent >> 32);
    fail<false>(at, MISMATCH, MESSAGE_SENT, queue.peer, (u32)sent);
}

// Whether the next chunk of a queue can be copied.
WEFT_DEVICE bool is_ready(const Group& group, Queue& queue) {
    if (queue.receives != 0) {
        const u64 slot = slot_of(group, queue.peer, queue.channel, queue.number);
        return load_acquire(head_of(group, group.window.rank, slot)) == queue.number + 1;
    }
    if (queue.number - queue.credit < group.slots) return true;
    queue.credit = load_acquire(credit_of(group, group.window.rank, queue.peer, queue.channel));
    return queue.number - queue.credit < group.slots;
}

// The copy of the next chunk of a queue. Returns whether the message has the length of its buffer.
WEFT_DEVICE bool begin_turn(const Group& group, const Queue& queue, Turn& turn) {
    const bool receives = queue.receives != 0;
    const u64 rest = queue.bytes - queue.offset;
    const u32 receiver = receives ? group.window.rank : queue.peer, sender = receives ? queue.peer : group.window.rank;
    const u64 slot = slot_of(group, sender, queue.channel, queue.number);
    const u64 in_slot = (u64)memory_of(group, receiver) + slot * group.slot_bytes, in_buffer = queue.address + queue.offset;
    turn.to = receives ? in_buffer : in_slot, turn.from = receives ? in_slot : in_buffer;
    turn.bytes = rest < group.slot_bytes ? rest : group.slot_bytes;
    return !receives || load_relaxed(head_of(group, receiver, slot) + 1) == queue.bytes;
}

// Tells the peer that a chunk was copied, after all threads have done so.
WEFT_DEVICE void end_turn(const Group& group, const Message* messages, Queue& queue) {
    const u32 own = group.window.rank;
    if (queue.receives != 0) {
        store_release(credit_of(group, queue.peer, own, queue.channel), queue.number + 1);
    } else {
        u64* head = head_of(group, queue.peer, slot_of(group, own, queue.channel, queue.number));
        store_relaxed(head + 1, queue.bytes);
        store_release(head, queue.number + 1);
    }
    queue.number++;
    queue.offset += (u64)group.channels * group.slot_bytes;
    find_chunk(group, messages, queue);
    if (queue.message == queue.end) *counter_of(group, queue) = queue.number;
}

// Chooses the next queue that can proceed, in turn, and waits until one can. Sets `has_ended` when all are at their end, or after a failure.
WEFT_DEVICE void choose_turn(const Group& group, GroupShared& shared, u32& left, u32& at, Wait& wait) {
    Turn& turn = shared.turn;
    for (;;) {
        at = at + 1 < left ? at + 1 : 0;
        if (at < left && shared.queues[at].message == shared.queues[at].end) {
            shared.queues[at] = shared.queues[--left];
            continue;
        }
        if (left == 0) break;
        Queue& queue = shared.queues[at];
        Position place = position_in(group.window, queue.number + 1);
        place.slice = queue.channel;
        if (is_ready(group, queue)) {
            turn.queue = at;
            if (begin_turn(group, queue, turn)) {
                if (wait.is_long) clear_report(group.window.reports);
                wait = begin_wait();
                return;
            }
            fail_length(place, queue, load_relaxed(head_of(group, group.window.rank, slot_of(group, queue.peer, queue.channel, queue.number)) + 1));
            break;
        }
        if (!wait.is_long && cycles() - wait.since < QUIET_CYCLES) continue;
        wait = wait_long_cold(place, wait, queue.receives != 0 ? MESSAGE_SENT : MESSAGE_TAKEN, queue.peer);
        if (wait.failed) break;
    }
    turn.has_ended = 1;
}

WEFT_DEVICE void run_group(const GroupCall& call, GroupShared& shared) {
    const Group& group = call.group;
    const Table table = table_of(call);
    const u32 queues = group.pairs * group.channels_used, block = block_index();
    u32 left = queues > block ? (queues - block - 1) / group.blocks + 1 : 0, at = left;
    for (u32 i = thread_in_block(); i < left; i += threads_in_block()) shared.queues[i] = queue_at(group, table, block + i * group.blocks);
    Wait wait = {};
    if (thread_in_block() == 0) {
        shared.turn.has_ended = 0;
        // After a failure, ranks send no more: no queue is left.
        if (load_relaxed(failure_word(group.window)) != 0) (void)has_failed<false>(position_in(group.window, 0), MESSAGE_SENT), left = 0;
        wait = begin_wait();
    }
    barrier();
    for (;;) {
        if (thread_in_block() == 0) choose_turn(group, shared, left, at, wait);
        barrier();
        const Turn turn = shared.turn;
        if (turn.has_ended != 0) break;
        copy((void*)turn.to, (const void*)turn.from, turn.bytes);
        barrier();
        if (thread_in_block() == 0) end_turn(group, table.messages, shared.queues[turn.queue]);
    }
}

WEFT_DEVICE void copy_table(const TablePart& part) {
    for (u32 i = thread_in_block(); i < part.records; i += threads_in_block()) ((Words*)part.to)[i] = ((const Words*)part.rest)[i];
}

} // namespace weft
