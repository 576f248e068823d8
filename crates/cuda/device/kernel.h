extern "C" __global__ void __launch_bounds__(512, 2) weft_run(const __grid_constant__ weft::Call call) {
    __shared__ weft::Shared shared;
    weft::run(call, shared);
}
