# Every target sets up what it needs, from nothing but Python 3.10+; a second call finds it there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

PEERS := .venv-peers

.PHONY: demo test bench peers lint format clean

demo: $(VENV)/.installed  ## train DQN on Pong with a compressed replay buffer and compare the memory
	$(BIN)/python examples/dqn_atari.py

test: $(VENV)/.installed  ## run all tests
	$(BIN)/python -m pytest -n auto

bench: $(VENV)/.installed  ## measure against SB3's buffer on six games, about twenty minutes on two quiet cores
	$(BIN)/python benchmarks/replay.py --out benchmarks/results/replay.json

peers: $(PEERS)/.installed  ## install what the benchmarks compare with, in an environment of its own

lint: $(VENV)/.installed  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed  ## put the code in its canonical form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(PEERS)

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(PEERS)/.installed: $(VENV)/.installed benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(BIN)/python -m pip freeze --exclude-editable > $(PEERS)/constraints.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c $(PEERS)/constraints.txt -r benchmarks/peers.txt
	@touch $@
