# `make` lists the targets. Missing tools are installed into .cache/, system packages by the package manager.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.cache/bin:$(HOME)/.cargo/bin:$(PATH)

# Tests do not inherit settings of Weft or ranks that a launcher set in this shell, except the variables that select tests.
CHOICES := WEFT_SCHEDULES WEFT_FIRST_SEED WEFT_SHARED WEFT_BLESS WEFT_DRAWS WEFT_DRAWS_AT_ONCE WEFT_DRAWS_SHOWN WEFT_SEED WEFT_MUTANT WEFT_MUTANTS
unexport $(filter-out $(CHOICES),$(filter WEFT_% OMPI_% PMIX_% PMI_% MPI_% SLURM_% TORCHELASTIC_% MASTER_% LOCAL_% \
	RANK WORLD_SIZE GROUP_RANK ROLE_RANK,$(.VARIABLES)))

# Build tools without optimisation: minutes instead of a quarter of an hour on two cores.
INSTALL := CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=256 \
	cargo install --locked --root .cache

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{ \
		line = sprintf("  make %-12s", $$1); \
		for (i = 1; i <= split($$2, word, " "); i++) { \
			if (length(line word[i]) >= 80) { print line; line = sprintf("%19s", "") } \
			line = line " " word[i] \
		} \
		print line }' $(MAKEFILE_LIST)

.PHONY: test
test: tools ## run everything: fmt, clippy, tests, GPU kernels, loom, kernels, instruction counts, doctests, the commands in README and docs, the Python package, 15 s of each fuzz target
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo nextest run --workspace --locked
	$(MAKE) cuda
	$(MAKE) loom
	$(MAKE) kernels
	crates/kernels/neon.sh
	$(MAKE) instructions
	cargo test --workspace --doc --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	python3 -m unittest bench/peers/test_run.py
	$(MAKE) test-python
	fuzz/run 15

# The crates that differ from BASE, committed or not.
BASE ?= main
CHANGED = $(shell { git diff --name-only $$(git merge-base HEAD $(BASE)); git ls-files --others --exclude-standard; } \
	| sed -n 's|^crates/\([^/]*\)/.*|weftlink-\1|p' | sed 's|^weftlink-weftlink$$|weftlink|' | sort -u)

.PHONY: check
check: tools ## check before a commit: fmt, clippy and the tests of crates changed since BASE (main) that take less than ten seconds, unit tests of their dependents
	cargo fmt --all --check
	@if [[ -z "$(CHANGED)" ]]; then echo "no crate differs from $(BASE)"; exit 0; fi; set -x; \
	cargo clippy --locked --all-targets $(addprefix -p ,$(CHANGED)) -- -D warnings; \
	$(if $(filter weftlink-cli,$(CHANGED)),cargo build --locked -p weftlink --examples; cargo build --locked -p weftlink-capi;) \
	cargo nextest run --profile check --locked $(addprefix -p ,$(CHANGED)); \
	cargo nextest run --profile check --locked --workspace --lib --no-tests=pass \
		-E '($(foreach crate,$(CHANGED),rdeps($(crate)) +) none()) $(foreach crate,$(CHANGED),- package($(crate)))'

# The SONAME of libweft (libweft.so.0, crates/capi/build.rs) changes with its binary interface.
PREFIX ?= /usr/local
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

.PHONY: capi
capi: ## build the C library (libweft.so, libweft.a, weft.h; docs/c.md) and libnccl.so.2 (docs/nccl.md) into target/release/
	cargo build --release --locked -p weftlink-capi -p weftlink-nccl
	ln -sf libweft.so target/release/libweft.so.0
	cp crates/capi/weft.h target/release/
	ln -sf libnccl.so target/release/libnccl.so.2

.PHONY: plugins
plugins: ## build the tuner and the profiler for NVIDIA's NCCL (libnccl-tuner-weft.so, libnccl-profiler-weft.so; docs/plugins.md) into target/release/
	cargo build --release --locked -p weftlink-nccl-tuner -p weftlink-nccl-profiler
	ln -sf libnccl_tuner_weft.so target/release/libnccl-tuner-weft.so
	ln -sf libnccl_profiler_weft.so target/release/libnccl-profiler-weft.so

