// The records of a device program. `src/records.rs` writes them; a test compares both layouts.
namespace weft {

constexpr u32 RANKS_MAX = 128;
constexpr u32 FIFOS_MAX = 128;     // FIFO ends of one rank in a program.
constexpr u32 CALL_BYTES = 4096;   // All parameters of a kernel.
constexpr u32 OPERANDS_MAX = 64;    // Inputs or outputs of a step.
constexpr u32 PROGRAM_BYTES = 12288; // Of a program that a block holds in shared memory.
constexpr u32 STEP_BYTES = 4096;     // The largest step.

enum Op : u8 { OP_SYNC, OP_COPY, OP_REDUCE };

enum OperandKind : u8 {
    MEMORY,       // A base address and bytes from it.
    MEMORY_TILED, // The same, plus the start of the tile.
    MESSAGE,      // The place of a message in a FIFO.
    PACKET,       // The same, where each 4 bytes carry a flag of 4 bytes.
};
struct Operand {
    u8 kind;
    u8 reserved;
    u16 index; // Of the base address, or of the FIFO end.
    u32 reserved2;
    u64 offset; // Bytes, or the number of the message in its tile.
};

enum PollKind : u8 {
    ENTERED, // The entry of a rank has arrived.
    REACHED, // A counter of a rank has reached a value.
    ARRIVED, // A FIFO has a message.
    CREDIT,  // A FIFO has room for a message.
};
struct Poll {
    u8 kind;
    u8 rank;    // The rank that makes the poll succeed.
    u16 index;  // Of the FIFO end.
    u32 value;  // Of the counter, or the number of the message in its tile.
    u32 per_tile; // How much the counter grows in a tile.
    u32 word;     // Of the counter in a slice of this rank's control memory.
};

enum PostKind : u8 {
    SIGNAL,  // A counter, for one rank that waits for it.
    SENT,    // A message has been written.
    RELEASE, // A message has been read.
    RELEASE_PACKETS,
};
struct Post {
    u8 kind;
    u8 rank; // The rank that receives it.
    u16 index;
    u32 value;
    u32 per_tile;
    u32 word; // Of the counter in a slice of the receiver's control memory.
};

// Polls, inputs, outputs and posts follow.
struct Step {
    u16 bytes; // Of the record.
    u8 op;
    u8 loop; // The specialised loop that moves its elements; see move.h.
    u8 polls, inputs, outputs, posts;
    u32 ordinal;
    u32 tile;     // Counted from the tile of its list.
    u32 finishes; // Whether its result is the final one of a reduction, to be divided by the ranks if it is an average.
    u32 enters;   // Whether it waits for entries, which have the addresses of operands.
    u64 elements;
};

struct Fifo {
    u64 slots; // Slot 0 of slice 0, in the receiver's memory.
    u64 slice_stride;
    u32 slot_bytes;
    u32 slot_mask; // The number of slots, a power of two, less one.
    u32 reserved;
    u16 depth;  // Messages in flight.
    u8 peer;
    u8 lane; // The lane of this rank that uses it.
    u32 per_tile;  // Messages in a tile.
    u32 own_word;  // That the peer writes: the credit of a sender, the arrivals of a receiver.
    u32 peer_word; // That this rank writes in the peer's control memory.
    u32 state_word; // The messages of all calls so far.
};

struct Peer {
    u64 control;
    u64 scratch;
};

// This rank's buffers, as a peer addresses them.
struct View {
    u64 input, output;
};

// Lists of steps, by offset from the start of the program. The first is repeated; then the last runs once.
struct Lane {
    u32 first, first_bytes;
    u32 last, last_bytes;
};

struct CallHeader {
    u32 rank, ranks, lanes, slices;
    u32 fifos, signature, announces, program_bytes;
    u64 tiles;
    u64 repeats; // Of the first list: all tiles but the last, or none where each tile has steps of its own.
    u64 tile_bytes;    // From the start of a tile of the user's buffers to the next.
    u32 unit_elements; // Consecutive elements of a slice.
    u32 entry_word;    // The entry of rank 0 in a slice of the control memory.
    u64 program;       // Peers, FIFO ends, lanes, steps. In device memory; 0 if it follows the views.
    u64 control, control_stride; // Words that peers write, by slice.
    u64 state, state_stride;     // Numbers that this rank keeps between calls, by slice.
    u64 abort;   // Host memory: not 0 once a rank has aborted.
    u64 reports; // Host memory: a `Report` for each block.
    u64 timeout_ns;
    u64 trace; // Device memory for a record of steps, or 0.
};

struct Call {
    CallHeader header;
    u32 rest[(CALL_BYTES - sizeof(CallHeader)) / 4]; // The views of all ranks, then the program if it fits.
};

// The state of a block, for the host to read while the kernel runs. Written only by a block that waits long.
enum ReportKind : u32 { RUNNING, WAITING, TIMED_OUT, MISMATCH, ABORTED };
struct Report {
    u32 kind;
    u32 signature;
    u32 lane, slice;
    u32 step, rank;
    u32 poll; // A PollKind.
    u32 other; // The signature of the rank that is in another call.
    u64 tile;
    u64 epoch;
    u64 reserved[2];
};

// A step that a block has taken. They follow the number of steps so far and the number that there is room for.
struct Trace {
    u16 rank, lane;
    u32 slice, step, tile;
};

} // namespace weft
