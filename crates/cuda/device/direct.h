// A call of one tile whose messages are all packets, as straight code: what does not change from call to call is a constant of the kernel,
// and only addresses and lengths are read from the program. Instructions that run once cost several cycles each, so there are few.
//
// The words and slots of such a call are those of `run_tiles`, which runs it instead if there is no credit yet or slots are due to be cleared.
#ifdef WEFT_DIRECT
namespace weft {

// CREDITS words of credit, from CREDIT_WORD on, must have reached CREDIT_VALUE in tile 0. The first step reads this rank's
// input if PRELOADS. BYTES of the program are used.
template <u32 RANKS, u32 BYTES, bool PRELOADS, u32 FIFOS, u32 PER_TILE, u32 SLOT_MASK, u32 SLOT_BYTES, u64 SLICE_STRIDE, u32 CREDIT_WORD, u32 CREDIT_SPACING,
          u32 CREDITS, int CREDIT_VALUE>
struct DirectCall {
    static constexpr u32 VIEWS_BYTES = RANKS * sizeof(View);
    Block& block;
    u32 credit;
    Words ready; // The first elements of the first step.

    template <class T> WEFT_DEVICE const T& record(u32 offset) const {
#ifdef WEFT_IN_SHARED
        return *(const T*)(block.shared.rest + VIEWS_BYTES + offset);
#else
        return weft::record<T>(block, offset);
#endif
    }

    // Loads what the call needs first, and copies the program. None of the loads waits for another.
    WEFT_DEVICE void begin() {
        const CallHeader& call = block.header();
        const u32 t = thread_index(), start = block.slice * call.unit_elements + t * PACKET_PACK;
        // Parts of words are left to `run_indirectly`: they may be at any address.
        const bool has_elements = PRELOADS && start < call.first_elements && (sizeof(Element) >= 4 || call.has_whole_words != 0);
        const u64 failure = load_relaxed_if(t == 0, (const u64*)call.failure);
        block.tiles = load_relaxed(block.tiles_run());
        credit = CREDITS > 0 ? (u32)load_relaxed_if(t < CREDITS, control_word(block, call.control, CREDIT_WORD + t * CREDIT_SPACING)) : 0;
        ready = load_words(call.input + call.first_offset + start * (u32)sizeof(Element), has_elements ? call.first_elements - start : 0);
#ifdef WEFT_IN_SHARED
        constexpr u32 COUNT = (BYTES + 15) / 16, COPIES = (COUNT + THREADS_MIN - 1) / THREADS_MIN;
        const Words* from = (const Words*)((const u8*)block.call.rest + VIEWS_BYTES);
        Words* to = (Words*)(block.shared.rest + VIEWS_BYTES);
        Words copied[COPIES];
        WEFT_UNROLL
        for (u32 c = 0; c < COPIES; c++) copied[c] = load_anywhere_if(t + c * thread_count() < COUNT, from + t + c * thread_count());
        WEFT_UNROLL
        for (u32 c = 0; c < COPIES; c++)
            if (t + c * thread_count() < COUNT) to[t + c * thread_count()] = copied[c];
#endif
        block.tile = block.tiles, block.failed = failure != 0;
    }

    // The number of the call's first message in each FIFO, in the low bits.
    WEFT_DEVICE u32 base() const { return (u32)block.tiles * PER_TILE; }
    WEFT_DEVICE u32 flag(u32 number) const { return (base() + number) | 0x80000000u; }
    // The slot of a message.
    WEFT_DEVICE u64 slot(u32 fifo, u32 number) const {
        const u64 first = record<Fifo>(FIFOS + fifo * (u32)sizeof(Fifo)).slots;
        return first + block.slice * SLICE_STRIDE + ((base() + number) & SLOT_MASK) * SLOT_BYTES;
    }
    WEFT_DEVICE u32 peer(u32 fifo) const { return record<Fifo>(FIFOS + fifo * (u32)sizeof(Fifo)).peer; }

    WEFT_DEVICE bool is_fit() const {
        // Elements of less than 4 bytes are moved in whole words only.
        if (block.header().tiles != 1 || (sizeof(Element) < 4 && !block.header().has_whole_words)) return false;
        // `is_due` of any message, or of the one before it in its slot, whose clearing this rank's relaxed load of credit does not acquire.
        const u32 low = base() & 0x3fffffff;
        if (block.tiles * PER_TILE > SLOT_MASK && (low <= 2 * SLOT_MASK + 1 || low + PER_TILE > 0x40000000)) return false;
        // Fewer than 2^31 messages are on their way.
        return CREDITS == 0 || thread_index() >= CREDITS || (int)(credit - (base() + (u32)CREDIT_VALUE)) >= 0;
    }

