// How device code and the scheduler of fibers.cc see each other. Each thread of a block is a fiber.
#include <cstdint>

namespace weft {

struct Host {
    uint32_t thread, threads, block; // Of the fiber that runs.
    uint64_t time;                   // Nanoseconds; it passes with every switch.
    void (*yield)(Host&);            // Runs other fibers.
    void (*disturb)(Host&);          // Does so at random.
    bool (*meet)(Host&, bool);       // The barrier of a block; returns whether a thread brought `true`.
};

// A kernel of a rank. Those of one stream run one after the other.
struct Launch {
    void (*attach)(Host*);
    void (*enter)(const void* call, void* shared);
    const void* call;
    uint32_t blocks, threads, shared_bytes, stream;
};

} // namespace weft
