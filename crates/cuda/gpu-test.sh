#!/bin/bash
# Tests on the first GPU: the kernels of the cases (compiled on all cores), the cases with ranks as threads and as processes, windows and waits, messages, tensors of PyTorch, torch.distributed, a program for NCCL,
# training with PyTorch, random faults, and the cases under compute-sanitizer.
#
#   gpu-test.sh [BINARY] [PART...]
#
# BINARY: the tests of weftlink-cuda as `cargo test --no-run -p weftlink-cuda --lib` builds them; built here if it is missing or empty. A machine
# without Rust needs nothing else. PART: kernels, cases, processes, windows, messages, python, torch, nccl, training, faults, sanitizer; all of them by default.
# LOGS: a folder for the output of each test. NCCL_LIBRARY: Weft's libnccl.so.2 for the parts nccl and training; that of `make capi` by default.
set -uo pipefail

binary=${1:-}
parts=${*:2}
parts=${parts:-kernels cases processes windows messages python torch nccl training faults sanitizer}
library=$(realpath -s "${NCCL_LIBRARY:-$(dirname "$0")/../../target/release/libnccl.so.2}")
logs=${LOGS:-$(mktemp -d)}
# Each rank of a process has a hardware queue; under MPS they share about 120.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
export RUST_BACKTRACE=0
sanitized=gpu_tests::cases_of_2_ranks

for part in $parts; do
    case $part in
    kernels | cases | processes | windows | messages | python | torch | nccl | training | faults | sanitizer) ;;
    *) echo "unknown part $part: use kernels, cases, processes, windows, messages, python, torch, nccl, training, faults, sanitizer" >&2; exit 2 ;;
    esac
