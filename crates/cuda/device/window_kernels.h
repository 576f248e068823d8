// Signals and waits that the host enqueues.
extern "C" __global__ void weft_signal(const __grid_constant__ weft::Window window, unsigned int peer) { weft::signal(window, peer); }
extern "C" __global__ void weft_wait(const __grid_constant__ weft::Window window, unsigned int peer) { (void)weft::wait(window, peer); }
