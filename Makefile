# The project's commands. Each does its own set-up: what is missing is installed with apt where
# this runs as root on a Debian-like system, and named with the command to run everywhere else.

# rustup's directory and the administrators' ones are not in everybody's PATH.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin:$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

TARGET := $(or $(CARGO_TARGET_DIR),target)
TAUT := $(TARGET)/release/taut
TAUT_LAB := $(TARGET)/release/taut-lab

# Commands that are installed: smaller, and slower to build (Cargo.toml).
DIST := $(TARGET)/dist

# Options of the long runs and of the benchmark, to be given on the command line.
FUZZ_ITERATIONS := 200000000
FLOOD_SECONDS := 60
SIM_SEEDS := 100000
SIM_SECONDS_MAX := 86400
TASK_SETS := 1000000
SETS := 3000
RUNS := 20
VBUS_KILLS := 10000
PARTITION_ROUNDS := 1000
GUEST_KILLS := 10000
GUEST_EVENTS := 5000
FLEET_ROUNDS := 40
BENCH_PATHS := sampling,queuing,sampling-tc,queuing-tc,udp-poll,floor,floor-tc
BENCH_SIZES := 16B,1400B
BENCH_COUNT := 100000
BENCH_JSON := $(TARGET)/bench-rtt.json
BENCH_BUS_JSON := $(TARGET)/bench-bus.json
EXPERIMENTS := all
CHECKED := sources proto shm exec types state report
STATIC_TARGET := $(shell uname -m)-unknown-linux-musl
MDBOOK_VERSION := 0.5.4
OLDEST_RUST := $(shell sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' Cargo.toml)
ARM_TARGETS := aarch64-unknown-linux-gnu aarch64-unknown-linux-musl armv7-unknown-linux-gnueabihf
KERNEL_TEST_TARGETS := x86_64-unknown-linux-musl aarch64-unknown-linux-musl
EXPERIMENTS_DIR := taut-experiments

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help book demo flight flight-guest check test test-all build install-c packages static gateway python sbom bench bench-bus bench-gateway experiments fuzz sim task-sets task-sets-kernel vbus-kills guest-kills guest-latency partition-thousand flood test-kernels test-arm test-guests-arm test-packages test-unit test-oldest-rust xsk-zero-copy test-gateway test-fresh-root demo-fleet fleet-faults packages-gateway ros bench-ros test-ros bench-ethercat clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | \
	while IFS='|' read -r name text; do printf '%-24s %s\n' "$$name" "$$text"; done

demo: ## two hosts, a 1 kHz control loop beside a full link: a table and report.html
	@scripts/setup.sh --for demo
	cargo build --release --locked -p taut -p taut-lab -p tautline-awake-preload
	$(TAUT_LAB) demo $(DEMO_ARGS)

FLIGHT_IMAGE := bindings/guest/build/flight.elf

flight: ## root: a quadcopter flies four times beside loads and a runaway: table, verdict, taut-flight/report.html
	@scripts/setup.sh --for demo
	cargo build --release --locked -p taut -p taut-flight
	@$(MAKE) --no-print-directory flight-guest GUEST_ARGS=ARCHITECTURES=aarch64 >/dev/null || \
		{ echo "the controller could not be built as a guest: (d) will not fly"; rm -f $(FLIGHT_IMAGE); }
	$(TAUT)-flight $$(test ! -f $(FLIGHT_IMAGE) || echo --guest-image $(FLIGHT_IMAGE)) $(FLIGHT_ARGS)

flight-guest: ## the flight's controller as a guest: flight.elf and flight-x86_64.elf in bindings/guest/build
	@$(MAKE) --no-print-directory -C bindings/guest CRATE=$(CURDIR)/show/guest $(GUEST_ARGS) rust

check: ## no root, a minute: format, prose, imports, and the tests of proto, shm, exec, types, state, report
	@scripts/setup.sh --for check
	cargo fmt --all --check
	cargo nextest run --locked --profile check --success-output never --status-level fail $(CHECKED:%=-p tautline-%) \
		--features tautline-report/drawings

test: ## what a user relies on: format and the tests that need no machine of their own
	@scripts/setup.sh --for test
	@scripts/test.sh $(or $(STAGES),format tests leftovers)

test-all: ## `make test`, then boots, flights, lints, licences, kernels, loom, fuzz: as .ci/run does it
	@scripts/setup.sh --for test
	@scripts/test.sh $(STAGES)

build: ## the commands and the libraries, optimised
	@scripts/setup.sh --for build
	cargo build --release --locked --workspace

book: ## the pages of docs/ as a book, target/book/index.html (needs mdBook, which this does not install)
	@command -v mdbook >/dev/null || \
		{ echo "mdbook is missing; install it with: cargo install mdbook --version $(MDBOOK_VERSION) --locked" >&2; exit 1; }
	mdbook build --dest-dir $(abspath $(TARGET))/book

install-c: ## the C library, C and C++ headers, files for pkg-config and CMake, man page; PREFIX, DESTDIR, LIBDIR
	@scripts/setup.sh --for build
	cargo build --release --locked -p tautline-c
	@$(MAKE) --no-print-directory -C bindings/c install BUILT=$(abspath $(TARGET))/release

packages: ## Debian packages of the commands and the C library, in target/packages (DEB_MAINTAINER, SOURCE_DATE_EPOCH)
	@scripts/setup.sh --for packages
	cargo build --profile dist --locked -p taut -p taut-lab
	@# Without the rlib beside it, for which cargo would leave the library as in a release.
	cargo rustc --profile dist --locked -p tautline-awake-preload --lib --crate-type cdylib
	cargo build --release --locked -p tautline-c
	@scripts/packages.sh $(DIST) $(TARGET)/packages taut taut-lab
	@scripts/packages.sh $(TARGET)/release $(TARGET)/packages libtautline1 libtautline-dev

packages-gateway: ## a Debian package of the gateway to Zenoh with its systemd unit, in target/packages
	@scripts/setup.sh --for packages
	cargo build --release --locked --manifest-path gateway/Cargo.toml --target-dir $(TARGET)
	@scripts/packages.sh $(TARGET)/release $(TARGET)/packages taut-gateway

static: ## taut and taut-lab, each as one file for any Linux of this architecture (musl), in target/static
	@scripts/setup.sh --for build
	@! command -v rustup >/dev/null || rustup --quiet target add $(STATIC_TARGET)
	CARGO_PROFILE_DIST_STRIP=symbols cargo build --profile dist --locked -p taut -p taut-lab --target $(STATIC_TARGET)
	install -D -t $(TARGET)/static $(TARGET)/$(STATIC_TARGET)/dist/taut $(TARGET)/$(STATIC_TARGET)/dist/taut-lab

gateway: ## the gateway to Zenoh, target/release/taut-gateway, which `taut gateway` starts (some 300 crates)
	@scripts/setup.sh --for build
	cargo build --release --locked --manifest-path gateway/Cargo.toml --target-dir $(TARGET)

ros: ## topics of ROS 2 by DDS, target/release/taut-ros, which `taut ros` starts (some 80 crates)
	@scripts/setup.sh --for build
	cargo build --release --locked --manifest-path ros/Cargo.toml --target-dir $(TARGET)

python: ## the wheel for Python, in target/wheels
	@scripts/setup.sh --for build
	python3 -m pip wheel --no-deps --wheel-dir $(abspath $(TARGET))/wheels ./bindings/python

sbom: ## a bill of materials for each package (CycloneDX), in target/sbom
	@scripts/setup.sh --for test
	@scripts/sbom.sh $(TARGET)/sbom

bench: ## round trips of every path in one run, on two hosts of its own making
	@scripts/setup.sh --for demo
	cargo build --release --locked -p taut-lab
	$(TAUT_LAB) bench rtt --paths $(BENCH_PATHS) --sizes $(BENCH_SIZES) --count $(BENCH_COUNT) --json=$(BENCH_JSON)

bench-bus: ## ports between processes, beside the machine's floor and iceoryx2, in one run
	@scripts/setup.sh --for build
	cargo build --release --locked -p taut-lab
	cargo build --release --locked --manifest-path measure/iceoryx2/Cargo.toml --target-dir $(TARGET)
	$(TAUT_LAB) bench bus --json=$(BENCH_BUS_JSON) $(BENCH_BUS_ARGS)

bench-ethercat: ## root: cycles of an EtherCAT main device (ethercrab): packet socket, taut exec, raw port, beside TCP
	@scripts/setup.sh --for build
	cargo build --release --locked -p taut -p tautline-awake-preload
	cargo build --release --locked --manifest-path measure/ethercrab/Cargo.toml --target-dir $(TARGET)/ethercrab
	scripts/ethercat-speed.sh

experiments: ## the papers' figures in quick mode: raw data, plots, one page (EXPERIMENTS, EXPERIMENT_ARGS)
	@scripts/setup.sh --for demo
	cargo build --release --locked -p taut -p taut-lab
	$(TAUT_LAB) experiment run $(EXPERIMENTS) --quick --out $(EXPERIMENTS_DIR) $(EXPERIMENT_ARGS)

fuzz: ## long: the fuzz targets with FUZZ_ITERATIONS (200 million) inputs
	@scripts/setup.sh --for build
	cargo run --release --locked --manifest-path fuzz/Cargo.toml --target-dir $(TARGET) --features c-interface,recording --bin short -- --iterations $(FUZZ_ITERATIONS)

sim: ## long: the protocol core on the simulated network, over SIM_SEEDS (100,000) seeds
	@scripts/setup.sh --for build
	@TAUTLINE_SIM_SEEDS=$(SIM_SEEDS) TAUTLINE_STAGE_SECONDS_MAX=$(SIM_SECONDS_MAX) scripts/test.sh sim

test-gateway: ## the gateway to Zenoh: format, lints, licences, tests with a participant from PyPI; root, else few run
	@scripts/setup.sh --for test
	@scripts/test.sh gateway

demo-fleet: ## root: a craft flown from another site over Zenoh, its cable cut on the way, a listener of ROS 2: a table
	@scripts/setup.sh --for demo
	cargo build --release --locked -p taut -p taut-flight
	cargo build --release --locked --manifest-path gateway/Cargo.toml --target-dir $(TARGET) --example fleet --bin taut-gateway
	cargo build --release --locked --manifest-path ros/Cargo.toml --target-dir $(TARGET)
	$(TARGET)/release/examples/fleet $(TARGET)/release/taut

fleet-faults: ## long, root: three sites, ten gateways, a thousand nodes; FLEET_ROUNDS (40) parts killed at random
	@scripts/setup.sh --for build
	TAUTLINE_FLEET_ROUNDS=$(FLEET_ROUNDS) cargo test --locked --manifest-path gateway/Cargo.toml --no-default-features --target-dir $(TARGET)/gateway --test scale -- --nocapture

bench-gateway: ## root: the gateway beside plain Zenoh, and what the cell notices of it: round trips, rates
	@scripts/setup.sh --for build
	cargo bench --locked --manifest-path gateway/Cargo.toml --target-dir $(TARGET) --bench speed

test-ros: ## topics of ROS 2: format, lints, licences, tests with Cyclone DDS, Fast DDS, ROS 2; root, else few run
	@scripts/setup.sh --for test
	@scripts/test.sh ros

bench-ros: ## root: joint states at 1 kHz to Cyclone DDS, beside Cyclone DDS alone; what the cell notices of it
	@scripts/setup.sh --for build
	cargo bench --locked --manifest-path ros/Cargo.toml --target-dir $(TARGET) --bench speed

task-sets: ## long: TASK_SETS (1,000,000) random task sets simulated; none that is admitted may miss a deadline
	@scripts/setup.sh --for build
	TAUTLINE_TASK_SETS=$(TASK_SETS) cargo test --release --locked -p tautline-exec --test user simulation:: -- --show-output

task-sets-kernel: ## long, root: taut task check for SETS (3,000) files against a simulation, and for RUNS (20) against runs
	@scripts/setup.sh --for build
	cargo build --release --locked -p taut
	scripts/task-sets.py $(TAUT) $(SETS)
	scripts/task-sets.py $(TAUT) $(RUNS) --run

flood: ## long, root: ten unprivileged clients under a flood, killed at random for FLOOD_SECONDS (60)
	@scripts/setup.sh --for build
	TAUTLINE_FLOOD_SECONDS=$(FLOOD_SECONDS) cargo test --locked -p tautline --test machine control_flood:: -- --nocapture

vbus-kills: ## long: VBUS_KILLS (10,000) processes of each kind killed on a bus, what is received checked
	@scripts/setup.sh --for build
	TAUTLINE_KILLS=$(VBUS_KILLS) cargo test --locked -p tautline --test user vbus_kill:: -- --show-output

partition-thousand: ## long, root: a partition made and removed PARTITION_ROUNDS (1,000) times; every setting as before
	@scripts/setup.sh --for build
	TAUTLINE_PARTITION_ROUNDS=$(PARTITION_ROUNDS) cargo test --locked -p tautline-tasks --test machine partition:: -- --show-output

guest-kills: ## long: a guest under QEMU and one on KVM killed and restarted GUEST_KILLS (10,000) times each; none torn
	@scripts/setup.sh --for test
	TAUTLINE_GUEST_KILLS=$(GUEST_KILLS) cargo test --locked -p taut --test guest guests_are_killed -- --show-output

guest-latency: ## long: rtmux-latency with its limits, and the same bytes thrice: GUEST_EVENTS (5,000)
	@scripts/setup.sh --for test
	@! command -v rustup >/dev/null || rustup --quiet target add aarch64-unknown-linux-musl
	cargo build --locked -p taut
	TAUTLINE_GUEST_EVENTS=$(GUEST_EVENTS) cargo test --locked -p taut-lab --test long guest_virtual:: -- --include-ignored --show-output --test-threads 1

test-kernels: ## long: the links under Debian's kernels of amd64 and arm64, in QEMU; KERNEL_TEST_ARGS
	@scripts/setup.sh --for test
	@! command -v rustup >/dev/null || rustup --quiet target add $(KERNEL_TEST_TARGETS)
	cargo build --locked --workspace --bin kernel-tests
	rm -rf $(TARGET)/bpf-objects
	scripts/bpf-objects.sh $(TARGET)/bpf-objects
	$(TARGET)/debug/kernel-tests --bpf-objects $(TARGET)/bpf-objects --out $(TARGET)/kernel-tests $(KERNEL_TEST_ARGS)

test-arm: ## long: compiled for arm64 and armhf, tests in emulation, two nodes on a kernel for arm64 in QEMU
	@scripts/setup.sh --for arm
	@! command -v rustup >/dev/null || rustup --quiet target add $(ARM_TARGETS)
	scripts/test-arm.sh
	@$(MAKE) --no-print-directory test-kernels KERNEL_TEST_ARGS="--only arm64@trixie --part load,demo"

test-guests-arm: ## long: guests on KVM for aarch64, in an emulated machine with a GICv2 and with a GICv3
	@scripts/setup.sh --for test
	@! command -v rustup >/dev/null || rustup --quiet target add aarch64-unknown-linux-musl
	cargo build --locked --workspace --bin kernel-tests
	$(TARGET)/debug/kernel-tests --part guests --only arm64@bookworm arm64@trixie --out $(TARGET)/guests-gicv2
	$(TARGET)/debug/kernel-tests --part guests --only arm64@bookworm --out $(TARGET)/guests-gicv3 --machine virtualization=on,gic-version=3

xsk-zero-copy: ## link xsk with drivers that have zero-copy: a part of test-kernels
	@$(MAKE) --no-print-directory test-kernels KERNEL_TEST_ARGS="--only amd64@trixie-backports --part cards"

test-packages: packages ## long, root: crates built from their packages; the Debian ones used in a fresh Debian root
	@scripts/test-packages.sh

test-unit: packages ## long, root: the systemd unit of control processes on a Debian booted in QEMU
	@scripts/test-unit.sh

test-oldest-rust: ## long: everything compiles with the oldest Rust that is supported, by rustup
	@scripts/setup.sh --for build
	rustup --quiet toolchain install --profile minimal $(OLDEST_RUST)
	cargo +$(OLDEST_RUST) check --locked --workspace --all-targets --target-dir $(TARGET)/oldest-rust

test-fresh-root: ## long, root: make demo and make test in a fresh minimal Debian root
	@scripts/fresh-root.sh

clean: ## everything that was built or measured
	cargo clean
	rm -rf fuzz/target measure/iceoryx2/target measure/ethercrab/target gateway/target ros/target taut-demo taut-flight $(EXPERIMENTS_DIR)
