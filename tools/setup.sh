#!/usr/bin/env bash
# Installs what the build and the tests need from Debian's packages. Does nothing, quickly, when all of it is there.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache git
  libgtest-dev
  libtorch-dev python3-torch libopenblas0-openmp
  nlohmann-json3-dev libcli11-dev libfmt-dev libtomlplusplus-dev libboost-math-dev libeigen3-dev
  libjs-chart.js
  libicu-dev zlib1g-dev libarchive-dev libcurl4-openssl-dev libssl-dev
  python3 python3-numpy python3-pip python3-pytest
  clang libclang-rt-14-dev  # libFuzzer
)
# A browser to try the reports in. Where it cannot be had, those tests are skipped and say so.
browser=(chromium chromium-driver python3-selenium)
[ "${1:-}" = "--lint" ] && packages+=(clang-format clang-tidy)
[ "${1:-}" = "--tsan" ] && packages+=(libomp-dev)

installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -q '^installed$'; }
missing=() optional=()
for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
for package in "${browser[@]}"; do installed "$package" || optional+=("$package"); done
[ ${#missing[@]} -eq 0 ] && [ ${#optional[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  [ ${#missing[@]} -eq 0 ] && exit 0
  echo "setup: this script installs Debian packages, but there is no apt-get here. Please install: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    [ ${#missing[@]} -eq 0 ] && exit 0
    echo "setup: missing packages, and neither root nor sudo to install them. As root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
echo "setup: installing ${missing[*]} ${optional[*]}"
"${as_root[@]}" apt-get update -qq
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
[ ${#optional[@]} -eq 0 ] || install "${optional[@]}" || echo "setup: no browser could be installed; reports will not be tried in one"
