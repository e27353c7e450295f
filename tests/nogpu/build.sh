#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the stand-in libraries: build.sh [OUTDIR]   (default ${XDG_CACHE_HOME:-$HOME/.cache}/nogpu)
# Nothing is written beside the sources. A second run without changes does nothing.
set -euo pipefail
shopt -s nullglob
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/nogpu}
jobs=$(nproc)

find_cuda() {  # the toolkit's root, for its headers and the names its libraries export
  local candidate
  for candidate in "${CUDA_HOME:-}" "${CUDA_PATH:-}" "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /)")")")" /usr/local/cuda; do
    if [ -f "$candidate/include/cuda_runtime_api.h" ]; then echo "$candidate"; return; fi
  done
  echo "nogpu: no CUDA toolkit found (set CUDA_HOME)" >&2
  exit 1
}
cuda=$(find_cuda)
[ "$(uname -m)" = x86_64 ] || { echo "nogpu: x86-64 only" >&2; exit 1; }
grep -q -w avx2 /proc/cpuinfo && grep -q -w fma /proc/cpuinfo || { echo "nogpu: needs a CPU with AVX2 and FMA" >&2; exit 1; }
for tool in g++ python3 nm; do command -v $tool >/dev/null || { echo "nogpu: $tool is missing" >&2; exit 1; }; done

mkdir -p "$out"
exec 9>"$out/.lock"; flock 9   # several test processes may start at once

fingerprint=$(cd "$source_dir" && { cat build.sh runtime/* translator/*.py cublas/* nccl/* tools/*; g++ --version; echo "$cuda"; command -v mpicc || true; } | sha256sum | cut -c1-32)
if [ "$(cat "$out/fingerprint" 2>/dev/null)" = "$fingerprint" ]; then exit 0; fi
rm -f "$out/fingerprint"
mkdir -p "$out/lib" "$out/obj" "$out/translator"
cd "$source_dir"

# The translator and what kernels include, installed together; the stamp is part of every cached kernel's key.
cp translator/*.py runtime/device.h "$out/translator/"
cat translator/*.py runtime/device.h | sha256sum | cut -c1-16 > "$out/translator/stamp"
g++ --version | head -1 >> "$out/translator/stamp"

flags="-std=c++17 -O2 -g1 -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -fPIC -fvisibility=default -Wall -Iruntime -I$out/obj -isystem $cuda/include"
python3 tools/gen_error_names.py "$cuda/include/driver_types.h" > "$out/obj/error_names.inc"

compile() { echo "$1" >&2; g++ $flags ${3:-} -c "$1" -o "$out/obj/$2.o"; }
export -f compile; export flags out
{
  for f in runtime/*.cpp; do echo "$f $(basename "$f" .cpp)"; done
  for f in cublas/*.cpp; do echo "$f $(basename "$f" .cpp) -O3"; done
  if command -v mpicc >/dev/null; then
    for f in nccl/*.cpp; do echo "$f $(basename "$f" .cpp) $(mpicc --showme:compile 2>/dev/null | tr ' ' '\n' | sed -n 's/^-I/-isystem/p' | tr '\n' ' ' | sed 's/ *$//;s/ /;/g')"; done
  fi
} | xargs -P "$jobs" -L 1 bash -c 'extra=${2:-}; compile "$0" "$1" "${extra//;/ }"' 2>"$out/obj/log" || { cat "$out/obj/log" >&2; exit 1; }
gcc -O2 -fPIC -c runtime/missing.c -o "$out/obj/missing.o"

# link NAME VERSION-NODE STUB-ERROR-CODE REAL-LIBRARY EXTRA-FLAGS OBJECTS...
link() {
  local name=$1 node=$2 code=$3 real=$4 extra=$5; shift 5
  local objects=() o
  for o in "$@"; do objects+=("$out/obj/$o.o"); done
  if [ -f "$real" ]; then python3 tools/gen_stubs.py "$real" "$code" "${objects[@]}" > "$out/obj/$name.s"; else : > "$out/obj/$name.s"; fi
  local version=()
  if [ -n "$node" ]; then echo "$node { global: cu*; __cuda*; nogpu_*; local: *; };" > "$out/obj/$name.map"; version=("-Wl,--version-script=$out/obj/$name.map"); fi
  g++ -shared -o "$out/lib/$name.tmp" "${objects[@]}" "$out/obj/missing.o" "$out/obj/$name.s" "-Wl,-soname,$name" "${version[@]}" $extra
  mv "$out/lib/$name.tmp" "$out/lib/$name"
}
names() { for f in "$@"; do basename "$f" .cpp; done; }
real() { local f; for f in "$cuda/lib64/$1" "$cuda/targets/x86_64-linux/lib/$1"; do [ -f "$f" ] && { echo "$f"; return; }; done; echo /nonexistent; }
major=$(sed -n 's/#define CUDART_VERSION *\([0-9]*\).*/\1/p' "$cuda/include/cuda_runtime_api.h"); major=$((major / 1000))

link libcudart.so.$major libcudart.so.$major 801 "$(real libcudart.so.$major)" "-ldl -lpthread" $(names runtime/*.cpp)
ln -sf libcudart.so.$major "$out/lib/libcudart.so"
link libcublasLt.so.$major libcublasLt.so.$major 15 "$(real libcublasLt.so.$major)" "-L$out/lib -l:libcudart.so.$major -lpthread" $(names cublas/*.cpp)
link libcublas.so.$major libcublas.so.$major 15 "$(real libcublas.so.$major)" "-L$out/lib -l:libcudart.so.$major -lpthread" $(names cublas/*.cpp)
if command -v mpicc >/dev/null; then
  link libnccl.so.2 "" 5 "$(real libnccl.so.2)" "-L$out/lib -l:libcudart.so.$major $(mpicc --showme:link 2>/dev/null)" $(names nccl/*.cpp)
else
  rm -f "$out/lib/libnccl.so.2"
  echo "nogpu: no MPI (mpicc) found: libnccl.so.2 was not built (Debian: apt install libopenmpi-dev)" >&2
fi
echo "$fingerprint" > "$out/fingerprint"
echo "nogpu: built in $out" >&2
