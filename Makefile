# Every target sets up what it needs first (scripts/setup) and leaves what it makes under build/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build test demo sanitize fuzz format format-check clean setup setup-format setup-fuzz
.NOTPARALLEL:

PRESET ?= release
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60

# CUDA=1 builds the cuda backend, CUDA=0 does not. Unsaid: when there is a GPU, nvcc and the libraries.
ifeq ($(CUDA),)
  cuda = $(shell nvidia-smi -L >/dev/null 2>&1 && { command -v nvcc || command -v /usr/local/cuda/bin/nvcc; } >/dev/null && echo AUTO || echo OFF)
else
  cuda = $(if $(filter 1 on ON yes,$(CUDA)),ON,OFF)
endif

sources = find src tests fuzz bench -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0
configure = cmake --preset $(1) --log-level=NOTICE $(2) | grep -v -e '^Preset CMake' -e '^  [A-Z_]*=' -e '^$$' || [ $${PIPESTATUS[0]} = 0 ]

help:
	@echo 'make build         the program, build/release/untied (CUDA=1: with the cuda backend; automatic where there is a GPU)'
	@echo 'make test          builds, then runs all tests but the slow ones (PRESET=ci: warnings are errors)'
	@echo 'make demo          plans, trains and inspects a small model on the cpu, under build/demo'
	@echo 'make sanitize      the fast tests under the address and undefined-behaviour sanitizers'
	@echo 'make fuzz          fuzzes the parsers of untrusted files (FUZZ_SECONDS=60 each)'
	@echo 'make format        lays out the sources; make format-check only tells'
	@echo 'make clean         removes build/'

setup:
	@scripts/setup
setup-format:
	@scripts/setup format
setup-fuzz:
	@scripts/setup fuzz

build: setup
	@$(call configure,$(PRESET),$(if $(filter cuda,$(PRESET)),,-DUNTIED_CUDA=$(cuda)))
	@cmake --build --preset $(PRESET) -j $(JOBS) --target untied

test: build
	@cmake --build --preset $(PRESET) -j $(JOBS)
	@ctest --preset $(PRESET) -j $(JOBS)

demo: build
	@scripts/demo

sanitize: setup
	@$(call configure,debug)
	@cmake --build --preset debug -j $(JOBS)
	@ctest --preset debug -j $(JOBS)

fuzz: setup-fuzz
	@fuzz/run $(FUZZ_SECONDS)

format: setup-format
	@$(sources) | xargs -0 clang-format-14 -i

format-check: setup-format
	@$(sources) | xargs -0 clang-format-14 --dry-run -Werror 2>&1 | \
	  awk -F: '/error:/ { ++lines[$$1] } END { for (f in lines) { print f ": " lines[f] " places"; bad = 1 }; exit bad }' | sort; \
	  [ $${PIPESTATUS[2]} = 0 ] || { echo 'run: make format'; exit 1; }

clean:
	@rm -rf build
