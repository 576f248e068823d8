"""What memory of PyTorch's allocator looks like to the driver: with and without expandable segments, before and after empty_cache.

Run: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python torch_memory.py"""

import ctypes
import os

import torch

cuda = ctypes.CDLL("libcuda.so.1")
BUFFER_ID, LEGACY_IPC, HANDLE_TYPES, RANGE_START, RANGE_SIZE = 7, 10, 14, 11, 12


def attribute(which, address, kind=ctypes.c_ulonglong):
    value = kind(0)
    result = cuda.cuPointerGetAttribute(ctypes.byref(value), which, ctypes.c_ulonglong(address))
    return value.value if result == 0 else f"error {result}"


def describe(name, tensor):
    address = tensor.data_ptr()
    handle = ctypes.c_ulonglong(0)
    kept = cuda.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address))
    exported = "-"
    if kept == 0:
        fd = ctypes.c_int(-1)
        exported = cuda.cuMemExportToShareableHandle(ctypes.byref(fd), handle, 1, ctypes.c_ulonglong(0))
        cuda.cuMemRelease(handle)
    start, size = attribute(RANGE_START, address), attribute(RANGE_SIZE, address)
    print(
        f"{name}: id {attribute(BUFFER_ID, address)}, address {address:#x}, range offset {address - start}, size {size >> 20} MiB, "
        f"legacy IPC {attribute(LEGACY_IPC, address, ctypes.c_int)}, handle types {attribute(HANDLE_TYPES, address)}, "
        f"retain {kept}, export as descriptor {exported}"
    )
    return address


print("allocator:", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "default"), "torch", torch.__version__)
one = torch.ones(8 << 20, device="cuda")
first = describe("32 MiB", one)
two = torch.ones(16 << 20, device="cuda")
describe("64 MiB", two)
describe("64 MiB, its end", two[-1024:])
small = torch.ones(16, device="cuda")
describe("64 B", small)
del one
torch.cuda.empty_cache()
other = torch.zeros(8 << 20, device="cuda")
again = describe("32 MiB after empty_cache", other)
print("same address:", first == again)
