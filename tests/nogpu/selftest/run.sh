#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the self-tests with nvcc, runs them on the CPU and prints a table:  selftest/run.sh [--full] [WORKDIR]
# --full adds the longer runs: compute_90, all thread orders and the sanitizer where programs are long.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
run="$here/../nogpu-run"
full=0
if [ "${1:-}" = --full ]; then full=1; shift; fi
work=${1:-$(mktemp -d)}
mkdir -p "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
passed=0 failed=0
result() {  # NAME OK? [LOG]
  if [ "$2" = 0 ]; then passed=$((passed + 1)); printf '  ok    %s\n' "$1"
  else failed=$((failed + 1)); printf '  FAIL  %s\n' "$1"; [ -n "${3:-}" ] && tail -n 25 "$3" | sed 's/^/        /'; fi
}

# ---------------------------------------------------------------- compilation, in parallel
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
compile() {  # PROGRAM SOURCE ARCH EXTRA...
  local program=$1 source=$2 arch=$3; shift 3
  "$nvcc" -std=c++20 -O2 -lineinfo -gencode "arch=compute_$arch,code=compute_$arch" -no-compress -cudart shared --extended-lambda -diag-suppress 20096,550,177 -I"$here" -o "$work/$program" "$here/$source" "$@" >"$work/$program.log" 2>&1 || echo "nvcc failed for $program: $(grep -m3 error "$work/$program.log")" >&2
}
export -f compile; export nvcc here work
start=$SECONDS
cat <<PROGRAMS | xargs -P "$(nproc)" -L 1 bash -c 'compile "$@"' compile
algorithms algorithms.cu 80
instructions instructions.cu 80
kernels kernels.cu 80
runtime_api runtime_api.cu 80
planted_bugs planted_bugs.cu 80
refusals refusals.cu 80
language language.cu 80
blas blas.cu 80 -lcublas -lcublasLt
nccl_test nccl.cu 80 -lnccl
speed speed.cu 80
$([ $full = 1 ] && printf '%s\n' 'algorithms_90 algorithms.cu 90' 'instructions_90 instructions.cu 90 -DHOPPER' 'kernels_90 kernels.cu 90')
PROGRAMS
echo "compiled in $((SECONDS - start)) s"
"$here/../build.sh" "${NOGPU_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/nogpu}" || exit 1

# ---------------------------------------------------------------- what must work
good() {  # NAME COMMAND...
  local name=$1 log="$work/log.txt"; shift
  timeout 600 "$@" >"$log" 2>&1
  result "$name" $? "$log"
}
echo "results against CPU references:"
for program in instructions language kernels algorithms runtime_api blas; do good $program "$run" --warm "$work/$program"; done
if [ $full = 1 ]; then
  for program in instructions_90 kernels_90 algorithms_90; do good $program "$run" --warm "$work/$program"; done
fi
good "runtime_api on one host thread" env NOGPU_THREADS=1 "$run" "$work/runtime_api"
good "kernels, all thread orders" "$run" --orders "$work/kernels"
good "kernels, sanitizer" env NOGPU_SANITIZE=1 "$run" "$work/kernels"
good "active lanes converge" env NOGPU_EXPECT_CONVERGENCE=1 "$run" --orders "$work/instructions" activemask
good "kernels without leaks" env NOGPU_LEAKCHECK=1 "$run" "$work/kernels"
good "kernels without checks" env NOGPU_CHECKS=0 "$run" "$work/kernels"
if [ $full = 1 ]; then
  good "instructions, sanitizer" env NOGPU_SANITIZE=1 "$run" --warm "$work/instructions"
  good "instructions, random order, one thread" env NOGPU_THREADS=1 NOGPU_ORDER=random:7 "$run" "$work/instructions"
  good "algorithms, all thread orders" "$run" --orders "$work/algorithms"
  good "algorithms, sanitizer" env NOGPU_SANITIZE=1 "$run" "$work/algorithms"
