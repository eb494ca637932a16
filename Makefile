# CI runs `make test`.
CARGO ?= cargo
RESULTS ?= docs/results
# Duration of each fuzz target, in seconds.
FUZZ_SECONDS ?= 60
# Folder for the captured host that the benchmark reads; benches/tree.sh unpacks it.
BENCH_TREE ?= target/bench-tree

# Version of the workspace.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

# Requirements of emulated hosts, as PROGRAM=PACKAGE.
HOST_PROGRAMS = qemu-system-x86_64=qemu-system-x86 debootstrap=debootstrap mke2fs=e2fsprogs

# Packages the agent of the tests. The program gzip needs 6 core seconds, cargo-deb's own compression 106.
PACKAGE_OF_TESTS = CARGO="$(CARGO)" ./systemd/package.sh dev --strip --compress-type gz --compress-system

.PHONY: help all report demo test test-current quick setup lint deny crds samples screenshots bench fuzz hosts faults faults-hosts faults-cluster faults-demo trunk-day soak dist image deb

help:  ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

all: lint test  ## run lint and test

report:  ## report the capabilities of this host
	$(CARGO) run --locked --bin berth-agent -- report

demo: setup  ## run a control plane, three emulated hosts, two tenants and their VMs until Ctrl-C (with ONCE=--once: until the tables)
	$(CARGO) build --locked --workspace --bins
	$(PACKAGE_OF_TESTS)
	target/debug/berth-demo $(ONCE)

setup:  ## install the requirements of the tests (Debian, Ubuntu; as root)
	./tests/setup.sh $(HOST_PROGRAMS) cargo-deb=cargo:cargo-deb

test:  ## run lint and all tests, with the requirements from setup
	./tests/setup.sh --build $(HOST_PROGRAMS)
	# At the same time as the build: installs the other requirements, and builds the control plane and the host image, if this
	# machine does not have them.
	($(MAKE) --no-print-directory setup && exec nice ./tests/prepare.sh) & prepare=$$!; trap 'kill $$prepare 2>/dev/null' EXIT; \
	$(MAKE) --no-print-directory lint && \
	$(CARGO) test --locked --workspace --no-run && \
	wait $$prepare && \
	$(PACKAGE_OF_TESTS)
	CARGO="$(CARGO)" ./tests/run.sh --locked --workspace

test-current: setup  ## run all tests on the Kubernetes of KUBEBUILDER_ASSETS and the KubeVirt of KUBEVIRT_ASSETS, without skips; writes a result to docs/results
	./tests/current.sh --check
	nice ./tests/prepare.sh
	$(CARGO) test --locked --workspace --no-run
	$(PACKAGE_OF_TESTS)
	CARGO="$(CARGO)" ./tests/current.sh $(RESULTS)

quick: lint  ## run lint, and the tests that require no server and no emulated host
	CARGO="$(CARGO)" ./tests/quick.sh

lint:  ## check formatting and run clippy, with warnings as errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	# The README's first commands.
	$(CARGO) clippy --locked -p berth-agent --no-default-features -- -D warnings

deny:  ## check licences, sources and bans of all dependencies (cargo-deny)
	./tests/setup.sh cargo-deny=cargo:cargo-deny
	$(CARGO) deny --locked --workspace check bans licenses sources

crds:  ## generate deploy/crds from the Rust types
	$(CARGO) run --locked -p berth-api --example crdgen deploy/crds

samples:  ## update the samples of the README, docs/checks.md, docs/preflight.md and the command-line references
	BERTH_UPDATE=1 $(CARGO) test --locked -p berth-agent -p berth-controller --test readme --test cli --test kubectl

screenshots: setup  ## write the pictures of docs/console.md, with a control plane and chromium
	$(CARGO) test --locked -p berth-tests --test console -- --ignored pictures_of_the_pages

# Runs a benchmark with these arguments. It exits with 1 if it misses a goal, which its result states: the next benchmarks run
# nevertheless.
benchmark = target/dist/berth-benches $(1) --results $(RESULTS) || [ $$? -eq 1 ]

