// Signals, waits and copies that the host enqueues.
extern "C" __global__ void weft_signal(const __grid_constant__ weft::Window window, unsigned int peer) { weft::signal(window, peer); }
extern "C" __global__ void weft_wait(const __grid_constant__ weft::Window window, unsigned int peer) { (void)weft::wait(window, peer); }
// Each block copies a part.
extern "C" __global__ void weft_copy(void* to, const void* from, unsigned long long bytes) {
    const unsigned long long part = (bytes / gridDim.x + 16) / 16 * 16, first = part * blockIdx.x;
    if (first < bytes) weft::copy((char*)to + first, (const char*)from + first, bytes - first < part ? bytes - first : part);
}
