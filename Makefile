# Each target is short enough to run by hand. `make test` is what CI runs.
CARGO ?= cargo
RESULTS ?= docs/results
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 60
# A captured tree for the benchmark; see CONTRIBUTING.md for how to make one.
BENCH_TREE ?= target/bench-tree

# Of the workspace.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

# What emulated hosts are made of, as PROGRAM=PACKAGE.
HOST_PROGRAMS = qemu-system-x86_64=qemu-system-x86 debootstrap=debootstrap mke2fs=e2fsprogs

.PHONY: help all report demo test quick setup lint deny crds samples bench fuzz hosts faults faults-hosts faults-cluster faults-demo soak dist image deb

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

all: lint test  ## lint and test

report:  ## what this host can do
	$(CARGO) run --locked --release --bin berth-agent -- report

demo: setup  ## a control plane, three emulated hosts, two tenants and their VMs; stays until Ctrl-C (ONCE=--once: until the tables)
	$(CARGO) build --locked --release --workspace --bins
	CARGO="$(CARGO)" ./systemd/package.sh release --no-strip --fast
	target/release/berth-demo $(ONCE)

setup:  ## install what the tests need (Debian, Ubuntu; as root)
	./tests/setup.sh $(HOST_PROGRAMS) cargo-deb=cargo:cargo-deb

test: setup lint  ## lints and all tests, on what setup installed
	# The control plane and the host image are built beside the tests, where this machine lacks them.
	nice ./tests/prepare.sh & prepare=$$!; trap 'kill $$prepare 2>/dev/null' EXIT; \
	$(CARGO) test --locked --release --workspace --no-run && \
	CARGO="$(CARGO)" ./systemd/package.sh release --no-strip --fast && \
	wait $$prepare
	CARGO="$(CARGO)" ./tests/run.sh --locked --release --workspace

quick: lint  ## lints, and the tests that need no server and no emulated host
	$(CARGO) test --locked --release --workspace --exclude berth-tests --exclude berth-benches
	$(CARGO) test --locked --release -p berth-tests --test tidy --test documents --test source

lint:  ## formatting and clippy, warnings refused
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --release --workspace --all-targets -- -D warnings

deny:  ## licences, sources and bans of all dependencies (cargo-deny)
	./tests/setup.sh cargo-deny=cargo:cargo-deny
	$(CARGO) deny --locked --workspace check bans licenses sources

crds:  ## write deploy/crds from the Rust types
	$(CARGO) run --locked --release -p berth-api --example crdgen deploy/crds

samples:  ## renew the README's samples, docs/checks.md and the references of the command lines
	BERTH_UPDATE=1 $(CARGO) test --locked --release -p berth-agent -p berth-controller --test readme --test cli

bench:  ## report against lstopo; the idle daemon, and tenant networks against ip and bridge, on emulated hosts; 500 agents with an API server; VM arrivals replayed on NUMA hosts, the assignment engine, a plan of 20,000 VMs, 1,000 tenants with 10,000 machines, and the scheduler extender with 5,000 hosts
	./tests/setup.sh $(HOST_PROGRAMS)
	./benches/tree.sh $(BENCH_TREE)
	$(CARGO) build --locked --profile dist-agent -p berth-agent
	$(CARGO) build --locked --profile dist -p berth-controller -p berth-benches
	target/dist/berth-benches report \
	  --agent target/dist-agent/berth-agent --root $(BENCH_TREE) --results $(RESULTS)
	target/dist/berth-benches idle \
	  --agent target/dist-agent/berth-agent --tree $(BENCH_TREE) --results $(RESULTS)
	target/dist/berth-benches links --agent target/dist-agent/berth-agent --results $(RESULTS)
	target/dist/berth-benches agents --agent target/dist-agent/berth-agent --results $(RESULTS)
	target/dist/berth-benches trace --results $(RESULTS)
	target/dist/berth-benches engine --results $(RESULTS)
	target/dist/berth-benches plan --controller target/dist/berth-controller --results $(RESULTS)
	target/dist/berth-benches tenants --controller target/dist/berth-controller --results $(RESULTS)
	target/dist/berth-benches extender --controller target/dist/berth-controller --results $(RESULTS)
	target/dist/berth-benches summary --results $(RESULTS) --output docs/benchmarks.md

fuzz:  ## every parser for FUZZ_SECONDS; leaves a result in docs/results
	./fuzz/run.sh $(FUZZ_SECONDS) $(RESULTS)

hosts: setup  ## the test bed itself, and KVM on an emulated host; slow
	$(CARGO) build --locked --release -p berth-agent -p berth-controller
	$(CARGO) test --locked --release -p berth-tests --test emulated --test bed -- --ignored --nocapture
	printf '# Emulated hosts, %s\n\nCommand: `make hosts`. The tests `tests/tests/emulated.rs` and `tests/tests/bed.rs` passed on hosts booted from %s.\n' \
	  "$$(date -u +%F)" "$$(basename $$(./tests/host/image.sh))" > $(RESULTS)/$$(date -u +%F)-hosts.md