fi
if command -v mpirun >/dev/null && [ -f "$work/nccl_test" ]; then
  for ranks in 1 2 3; do
    ids=$(mktemp -d)
    good "nccl, $ranks ranks" env NCCL_ID_DIR="$ids" NOGPU_NCCL_TIMEOUT=60 mpirun --oversubscribe -np $ranks "$run" "$work/nccl_test"
    rm -rf "$ids"
  done
else echo "  (no MPI: the NCCL tests are skipped)"; fi

# ---------------------------------------------------------------- what must be caught
# bad NAME STATUS PATTERN COMMAND...: the command must end with this status and print this.
bad() {
  local name=$1 status=$2 pattern=$3 log="$work/log.txt" got; shift 3
  timeout 120 "$@" >"$log" 2>&1
  got=$?
  [ $got = "$status" ] && { [ -z "$pattern" ] || grep -qE -- "$pattern" "$log"; }
  result "$name" $? "$log"
}
reported() {  # BUG ERROR REPORT: both must appear
  local log="$work/log.txt"
  timeout 120 "$run" "$work/planted_bugs" "$1" >"$log" 2>&1
  [ $? = 0 ] && grep -q "sync $2" "$log" && grep -qE -- "$3" "$log"
  result "$1 -> $2" $? "$log"
}
echo "planted bugs:"
reported past_end cudaErrorIllegalAddress '0 bytes past the end of the 256-byte allocation'
reported far_past_end cudaErrorIllegalAddress 'illegal address'
reported before_start cudaErrorIllegalAddress '4 bytes before the 256-byte'
reported read_past_end cudaErrorIllegalAddress 'past the end'
reported host_pointer cudaErrorIllegalAddress 'host pointer'
reported null_pointer cudaErrorIllegalAddress 'null pointer'
reported use_after_free cudaErrorIllegalAddress 'freed block'
reported misaligned cudaErrorMisalignedAddress 'misaligned address: a 16-byte'
reported misaligned_shared cudaErrorMisalignedAddress 'misaligned address: a 8-byte shared'
reported shared_static cudaErrorIllegalAddress 'offset 256; the block has 256 bytes'
reported shared_dynamic cudaErrorIllegalAddress '256 of them dynamic'
reported generic_shared cudaErrorIllegalAddress 'shared memory'
reported divergent cudaErrorLaunchFailure 'divergent __syncthreads'
reported two_barriers cudaErrorLaunchFailure 'divergent __syncthreads'
reported wrong_mask cudaErrorLaunchTimeout 'deadlock'
reported not_in_mask cudaErrorLaunchFailure 'does not name it'
reported exited_lanes cudaErrorLaunchFailure 'already finished'
reported trap cudaErrorLaunchFailure 'planted_bugs.cu:[0-9]+'
reported assert cudaErrorAssert 'Assertion'
reported recursion cudaErrorLaunchFailure 'stack overflow'
bad "missing cp.async wait gives a wrong result" 0 '^wrong' "$run" "$work/planted_bugs" missing_wait
bad "uninitialised shared memory is poisoned" 0 '^poison' "$run" "$work/planted_bugs" uninitialized
bad "race shows under another thread order" 1 'wrong result' "$run" --orders "$work/planted_bugs" race_forward
bad "race found by the sanitizer" 0 'race on shared memory' env NOGPU_SANITIZE=1 "$run" "$work/planted_bugs" race_forward
bad "endless spinning ends" 0 'spins for longer' env NOGPU_TIMEOUT=1 "$run" "$work/planted_bugs" spins
bad "untranslated instruction fails the launch" 86 'untranslated mma.*m8n8k4.*exotic' "$run" "$work/planted_bugs" untranslated
bad "... also when the program ignores it" 86 'exit status 86' "$run" "$work/planted_bugs" ignored_untranslated
bad "... but not with NOGPU_STRICT=0" 0 'untranslated' env NOGPU_STRICT=0 "$run" "$work/planted_bugs" ignored_untranslated
bad "ignored trap fails the process" 86 'never looked' "$run" "$work/planted_bugs" ignored_trap
bad "host code reads device memory" 139 'host code touches device memory.*12 bytes into' "$run" "$work/planted_bugs" host_reads_device
bad "streams without order" 86 'unordered: a copy on stream [0-9]+ reads memory that a fill on stream [0-9]+ writes' env NOGPU_STREAMS=1 "$run" "$work/planted_bugs" unordered
bad "an event recorded too early" 86 'unordered: a fill on stream [0-9]+ writes memory that a fill' env NOGPU_STREAMS=1 "$run" "$work/planted_bugs" recorded_too_early
bad "no report for streams in order" 0 '^launch cudaSuccess' env NOGPU_STREAMS=1 "$run" "$work/planted_bugs" ordered
bad "leak" 86 'leak: 1 allocations, 256 bytes' env NOGPU_LEAKCHECK=1 "$run" "$work/planted_bugs" leak
bad "no leak report unasked" 0 '' "$run" "$work/planted_bugs" leak
bad "1025 threads" 0 'launch cudaErrorInvalidConfiguration, sync cudaSuccess' "$run" "$work/planted_bugs" too_many_threads
bad "empty block" 0 'launch cudaErrorInvalidConfiguration' "$run" "$work/planted_bugs" empty_block
bad "empty grid" 0 'launch cudaErrorInvalidConfiguration' "$run" "$work/planted_bugs" empty_grid
bad "too much shared memory" 0 'launch cudaErrorInvalidValue, sync cudaSuccess' "$run" "$work/planted_bugs" too_much_shared
bad "more threads than __launch_bounds__" 0 'launch cudaErrorLaunchOutOfResources' "$run" "$work/planted_bugs" launch_bounds
bad "copy out of bounds" 0 'cudaErrorInvalidValue' "$run" "$work/planted_bugs" host_copy_past_end
bad "copy in the wrong direction" 0 'cudaErrorInvalidValue' "$run" "$work/planted_bugs" wrong_direction
bad "double free" 0 'cudaErrorInvalidValue' "$run" "$work/planted_bugs" double_free
bad "device reset after a fault" 0 '^cudaSuccess' "$run" "$work/planted_bugs" reset
bad "printf from device code" 0 '^thread 1 of block:  2.50 x 1099511627776 %$' "$run" "$work/runtime_api" device_printf
if command -v mpirun >/dev/null && [ -f "$work/nccl_test" ]; then
  for bug in "count:collective mismatch" "absent:does not take part" "length:were sent|counts on both sides" "bounds:needs 20 bytes"; do
    ids=$(mktemp -d)
    status=87; [ "${bug%%:*}" = bounds ] && status=0
    bad "nccl: ${bug%%:*}" $status "${bug#*:}" env NCCL_ID_DIR="$ids" NCCL_PLANTED="${bug%%:*}" NOGPU_NCCL_TIMEOUT=3 mpirun --oversubscribe -np 2 "$run" "$work/nccl_test" errors
    rm -rf "$ids"
  done