.PHONY: install
install: capi plugins ## install the command, the C library, its header, weft.pc, libnccl.so.2 for `weft run --nccl`, the plugins for NCCL and the manual pages below PREFIX (/usr/local); DESTDIR is put in front, for packages
	cargo build --release --locked -p weftlink-cli
	install -D -m 755 target/release/weft '$(DESTDIR)$(PREFIX)/bin/weft'
	install -D -m 755 target/release/libweft.so '$(DESTDIR)$(PREFIX)/lib/libweft.so.$(VERSION)'
	ln -sf libweft.so.$(VERSION) '$(DESTDIR)$(PREFIX)/lib/libweft.so.0'
	ln -sf libweft.so.0 '$(DESTDIR)$(PREFIX)/lib/libweft.so'
	install -D -m 755 target/release/libnccl.so '$(DESTDIR)$(PREFIX)/lib/weft/libnccl.so.2' # where only `weft run --nccl` looks
	install -D -m 755 target/release/libnccl_tuner_weft.so '$(DESTDIR)$(PREFIX)/lib/libnccl-tuner-weft.so'
	install -D -m 755 target/release/libnccl_profiler_weft.so '$(DESTDIR)$(PREFIX)/lib/libnccl-profiler-weft.so'
	install -D -m 644 crates/capi/weft.h '$(DESTDIR)$(PREFIX)/include/weft.h'
	install -d '$(DESTDIR)$(PREFIX)/lib/pkgconfig' '$(DESTDIR)$(PREFIX)/share/man/man1'
	sed 's|@prefix@|$(PREFIX)|; s|@version@|$(VERSION)|' crates/capi/weft.pc.in > '$(DESTDIR)$(PREFIX)/lib/pkgconfig/weft.pc'
	target/release/weft man '$(DESTDIR)$(PREFIX)/share/man/man1'

.PHONY: python
python: ## create the Python environment in .cache/python: Weft as pip installs it, NumPy, PyTorch
	@crates/python/environment.py

.PHONY: test-python
test-python: python ## test the Python package, the examples in its documentation and docs/python.md
	.cache/python/bin/python -m unittest discover -s crates/python/tests

.PHONY: wheel
wheel: ## build a wheel for other machines in target/wheels, for Python 3.10 and glibc 2.17 and later; zig links it; WHEEL="--glibc 2.28" and other options
	crates/python/wheel.py $(WHEEL)

.PHONY: loom
loom: ## check the lock-free code under every interleaving with up to three preemptions
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
		cargo test -p weftlink-shm --lib --release --locked --target-dir target/loom loom

.PHONY: miri
miri: ## check unsafe code without system calls under Miri for undefined behaviour and data races; installs Miri if it is missing
	@if ! cargo +nightly miri --version >/dev/null 2>&1; then \
		echo "installing Miri: rustup +nightly component add miri rust-src"; rustup toolchain install nightly --profile minimal -c miri -c rust-src; \
	fi
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks" \
		cargo +nightly miri test -p weftlink-shm -p weftlink-comm --lib --locked --target-dir target/miri -- \
		line:: fifo:: counter:: wait:: slot:: tcp::ends tcp::frame shared_memory:: engine:: data:: operation:: buffers::

.PHONY: kernels
kernels: ## test the kernels in an optimised build, as they ship
	cargo test -p weftlink-kernels --lib --release --locked

.PHONY: cuda
cuda: ## compile the GPU kernels for sm_70 to sm_120 with NVRTC, which needs no GPU; downloads NVRTC into .cache/nvrtc once (180 MB)
	crates/cuda/nvrtc.py
	cargo nextest run -p weftlink-cuda --lib --test architectures --run-ignored only --locked -E 'binary(architectures) | test(the_kernel_compiles)'

.PHONY: gpu-test
gpu-test: ## run the cases and 100 random faults on the first GPU, ranks as threads, as processes and under MPS, and the cases under compute-sanitizer; needs a GPU and NVRTC; GPU_TESTS="faults sanitizer" selects some
	crates/cuda/gpu-test.sh '' $(GPU_TESTS)

.PHONY: instructions
instructions: ## count the instructions of hot paths under callgrind and compare with crates/comm/benches/instructions.csv; BLESS=--bless rewrites the file
	crates/comm/benches/instructions.py $(BLESS)

.PHONY: neon
neon: ## test the kernels for 64-bit ARM under qemu; installs a compiler, a linker and qemu (Debian) if they are missing
	crates/kernels/neon.sh install

