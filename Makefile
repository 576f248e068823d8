# `make` lists what can be made. Tools that are missing go to .cache/, except what only the system can install.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.cache/bin:$(HOME)/.cargo/bin:$(PATH)

# Settings of Weft, and ranks that a launcher has given to this shell, are not for the tests. What chooses tests is.
CHOICES := WEFT_SCHEDULES WEFT_SHARED WEFT_BLESS WEFT_DRAWS WEFT_DRAWS_AT_ONCE WEFT_DRAWS_SHOWN WEFT_SEED WEFT_MUTANT WEFT_MUTANTS
unexport $(filter-out $(CHOICES),$(filter WEFT_% OMPI_% PMIX_% PMI_% MPI_% SLURM_% TORCHELASTIC_% MASTER_% LOCAL_% \
	RANK WORLD_SIZE GROUP_RANK ROLE_RANK,$(.VARIABLES)))

# Tools are built to be built soon, not to run fast: minutes instead of a quarter of an hour on two cores.
INSTALL := CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=256 \
	cargo install --locked --root .cache

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{ \
		line = sprintf("  make %-11s", $$1); \
		for (i = 1; i <= split($$2, word, " "); i++) { \
			if (length(line word[i]) >= 80) { print line; line = sprintf("%18s", "") } \
			line = line " " word[i] \
		} \
		print line }' $(MAKEFILE_LIST)

.PHONY: test
test: tools ## everything: fmt, clippy, tests, GPU kernels, loom, kernels, instructions, doctests, the commands in README and docs, the Python package, 15 s on each fuzz target
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

# The crates that differ from BASE, committed or not, and what depends on them.
BASE ?= main
CHANGED = $(shell { git diff --name-only $$(git merge-base HEAD $(BASE)); git ls-files --others --exclude-standard; } \
	| sed -n 's|^crates/\([^/]*\)/.*|weftlink-\1|p' | sed 's|^weftlink-weftlink$$|weftlink|' | sort -u)

.PHONY: check
check: tools ## before a commit: fmt, then clippy and the tests of the crates changed since BASE (main), and unit tests of their dependents
	cargo fmt --all --check
	@if [[ -z "$(CHANGED)" ]]; then echo "no crate differs from $(BASE)"; exit 0; fi; set -x; \
	cargo clippy --locked --all-targets $(addprefix -p ,$(CHANGED)) -- -D warnings; \
	cargo nextest run --locked $(addprefix -p ,$(CHANGED)); \
	cargo nextest run --locked --workspace --lib --no-tests=pass \
		-E '($(foreach crate,$(CHANGED),rdeps($(crate)) +) none()) $(foreach crate,$(CHANGED),- package($(crate)))'

.PHONY: python
python: ## the Python environment in .cache/python: Weft as pip installs it, NumPy, PyTorch
	@crates/python/environment.py

.PHONY: test-python
test-python: python ## the Python package: its tests, the examples in its documentation, docs/python.md
	.cache/python/bin/python -m unittest discover -s crates/python/tests

.PHONY: loom
loom: ## the lock-free code under every interleaving with up to three preemptions
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
		cargo test -p weftlink-shm --lib --release --locked --target-dir target/loom loom

.PHONY: miri
miri: ## the unsafe code that needs no system call, interpreted by Miri: undefined behaviour, data races; installs nightly's component if it is missing
	@if ! cargo +nightly miri --version >/dev/null 2>&1; then \
		echo "installing Miri: rustup +nightly component add miri rust-src"; rustup toolchain install nightly --profile minimal -c miri -c rust-src; \
	fi
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks" \
		cargo +nightly miri test -p weftlink-shm -p weftlink-comm --lib --locked --target-dir target/miri -- \
		line:: fifo:: counter:: wait:: slot:: tcp::ends tcp::frame shared_memory:: engine:: data:: operation:: buffers::

.PHONY: kernels
kernels: ## the kernels as they ship: only when optimised are they made of registers
	cargo test -p weftlink-kernels --lib --release --locked

.PHONY: cuda
cuda: ## compile the GPU kernels for sm_70 to sm_120 with NVRTC, which needs no GPU; downloads NVRTC into .cache/nvrtc once (180 MB)
	crates/cuda/nvrtc.py
	cargo nextest run -p weftlink-cuda --test architectures --run-ignored only --locked

.PHONY: instructions
instructions: ## instructions of the hot paths under callgrind, compared with crates/comm/benches/instructions.csv; BLESS=--bless to write it
	crates/comm/benches/instructions.py $(BLESS)

