# Everything a person or a CI needs, in one word each; CMake and Ninja do the work.
#
#   make setup     install what is missing (Debian 12, as root)
#   make build     build/mindspeed
#   make check     every test but slow and gpu; SAN=address,undefined or SAN=thread with sanitizers
#   make demo      a small model under a memory limit, on two ranks, through a kill; TEXT=file for another text
#   make install   to PREFIX (default /usr/local), under DESTDIR
#   make format    clang-format over the sources
#   make clean

PREFIX ?= /usr/local
DESTDIR ?=
SAN ?=
TEXT ?=
EXTRA_PACKAGES ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

comma := ,
BUILD := $(if $(SAN),build-san-$(subst $(comma),-,$(SAN)),build)
# The OpenMP run-time is not instrumented, so threads of a kernel would be reported as races.
TEST_ENVIRONMENT := $(if $(findstring thread,$(SAN)),OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1 \
    TSAN_OPTIONS=suppressions=$(CURDIR)/tools/tsan.supp)

.PHONY: all setup build check demo install format clean
all: build

setup:
	@tools/setup $(EXTRA_PACKAGES)

build: setup
	@mkdir -p $(BUILD)
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DMS_SAN="$(SAN)" \
	    >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	@[ -t 1 ] || quiet=--quiet; \
	    cmake --build $(BUILD) -j $(JOBS) $(if $(TARGETS),--target $(TARGETS)) -- $$quiet

check: build
	@$(TEST_ENVIRONMENT) tools/run-tests $(BUILD) -LE 'slow|gpu'

# Only the command is built: the demo starts sooner on a fresh checkout.
demo: TARGETS := mindspeed
demo: build
	@tools/demo $(BUILD)/mindspeed $(if $(TEXT),"$(TEXT)")

install: build
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"

format:
	@command -v clang-format >/dev/null || { echo "make format needs clang-format" >&2; exit 1; }
	find src include tests fuzz examples -name '*.[ch]' | xargs clang-format -i

clean:
	rm -rf build build-san-* runs/demo
