#!/usr/bin/env bash
# install_test.sh BUILD SOURCE PYTHON|none: installs a build into a temporary folder and uses it from outside the tree, as
# a user would: the core example, and, when the build has torch, the torch example and the Python package.
set -euo pipefail
build=$1 source=$2 python=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" > /dev/null
examples=(core)
[ "$python" != none ] && examples+=(torch)
for example in "${examples[@]}"; do
  cp -r "$source/examples/$example" "$work/$example"
  cmake -S "$work/$example" -B "$work/$example/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release > /dev/null
  cmake --build "$work/$example/build" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  "$work/$example/build/${example}_example" | tee "$work/$example.out"
done
# The CUDA kernels link and load from outside, with or without a GPU.
if [ -f "$work/prefix/lib/cmake/strata/strataCuda.cmake" ]; then
  mkdir "$work/cuda"
  cat > "$work/cuda/CMakeLists.txt" << 'EOF'
cmake_minimum_required(VERSION 3.20)
project(cuda_example CXX)
find_package(strata REQUIRED)
add_executable(cuda_example main.cc)
target_compile_features(cuda_example PRIVATE cxx_std_20)
target_link_libraries(cuda_example PRIVATE strata::cuda)
EOF
  cat > "$work/cuda/main.cc" << 'EOF'
#include <cstdio>

#include "strata/cuda.h"

int main() {
  const strata::Status status = strata::cuda::available();
  std::printf("CUDA kernels: %s\n", status.ok() ? "a GPU to run on" : status.message().c_str());
}
EOF
  cmake -S "$work/cuda" -B "$work/cuda/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" > /dev/null
  cmake --build "$work/cuda/build" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  "$work/cuda/build/cuda_example" | grep 'CUDA kernels: '
fi
grep -q 'last token: [0-9. ]*, log-sum-exp' "$work/core.out"
if [ -x "$work/prefix/bin/strata" ]; then
  "$work/prefix/bin/strata" compare --config "$work/prefix/share/strata/configs/demo.toml" --dry-run | grep 'hsa, seeds 1 to 3'
fi
if [ "$python" != none ]; then
  grep -q 'output \[2, 100, 64\]' "$work/torch.out"
  "$work/torch/build/modern_decoder" | grep 'loss below 0.1: A rolling stone gathers no moss, and a watched pot never boils.'
  package=$(dirname "$(find "$work/prefix" -path '*/strata/__init__.py')")
  cd "$work"  # not in the checkout: only what was installed may be found
  env -u STRATA_LIBRARY PYTHONPATH="$(dirname "$package")" "$python" -c '
import torch, strata
y = strata.HktAttention(64, 4, causal=True)(torch.randn(2, 100, 64))
print("python", strata.__file__.split("/")[-2], tuple(y.shape))'
fi