faults: faults-hosts faults-cluster faults-demo  ## all of these

faults-hosts: setup  ## kills, power cuts, full disks, reboots on an emulated host; slow, leaves a result in docs/results
	$(CARGO) test --locked --release --workspace --no-run
	begin=$$(date +%s); $(CARGO) test --locked --release --workspace --test shape --test networks faults_ -- --ignored --nocapture --test-threads 1 && \
	printf '# Faults, %s\n\nCommand: `make faults`, %s minutes. Passed on emulated two-socket hosts.\n\nCPUs and memory: 50 kills of apply and revert, a full and a read-only state folder, a garbled ledger, a refused write, two agents\nat once, clock jumps, a reboot between apply and revert, 20 power cuts.\n\nTenant networks: 50 kills, 20 power cuts, the gateway or the API server lost to a change on trial, 4,000 links at once, an uplink down and up under 1,000 tenants, NetworkManager and\nsystemd-networkd restarted.\n' \
	  "$$(date -u +%F)" "$$(( ($$(date +%s) - begin) / 60 ))" > $(RESULTS)/$$(date -u +%F)-faults.md

faults-cluster: setup  ## controllers killed 50 times while tenants and machines come, change and go, and while 10,000 VMs are placed; leaves a result in docs/results
	$(CARGO) test --locked --release --workspace --no-run
	begin=$$(date +%s); BERTH_FAULTS=1 $(CARGO) test --locked --release --workspace --test examples --test tenants --test machines --test assign -- --include-ignored --nocapture && \
	printf '# Killed controllers, %s\n\nCommand: `make faults-cluster`, %s s. A real API server; agents and KubeVirt are simulated.\n\n`tests/tests/examples.rs`: `examples/tenants` by one `kubectl apply`, two controllers as processes with the rights of `deploy/`, 50 kills\nof the one that leads (every third time of both) under edits, scaling, pauses, tenants that come and go.\n`tests/tests/tenants.rs`: 50 kills while two tenants at once ask for a VLAN. `tests/tests/machines.rs`: 50 kills under edits.\n`tests/tests/assign.rs`: 10,000 VMs come and go on 150 hosts under a real kube-scheduler; it and its extender are killed, the extender is\npaused for 20 s, reports come late, hosts are drained.\n\nNo VLAN twice, no machine twice, nothing without an owner; no VM that its kubelet would refuse, and every one bound.\n' \
	  "$$(date -u +%F)" "$$(( $$(date +%s) - begin ))" > $(RESULTS)/$$(date -u +%F)-kills.md

faults-demo: setup  ## the demo from its beginning to its tables; ten minutes, leaves a result in docs/results
	$(CARGO) test --locked --release --workspace --no-run
	CARGO="$(CARGO)" ./systemd/package.sh release --no-strip --fast
	begin=$$(date +%s); $(CARGO) test --locked --release --workspace --test demo -- --include-ignored --nocapture && \
	{ printf '# The demo, %s\n\nCommand: `make faults-demo`, %s s on %s cores. Three emulated two-socket hosts with real kubelets, two tenants.\nEvery part is restarted under running pings, an agent upgraded by package, a profile edited, a tenant added and removed, a\nhost drained, another lost.\n\n```text' \
	  "$$(date -u +%F)" "$$(( $$(date +%s) - begin ))" "$$(nproc)"; cat "$$(ls -td target/demo/*/ | head -1)tables.txt"; printf '```\n'; } > $(RESULTS)/$$(date -u +%F)-demo.md

soak:  ## ten minutes of an idle agent under audit: what it writes to the API server
	$(CARGO) build --locked --release -p berth-agent -p berth-controller
	BERTH_SOAK=$(abspath $(RESULTS))/$$(date -u +%F)-soak.md $(CARGO) test --locked --release -p berth-tests --test cluster -- --nocapture

dist:  ## the program as it is shipped
	$(CARGO) build --locked --profile dist-agent -p berth-agent

image:  ## the container images, as archives: target/berth-agent-image.tar, target/berth-controller-image.tar
	for built in agent:dist-agent controller:dist; do \
	    program=$${built%:*} profile=$${built#*:}; \
	    $(CARGO) rustc --locked --profile $$profile -p berth-$$program --bin berth-$$program -- -C target-feature=+crt-static && \
	    install -D -m 755 target/$$profile/berth-$$program target/static-dist/berth-$$program && \
	    ./deploy/image.sh target/static-dist/berth-$$program berth-$$program:$(VERSION) target/berth-$$program-image.tar || exit 1; \
	done

deb: dist  ## the Debian package, from what is shipped
	./tests/setup.sh cargo-deb=cargo:cargo-deb
	CARGO="$(CARGO)" ./systemd/package.sh dist-agent
