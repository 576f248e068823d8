// A group of sends and receives, and a part of its table.
extern "C" __global__ void __launch_bounds__(512, 2) weft_messages(const __grid_constant__ weft::GroupCall call) {
    __shared__ weft::GroupShared shared;
    weft::run_group(call, shared);
}
extern "C" __global__ void weft_messages_table(const __grid_constant__ weft::TablePart part) { weft::copy_table(part); }