fi

echo "refusals and the wrapper:"
bad "unsupported API call" 86 'cudaCreateTextureObject is not emulated' "$run" "$work/refusals" texture
bad "cluster launch" 86 'clusters are not emulated' "$run" "$work/refusals" cluster
bad "exit status passes through" 7 '' "$run" "$work/refusals" status
bad "exit status passes through --orders" 7 'failed with status 7' "$run" --orders "$work/refusals" status
"$nvcc" -gencode arch=compute_80,code=compute_80 -cudart shared -o "$work/compressed" "$here/refusals.cu" >/dev/null 2>&1
bad "compressed PTX is named" 86 'no-compress' "$run" "$work/compressed"
"$nvcc" -gencode arch=compute_80,code=sm_80 -cudart shared -o "$work/binary_only" "$here/refusals.cu" >/dev/null 2>&1
bad "missing PTX is named" 86 'holds no PTX' "$run" "$work/binary_only"
"$nvcc" -gencode arch=compute_80,code=compute_80 -no-compress -o "$work/static_runtime" "$here/refusals.cu" >/dev/null 2>&1
bad "static runtime is named" 0 'cudart shared' "$run" "$work/static_runtime"

echo "speed ($(nproc) cores):"
"$run" "$work/speed" 2>&1 | sed 's/^/  /'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
