"""Who this process is, for torch: torchrun and ``weft run`` say it in RANK, WORLD_SIZE and so on; mpirun and srun have words of their own."""

import os
import re
import zlib

# Rank, size, local rank, local size, and what is the job's alone.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "HYDI_CONTROL_FD"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID"),
)


def translate(environment=os.environ) -> None:
    """Says it in torch's words, if a launcher has said it in others. What is said already stays."""
    if "RANK" in environment:
        return
    for rank, size, local, local_size, job in _LAUNCHERS:
        if rank not in environment or size not in environment:
            continue
        environment["RANK"], environment["WORLD_SIZE"] = environment[rank], environment[size]
        environment.setdefault("LOCAL_RANK", environment.get(local, "0"))
        if "MASTER_ADDR" not in environment and (address := _address(environment, environment.get(local_size), environment[size])):
            environment["MASTER_ADDR"] = address
        # All ranks of a job come to the same port, and jobs of one host to different ones.
        environment.setdefault("MASTER_PORT", str(20_000 + zlib.crc32(environment.get(job, "").encode()) % 10_000))
        return


def _address(environment, local_size, size):
    """Where rank 0 is: here if all ranks are, on Slurm's first host, or nobody knows and torch asks for MASTER_ADDR."""
    hosts = environment.get("SLURM_STEP_NODELIST")
    if local_size == size or environment.get("SLURM_STEP_NUM_NODES") == "1":
        return "127.0.0.1"
    if not hosts:
        return None
    # node[03-07,11],other: the first is node03.
    first = re.match(r"([^,\[]+)(?:\[([^,\-\]]+))?", hosts)
    return first[1] + (first[2] or "") if first else None