bench:  ## measure report compared with lstopo; the idle daemon, and tenant networks compared with ip and bridge, on emulated hosts; 500 agents with an API server; VM arrivals replayed on NUMA hosts, the assignment engine, a plan of 20,000 VMs, 1,000 tenants with 10,000 machines, labels of hosts on the Nodes of 500 tenants, the scheduler extender with 5,000 hosts, DHCP answers and memory of the agent with 1,000 guests compared with dnsmasq, 1,000,000 claims of addresses, the probes of a trunk with 4,000 VLANs compared with fping, and the rows of kubectl berth for 5,000 hosts and 100,000 VMs
	./tests/setup.sh $(HOST_PROGRAMS) dnsmasq=dnsmasq-base fping=fping unshare=util-linux
	./benches/tree.sh $(BENCH_TREE)
	$(CARGO) build --locked --profile dist-agent -p berth-agent
	$(CARGO) build --locked --profile dist -p berth-controller -p berth-benches
	$(call benchmark,report --agent target/dist-agent/berth-agent --root $(BENCH_TREE))
	$(call benchmark,idle --agent target/dist-agent/berth-agent --tree $(BENCH_TREE))
	$(call benchmark,links --agent target/dist-agent/berth-agent)
	$(call benchmark,agents --agent target/dist-agent/berth-agent)
	$(call benchmark,trace)
	$(call benchmark,engine)
	$(call benchmark,plan --controller target/dist/berth-controller)
	$(call benchmark,tenants --controller target/dist/berth-controller)
	$(call benchmark,tenant-access --controller target/dist/berth-controller)
	$(call benchmark,extender --controller target/dist/berth-controller)
	$(call benchmark,dhcp --agent target/dist-agent/berth-agent)
	$(call benchmark,lease-memory --agent target/dist-agent/berth-agent)
	$(call benchmark,claims)
	$(call benchmark,trunk)
	$(call benchmark,views)
	target/dist/berth-benches summary --results $(RESULTS) --output docs/benchmarks.md

fuzz:  ## fuzz every parser for FUZZ_SECONDS; writes a result to docs/results
	./fuzz/run.sh $(FUZZ_SECONDS) $(RESULTS)

hosts: setup  ## test the test bed itself, KVM, configuration, tenant networks and the DaemonSet on emulated hosts of BERTH_HOST_SUITE; slow, writes a result to docs/results
	nice ./tests/prepare.sh
	$(CARGO) test --locked --workspace --no-run
	$(PACKAGE_OF_TESTS)
	CARGO="$(CARGO)" ./tests/hosts.sh $(RESULTS)

faults: faults-hosts faults-cluster faults-demo  ## run these three targets

faults-hosts: setup  ## test kills, power cuts, full disks and reboots on an emulated host; slow, writes a result to docs/results
	$(CARGO) test --locked --workspace --no-run
	begin=$$(date +%s); $(CARGO) test --locked --workspace --test shape --test networks faults_ -- --ignored --nocapture --test-threads 1 && \
	printf '# Faults, %s\n\nCommand: `make faults`, %s minutes. Passed on emulated two-socket hosts.\n\nCPUs and memory: 50 kills of apply and revert, a full and a read-only state folder, a corrupted ledger, a refused write, two agents\nat the same time, clock jumps, a reboot between apply and revert, 20 power cuts.\n\nTenant networks: 50 kills, 20 power cuts, changes on trial that lose the gateway or the API server, 4,000 links in one plan, an uplink\ndown and up with 1,000 tenants, restarts of NetworkManager and systemd-networkd.\n' \
	  "$$(date -u +%F)" "$$(( ($$(date +%s) - begin) / 60 ))" > $(RESULTS)/$$(date -u +%F)-faults.md

faults-cluster: setup  ## kill controllers 50 times while tenants and machines are created, changed and deleted, while 1,000 Nodes and 30 hosts are drained, while 1,000 disks are cloned, and while 10,000 VMs are placed, and claim 10,000 addresses at the same time; writes a result to docs/results
	$(CARGO) test --locked --workspace --no-run
	begin=$$(date +%s); BERTH_FAULTS=1 $(CARGO) test --locked --workspace --test examples --test tenants --test machines --test addresses --test drain_faults --test host_drain_faults --test image_faults --test assign -- --include-ignored --nocapture && \
	printf '# Killed controllers, %s\n\nCommand: `make faults-cluster`, %s s. A real API server; agents and KubeVirt are simulated.\n\n`tests/tests/examples.rs`: `examples/tenants` by one `kubectl apply`, two controllers as processes with the rights of `deploy/`, 50 kills\nof the leader (every third time of both) during edits, scaling, changes of `spec.paused`, and the creation and deletion of tenants.\n`tests/tests/tenants.rs`: 50 kills while two tenants request a VLAN at the same time. `tests/tests/machines.rs`: 50 kills during edits.\n`tests/tests/addresses.rs`: 20 kills while machines claim addresses; 10,000 claims in 20 networks at the same time, by two\nsimulated controllers each: the choice of addresses and the lock, not the loop of attempts of the controller.\n`tests/tests/drain_faults.rs`: two real API servers, 50 kills while 1,000 Nodes of a tenant are drained; by the watches of an observer, no Node\nwas deleted before its pods and volumes left, none stayed cordoned, and no eviction exceeded a PodDisruptionBudget. `tests/tests/host_drain_faults.rs`: the same with 50 kills while 30 hosts\nare drained; also no removal left fewer machines than `maxUnavailable` permits, and all drains ended.\n`tests/tests/image_faults.rs`: 50 kills while 1,000 machines of two tenants are created from one golden image, get and lose hotpluggable\ndisks, change to another image and are deleted: each image was imported once, no machine was created before its import, and no volume in use\nwas deleted; CDI and KubeVirt are simulated.\n`tests/tests/assign.rs`: a real kube-scheduler places 10,000 VMs on 150 hosts while VMs are created and deleted; it and its extender are\nkilled, the extender is suspended for 20 s, reports are late, hosts are drained.\n\nNo VLAN and no machine exists twice, no object is an orphan; no kubelet would refuse its VMs, and every VM is bound.\n' \
	  "$$(date -u +%F)" "$$(( $$(date +%s) - begin ))" > $(RESULTS)/$$(date -u +%F)-kills.md

