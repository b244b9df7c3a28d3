"""Every example in the docs runs, and the support table is the one the engines give."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import lapwing

ROOT = Path(__file__).parents[2]
_NEEDS_A_LIBRARY = {
    *(f"lapwing.gram.{name}" for name in ("jax", "tensorflow", "torch")),
    *(f"lapwing.tune.dispatch.{name}" for name in ("calls", "compiled", "dispatcher", "layers", "patch")),
    *(f"lapwing.distributed.backends.xla.{name}" for name in ("calls", "cholesky", "layout", "lu", "substitution", "tall")),
    *(f"lapwing.doors.{name}" for name in ("jax", "scipy", "torch")),
    *(f"lapwing.plugins.{name}" for name in ("linear_operator", "lineax", "netket")),
    "lapwing.distributed.fronts.dtensor_calls",
    "lapwing.tune.backends.kernels.tile",
    "lapwing.distributed.fronts.jax",
}
_SMALLER = {"04_kernel_pca.py": ["1500"], "insitu_exponax.py": ["48", "200"]}  # what takes long otherwise


def test_docstrings():
    tried = 0
    for found in pkgutil.walk_packages(lapwing.__path__, "lapwing."):
        if ".frameworks." in found.name or found.name in _NEEDS_A_LIBRARY or found.name.split(".")[-1].startswith(("_", "lib")):
            continue
        module = importlib.import_module(found.name)
        result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
        assert not result.failed, found.name
        tried += result.attempted
    assert tried >= 8


@pytest.mark.filterwarnings(  # of torch.compile
    "ignore:.*torch._prims_common.check.*:FutureWarning",
    "ignore:.*:DeprecationWarning:torch.*",
    "ignore:.*torch.jit.*:DeprecationWarning",
    "ignore:.*functools.lru_cache.*:UserWarning",
    "ignore:the arrays are float32:UserWarning",  # coming-from/jaxmg.md; a page must not switch JAX to float64 for other tests
)
@pytest.mark.parametrize(
    "page",
    [
        f"docs/{name}.md"
        for name in ("index", "guide", "how", "errors", "eigh", "hosted", "install", "solve", "gram", "insitu", "tune")
    ]
    + ["docs/distributed.md"]
    + [f"docs/start/{name}.md" for name in ("numpy", "torch", "jax", "tensorflow")]
    + [f"docs/coming-from/{name}.md" for name in ("torch", "jax", "scipy", "jaxmg", "kernel_tools", "hipblaslt", "insitu")]
    + ["README.md"],
)
def test_pages(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    for name in ("torch", "jax", "tensorflow"):
        if any(f"import {name}" in block for block in blocks):
            pytest.importorskip(name)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)
    session = "\n".join(re.findall(r"```pycon\n(.*?)```", (ROOT / page).read_text(), re.S))
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(session, scope, page, page, 0))
    assert not runner.failures


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples(path, capsys, monkeypatch, tmp_path):
    source = path.read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path), *_SMALLER.get(path.name, [])])
    for name in ("torch", "jax", "tensorflow", "matplotlib", "exponax"):
        if re.search(rf"^(import|from) {name}", source, re.M):
            pytest.importorskip(name)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_support_table_is_generated():
    make = runpy.run_path(str(ROOT / "docs" / "make_support.py"))
    assert (ROOT / "docs" / "support.md").read_text() == make["page"](), "run python docs/make_support.py"
