# Two commands for a fresh machine with python3 (3.11+), g++ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# 2.13 has a small CPU build; any torch from 2.6 on will do
FRAMEWORKS ?= "torch==2.13.0" "jax>=0.5.3" "tensorflow-cpu>=2.16" flatbuffers
# the tests' processes; each may load three frameworks
PROCESSES ?= 2

.PHONY: demo test lint gpu-test gpu-bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

demo: $(BIN)/python
	$(BIN)/pip install --quiet ".[plot]"
	$(BIN)/lapwing demo

test: $(BIN)/python
	$(BIN)/pip install --quiet $(FRAMEWORKS) || $(BIN)/pip install --quiet torch "jax>=0.5.3" "tensorflow-cpu>=2.16" flatbuffers
	$(BIN)/pip install --quiet -e ".[test]"
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	$(BIN)/pytest -q -m "not gpu and not slow" -n $(PROCESSES) --dist loadfile
	# TensorFlow's LLVM and Triton's end a process that has both: Triton lies apart, for its own tests
	$(BIN)/pip install --quiet --no-deps --target $(VENV)/triton "triton>=3.9" || echo "note: no Triton here; its tests are skipped"
	PYTHONPATH=$(VENV)/triton $(BIN)/pytest -q -m "not gpu and not slow" tests/tune/test_triton.py

# where a GPU is: the frameworks that are installed there are used as they are
gpu-test:
	$(PYTHON) setup.py -q build_ext --inplace
	PYTHONPATH=src $(PYTHON) -m pytest -q -m gpu

gpu-bench:
	$(PYTHON) setup.py -q build_ext --inplace
	PYTHONPATH=src $(PYTHON) benchmarks/gpu.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info
