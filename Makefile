# Taut: what there is to do here. `make` alone lists it.
#
# Every target first does the set-up it needs (scripts/setup, with a group of scripts/packages.txt): it names and installs the Debian
# packages that are missing, and when none is, it changes nothing. A target that makes network namespaces needs root, and says so first.

CARGO := scripts/rust cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
TAUT  := $(TARGET)/release/taut

# For `make lab`: which experiment, and more arguments for it, such as --quick or --seed 7.
EXPERIMENT := pied-piper
ARGS       :=

# For `make model-snoop`: how many sequences, and which single one instead.
SEQUENCES := 1000000
SEED      :=

# For `make soak-kills`: how often each job is killed.
KILLS := 143

# For `make soak-faults`: how many system calls fail.
FAULTS := 10000

# Has Cargo run test binaries in guests, by scripts/on-kernel with these arguments. Cargo builds the whole workspace, because it would
# build single packages and their dependencies again with other features; `--only` chooses the binaries.
COMMA := ,
on-kernel = --config 'target."cfg(all())".runner = ["$(CURDIR)/scripts/on-kernel", "--seconds", "1800", $(foreach word,$(1),"$(word)"$(COMMA))]'
# Tests that need veth begin at the same time, and the second would find it half loaded.
on-old-kernel = $(call on-kernel,$(1) --with ip --with tc --with nft --module veth 6.1)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.SUFFIXES:
.PHONY: $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' Makefile)

help: ## this list
	@echo "Taut takes the slack out of TCP. What make can do here:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-22s %s\n", $$1, $$2 }'

