"""Trains in parallel as programs do (DDP, FSDP2, tensor parallel), and compares every loss with one process that has all the data.

    weft run -n 4 --gpus shared --mps --nccl -- python torch_train.py                 # a program for NCCL, on Weft's libnccl.so.2
    weft run -n 4 --gpus shared --mps -- python torch_train.py --backend weft
    weft run -n 2 -- python torch_train.py --device cpu --backend weft

Prints a line for each way to train, and a checksum of the losses: it is the same in each run.
"""

import argparse
import hashlib
import os
import pathlib
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch_training  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    if "weft" in options.backend:
        import weftlink.torch  # noqa: F401
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", torch.cuda.current_device())
        torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(1)
    dist.init_process_group(options.backend, device_id=device if device.type == "cuda" else None)
    rank, size = dist.get_rank(), dist.get_world_size()
    checksum = hashlib.sha256()
    for line, losses in torch_training.check(device, options.steps, options.width):
        checksum.update(losses.cpu().numpy().tobytes())
        if rank == 0:
            print(f"{line}; the last loss is {losses[-1]:.9g}", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print(f"all passed: {size} ranks, {options.backend}, checksum {checksum.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
