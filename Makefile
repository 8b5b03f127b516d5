# Every target sets up what it needs, from nothing but Python 3.10+; a second call finds it there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Once, rather than in each process of the first tests.
COMPILE := $(BIN)/python -m sb3_compressed.compile_kernels
# Three processes for two cores, since tests of Ray and of killed processes mostly wait.
WORKERS := $(shell $(PYTHON) -c "import os; print((3 * (os.cpu_count() or 1) + 1) // 2)")
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 20 --durations-min 10
# Tests that stop and kill real processes need a machine that answers in time: what has failed beside other tests must
# pass alone. Its first failure stays in the output.
ALONE = || { test $$? -eq 1 && $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

PEERS := .venv-peers
ZOO := .venv-zoo

BENCH := $(BIN)/python benchmarks
RESULTS := benchmarks/results
# Each makes the page of the same name.
SCRIPTS := training images codec_comparison scale rollouts saving samplers dataset_formats distributed_buffer

.PHONY: demo apex test test-all cuda coverage bounds fallbacks windows upstream zoo soak bench bench-cuda peers report docs pictures lint format clean

demo: $(VENV)/.demo  ## train DQN with SB3's buffer and a compressed one; compare weights, memory and time
	$(BIN)/python examples/demo.py

apex: $(VENV)/.installed  ## train Ape-X DQN on Pong with collectors and a distributed buffer
	$(BIN)/python examples/apex_dqn.py

test: $(VENV)/.installed  ## run the tests, but the slow ones
	$(COMPILE)
	$(PYTEST) -m "not slow" $(ALONE)

test-all: $(VENV)/.installed  ## run all tests
	$(COMPILE)
	$(PYTEST) $(ALONE)

coverage: $(VENV)/.installed  ## run all tests and list the lines and branches that none of them runs
	# In a forked child, coverage starts again and replaces the trace function with which the test kills it at each line.
	$(PYTEST) --cov --cov-report=term-missing \
		--deselect tests/callbacks/test_checkpoint_callback.py::test_a_kill_while_a_checkpoint_is_replaced_leaves_a_complete_one

bounds: $(VENV)/.installed  ## run all tests, with new and more random examples, and bounds checking in the kernels
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(abspath $(VENV))/bounds SB3_COMPRESSED_DAMAGES=1000 SB3_COMPRESSED_FOLDERS=1000 SB3_COMPRESSED_EXAMPLES=7 $(PYTEST)

fallbacks: $(VENV)/.installed  ## run all tests without the mechanisms that depend on CPython's details
	SB3_COMPRESSED_FORCE_FALLBACKS=1 $(PYTEST)

windows: $(VENV)/.installed  ## run the tests of files and buffers under Windows' rules, which Linux emulates for Python 3.11+
	PYTHONPATH=tests/windows WINDOWS_RULES=all $(PYTEST) -p windows_summary -p no:cacheprovider -m "not slow" \
		tests/windows/under_rules $(addprefix tests/,storage persistence callbacks buffers arrays samplers datasets)

upstream: $(VENV)/.installed  ## run the buffer tests of SB3 and sb3-contrib against the compressed buffers
	$(BIN)/python tests/upstream/run.py

cuda: $(VENV)/.installed  ## run the tests that need a CUDA device; without a CUDA build of torch in the environment, all are skipped
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cuda]'
	$(PYTEST) -m cuda tests/cuda_device

soak: $(VENV)/.installed  ## overwrite a buffer for hours, and kill trainings on Ray and their saves hundreds of times
	$(BENCH)/soak.py
	$(BENCH)/fault_soak.py

zoo: $(ZOO)/.installed  ## train with rl-baselines3-zoo and SBX, which have an environment of their own
	$(ZOO)/bin/python -m pytest tests/examples/test_zoo.py tests/algorithms/test_sbx.py

bench: $(VENV)/.environments $(PEERS)/.installed  ## measure all but the GPU, about 80 minutes on two quiet cores
	failed=; for script in $(SCRIPTS); do \
		$(BENCH)/$$script.py --out $(RESULTS)/$$script.json || failed="$$failed $$script"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }
	$(BENCH)/report.py

bench-cuda: $(VENV)/.environments  ## measure batches and trainings on a CUDA device, some minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cuda]'
	$(BENCH)/device.py --out $(RESULTS)/device.json
	$(BENCH)/report.py

report: $(VENV)/.installed  ## write the pages of results and the table of the README
	$(BENCH)/report.py

docs: $(VENV)/.installed  ## build the documentation in docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build

pictures: $(VENV)/.installed  ## draw the pictures of advise and of the demo
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python docs/pictures/terminal.py docs/pictures/advise.svg \
		sb3-compressed advise PongNoFrameskip-v4
	$(BIN)/python examples/demo.py
	cp build/demo/demo.svg docs/pictures/demo.svg

peers: $(PEERS)/.installed  ## install what the benchmarks compare with, in an environment of its own

lint: $(VENV)/.installed  ## check style, types and the directions of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(PEERS) $(ZOO) docs/_build

# $(call install,EXTRA): install the package with an extra in the environment, which is created if necessary.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
endef

# What the demo needs, in half the time of all.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(call install,demo)
	@touch $@

# With the file that contains the version, which the metadata of the installed package must match.
$(VENV)/.installed: pyproject.toml constraints.txt sb3_compressed/__init__.py
	$(call install,dev)
	@touch $(VENV)/.demo $@

$(VENV)/.environments: $(VENV)/.installed benchmarks/environments.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[environments]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/environments.txt
	@touch $@

$(PEERS)/.installed: $(VENV)/.installed benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(BIN)/python -m pip freeze --exclude-editable > $(PEERS)/constraints.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c $(PEERS)/constraints.txt -r benchmarks/peers.txt
	@touch $@

$(ZOO)/.installed: zoo.txt pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r zoo.txt -e '.[examples]'
	@touch $@
