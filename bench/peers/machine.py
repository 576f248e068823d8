"""This machine in words, for the README of a run."""

import os
import pathlib
import platform
import re
import subprocess

CPU = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")


def cpu_info(field):
    found = re.search(rf"^{field}\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else ""


def is_virtual():
    return "hypervisor" in cpu_info("flags").split()


def short_name():
    """As in the names of the folders under bench/runs."""
    return f"{len(os.sched_getaffinity(0))}-core-{'vm' if is_virtual() else 'machine'}"


def caches():
    """Bytes by level, data and unified."""
    sizes = {}
    for index in sorted(CPU.glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            number, unit = re.match(r"(\d+)([KMG]?)", (index / "size").read_text()).groups()
            sizes[int((index / "level").read_text())] = int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]
    return sizes


def rotate_bytes():
    """More than the last cache holds."""
    return max(caches().values(), default=64 << 20) * 5 // 4


def version(*command):
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return f"no {command[0]}"
    return out.splitlines()[0]


def description():
    memory_kib = int(re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1])
    wide = [name for name in ("avx2", "avx512f", "asimd", "sve") if name in cpu_info("(?:flags|Features)").split()]
    sizes = ", ".join(f"L{level} {size // 1024} KiB" for level, size in sorted(caches().items()))
    return [
        f"- {'Virtual machine' if is_virtual() else 'Machine'}: {cpu_info('model name') or platform.machine()}, "
        f"{len(os.sched_getaffinity(0))} cores of {os.cpu_count()} usable, {' '.join(wide)}",
        f"- Caches of a core: {sizes or 'unknown'}; memory {memory_kib / (1 << 20):.0f} GiB",
        f"- Linux {platform.release().partition('-')[0]}, {version('gcc', '--version')}, {version('rustc', '--version')}, "
        f"Python {platform.python_version()}",
    ]
