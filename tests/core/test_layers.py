"""The folder tree is the architecture: arrows point down only, and importing lapwing loads no framework."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lapwing

PACKAGE = Path(lapwing.__file__).parent

# which parts of lapwing each part may import
ALLOWED = {
    "core": {"core", "_native", "_version"},
    "planner": {"core"},
    "frameworks": {"frameworks", "core"},
    "ops": {"ops", "planner", "frameworks", "core"},
    "gram": {"gram", "frameworks", "core"},
    "bench": {"bench", "gram", "ops", "planner", "frameworks", "core", "__init__", "_version"},
    "cli": {
        "cli",
        "bench",
        "insitu",
        "tune",
        "distributed",
        "doors",
        "gram",
        "ops",
        "planner",
        "frameworks",
        "core",
        "__init__",
        "_version",
    },
    "compat": {"compat", "distributed", "gram", "core", "__init__"},
    "tune": {"tune", "bench", "ops", "planner", "frameworks", "core", "__init__", "_version"},
    "distributed": {"distributed", "frameworks", "core", "__init__", "_version"},
    "outofcore": {"outofcore", "core", "__init__"},
    "insitu": {"insitu", "core", "__init__", "_version", "__main__"},
    "__main__": {"cli", "_version"},
    "__init__": {"ops", "doors", "planner", "core", "_version"},
    "linalg": {"ops", "frameworks", "core"},
    "plugins": {"plugins", "doors", "ops", "frameworks", "core"},
    "doors": {"doors", "ops", "frameworks", "core"},
    "_version": set(),
}
# The one arrow that points up: the front of a sharded or hosted array is imported by the function that meets the first such
# array.
EXCEPTIONS = {"frameworks/__init__.py": {"lapwing.distributed.fronts", "lapwing.outofcore"}}
# where each library may be imported: core/lapack asks SciPy for its table, and foreign memory on a GPU becomes a CuPy array
FRAMEWORKS = {"torch", "jax", "tensorflow", "cupy", "scipy", "matplotlib"}
MAY_IMPORT = {"core/lapack.py": {"scipy"}, "frameworks/foreign.py": {"cupy"}}


def imports(path: Path) -> set[str]:
    """Absolute dotted names of everything the file imports."""
    module = ("lapwing", *path.relative_to(PACKAGE).with_suffix("").parts)
    package = module[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(x for x in (base, node.module) if x)
            if name.startswith("lapwing") and (PACKAGE.joinpath(*name.split(".")[1:])).is_dir():
                found |= {f"{name}.{alias.name}" for alias in node.names}
            else:
                found.add(name)
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_point_down(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    name = str(path.relative_to(PACKAGE))
    for imported in imports(path):
        first, *rest = imported.split(".")
        if first == "lapwing":
            to = (
                rest[0]
                if (rest and (PACKAGE / rest[0]).exists()) or (rest and (PACKAGE / f"{rest[0]}.py").exists())
                else "__init__"
            )
            to = "_native" if rest and rest[0] == "_native" else to
            if any(imported.startswith(f"{allowed}.") for allowed in EXCEPTIONS.get(name, ())):
                continue
            assert to in ALLOWED[part], f"{name} imports {imported}"
        elif first in FRAMEWORKS and part in ("core", "planner", "ops", "__init__"):
            assert first in MAY_IMPORT.get(name, set()), f"{name} imports {imported}"
        elif first in FRAMEWORKS and part == "frameworks":
            assert first in {path.stem, *MAY_IMPORT.get(name, set())}, f"{name} imports {imported}"


def in_subprocess(code: str, **environment: str) -> str:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_no_framework_and_is_quick(tmp_path):
    code = """
import json, sys, time
begun = time.thread_time(); import numpy
before = time.thread_time(); import lapwing; took = time.thread_time() - before
print(json.dumps([took, before - begun, sorted({m.partition('.')[0] for m in sys.modules})]))
"""
    # the first run writes the byte code, as an installation has it
    runs = [json.loads(in_subprocess(code, PYTHONPYCACHEPREFIX=str(tmp_path))) for _ in range(8)]
    loaded = set(runs[0][2])
    assert not loaded & {"torch", "jax", "jaxlib", "tensorflow", "cupy", "scipy", "matplotlib"}
    # 50 ms, or on a slow machine less than NumPy itself; NumPy's BLAS threads, which spin when they start, do not count
    assert min(took for took, _, _ in runs) < max(0.05, min(numpy for _, numpy, _ in runs))


@pytest.mark.parametrize("make", ["jnp.eye(3)", "jax.device_put(jnp.eye(3), NamedSharding(one, PartitionSpec('x')))"])
def test_ordinary_jax_arrays_load_nothing_distributed(make):
    pytest.importorskip("jax")
    code = f"""
