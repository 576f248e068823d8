// The records of a program, and the shapes of steps: how many polls, operands and posts a step has. Constants of the kernel
// for the steps that a program has in a fixed order; read from the record for others.
namespace weft {

// Copies views and program to shared memory. All threads take part, and meet at a barrier afterwards.
WEFT_DEVICE void copy_program(const Block& block) {
#ifdef WEFT_IN_SHARED
    const CallHeader& call = block.header();
    const u32 views = call.ranks * (u32)sizeof(View), bytes = views + call.program_bytes;
    WEFT_NO_UNROLL
    for (u32 at = thread_index() * 16; at < bytes; at += thread_count() * 16) {
        const u8* from = (const u8*)block.call.rest + at;
#ifndef WEFT_IN_PARAMETERS
        if (call.program != 0 && at >= views) from = (const u8*)call.program + (at - views);
#endif
        *(Words*)(block.shared.rest + at) = load_anywhere(from);
    }
#else
    (void)block;
#endif
}

// IN and OUT have the kinds of operands, 4 bits each, where some are packets: polls of all inputs at once must not branch.
template <u32 ENTRIES, u32 POLLS, u32 INPUTS, u32 OUTPUTS, u32 POSTS, u64 IN, u64 OUT, u32 FLAGS> struct Shape {
    static constexpr bool IS_FIXED = true;
    static constexpr u32 FIXED_INPUTS = INPUTS, FIXED_OUTPUTS = OUTPUTS;
    static constexpr bool FIXED_MESSAGES = (FLAGS & MESSAGES) != 0, HAS_HEADS = (FLAGS & (MESSAGES | PACKETS)) != 0;
    WEFT_DEVICE Shape(const Step&) {}
    static WEFT_DEVICE u32 entries() { return ENTRIES; }
    static WEFT_DEVICE u32 polls() { return POLLS; }
    static WEFT_DEVICE u32 inputs() { return INPUTS; }
    static WEFT_DEVICE u32 outputs() { return OUTPUTS; }
    static WEFT_DEVICE u32 posts() { return POSTS; }
    static WEFT_DEVICE bool has(u32 flag) { return (FLAGS & flag) != 0; }
    static WEFT_DEVICE u32 input_kind(u32 i, const Operand&) { return IN >> (4 * i) & 15; }
    static WEFT_DEVICE u32 output_kind(u32 o, const Operand&) { return OUT >> (4 * o) & 15; }
    static WEFT_DEVICE u32 bytes() { return sizeof(Step) + POLLS * sizeof(Poll) + (INPUTS + OUTPUTS) * sizeof(Operand) + POSTS * sizeof(Post); }
};

struct AnyShape {
    static constexpr bool IS_FIXED = false;
    static constexpr u32 FIXED_INPUTS = 0, FIXED_OUTPUTS = 0;
#ifdef WEFT_SWITCH
    static constexpr bool FIXED_MESSAGES = false, HAS_HEADS = false; // Plans with a switch send no messages.
#else
    static constexpr bool FIXED_MESSAGES = false, HAS_HEADS = true;
#endif
    const Step& step;
    WEFT_DEVICE AnyShape(const Step& step) : step(step) {}
    WEFT_DEVICE u32 entries() const { return step.entries; }
    WEFT_DEVICE u32 polls() const { return step.polls; }
    WEFT_DEVICE u32 inputs() const { return step.inputs; }
    WEFT_DEVICE u32 outputs() const { return step.outputs; }
    WEFT_DEVICE u32 posts() const { return step.posts; }
    WEFT_DEVICE bool has(u32 flag) const { return (step.flags & flag) != 0; }
    static WEFT_DEVICE u32 input_kind(u32, const Operand& operand) { return operand.kind; }
    static WEFT_DEVICE u32 output_kind(u32, const Operand& operand) { return operand.kind; }
    WEFT_DEVICE u32 bytes() const { return step.bytes; }
};

// The records of a step, by their order.
template <class S> struct Records {
    const Block& block;
    S shape;
    u32 at; // The offset of the step.

    WEFT_DEVICE const Step& step() const { return record<Step>(block, at); }
    WEFT_DEVICE const Poll& poll(u32 i) const { return record<Poll>(block, at + (u32)sizeof(Step) + i * (u32)sizeof(Poll)); }
    WEFT_DEVICE u32 operands() const { return at + (u32)sizeof(Step) + shape.polls() * (u32)sizeof(Poll); }
    WEFT_DEVICE const Operand& input(u32 i) const { return record<Operand>(block, operands() + i * (u32)sizeof(Operand)); }
    WEFT_DEVICE const Operand& output(u32 o) const { return input(shape.inputs() + o); }
    WEFT_DEVICE const Post& post(u32 i) const {
        return record<Post>(block, operands() + (shape.inputs() + shape.outputs()) * (u32)sizeof(Operand) + i * (u32)sizeof(Post));
    }
};

// A message of a FIFO: its place, which begins with a head that has the signature of its call.
constexpr u32 HEAD_BYTES = 16;
struct Slot {
    u64 head;
    u64 number; // Counted over all calls.
    u32 peer;

    // Flags of packets are never 0, and repeat after 2^31 messages.
    WEFT_DEVICE u32 flag() const { return (u32)number | 0x80000000u; }
};

WEFT_DEVICE Slot slot_of(const Block& block, const Operand& operand) {
    const Fifo& fifo = record<Fifo>(block, block.header().fifos + operand.index * (u32)sizeof(Fifo));
    const u64 number = block.tile * fifo.per_tile + operand.number;
    return {fifo.slots + block.slice * fifo.slice_stride + (number & fifo.slot_mask) * fifo.slot_bytes, number, fifo.peer};
}

WEFT_DEVICE u32 unit_bytes(const Block& block) { return block.header().unit_elements * (u32)sizeof(Element); }

#ifdef WEFT_SWITCH
// Where the input or the output of all ranks begins, as the switch addresses them.
WEFT_DEVICE u64 multicast_base(const Block& block, u32 index) {
    const View& view = ((const View*)block.call.rest)[block.header().rank];
    return index == 0 ? view.input : view.output;
}
#endif

// The first unit of an operand that is no packet.
WEFT_DEVICE Span span_of(const Block& block, u32 kind, const Operand& operand) {
    const CallHeader& call = block.header();
    if (kind == MESSAGE) return {slot_of(block, operand).head + HEAD_BYTES, unit_bytes(block)};
    u64 first = operand.offset + (u64)block.slice * unit_bytes(block);
    if (kind == INPUT) first += call.input;
    else if (kind == OUTPUT) first += call.output;
#ifdef WEFT_SWITCH
    else if (kind == SWITCH) first += multicast_base(block, operand.index);
#endif
    else if (kind != SCRATCH) first += block.shared.bases[2 * operand.index + (kind == PEER_OUTPUT)];
    if (kind != SCRATCH) first += (block.tile - block.tiles) * call.tile_bytes;
    return {first, (u64)call.slices * unit_bytes(block)};
}

} // namespace weft
