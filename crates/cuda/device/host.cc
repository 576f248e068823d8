// The entries of a library of the host: what a thread runs, and sizes.
extern "C" void weft_host_attach(weft::Host* host) { weft::host = host; }

extern "C" void weft_host_enter(const void* call, void* shared) { weft::run(*(const weft::Call*)call, *(weft::Shared*)shared); }

// Where the memory of all ranks is, for the thread that calls this.
extern "C" void weft_host_multicast(const unsigned long long* table, unsigned windows, unsigned ranks) {
    weft::multicast_table.store(table, std::memory_order_relaxed);
    weft::multicast_windows.store(windows, std::memory_order_relaxed);
    weft::multicast_ranks.store(ranks, std::memory_order_relaxed);
}

extern "C" unsigned weft_host_shared_bytes() { return sizeof(weft::Shared); }

extern "C" unsigned weft_host_sizes(unsigned* sizes) {
    using namespace weft;
    unsigned all[] = {sizeof(Operand), sizeof(Poll), sizeof(Post), sizeof(Step), sizeof(Fifo), sizeof(View), sizeof(Lane), sizeof(CallHeader), sizeof(Report), sizeof(Trace)};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) sizes[i] = all[i];
    return sizeof all / sizeof *all;
}