.PHONY: tools
tools: ## install missing tools that the tests need
	@if ! command -v g++ >/dev/null || ! command -v valgrind >/dev/null || ! PATH="$$PATH:/usr/sbin:/sbin" command -v ip >/dev/null \
		|| ! python3 -c 'import ensurepip' 2>/dev/null; then \
		echo "installing g++ (linker, fuzzing engine), valgrind (instruction counts), iproute2 (test hosts in network namespaces) and python3-venv (tests of the Python package): apt-get install"; \
		root=; if (( EUID != 0 )); then root=sudo; fi; \
		$$root apt-get update -q; $$root apt-get install -qy --no-install-recommends g++ valgrind iproute2 python3-venv; \
	fi
	@if ! command -v cargo >/dev/null; then \
		echo "cargo is not installed. Install it from https://rustup.rs, then run make again"; exit 1; \
	fi
	@for part in rustfmt clippy; do \
		if ! cargo $${part/rust/} --version >/dev/null 2>&1; then \
			echo "installing $$part: rustup component add $$part"; rustup component add $$part; \
		fi; \
	done
	@if ! cargo nextest --version >/dev/null 2>&1; then \
		echo "installing cargo-nextest (test runner) into .cache/bin; takes some minutes, once"; \
		$(INSTALL) cargo-nextest; \
	fi

.PHONY: bench
bench: ## time the fabric at scale, the kernels, startup and a bare exchange of cache lines (results: bench/runs/)
	cargo bench --workspace --locked

.PHONY: bench-peers
bench-peers: ## compare with Open MPI, MPICH, Intel MPI, oneCCL and Gloo; PEERS="--quick" and other options: bench/README.md
	cargo build --release --locked -p weftlink-cli
	bench/peers/install.py
	bench/peers/run.py $(PEERS)

.PHONY: bench-torch
bench-torch: python ## compare with Gloo in PyTorch: every collective, then training; TORCH="--quick" and other options: bench/README.md
	.cache/python/bin/python -W ignore bench/torch/run.py $(TORCH)
	.cache/python/bin/python -W ignore bench/torch/train.py

.PHONY: faults
faults: tools ## inject 1,000 random faults of 19 kinds (docs/faults.md lists them) and print the results; DRAWS and SEED select others
	WEFT_DRAWS=$${DRAWS:-1000} WEFT_SEED=$${SEED:-1} \
		cargo test --release -p weftlink-comm --test draws --locked -- --exact draws --nocapture

.PHONY: schedules
schedules: tools ## simulate a million schedules of delays, stops, deaths and partitions: rendezvous and membership of up to 64 ranks, messages between up to 8; SCHEDULES sets the number
	WEFT_SCHEDULES=$${SCHEDULES:-1000000} cargo test --release -p weftlink-membership -p weftlink-p2p --test schedules --test rendezvous --locked -- --nocapture

.PHONY: mutants
mutants: tools ## plant defects in the fault, bootstrap, wire and matching code, one at a time, and print which the tests catch; MUTANTS="NAME" or "--bless"
	crates/comm/mutants.py $(MUTANTS)

.PHONY: fuzz
fuzz: tools ## run each fuzz target for an hour
	fuzz/run 3600

.PHONY: soak
soak: ## make checked calls under load for 10 minutes, with ranks stopped at random for half a second: no false alarm, no growth of memory; SOAK="--minutes 1" and other options
	cargo bench -p weftlink-comm --locked --bench soak -- $(or $(SOAK),--minutes 10)

.PHONY: bless
bless: tools ## regenerate outputs in docs, docs/claims.md, pictures and snapshots
	WEFT_BLESS=1 cargo nextest run --workspace --locked
	git status --short

.PHONY: deny
deny: cargo-deny ## check licences, banned crates and sources
	cargo deny check bans licenses sources

.PHONY: advisories
advisories: cargo-deny ## check dependencies for known vulnerabilities; fetches the advisory database
	cargo deny check advisories

.PHONY: cargo-deny
cargo-deny:
	@if ! cargo deny --version >/dev/null 2>&1; then \
		echo "installing cargo-deny (reads deny.toml) into .cache/bin; takes some minutes, once"; \
		$(INSTALL) cargo-deny; \
	fi

.PHONY: clean
clean: ## remove build outputs and installed tools
	cargo clean
	rm -rf .cache fuzz/target fuzz/artifacts