import sys, jax, jax.numpy as jnp, lapwing as lw
from jax.sharding import Mesh, NamedSharding, PartitionSpec
one = Mesh(jax.devices()[:1], ("x",))
a = {make}
lw.cholesky(a), jax.jit(lw.cholesky)(a), lw.factor(a), lw.eigh(a), jax.grad(lambda a: lw.slogdet(a)[1])(a)
print([name for name in sys.modules if name.startswith(("lapwing.distributed", "mpi4py"))])
"""
    assert in_subprocess(code, JAX_PLATFORMS="cpu").strip() == "[]"


def test_fronts_and_backends_satisfy_their_contracts():
    """mypy checks the types; here the names, of the modules too."""
    from lapwing.core import protocol
    from lapwing.distributed.backends import choice
    from lapwing.distributed.backends.protocol import Backend
    from lapwing.distributed.fronts import described, devices, matrix
    from lapwing.frameworks import numpy as framework

    def names(contract):
        return {name for name in vars(contract) if not name.startswith("_")}

    assert not names(protocol.Framework) - set(vars(framework))
    for front in (matrix.FRONT, devices.FRONT, described.FRONT):
        assert front.sharded and not names(protocol.Front) - set(dir(front))
    for backend in choice.BACKENDS:
        assert not names(Backend) - set(dir(backend)), backend.name
    assert [backend.name for backend in choice.PUBLIC] == ["cusolvermp", "cusolvermg", "elpa", "scalapack", "xla"]


def test_import_changes_nothing_global():
    code = """
import logging, signal, multiprocessing, os, threading, numpy
before = (signal.getsignal(signal.SIGINT), logging.root.handlers[:], logging.root.level, dict(os.environ),
          multiprocessing.get_start_method(allow_none=True), threading.active_count())
import lapwing, numpy as np
lapwing.cholesky(np.eye(3))
after = (signal.getsignal(signal.SIGINT), logging.root.handlers[:], logging.root.level, dict(os.environ),
         multiprocessing.get_start_method(allow_none=True), threading.active_count())
assert before == after, (before, after)
assert not logging.getLogger("lapwing").handlers
"""
    in_subprocess(code)


def test_public_names():
    assert lapwing.__all__ == sorted(lapwing.__all__)
    docs = "".join(p.read_text() for p in (PACKAGE.parents[1] / "docs").glob("*.md"))
    for name in lapwing.__all__:
        assert hasattr(lapwing, name)
        if docs:  # an installed copy has no docs beside it
            assert name in docs, f"{name} is not in docs/"


def test_works_without_the_native_core():
    """No compiler: everything still works through numpy.linalg."""
    code = """
import sys
sys.modules["lapwing._native"] = None
import numpy as np, lapwing as lw
rng = np.random.default_rng(0)
for dtype in ("float32", "complex128"):
    x = rng.standard_normal((3, 6, 6)).astype(dtype)
    a = x @ x.swapaxes(-1, -2).conj() + 6 * np.eye(6, dtype=dtype)
    a[0, 0, 5] = np.nan
    l = lw.cholesky(a)
    error = np.tril(l @ l.swapaxes(-1, -2).conj() - a)
    assert np.abs(error).max() < 60 * np.finfo(dtype).eps * np.abs(np.tril(a)).max()
    u = lw.cholesky(np.triu(a[1:]), upper=True)
    assert np.abs(np.triu(u.swapaxes(-1, -2).conj() @ u - a[1:])).max() < 60 * np.finfo(dtype).eps * np.abs(a[1:]).max()
    a[2, 3, 3] = -1
    try:
        lw.cholesky(a)
    except lw.NotPositiveDefiniteError as error:
        assert error.batch_index == (2,) and error.minor == 4 and not error.nonfinite
    else:
        raise SystemExit("no error")
    factor, info = lw.cholesky_ex(a)
    assert info.tolist() == [0, 0, 4] and np.isnan(factor[2]).all()
assert lw.explain(lw.cholesky, a).engine == "reference"
assert {e.name: e.usable_on for e in lw.engines()}["reference"] == ("cpu",)
"""
    in_subprocess(code)


@pytest.mark.parametrize("libraries", ["numpy torch", "jax tensorflow"])
def test_one_warning_without_the_native_core(libraries):
    """The first slow call says why it is slow and what to do; the import and later calls, in any library, say nothing."""
    for name in libraries.split():
        pytest.importorskip(name)
    code = f"""
import sys, warnings
sys.modules["lapwing._native"] = None
import numpy as np
make = {{
    "numpy": lambda: np.eye(3),
    "torch": lambda: __import__("torch").eye(3),
    "jax": lambda: __import__("jax").numpy.eye(3),
    "tensorflow": lambda: __import__("tensorflow").eye(3),
}}
matrices = [make[name]() for name in {libraries.split()!r}]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import lapwing as lw
    assert not caught
    for a in matrices:
        for call in (lw.cholesky, lw.eigh, lw.svd, lambda a: lw.solve(a, a), lw.cholesky):
            call(a)
[warning] = [w for w in caught if "lapwing" in str(w.message)]
assert warning.category is RuntimeWarning
text = str(warning.message)
assert "numpy.linalg" in text and "the native core was not built" in text
assert "\\nhint: " in text and "pip install --force-reinstall" in text
"""
    in_subprocess(code)


def test_subpackages_are_imported_when_they_are_named():
    code = """
import sys, lapwing as lw
assert not any(m.startswith("lapwing." + name) for m in sys.modules for name in ("tune", "gram", "insitu", "compat"))
for name in ("compat", "distributed", "gram", "insitu", "tune"):
    assert getattr(lw, name).__name__ == "lapwing." + name and name in dir(lw)
try:
    lw.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise SystemExit("no error")
"""
    in_subprocess(code)
