// The records of a device program. `src/records.rs` writes them; a test compares both layouts.
namespace weft {

#ifndef WEFT_WINDOW
constexpr u32 CALL_BYTES = 4096; // All parameters of a kernel.
constexpr u32 RANKS_MAX = WEFT_RANKS_MAX;
constexpr u32 OPERANDS_MAX = WEFT_OPERANDS_MAX; // Inputs or outputs of a step.
constexpr u32 SHARED_BYTES = WEFT_SHARED_BYTES; // Of views and a program that a block copies to its shared memory.

enum OperandKind : u8 {
    INPUT, // Bytes from the start of this rank's input, plus the start of the tile.
    OUTPUT,
    PEER_INPUT, // The same of rank `index`.
    PEER_OUTPUT,
    SCRATCH, // An address.
    MESSAGE, // Message `number` of its tile in FIFO end `index`.
    PACKET,  // The same, where each 4 bytes carry a flag of 4 bytes.
    SWITCH,  // Bytes from the start of the input (`index` 0) or the output (1) of all ranks, through a switch: a load returns sums, a store goes to all.
};
struct Operand {
    u8 kind;
    u8 reserved;
    u16 index;
    u32 number;
    u64 offset;
};

// Waits until a word of this rank's control memory has reached `per_tile` times the number of the tile, plus `value`. Tiles are numbered
// over all calls of a plan.
enum PollKind : u8 { ENTERED, REACHED, ARRIVED, CREDIT };
struct Poll {
    u32 word;
    u32 per_tile;
    int value;
    u8 kind;
    u8 rank; // The rank that makes the poll succeed.
    u16 reserved;
};

// Writes that number to a word of a peer's control memory.
struct Post {
    u64 word; // The address of the word of slice 0.
    u32 per_tile;
    int value;
};

enum StepFlags : u32 {
    MOVES = 1,    // Has operands.
    PACKETS = 2,  // Some of them are packets.
    MESSAGES = 4, // Some of them are messages.
    FINISHES = 8, // Its result is the final one of a reduction, to be divided by the ranks if it is an average.
    RELAXED = 16, // Its posts release nothing but packets, which have been read when their flags have.
    FINISHES_FIRST = 32, // The result is the final one for the first output only: others continue a scan with it.
    BY_SWITCH = 64, // Its one input, its one output or both are the memory of all ranks.
};
// Polls (those for entries first), inputs, outputs and posts follow.
struct Step {
    u16 bytes; // Of the record.
    u8 entries, polls, inputs, outputs, posts;
    u8 flags;
    u32 ordinal;
    u32 tile; // Counted from the tile of its list.
    u64 elements;
};

struct Fifo {
    u64 slots; // Slot 0 of slice 0, in the receiver's memory.
    u64 slice_stride;
    u32 slot_bytes;
    u32 slot_mask; // The number of slots, a power of two, less one.
    u32 per_tile;  // Messages in a tile.
    u32 peer;
};

// This rank's buffers, as a peer addresses them; in place of the rank itself, as it addresses those of all ranks through a switch.
struct View {
    u64 input, output;
};

// Lists of steps, by offset from the start of the program. The first is repeated; then the last runs once.
struct Lane {
    u32 first, first_bytes;
    u32 last, last_bytes;
};

struct CallHeader {
    // What every call reads first lies together: each line of parameters that no thread has read before takes hundreds of cycles.
    u64 tiles_run; // Of each block, in all calls.
    u64 failure;   // Not 0 once a call of the plan has failed on some rank.
    u64 control, control_stride; // Words that peers write, by slice.
    u64 program;       // In device memory, or 0 if it follows the views.
    u32 rank, ranks, lanes, slices;
    u32 program_bytes, unit_elements; // Of the program, and consecutive elements of a slice.
    u64 input, output; // This rank's buffers.
    u64 tiles;
    u64 first_offset; // Where the first step's first input begins in this rank's input, if it does, and how many elements it has.
    u32 first_elements;
    u32 signature, announces;
    u32 fifos, lists;  // The offsets of FIFO ends and lanes from the start of the program, which begins with the control memory of all ranks.
    u32 combined; // How many ranks' inputs a final result combines; of a scan, that of this rank.
    u64 repeats;       // Of the first list: all tiles but the last, or none where each tile has steps of its own.
    u64 tile_bytes;    // From the start of a tile of the user's buffers to the next.
    u64 presence; // Host memory: a word of each rank, 0 as long as it is there.
    u64 reports; // Host memory: a `Report` of a failure, then one for each block.
    u64 timeout_ns;
    u64 trace;         // Memory for a record of steps, or 0.
    u32 has_whole_words; // All parts of buffers begin and end at multiples of 4 bytes, and have whole packets.
    u32 number; // Of the call, in its communicator; for reports.
    u32 reserved[2];
    u64 factor; // This rank's factor of a pre-multiplied sum, in the low bits.
};

struct alignas(16) Call {
    CallHeader header;
    u32 rest[(CALL_BYTES - sizeof(CallHeader)) / 4]; // The views of all ranks, then the program if it fits.
};
static_assert(sizeof(CallHeader) % 16 == 0 && sizeof(View) == 16, "blocks copy views and program by 16 bytes");

#endif

// For the host to read while the kernel runs: why the first block failed, then what each block that waits long waits for.
enum ReportKind : u32 { RUNNING, WAITING, TIMED_OUT, MISMATCH, ABORTED, PEER_FAILED, GONE, OUTSIDE };
struct Report {
    u32 kind;
    u32 signature;
    u32 lane, slice;
    u32 step, rank;
    u32 poll; // A PollKind.
    u32 other; // The signature of the rank that is in another call.
    u32 tile;
    u32 call;      // Its number, or 0 if the kernel is none of a call.
    u32 waited_ms; // So far.
    u32 started;   // Of the first report: the last call in which a block reported anything.
    u32 reserved[4];
};

// A step that a block has taken. They follow the number of steps so far and the number that there is room for.
struct Trace {
    u16 rank, lane;
    u32 slice, step, tile;
};

} // namespace weft
