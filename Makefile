# Everyday commands; CMake is the real build (CMakePresets.json has its presets). `make help` lists them.
# Options: JOBS=2 compiles at once, NAME=... and ARGS="..." for `make example`, ARGS for `make run` and .ci/gpu, PREFIX=... for `make install`,
# CMAKE_ARGS="-D..." when a build folder is first configured.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
CMAKE_ARGS ?=
FUZZ_SECONDS ?= 60

.PHONY: help run example test bench docs install asan tsan fuzz judges cuda emulated gpu format lint clean

help:           ## list these commands
	@sed -n 's/^\([a-z ]*\):[^#]*## /\1\t/p' Makefile | expand -t 12

# For the folder build/PRESET:  $(call configure,PRESET)  $(call switch_on,PRESET,OPTION)  $(call build,PRESET)
configure = @[ build/$(1)/build.ninja -nt CMakePresets.json ] || cmake --preset $(1) $(CMAKE_ARGS)
switch_on = @grep -q '^$(2):BOOL=ON' build/$(1)/CMakeCache.txt || cmake build/$(1) -D $(2)=ON
build = @cmake --build build/$(1) --parallel $(JOBS)
# Packages that the build can do without:  $(call optional,GROUPS)  and after configure, where one has come since:  $(call look_again,PRESET)
optional = @.ci/install-deps $(1) || echo "Going on without them"
look_again = @! grep -qE '^(OnnxProto_|Gloo_DIR|MPI_CXX_COMPILER:).*NOTFOUND$$' build/$(1)/CMakeCache.txt || cmake build/$(1)

run:            ## build the library and train the Tree-LSTM example
	@.ci/install-deps build
	$(call configure,release)
	$(call build,release) --target tree_lstm
	@build/release/examples/tree_lstm/tree_lstm $(ARGS)

example:        ## build and run the example NAME, a folder of examples/
	@.ci/install-deps build data
	$(call optional,onnx parallel)
	$(call configure,release)
	$(call look_again,release)
	$(call build,release) --target $(NAME)
	@build/release/examples/$(NAME)/$(NAME) $(ARGS)

test:           ## build and run every test
	@.ci/install-deps build test data
	$(call optional,onnx onnx_test parallel)
	$(call configure,release)
	$(call look_again,release)
	$(call switch_on,release,TAPIR_TESTS)
	$(call build,release)
	@ctest --preset release

bench:          ## build and run the benches, beside PyTorch of PyPI (fetches 2.9 GB once)
	@.ci/install-deps build bench
	$(call configure,release)
	@cmake build/release -D TAPIR_BENCH=ON -D TAPIR_TORCH_DIR="$$(bench/torch_dir.sh build/release/torch)"
	$(call build,release) --target bench

docs:           ## build the reference: build/docs/html/index.html
	@.ci/install-deps build docs
	$(call configure,release)
	$(call switch_on,release,TAPIR_DOCS)
	$(call build,release) --target docs
	@ln -sfn release/docs build/docs
	@echo build/docs/html/index.html

install:        ## build the libraries and install them under PREFIX
	@.ci/install-deps build
	$(call optional,onnx parallel)
	$(call configure,release)
	$(call look_again,release)
	$(call build,release) --target tapir_libraries
	@cmake --install build/release --prefix $(PREFIX)

asan tsan:      ## the tests under a sanitizer
	@.ci/install-deps build test
	$(call configure,$@)
	$(call build,$@) --target tapir_tests
	@ctest --preset $@

fuzz:           ## fuzz every reader of files, each for FUZZ_SECONDS (60)
	@.ci/install-deps build fuzz
	$(call configure,fuzz)
	$(call build,fuzz) --target fuzz
	@tests/fuzz/run.sh build/fuzz $(FUZZ_SECONDS) $(ARGS)

judges:         ## what others test themselves with, on Tapir: all of PyTorch's op samples (long; fetches 2.9 GB once)
	@.ci/install-deps build test
	$(call optional,judges onnx onnx_test)
	$(call configure,release)
	$(call look_again,release)
	$(call switch_on,release,TAPIR_TESTS)
	$(call build,release) --target tapir_tests
	@TAPIR_JUDGES_TORCH=1 tests/judges/run.sh build/release $(JOBS)

cuda emulated:  ## the tests of the CUDA device: compiled by nvcc, or on the emulator that needs no GPU
	@.ci/install-deps build test
	$(call configure,$@)
	$(call build,$@) --target tapir_cuda_tests
	@ctest --preset $@ -R '^cuda/|tree_lstm_cuda|mpi_cuda'

gpu:            ## on a machine with a GPU: build for it, run the CUDA tests, also under compute-sanitizer (ARGS: stages)
	@.ci/gpu $(ARGS)

sources = git ls-files '*.h' '*.cpp' '*.cu' '*.cuh'
format:         ## clang-format on every tracked source
	@.ci/install-deps format
	@$(sources) | xargs -r clang-format-19 -i

lint:           ## what no compiler checks: the format of the sources, and which folder includes which
	@.ci/install-deps format
	@$(sources) | xargs -r clang-format-19 --dry-run -Werror
	@.ci/includes

clean:          ## remove every build folder
	@rm -rf build
