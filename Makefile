# Each target is short enough to run by hand. `make test` is what CI runs.
CARGO ?= cargo
RESULTS ?= docs/results
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 60
# A captured tree for the benchmark; see CONTRIBUTING.md for how to make one.
BENCH_TREE ?= target/bench-tree

.PHONY: help all report test setup lint crds samples bench fuzz hosts dist

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

all: lint test  ## lint and test

report:  ## what this host can do
	$(CARGO) run --locked --release --bin berth-agent -- report

setup:  ## install what the tests need (Debian, Ubuntu; as root)
	./tests/setup.sh

test: setup lint  ## lints and all tests, on what setup installed
	$(CARGO) test --locked --release --workspace

lint:  ## formatting and clippy, warnings refused
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --release --workspace --all-targets -- -D warnings

crds:  ## write deploy/crds from the Rust types
	$(CARGO) run --locked --release -p berth-api --example crdgen deploy/crds

samples:  ## renew the README's samples, docs/checks.md and the manual page
	BERTH_UPDATE=1 $(CARGO) test --locked --release -p berth-agent --test readme

bench:  ## report against lstopo, side by side; leaves a result in docs/results
	./benches/tree.sh $(BENCH_TREE)
	$(CARGO) build --locked --profile dist -p berth-agent
	$(CARGO) run --locked --release -p berth-benches -- report \
	  --agent target/dist/berth-agent --root $(BENCH_TREE) --results $(RESULTS)

fuzz:  ## every parser for FUZZ_SECONDS; leaves a result in docs/results
	./fuzz/run.sh $(FUZZ_SECONDS) $(RESULTS)

hosts: setup  ## report and check on an emulated two-socket host (QEMU, needs root to build the image)
	./tests/setup.sh qemu-system-x86_64=qemu-system-x86 debootstrap=debootstrap mke2fs=e2fsprogs
	$(CARGO) build --locked --release -p berth-agent
	BERTH_HOSTS=1 $(CARGO) test --locked --release -p berth-tests --test emulated -- --nocapture
	printf '# Emulated host, %s\n\nCommand: `make hosts`. The test `tests/tests/emulated.rs` passed on a host booted from %s.\n' \
	  "$$(date -u +%F)" "$$(basename $$(./tests/host/image.sh))" > $(RESULTS)/$$(date -u +%F)-hosts.md

dist:  ## the program as it is shipped
	$(CARGO) build --locked --profile dist -p berth-agent