done
if [[ -z $binary ]]; then
    binary=$(cargo test --locked --no-run -p weftlink-cuda --lib --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
fi
if [[ ! -x $binary ]]; then
    echo "no tests of weftlink-cuda: $binary" >&2
    exit 2
fi

passed=0
failed=()
# run NAME SECONDS COMMAND...: prints the lines of a log that say what was tested, or the end of one that failed.
run() {
    local name=$1 limit=$2 log=$logs/${1//[^a-z0-9_-]/-}.txt begin=$SECONDS code
    timeout -k 10 "$limit" "${@:3}" > "$log" 2>&1 < /dev/null
    code=$?
    if (( code == 0 )); then
        echo "passed $name, $((SECONDS - begin)) s"
        passed=$((passed + 1))
    else
        echo "FAILED $name, $((SECONDS - begin)) s, exit code $code (124: timed out); the end of $log:"
        tail -n 15 "$log" | cut -c1-600 | sed 's/^/    /'
        failed+=("$name")
    fi
    grep -hE '^(FAILED|skipped)|: [0-9]+ (calls|faults,|kernels,)|ERROR SUMMARY|RACECHECK SUMMARY' "$log" | sort | uniq -c | sort -rn | head -n 12 | cut -c1-400 | sed 's/^/    /'
    return 0
}

all=$("$binary" --list --ignored 2> /dev/null | sed -n 's/^\(gpu_tests::.*\): test$/\1/p')
for part in $parts; do
    case $part in
    kernels) chosen=gpu_tests::compiled::kernels_of_all_cases ;;
    cases) chosen=$(grep -E '^gpu_tests::[a-z0-9_]+$' <<< "$all") ;;
    processes) chosen=$(grep '^gpu_tests::processes::' <<< "$all") ;;
    windows) chosen=$(grep -E '^gpu_tests::(windows|waits|spread|streams|copies)::' <<< "$all") ;;
    messages) chosen=$(grep '^gpu_tests::messages::' <<< "$all") ;;
    faults) chosen=$(grep '^gpu_tests::faults::' <<< "$all") ;;
    *) chosen= ;;
    esac
    for test in $chosen; do
        run "$test" 500 "$binary" --exact "$test" --ignored --nocapture
    done
    if [[ $part == nccl || $part == training ]] && [[ ! -f $library ]]; then
        echo "skipped $part: no $library; \`make capi\` builds it"
        continue
    fi
    if [[ $part == python || $part == torch || $part == training ]]; then
        if ! command -v weft > /dev/null || ! python3 -c 'import torch, weftlink' 2> /dev/null; then
            echo "skipped $part: it needs weft in PATH, and a python3 with torch and weftlink"
            continue
        fi
    fi
    if [[ $part == python ]]; then
        program=$(dirname "$0")/../python/tests/programs/gpu.py
        run python 200 weft run -n 3 --gpus shared --mps -- python3 "$program"
        run python-expandable-segments 200 env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True weft run -n 3 --gpus shared --mps -- python3 "$program"
    fi
    if [[ $part == torch ]]; then
        program=$(dirname "$0")/../python/tests/programs/torch_gpu.py
        for ranks in 1 3; do
            run "torch-$ranks-ranks" 300 weft run -n $ranks --gpus shared --mps -- python3 -W ignore "$program"
        done
        run torch-both-devices 300 weft run -n 2 --gpus shared --mps -- python3 -W ignore "$program" --backend cpu:weft,cuda:weft
        # Without MPS, survivors keep their contexts. The job fails, because a rank was killed: its output says what the others found.
        run torch-killed 120 bash -c 'weft run -n 3 --gpus shared --keep-going -- python3 -W ignore "$0" --killed | tee /dev/stderr | grep -q "the error names it"' "$program"
    fi
    if [[ $part == nccl ]]; then
        program=$logs/nccl-gpu
        if ! command -v weft > /dev/null || ! cc -std=gnu11 -pthread -o "$program" "$(dirname "$0")/../nccl/tests/gpu.c" "$library" -Wl,-rpath,"$(dirname "$library")"; then
            echo "skipped nccl: it needs weft in PATH, and a C compiler"
            continue
        fi
        for ranks in 2 4 8; do
            # Processes of one program under MPS share its queues.
            queues=$((96 / ranks < 32 ? 96 / ranks : 32))
            run "nccl-all-$ranks" 100 "$program" all $ranks
            run "nccl-threads-$ranks" 100 "$program" threads $ranks
            run "nccl-processes-$ranks" 100 env CUDA_DEVICE_MAX_CONNECTIONS=$queues weft run -n 1 --gpus shared --mps -- "$program" processes $ranks
            run "nccl-puts-all-$ranks" 100 "$program" puts_all $ranks
            run "nccl-puts-threads-$ranks" 100 "$program" puts_threads $ranks
            run "nccl-puts-processes-$ranks" 100 env CUDA_DEVICE_MAX_CONNECTIONS=$queues weft run -n 1 --gpus shared --mps -- "$program" puts_processes $ranks
        done
        run nccl-killed 100 "$program" killed 3
        run nccl-killed-mps 100 weft run -n 1 --gpus shared --mps -- "$program" killed 3
    fi
    if [[ $part == training ]]; then
        program=$(dirname "$0")/../python/tests/programs/torch_train.py
        for ranks in 2 4 8; do
            run "training-weft-$ranks" 200 weft run -n $ranks --gpus shared --mps -- python3 -W ignore "$program" --backend weft
            run "training-nccl-$ranks" 200 weft run -n $ranks --gpus shared --mps --nccl --nccl-library "$library" -- python3 -W ignore "$program"
        done
    fi
    if [[ $part == sanitizer ]]; then
        if ! sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null); then
            echo "skipped sanitizer: compute-sanitizer is not in PATH; it is part of the CUDA toolkit"
            continue
        fi
        for tool in memcheck racecheck synccheck; do
            run "sanitizer-$tool" 400 "$sanitizer" --tool "$tool" --error-exitcode 9 "$binary" --exact "$sanitized" --ignored --nocapture
        done
    fi
done
echo "$passed passed, ${#failed[@]} failed${failed[*]:+: ${failed[*]}}; logs: $logs"
(( ${#failed[@]} == 0 ))
