#!/usr/bin/env bash
# setup.sh [GROUP ..]: installs Debian packages. Without a group, those of the build and `make demo`; `python` adds torch for
# Python; `test`, `starters`, `clang` and `lint` add the packages of those targets. Returns at once when all are installed.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache git
  libtorch-dev libgloo-dev libopenblas0-openmp
  nlohmann-json3-dev libcli11-dev libfmt-dev libtomlplusplus-dev libboost-math-dev libeigen3-dev
  libjs-chart.js
  libicu-dev zlib1g-dev libarchive-dev libcurl4-openssl-dev libssl-dev
)
optional=()
for group in "$@"; do
  case "$group" in
    python) packages+=(python3 python3-torch) ;;
    test)
      packages+=(libgtest-dev python3 python3-numpy python3-pip python3-pytest python3-torch)
      # A browser for the reports and shells for their completion; without them their tests are skipped.
      optional+=(chromium chromium-driver python3-selenium fish zsh)
      optional+=(strace)  # checks the shim of the fault tests; without it that check is skipped
      ;;
    starters) packages+=(openmpi-bin slurm-wlm munge parallel iproute2) ;;
    lint) packages+=(clang-format clang-tidy python3 python3-venv shellcheck) ;;
    clang) packages+=(clang libclang-rt-14-dev libomp-dev) ;;  # libFuzzer, and sanitizers with OpenMP
    *) echo "setup: unknown group $group; expected python, test, starters, clang or lint" >&2; exit 2 ;;
  esac
done

keep_missing() {  # keep_missing ARRAY: removes the installed packages from it
  local -n list=$1
  local package missing=()
  for package in "${list[@]}"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -q '^installed$' || missing+=("$package")
  done
  list=("${missing[@]}")
}
keep_missing packages
keep_missing optional
[ ${#packages[@]} -eq 0 ] && [ ${#optional[@]} -eq 0 ] && exit 0

cannot_install() {
  [ ${#packages[@]} -eq 0 ] && exit 0  # only optional packages are missing
  echo "setup: $1. Install these Debian packages, or what your system has instead: ${packages[*]}" >&2
  exit 1
}
command -v apt-get >/dev/null || cannot_install "no apt-get on this machine"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || cannot_install "installing packages needs root or sudo"
  as_root=(sudo)
fi
install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
echo "setup: installing ${packages[*]} ${optional[*]}"
"${as_root[@]}" apt-get update -qq
[ ${#packages[@]} -eq 0 ] || install "${packages[@]}"
[ ${#optional[@]} -eq 0 ] || install "${optional[@]}" || echo "setup: could not install ${optional[*]}; the tests that need them are skipped"