    // PACKET_BYTES, or as many as the elements that are left have.
    static WEFT_DEVICE Words load_words(u64 address, u32 left) {
        Words words = {};
        WEFT_UNROLL
        for (u32 w = 0; w < PACKET_BYTES / 4; w++)
            words.word[w] = load_word_if(w * 4 < left * sizeof(Element), (const u32*)address + w);
        return words;
    }
    static WEFT_DEVICE void store_words(u64 address, u32 left, const Words& words) {
        WEFT_UNROLL
        for (u32 w = 0; w < PACKET_BYTES / 4; w++)
            if (w * 4 < left * sizeof(Element)) ((u32*)address)[w] = words.word[w];
    }
};
using Directly = DirectCall<WEFT_DIRECT>;

// AT is the offset of the record. IS_READY: its inputs in buffers are that of the first step, which has been loaded. IN_FIFO and OUT_FIFO the FIFO ends of the first packets among inputs and outputs, of which others follow,
// IN_NUMBER and OUT_NUMBER the numbers of messages. The rest are those of a `Shape`.
template <u32 AT_, bool IS_READY_, u32 ORDINAL_, u32 IN_FIFO_, u32 IN_NUMBER_, u32 OUT_FIFO_, u32 OUT_NUMBER_, u32 ENTRIES, u32 POLLS, u32 INPUTS, u32 OUTPUTS, u32 POSTS, u64 IN, u64 OUT,
          u32 FLAGS>
struct DirectStep : Shape<ENTRIES, POLLS, INPUTS, OUTPUTS, POSTS, IN, OUT, FLAGS> {
    using Shape<ENTRIES, POLLS, INPUTS, OUTPUTS, POSTS, IN, OUT, FLAGS>::Shape;
    static constexpr u32 AT = AT_, ORDINAL = ORDINAL_, IN_FIFO = IN_FIFO_, IN_NUMBER = IN_NUMBER_, OUT_FIFO = OUT_FIFO_, OUT_NUMBER = OUT_NUMBER_;
    static constexpr bool IS_READY = IS_READY_;
    static constexpr u64 IN_KINDS = IN, OUT_KINDS = OUT;

