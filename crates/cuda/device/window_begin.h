// Windows: memory of the same length on every rank's GPU, which kernels of all ranks read and write. The text needs no header and can be put
// before a kernel's source, for NVRTC and for nvcc (C++17, sm_70 or later).
//
//     extern "C" __global__ void send(weft::Window window, const float* from, unsigned long long bytes) {
//         unsigned int next = (window.rank + 1) % window.ranks, before = (window.rank + window.ranks - 1) % window.ranks;
//         weft::put(window, next, 0, from, bytes);
//         weft::signal(window, next);
//         if (!weft::wait(window, before)) return; // The host's next call says why.
//         const float* received = (const float*)weft::peer_pointer(window, window.rank);
//         ...
//     }
//
// All threads of a block call `put`, `get`, `signal` and `wait` together, with the same arguments. Blocks may do so at the same time.
#ifndef WEFT_WINDOW
#define WEFT_WINDOW
#define WEFT_FAILED_AT 2
#define WEFT_ABORTED_BY 16
#define WEFT_REPORTS_MAX 1024

namespace weft {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(16) Words {
    u32 word[4];
};

} // namespace weft
