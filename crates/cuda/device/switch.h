// Steps through an NVLink switch (NVLS): a load at a multicast address returns the sums over the memory of all ranks, a store goes to all of
// them. Only kernels of plans with such steps have this code, which needs sm_90.
//
// A step has one input and one output, and its part of a buffer begins and ends at multiples of 16 bytes. The same memory is written and read
// at ordinary addresses before and after the step: `fence_alias` orders both kinds of accesses of a thread, and signals order threads.
namespace weft {
#ifdef WEFT_SWITCH

// The sums of a type that switches add: as f32.
template <class Type> struct Sums {
    static constexpr bool ARE_DEFINED = false;
};
template <Words SUM(const Words*)> struct SumsBy {
    static constexpr bool ARE_DEFINED = true;
    static WEFT_DEVICE Words load(const Words* from) { return SUM(from); }
};
template <> struct Sums<F32> : SumsBy<multicast_sum_f32> {};
template <> struct Sums<F16> : SumsBy<multicast_sum_f16> {};
template <> struct Sums<Bf16> : SumsBy<multicast_sum_bf16> {};

// Accesses of a step that loads sums, stores to all, or both.
template <bool SUMS, bool STORES, class Type = WEFT_TYPE> struct Switched {
    static constexpr bool HAS_REST = false;
    static WEFT_DEVICE Words load(const Words* from) {
        // Every NaN becomes the canonical one, whichever the switch returns.
        if constexpr (SUMS) return Packs::end(Packs::start(Sums<Type>::load(from)));
        else return load_streamed(from);
    }
    static WEFT_DEVICE void store(Words* to, Words words) {
        if constexpr (STORES) multicast_store(to, words);
        else store_streamed(to, words);
    }
};

template <class S> WEFT_DEVICE void move_switched(Block& block, const Records<S>& records, const Part& part) {
    const Operand &input = records.input(0), &output = records.output(0);
    const Span in = span_of(block, input.kind, input), out = span_of(block, output.kind, output);
    // Other threads may have written the input in the step before.
    barrier();
    fence_alias();
    if (input.kind != SWITCH) move_vectors<1, 1, false, Switched<false, true>>(part, &in, &out);
    if constexpr (Sums<WEFT_TYPE>::ARE_DEFINED) {
        if (input.kind == SWITCH && output.kind == SWITCH) move_vectors<1, 1, false, Switched<true, true>>(part, &in, &out);
        else if (input.kind == SWITCH) move_vectors<1, 1, false, Switched<true, false>>(part, &in, &out);
    }
    fence_alias();
}

#endif
} // namespace weft
