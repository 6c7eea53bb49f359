# make demo: environment, install, main job.   make test: the same, then the tests.   make test-all: more of them, nightly.
# Tests that judge times run by themselves. The others wait as often as they compute: more workers than cores.
# make bench: the engine against DDP, ZeroRedundancyOptimizer and FSDP2 (minutes; wants a quiet machine).
# make bench-answer: what a user waits for, each beside its peer (an hour; wants a quiet machine).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
# torch without CUDA, for a machine without a GPU. Where this does not answer, pip takes the torch that it finds.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# A modelled link: what the loopback of a machine takes says nothing of a network.
GUARDED := --stage 3 --prefetch 1 --layers 4 --hidden 64 --steps 12 \
	--link-gbps 0.4 --link-latency-us 50 --compute-forward-ms 4 --compute-backward-ms 8

# Compiled once, and not by each worker and each of the hundreds of processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all bench bench-answer check size guard guard-answer frozen docs pictures clean

$(READY): pyproject.toml constraints.txt .ci/install_cpu_torch.py
	$(PYTHON) -c 'import sys; sys.exit("zprof needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/install_cpu_torch.py $(TORCH_INDEX) constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/zprof demo

# Both halves run, whatever the first one says. $(1): environment, $(2): which tests of each half.
define run_tests
	@fast=0; timed=0; \
	$(1) $(BIN)/python -m pytest -n 4 --dist loadgroup -m "not timed$(2)" || fast=$$?; \
	echo "Tests that judge times, one at a time:"; \
	$(1) $(BIN)/python -m pytest tests/integration tests/programs -m "timed$(2)" || timed=$$?; \
	if [ $$fast$$timed = 00 ]; then echo "Both halves passed."; else \
	echo "Failed: exit code $$fast of the tests side by side, $$timed of those that judge times (5: none ran)."; \
	exit 1; fi
endef

test: $(READY)
	@echo "On 2 cores this takes 10 minutes, beside other work up to 25: most tests side by side, then those that judge times."
	$(call run_tests,, and not slow)

test-all: $(READY)
	@echo "On 2 cores this takes hours: pytest -m slow FOLDER runs a part."
	$(call run_tests,ZPROF_NEW_EXAMPLES=1,)

bench: $(READY)
	$(BIN)/python -m benchmarks.engine

bench-answer: $(READY)
	$(BIN)/python -m benchmarks.answer

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p zprof

# Definitions, one-caller helpers, one-importer modules, once-built structs, and what diagnose runs, against
# benchmarks/size.json: ten seconds.
size: $(READY)
	$(BIN)/python -m benchmarks.size

# The reference engine's own memory, volume and overlap against zprof-baseline.json: limits in pyproject.toml.
guard: $(READY)
	$(BIN)/zprof train --output build/engine.zprof --force $(GUARDED) > /dev/null
	$(BIN)/zprof check build/engine.zprof --baseline zprof-baseline.json --require-baseline

# Processor time and peak memory of an answer, beside their peers, against benchmarks/guard.json: three minutes.
guard-answer: $(READY)
	$(BIN)/python -m benchmarks.guard

# What zprof says about its inputs, leaf by leaf and line by line, against benchmarks/frozen/copies.
frozen: $(READY)
	$(BIN)/python -m benchmarks.frozen

# The site, into build/site; a broken link or an unknown name ends it.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --quiet

# Every number and picture of the README and the pages: one recording, one script. tests/integration/docs compares.
pictures: $(READY)
	$(BIN)/python -m docs.tools.pictures --record

clean:
	rm -rf $(VENV) zprof-demo build dist
