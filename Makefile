# `make train` and `make test` set themselves up from nothing: a virtual environment with pinned packages, once.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(shell $(name) -c 'print("$(name)")' 2>/dev/null)))
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

.PHONY: help train train-libero simulators ros2 test test-processes kernels lint types docs wheel-smoke setup clean

help:
	@echo "make train        train the small OpenVLA on the tabletop suite (sets everything up first)"
	@echo "make train-libero install LIBERO's official tasks, and train the small OpenVLA on libero_spatial"
	@echo "make simulators   install EnvPool, MuJoCo Warp, MetaWorld, ALOHA, and ManiSkill with a Vulkan driver for the CPU"
	@echo "make ros2         install rclpy for the twin and the tests; a robot's own ROS 2 serves as well"
	@echo "make test         run the tests (sets everything up first) but for those of the next line"
	@echo "make test-processes  run the tests that start Python, Ray, ROS, OpenGL or a browser"
	@echo "make lint types   ruff (rules and format); pyright"
	@echo "make docs         build the documentation's site into build/site; a broken link fails"
	@echo "make wheel-smoke  build the wheel and try it in an environment of its own"
	@echo "make clean        delete the virtual environment and build outputs; runs/ is kept"

train: $(STAMP)
	$(BIN)/embodied-rl train tabletop $(ARGS)

train-libero: $(STAMP)
	$(BIN)/embodied-rl assets install libero
	$(BIN)/embodied-rl train libero $(ARGS)

simulators: $(STAMP)
	$(PIP) install -q -c constraints.txt -e '.[envpool,warp]'
	@sh .ci/install-maniskill $(BIN)/python
	@sh .ci/install-lavapipe
	@$(BIN)/embodied-rl assets install metaworld
	@$(BIN)/embodied-rl assets install aloha
	@sh .ci/check-no-cuda $(BIN)/python

ros2: $(STAMP)
	@sh .ci/install-ros2 $(BIN)/python

# A worker takes tests in a row, so that few fixtures of a module are made twice, and then from those that another has.
# One thread a worker: workers whose threads wait for each other in a busy loop are far slower than one thread each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test: kernels
	$(PYTEST) -m "not process" $(ARGS)

test-processes: kernels
	$(PYTEST) -m process $(ARGS)

# Before the workers start: each of them would compile the same kernels.
kernels: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.kernels

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# It needs more than the 4 GB that node gives a program, and would go on in ever smaller steps.
types: $(STAMP)
	NODE_OPTIONS=--max-old-space-size=8192 $(BIN)/pyright --pythonpath $(BIN)/python

docs: $(STAMP)
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel-smoke: $(STAMP)
	BIN=$(BIN) sh .ci/wheel-smoke

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python found: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install python3-venv (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@sh .ci/install-torch $(BIN)/python
	@echo "Installing the tested versions of all packages: some minutes"
	$(PIP) install -q -c constraints.txt -e '.[dev,track]'
	@sh .ci/check-no-cuda $(BIN)/python
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