    static WEFT_DEVICE constexpr bool is_packet(u64 kinds, u32 i) { return (kinds >> (4 * i) & 15) == PACKET; }
    // The packets among the first operands, of at most 16. Without a loop, which the compiler might leave to the kernel.
    static WEFT_DEVICE constexpr u32 packets(u64 kinds, u32 operands) {
        const u64 first = operands < 16 ? kinds & ((1ull << 4 * operands) - 1) : kinds;
        // PACKET is the only kind with bits 1 and 2.
        const u64 found = first >> 1 & first >> 2 & 0x1111111111111111ull;
        return (u32)(found * 0x1111111111111111ull >> 60) + (found == 0x1111111111111111ull ? 16 : 0);
    }
    static_assert(PACKET == 6 && MESSAGE == 5 && SCRATCH == 4, "");
    static constexpr u32 RECEIVED = packets(IN, INPUTS), SENT = packets(OUT, OUTPUTS);
};

// Moves the elements of a step. A thread checks all heads before it sends on what it has received; else, each checks one.
template <class S> struct DirectMove {
    Directly& call;
    Block& block;
    const Part& part;
    static constexpr u32 HEADS = S::SENT > 0 ? S::RECEIVED : S::RECEIVED > 0 ? 1 : 0;

    WEFT_DEVICE const Operand& operand(u32 i) const { return call.template record<Operand>(S::AT + (u32)sizeof(Step) + S::polls() * (u32)sizeof(Poll) + i * (u32)sizeof(Operand)); }
    // Where a buffer has this thread's elements.
    WEFT_DEVICE u64 address(u32 kind, u32 i, u32 start) const {
        return (kind == INPUT ? block.header().input : block.header().output) + operand(i).offset + start * (u32)sizeof(Element);
    }
    // Where a slot has them.
    static WEFT_DEVICE u32 in_slot(u32 k) { return HEAD_BYTES + (k * thread_count() + thread_index()) * 2 * PACKET_BYTES; }

    WEFT_DEVICE void send_heads() const {
        if (thread_index() >= S::SENT) return;
        const u32 signature = block.header().signature, flag = call.flag(S::OUT_NUMBER);
        store_packets((Words*)call.slot(S::OUT_FIFO + thread_index(), S::OUT_NUMBER), Words{{signature, flag, signature, flag}});
    }

    // Loads the inputs that are in buffers.
    WEFT_DEVICE void load(u32 start, u32 k, u32 left, Words (&v)[S::FIXED_INPUTS]) const {
        WEFT_UNROLL
        for (u32 i = 0; i < S::FIXED_INPUTS; i++) {
            if (S::is_packet(S::IN_KINDS, i)) continue;
            if (S::IS_READY && k == 0) v[i] = call.ready;
            else v[i] = Directly::load_words(address(S::IN_KINDS >> (4 * i) & 15, i, start), left);
        }
    }

    // Polls packets once. Returns the number of a packet that is missing, counted without other inputs, or RECEIVED.
    WEFT_DEVICE u32 poll(u32 k, bool has_elements, u32 first_head, u32 heads, Words (&v)[S::FIXED_INPUTS]) {
        const u32 flag = call.flag(S::IN_NUMBER);
        u32 missing = S::RECEIVED;
        if (has_elements) {
            WEFT_UNROLL
            for (u32 i = 0; i < S::FIXED_INPUTS; i++) {
                if (!S::is_packet(S::IN_KINDS, i)) continue;
                if (!receive_small(call.slot(S::IN_FIFO + S::packets(S::IN_KINDS, i), S::IN_NUMBER) + in_slot(k), flag, v[i])) missing = S::packets(S::IN_KINDS, i);
            }
        }
        WEFT_UNROLL
        for (u32 h = 0; h < HEADS; h++) {
            if (h >= heads) continue;
            const Words head = load_packets((const Words*)call.slot(S::IN_FIFO + first_head + h, S::IN_NUMBER));
            if (head.word[1] != flag) missing = first_head + h;
            else if (WEFT_RARE(head.word[0] != block.header().signature)) mismatch<true>(block, ARRIVED, call.peer(S::IN_FIFO + first_head + h), head.word[0]);
        }
        return missing;
    }

    // Moves the elements of this thread. False if the call has failed.
    WEFT_DEVICE bool move() {
        send_heads();
        const u32 elements = (u32)part.elements, step = (u32)part.step;
        u32 start = part.slice * part.unit + thread_index() * PACKET_PACK, k = 0;
        const bool has_all = S::SENT > 0 && start < elements;
        const u32 first_head = has_all ? 0 : thread_index();
        u32 heads = has_all ? S::RECEIVED : thread_index() < S::RECEIVED ? 1 : 0;
        WEFT_NO_UNROLL
        for (; start < elements || heads > 0; start += step, k++) {
            const bool has_elements = start < elements;
            const u32 left = elements - start;
            Words v[S::FIXED_INPUTS];
            if (has_elements) load(start, k, left, v);
            if constexpr (S::RECEIVED > 0) {
                Wait wait = begin_wait();
                u32 missing;
                while ((missing = poll(k, has_elements, first_head, heads, v)) != S::RECEIVED)
                    if (!continues<true>(block, wait, ARRIVED, call.peer(S::IN_FIFO + missing))) break;
                // What was not received is not sent.
                if (WEFT_RARE(block.failed)) return false;
                end_wait(block, wait);
            }
            heads = 0;
            if (!has_elements) break;
            const Words result = reduce(v, part);
            WEFT_UNROLL
            for (u32 o = 0; o < S::FIXED_OUTPUTS; o++) {
                const Words finished = finish(result, o, part);
                if (S::is_packet(S::OUT_KINDS, o)) send_small(call.slot(S::OUT_FIFO + S::packets(S::OUT_KINDS, o), S::OUT_NUMBER) + in_slot(k), call.flag(S::OUT_NUMBER), finished);
                else Directly::store_words(address(S::OUT_KINDS >> (4 * o) & 15, S::FIXED_INPUTS + o, start), left, finished);
            }
        }
        return true;
    }
};

template <class S> WEFT_DEVICE bool move_directly(Directly& direct) {
    Block& block = direct.block;
    const CallHeader& call = block.header();
    block.ordinal = S::ORDINAL;
    const Step& step = direct.record<Step>(S::AT);
    const u32 finished = S::has(FINISHES) ? S::FIXED_OUTPUTS : S::has(FINISHES_FIRST) ? 1 : 0;
    Part part = {step.elements, (u64)call.slices * call.unit_elements, call.unit_elements, block.slice, finished, call.combined, nullptr, nullptr};
    if constexpr (Packs::One::SCALES) part.inputs = &direct.record<Operand>(S::AT + (u32)sizeof(Step) + S::polls() * (u32)sizeof(Poll)), part.factors = block.shared.factors;
#ifdef WEFT_TRACE
    (void)check_heads(block, Records<S>{block, S(step), S::AT}, false);
    if (agree(block)) return false;
    if (thread_index() == 0) trace_step(block.position());
    barrier();
#endif
    return DirectMove<S>{direct, block, part}.move();
}

// Returns the slots that a step has received.
template <class S> WEFT_DEVICE void post_directly(const Directly& direct) {
    if (S::posts() == 0 || thread_index() >= S::posts()) return;
    const Post& post = direct.record<Post>(S::AT + S::bytes() - (S::posts() - thread_index()) * (u32)sizeof(Post));
    store_relaxed(control_word(direct.block, post.word, 0), number_of(direct.block, post.per_tile, post.value));
}

// Returns whether the call has succeeded, for all threads alike.
WEFT_DEVICE bool run_directly(Directly& direct) {
    Block& block = direct.block;
#define DIRECT(...) && move_directly<DirectStep<__VA_ARGS__>>(direct)
    (void)(true WEFT_DIRECT_STEPS);
#undef DIRECT
    if (WEFT_RARE(agree(block))) return false;
#define DIRECT(...) post_directly<DirectStep<__VA_ARGS__>>(direct);
    WEFT_DIRECT_STEPS
#undef DIRECT
    return true;
}

} // namespace weft
#endif