.PHONY: neon
neon: ## the same for 64-bit ARM, under qemu; installs a compiler, a linker and qemu (Debian's) if they are missing
	crates/kernels/neon.sh install

.PHONY: tools
tools: ## install what the tests need and is not here yet
	@if ! command -v g++ >/dev/null || ! command -v valgrind >/dev/null || ! PATH="$$PATH:/usr/sbin:/sbin" command -v ip >/dev/null \
		|| ! python3 -c 'import ensurepip' 2>/dev/null; then \
		echo "installing g++ (links programs, builds the fuzzing engine), valgrind (counts instructions), iproute2 (wires namespaces that stand for hosts) and python3-venv (where the Python package is tested): apt-get install"; \
		root=; if (( EUID != 0 )); then root=sudo; fi; \
		$$root apt-get update -q; $$root apt-get install -qy --no-install-recommends g++ valgrind iproute2 python3-venv; \
	fi
	@if ! command -v cargo >/dev/null; then \
		echo "there is no cargo here; rustup.rs tells how to install it, then run make again"; exit 1; \
	fi
	@for part in rustfmt clippy; do \
		if ! cargo $${part/rust/} --version >/dev/null 2>&1; then \
			echo "installing $$part: rustup component add $$part"; rustup component add $$part; \
		fi; \
	done
	@if ! cargo nextest --version >/dev/null 2>&1; then \
		echo "installing cargo-nextest (runs the tests) into .cache/bin; some minutes, once"; \
		$(INSTALL) cargo-nextest; \
	fi

.PHONY: bench
bench: ## time the fabric at scale, the kernels, ranks that start and a bare exchange of cache lines (results: bench/runs/)
	cargo bench --workspace --locked

.PHONY: bench-peers
bench-peers: ## measure beside Open MPI, MPICH, Intel MPI, oneCCL and Gloo; PEERS="--quick" and other options: bench/README.md
	cargo build --release --locked -p weftlink-cli
	bench/peers/install.py
	bench/peers/run.py $(PEERS)

.PHONY: bench-torch
bench-torch: python ## measure beside Gloo in PyTorch: every collective, then training; TORCH="--quick" and other options: bench/README.md
	.cache/python/bin/python -W ignore bench/torch/run.py $(TORCH)
	.cache/python/bin/python -W ignore bench/torch/train.py

.PHONY: faults
faults: tools ## draw 1,000 faults of 19 kinds (docs/faults.md lists them) and print what came of them; DRAWS and SEED to choose others
	WEFT_DRAWS=$${DRAWS:-1000} WEFT_SEED=$${SEED:-1} \
		cargo test --release -p weftlink-comm --test draws --locked -- --exact draws --nocapture

.PHONY: schedules
schedules: tools ## a million schedules of delays, stops, deaths and partitions for the membership of up to 64 ranks, and for messages between up to 8; SCHEDULES for another number
	WEFT_SCHEDULES=$${SCHEDULES:-1000000} cargo test --release -p weftlink-membership -p weftlink-p2p --test schedules --locked -- --nocapture

.PHONY: mutants
mutants: tools ## plant defects in the fault, bootstrap, wire and matching code, one at a time, and print which of them the tests catch; MUTANTS="NAME" or "--bless"
	crates/comm/mutants.py $(MUTANTS)

.PHONY: fuzz
fuzz: tools ## an hour on each fuzz target
	fuzz/run 3600

.PHONY: soak
soak: ## 10 minutes of checked calls under load, ranks stopped for half a second at random: no false alarm, nothing grows; SOAK="--minutes 1" and other options
	cargo bench -p weftlink-comm --locked --bench soak -- $(or $(SOAK),--minutes 10)

.PHONY: bless
bless: tools ## write what is generated afresh: outputs shown in docs, docs/claims.md, pictures, snapshots
	WEFT_BLESS=1 cargo nextest run --workspace --locked
	git status --short

.PHONY: deny
deny: cargo-deny ## licences, banned crates, sources
	cargo deny check bans licenses sources

.PHONY: advisories
advisories: cargo-deny ## known vulnerabilities; fetches the advisory database
	cargo deny check advisories

.PHONY: cargo-deny
cargo-deny:
	@if ! cargo deny --version >/dev/null 2>&1; then \
		echo "installing cargo-deny (reads deny.toml) into .cache/bin; some minutes, once"; \
		$(INSTALL) cargo-deny; \
	fi

.PHONY: clean
clean: ## remove what was built, tools included
	cargo clean
	rm -rf .cache fuzz/target fuzz/artifacts
