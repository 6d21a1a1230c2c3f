# `make help` lists the targets. CMake does the work (CMakePresets.json).
SHELL := /bin/bash
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
.DEFAULT_GOAL := help
.PHONY: help setup build demo test check bench build-times core asan asan-torch fuzz fuzz-long build-fuzz faults faults-short tsan cuda sanitize-cuda starters test-torch2 api install format lint pictures clean

help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: ## Install the Debian packages of the build (needs root or sudo)
	@tools/setup.sh

# $(call configure,PRESET,FLAGS): prints the compilers, and the whole output of CMake only if it fails.
configure = tools/configure.sh $(1) $(2) $(CMAKE_FLAGS)

build: ## Build the libraries and the command into build/release
	@tools/setup.sh python
	@$(call configure,release,-DSTRATA_BUILD_TESTS=OFF)
	@cmake --build --preset release -j $(JOBS)

demo: setup ## Train flat, HKT and HSA attention on ListOps over three seeds and compare them
	@$(call configure,release,-DSTRATA_BUILD_TESTS=OFF)
	@cmake --build --preset release -j $(JOBS) --target strata_command
	@build/release/bin/strata compare --config configs/demo.toml --folder build/demo

test: ## Build and run the tests: kernels, torch, Python, the command
	@tools/setup.sh test
	@$(call configure,release,-DSTRATA_BUILD_TESTS=ON)
	@cmake --build --preset release -j $(JOBS)
	@ctest --preset release -j $(JOBS)

check: core asan tsan fuzz faults-short ## The longer checks: the core without torch, sanitizers, fuzzing, some faults

bench: build ## Measure the figures; prints a table and writes build/bench.json
	@build/release/bin/strata bench --json build/bench.json --build-times build/build_times.json

build-times: ## Time clean builds of the core and of everything, for `make bench` to report
	@tools/setup.sh test
	@tools/build_times.sh build/build_times.json $(JOBS)

core: ## Build and test the core without torch
	@tools/setup.sh test
	@$(call configure,core)
	@cmake --build --preset core -j $(JOBS)
	@ctest --preset core -j $(JOBS)

asan: ## Test the core under the address and undefined-behaviour sanitizers
	@tools/setup.sh test
	@$(call configure,asan)
	@cmake --build --preset asan -j $(JOBS)
	@ctest --preset asan -j $(JOBS)

asan-torch: ## Test all layers, torch and the command included, under these sanitizers
	@tools/setup.sh test
	@$(call configure,asan-torch)
	@cmake --build --preset asan-torch -j $(JOBS)
	@ctest --preset asan-torch -j $(JOBS)

fuzz: build-fuzz ## Fuzz the file readers for a short time (libFuzzer, clang)
	@ctest --preset fuzz -j $(JOBS) -L '^fuzz$$'

fuzz-long: build-fuzz ## Fuzz the file readers with a million inputs each; takes hours
	@ctest --preset fuzz -j $(JOBS) -L '^fuzz_long$$'

build-fuzz:
	@tools/setup.sh test clang
	@$(call configure,fuzz)
	@cmake --build --preset fuzz -j $(JOBS) --target fuzz

faults-short: build ## A selection of `make faults`, a few minutes
	@tools/setup.sh test
	@/usr/bin/python3 tests/faults/faults.py build/release/bin/strata

faults: build ## Make every system call on files, and large allocations, fail once; kill the command a hundred times
	@tools/setup.sh test
	@/usr/bin/python3 tests/faults/faults.py build/release/bin/strata --long --json build/faults.json

starters: ## Train by mpirun, srun, GNU parallel and on two hosts of a network, which is cut; installs Slurm and Open MPI
	@tools/setup.sh test starters
	@$(call configure,release,-DSTRATA_BUILD_TESTS=ON)
	@cmake --build --preset release -j $(JOBS) --target strata_command
	@ctest --preset release -R '^command_starters$$' --verbose

tsan: ## Test the core under the thread sanitizer (clang)
	@tools/setup.sh test clang
	@$(call configure,tsan)
	@cmake --build --preset tsan -j $(JOBS)
	@ctest --preset tsan -j $(JOBS)

test-torch2: ## Install the package beside a recent PyTorch from PyPI and run its checks there
	@tools/setup.sh test lint
	@tools/test_torch2.sh

api: ## Generate the API page of the Python package into build/api (after test-torch2)
	@tools/api_page.sh

cuda: ## Build against the PyTorch of the active python3, on a machine with a GPU
	@$(call configure,cuda)
	@cmake --build --preset cuda -j $(JOBS)

sanitize-cuda: cuda ## Run the tests of the GPU kernels under compute-sanitizer; lists the cases in build/sanitize_cuda
	@tools/sanitize_cuda.sh build/cuda/bin/cuda_test build/sanitize_cuda

install: build ## Install the libraries, headers and the Python package under PREFIX
	@cmake --install build/release --prefix $(PREFIX)

format: ## Format the sources
	@tools/setup.sh lint
	@git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format -i

lint: ## Check the sources: clang-format, clang-tidy, shellcheck, ruff, mypy
	@tools/setup.sh lint
	@tools/lint.sh $(JOBS)

pictures: demo ## Draw the pictures of the README again (docs/pictures)
	@tools/setup.sh test
	@/usr/bin/python3 tools/pictures.py square docs/pictures/square.svg
	@/usr/bin/python3 tools/pictures.py report build/demo docs/pictures/report.png

clean: ## Remove build/
	@rm -rf build