demo: root-demo release ## build, move real files through two relays over a 274 ms path, write a report (root)
	@mkdir -p $(TARGET)/demo
	@rm -f $(TARGET)/demo/*.json
	@echo "taut: running the demo: downloads end to end, through ssh, through two relays"
	@status=0; $(TAUT) lab run pied-piper --json $(TARGET)/demo/pied-piper.json $(or $(ARGS),--runs 2) || status=$$?; \
	if [ -e $(TARGET)/demo/pied-piper.json ]; then \
	    $(TAUT) lab report $(TARGET)/demo >/dev/null && echo "taut: the report is $(abspath $(TARGET))/demo/report.html" || status=$$?; \
	fi; exit $$status

check: setup-check ## lint, unit tests, simulated meshes: before each commit, in minutes, without root and without lab/ unless it has changed
	@TAUT_CHECK=1 scripts/test lint unit

test: root-test ## what CI runs: lint, and every test that takes seconds, in 15 minutes (root)
	@scripts/test

tested: ## whether `make test` has passed on the last commit's tree
	@tree=$$(git rev-parse 'HEAD^{tree}'); [ "$$(cat $(TARGET)/tested 2>/dev/null)" = "$$tree" ] || \
	    { echo "taut: make test has not passed on the tree of HEAD ($$tree): run make test" >&2; exit 1; }

msrv: setup-build ## compile everything with the oldest Rust that Cargo.toml names
	@scripts/msrv

test-all: root-all ## every test, experiment and fuzz target in full; records the result in test-all.json (root, more than an hour)
	@scripts/test-all $(ARGS)

# The seeds of fuzz targets are not in the guest.
test-old-kernel: setup-test ## tests of snoop, observe and tune on Linux 6.1, the oldest that Taut is for, in a guest of QEMU's
	@echo "taut: building the tests of snoop, observe and tune and running them on Linux 6.1 (scripts/on-kernel)"
	@$(CARGO) test --workspace --locked --lib --test tap $(call on-old-kernel,--only tap --only taut_observe --only taut_tune) -- \
	    --skip every_fuzz_target_accepts_its_seeds

test-guest: root-test ## the kernel module for guests, in guests of QEMU's with Linux 6.1 and 6.12 (root, two processors)
	@echo "taut: building taut_pvtcp and testing it on Linux 6.1 and 6.12 (crates/guest/kmod/test/run)"
	@crates/guest/kmod/test/run 6.1
	@crates/guest/kmod/test/run 6.12

test-snoop-guests: root-test guests ## taut snoop while guests of QEMU's are paused, saved, unplugged, reset and migrated (root)
	@echo "taut: building the tests of snoop with guests of QEMU's and running all of them"
	@$(CARGO) test --locked -p taut --test machine -- --include-ignored snoop_guests::

lint: setup-check ## formatting, clippy, dependencies, documentation and shell scripts; warnings are errors
	@scripts/deny fetch
	@scripts/lint

book: setup-build ## the guide as a book, target/book/html/index.html
	@scripts/book

build: release ## the release binaries, target/release/taut and taut-lab

install: ## what make build has built, with manual pages and completions, below PREFIX=/usr/local (and DESTDIR)
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install install

uninstall: ## remove what make install has installed
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install uninstall

deb: setup-build ## Debian packages for this machine's architecture, in target/packages
	@scripts/setup dpkg-dev binutils
	@scripts/package $(ARGS)

package-short: root-test ## those of the unoptimised binaries, installed, upgraded and removed in a clean Debian (root)
	@echo "taut: building taut and taut-lab, and testing their packages (scripts/package-test)"
	@$(CARGO) build --locked -p taut -p taut-lab
	@scripts/package --binaries $(TARGET)/debug --compression none
	@scripts/package-test

dist: setup-build ## tarballs of the programs and of their debug symbols for this machine's architecture, in target/dist
	@scripts/setup binutils
	@scripts/dist $(ARGS)

reproducible: setup-build ## build the last commit in two directories, and compare: half an hour (ARGS=dev: unoptimised)
	@scripts/reproducible $(ARGS)

bench: root-demo release ## what an idle session costs a relay (root)
	@echo "taut: running the benchmark: idle sessions on one relay"
	@$(TAUT) lab run idle-sessions $(ARGS)

bench-observe: root-demo release ## what it costs to scan 10,000 connections once a second, beside ss (root)
	@echo "taut: running the benchmark: scans of 10,000 connections"
	@$(TAUT) lab run observe-cost $(ARGS)

bench-tune: root-demo release ## what it costs to tune 10,000 idle connections (root)
	@echo "taut: running the benchmark: tuning 10,000 idle connections"
	@$(TAUT) lab run tune-cost $(ARGS)

bench-share: ## how long it takes to share a budget out among 100,000 connections, beside sorting them
	@$(CARGO) bench --quiet -p taut-bench --features criterion --bench share -- $(ARGS)

bench-plan: ## how long it takes to plan for 1,000 relays and 100,000 pairs
	@$(CARGO) bench --quiet -p taut-bench --features criterion --bench plan -- $(ARGS)

bench-relay: root-test release ## taut relay beside HAProxy, nginx, socat and ssh, in target/lab too (root)
	@mkdir -p $(TARGET)/lab
	@echo "taut: running the benchmark: taut relay beside other relays"
	@$(TAUT) lab run relay-peers --json $(TARGET)/lab/relay-peers.json $(ARGS)

lab: root-all release $(if $(filter incast descheduled,$(EXPERIMENT)),guests) ## one experiment into target/lab: make lab EXPERIMENT=pied-piper ARGS=--quick (root)
	@mkdir -p $(TARGET)/lab
	@echo "taut: running the experiment $(EXPERIMENT)"
	@$(TAUT) lab run $(EXPERIMENT) --json $(TARGET)/lab/$(EXPERIMENT).json $(ARGS)

soak: root-demo release ## five minutes of sessions while relays are killed and revoked, links cut, keys changed (root)
	@mkdir -p $(TARGET)/lab
	@echo "taut: running the experiment soak"
	@$(TAUT) lab run soak --json $(TARGET)/lab/soak.json $(ARGS)

soak-snoop: root-demo release ## 5,000 streams to a guest while taut snoop is killed and turned off (root)
	@mkdir -p $(TARGET)/lab
	@echo "taut: running the experiment snoop-soak"
	@$(TAUT) lab run snoop-soak --json $(TARGET)/lab/snoop-soak.json $(ARGS)

soak-kills: root-test guests ## kill each job 143 times with SIGKILL, 1,001 times in all; see that nothing stays (root)
	@echo "taut: building the test of killed jobs and killing $(KILLS) of each; the seed is $(or $(SEED),1)"
	@TAUT_KILLS=$(KILLS) TAUT_SEED=$(or $(SEED),1) $(CARGO) test --locked -p taut --test machine -- kills --nocapture

soak-faults: root-test ## make 10,000 system calls of the jobs fail: no panic, leak or wrong byte: FAULTS=n, SEED=n (root)
	@echo "taut: building the test of failing system calls and making $(FAULTS) fail; the first seed is $(or $(SEED),1)"
	@TAUT_FAULTS=$(FAULTS) TAUT_SEED=$(or $(SEED),1) $(CARGO) test --locked -p taut --test machine -- faults --nocapture

model-snoop: root-build ## snoop's BPF programs against their model, in a million random sequences: SEQUENCES=n, SEED=n (root)
	@echo "taut: building the model test of snoop and running it (TAUT_MODEL_SEQUENCES=$(SEQUENCES))"
	@TAUT_MODEL_SEQUENCES=$(SEQUENCES) $(if $(SEED),TAUT_MODEL_SEED=$(SEED)) \
	    $(CARGO) test --release --locked -p taut-snoop --test model -- --nocapture

fuzz: setup-all ## the parsers of what relays and strangers send, 200,000 inputs each: ARGS=-max_total_time=60 for longer
	@echo "taut: building the fuzz targets and running them (scripts/fuzz)"
	@scripts/fuzz $(ARGS)

report: root-all release guests ## every experiment into target/report, and one HTML page of all (root; about 165 minutes, with ARGS=--quick half an hour; ARGS=--resume goes on)
	@echo "taut: running every experiment; the outcomes and the page go to target/report"
	@tree=$$(git describe --always --dirty 2>/dev/null) && set -- --tree "$$tree"; $(TAUT) lab all $(TARGET)/report "$$@" $(ARGS)

# === not listed by `make help`: steps of other targets, and of engineers ===

# The pages of docs/reference, generated from the code. The test of a page fails while it is stale.
reference: root-all
	@echo "taut: building the tests that write docs/reference, and running them"
	@TAUT_WRITE_REFERENCE=1 $(CARGO) test --quiet --locked -p taut --bin taut reference::
	@TAUT_WRITE_REFERENCE=1 $(CARGO) test --quiet --locked -p taut --test jobs -- metrics::

# The tests of attaching, of queues, of a full table, and of the leftovers of a killed process: Linux 6.1 differs there. The others would
# take several minutes more in the emulator.
old-kernel-short:
	@echo "taut: running some tests on Linux 6.1 too (scripts/on-kernel; all of them: make test-old-kernel)"
	@$(CARGO) test --workspace --locked --lib --test tap \
	    $(call on-old-kernel,--only tap --only taut_observe --only taut_tune) -- \
	    tap_supervisor:: make_room bpf_iter:: scan:: actuate::tests:: tuner::

# Legs and half-close with TLS in the kernel, which this machine's may not have. They fail without it.
kernel-tls-short:
	@echo "taut: running the tests of TLS in the kernel on Linux 6.12 (scripts/on-kernel)"
	@TAUT_REQUIRE_KERNEL_TLS=1 $(CARGO) test --workspace --locked --lib --test sockets \
	    $(call on-kernel,--only taut_sys --only taut_relay --only sockets --module tls 6.12) -- \
	    kernel_tls forwarding::leg half_close

guest-module-short:
	@echo "taut: building taut_pvtcp and loading it 20 times on Linux 6.1 (100 times, and what it does in gaps: make test-guest)"
	@TAUT_KMOD_LOADS=20 crates/guest/kmod/test/run 6.1 cycles

# What the guests of the experiments incast and descheduled are made of, and those of tests of snoop.
guests: setup-test
	@scripts/on-kernel 6.12
	@scripts/guest-module 6.12 >/dev/null

setup-%:
	@scripts/setup $*

# Before anything else of a target that will make network namespaces.
root-%:
	@scripts/setup --as-root $*

release: setup-build
	@echo "taut: building $(TAUT) and taut-lab (cargo build --release)"
	@$(CARGO) build --release --locked -p taut -p taut-lab
	@scripts/strip $(TAUT) $(TAUT)-lab

# `root-%` must refuse before anything is built, and cargo locks its target directory anyway.
.NOTPARALLEL:
