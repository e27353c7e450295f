#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# device.sh: everything that can be said of smelt on the GPU at hand, in under 8 minutes: builds the
# device tests and the timings, runs the tests on the GPU (a part of them also under
# compute-sanitizer, where there is one), times every kernel and whole steps, and prints the table
# last. Results also go to the folder $OUT, if that is set. Without a GPU it says so and ends with 1.
set -euo pipefail
root="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)"
cd "$root"

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  echo "device.sh: no GPU here (nvidia-smi lists none); ./run test runs the device tests on the CPU" >&2
  exit 1
fi
export PATH="$PATH:/usr/local/cuda/bin"
command -v nvcc >/dev/null || {
  echo "device.sh: no nvcc; install the CUDA toolkit" >&2
  exit 1
}
nvidia-smi --query-gpu=name,compute_cap,memory.total,clocks.max.sm --format=csv

jobs="$(nproc)"
started=$SECONDS
cmake --preset device >build-device.log 2>&1 || { cat build-device.log >&2; exit 1; }
cmake --build --preset device -j "$jobs" >>build-device.log 2>&1 || { tail -50 build-device.log >&2; exit 1; }
mv build-device.log build/device/build.log
echo "== built in $((SECONDS - started)) s"

tests_failed=0
started=$SECONDS
ctest --test-dir build/device -L cuda -E 'nogpu|resources|package' --timeout 120 -j 4 \
  --output-on-failure || tests_failed=1
echo "== tests on the GPU in $((SECONDS - started)) s"

if command -v compute-sanitizer >/dev/null; then
  started=$SECONDS
  for tool in memcheck racecheck; do
    for program in rms_norm expert_ffn; do
      timeout 60 compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "build/device/tests/kernel/test_kernel_$program" --no-intro >"build/device/$tool-$program.log" 2>&1 &&
        echo "compute-sanitizer $tool, $program: clean" ||
        echo "compute-sanitizer $tool, $program: status $?, see build/device/$tool-$program.log"
    done
  done
  echo "== compute-sanitizer in $((SECONDS - started)) s"
fi

table="build/device/table.txt"
build/device/benchmarks/device/device | tee "$table" || tests_failed=1
if [[ -n "${OUT:-}" ]]; then cp build/device/build.log build/device/*-*.log "$table" "$OUT" 2>/dev/null || true; fi
exit "$tests_failed"