faults-demo: setup  ## run the demo and its faults, from its start to its tables; forty minutes, writes a result to docs/results
	$(CARGO) test --locked --workspace --no-run
	$(PACKAGE_OF_TESTS)
	begin=$$(date +%s); $(CARGO) test --locked --workspace --test demo -- --include-ignored --nocapture && \
	{ printf '# The demo, %s\n\nCommand: `make faults-demo`, %s s on %s cores. Three emulated two-socket hosts with real kubelets, two tenants.\nWhile pings run, every component is restarted, an agent is upgraded by its package, a profile is edited, a tenant is added and\nremoved, a host is drained while a PodDisruptionBudget of a tenant first permits no eviction, and another host is lost.\n\n```text' \
	  "$$(date -u +%F)" "$$(( $$(date +%s) - begin ))" "$$(nproc)"; cat "$$(ls -td target/demo/*/ | head -1)tables.txt"; printf '```\n'; } > $(RESULTS)/$$(date -u +%F)-demo.md

trunk-day:  ## simulate the trunk probes of two hosts with 100 VLANs for 24 hours, and faults of 100 hosts; minutes, writes a result to docs/results
	mkdir -p target
	begin=$$(date +%s); $(CARGO) test --locked -p berth-trunk-probe --test simulation -- --ignored --nocapture >target/trunk-day.log 2>&1 || { cat target/trunk-day.log; exit 1; }; \
	printf '# Trunk probes for 24 simulated hours, %s\n\nCommand: `make trunk-day`, %s s. `crates/trunk-probe/tests/simulation/day.rs`: two agents and a switch that loses 1 %% of the frames, duplicates 0.1 %%, and\nreorders them. Every hour an agent restarts. Once the switch loses one VLAN for ten seconds, and both agents must report exactly this VLAN; no other VLAN may\nbe reported.\n\nPassed. Counts, with one verdict of each agent per second: %s.\n\n`crates/trunk-probe/tests/simulation/many_hosts.rs`: 100 agents start at the same time, one restarts, and switch ports lose VLANs. In no second may the agents\nsend more than 3,200 solicitations, as many answers, and their probes.\n\nPassed. %s.\n' \
	  "$$(date -u +%F)" "$$(( $$(date +%s) - begin ))" "$$(sed -n 's/.*\(2 hosts, 100 VLANs.*\)/\1/p' target/trunk-day.log)" "$$(sed -n 's/.*\(100 hosts, 4 VLANs.*\)/\1/p' target/trunk-day.log)" > $(RESULTS)/$$(date -u +%F)-trunk-24h.md

soak:  ## record for ten minutes, from the audit log, the writes of an idle agent to the API server
	$(CARGO) build --locked -p berth-agent -p berth-controller
	BERTH_SOAK=$(abspath $(RESULTS))/$$(date -u +%F)-soak.md $(CARGO) test --locked -p berth-tests --test cluster -- --nocapture

dist:  ## build the agent as it is shipped (profile dist-agent)
	$(CARGO) build --locked --profile dist-agent -p berth-agent

image:  ## build the container images as archives: target/berth-agent-image.tar, target/berth-controller-image.tar
	for built in agent:dist-agent controller:dist; do \
	    program=$${built%:*} profile=$${built#*:}; \
	    $(CARGO) rustc --locked --profile $$profile -p berth-$$program --bin berth-$$program -- -C target-feature=+crt-static && \
	    install -D -m 755 target/$$profile/berth-$$program target/static-dist/berth-$$program && \
	    ./deploy/image.sh target/static-dist/berth-$$program berth-$$program:$(VERSION) target/berth-$$program-image.tar || exit 1; \
	done

deb: dist  ## build the Debian packages: the agent of `make dist`, and berth-controller with kubectl-berth
	./tests/setup.sh cargo-deb=cargo:cargo-deb
	$(CARGO) build --locked --profile dist -p berth-controller
	CARGO="$(CARGO)" ./systemd/package.sh dist-agent
	CARGO="$(CARGO)" ./systemd/package-controller.sh dist
