// Signals and waits that the host enqueues, this many of each.
extern "C" __global__ void weft_signal(const __grid_constant__ weft::Window window, unsigned int peer, unsigned int count) {
    for (unsigned int i = 0; i < count; i++) weft::signal(window, peer);
}
extern "C" __global__ void weft_wait(const __grid_constant__ weft::Window window, unsigned int peer, unsigned int count) {
    for (unsigned int i = 0; i < count && weft::wait(window, peer); i++) {}
}
