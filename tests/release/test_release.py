"""What a release consists of: versions that agree, files that are valid, an sdist that is complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import lapwing

ROOT = Path(__file__).parents[2]
VERSION = lapwing.__version__


def read(name):
    return (ROOT / name).read_text()


def test_versions_agree():
    changes = re.findall(r"^## \[(.+?)\] - (.+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert changes[0][0] == VERSION
    assert yaml.safe_load(read("CITATION.cff"))["version"] == VERSION
    assert f'version: "{VERSION}"' in read("conda/recipe/recipe.yaml")


def test_recipe_names_its_c_library():
    """rattler-build knows a compiler for each platform, but no C library: without one the recipe cannot be rendered."""
    recipe, variants = read("conda/recipe/recipe.yaml"), yaml.safe_load(read("conda/recipe/variants.yaml"))
    assert "${{ stdlib('c') }}" in recipe and len(variants["c_stdlib"]) == len(variants["c_stdlib_version"]) == 1


def test_changelog_has_the_usual_sections():
    headings = re.findall(r"^###? (.+)$", read("CHANGELOG.md"), re.MULTILINE)
    kinds = [h for h in headings if not h.startswith("[")]
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert all(
        re.fullmatch(r"\[\d+\.\d+\.\d+\] - (unreleased|never released|\d{4}-\d\d-\d\d)", h) for h in headings if h not in kinds
    )


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_github_files_are_yaml(path):
    content = yaml.safe_load(path.read_text())
    if path.parent.name == "workflows":
        assert content["permissions"] == {"contents": "read"}  # a job asks for more where it needs more
        for job in content["jobs"].values():
            assert job["timeout-minutes"] and job["steps"]
            assert all(("run" in step) != ("uses" in step) for step in job["steps"])


def test_workflows_call_what_exists():
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    targets = re.findall(r"make (\w+)", workflows)
    assert {"test", "kernels", "docs"} <= set(targets)
    assert all((ROOT / script).exists() for script in re.findall(r"tools/\w+\.py", workflows))


def test_sdist_is_complete(tmp_path):
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    files = set((tmp_path / "lapwing.egg-info/SOURCES.txt").read_text().splitlines())
    for folder, kinds in (("native", "h cc def map"), ("src/lapwing", "py pyi cu cuh json")):
        wanted = {p.relative_to(ROOT).as_posix() for kind in kinds.split() for p in (ROOT / folder).rglob(f"*.{kind}")}
        assert wanted and wanted <= files
    assert not [f for f in files if f.endswith((".so", ".pack"))]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wheel_builds_and_works(tmp_path):
    pytest.importorskip("auditwheel")
    command = [sys.executable, "tools/wheels.py", "--dist", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(rf"lapwing-{re.escape(VERSION)}-cp311-abi3-(manylinux\w+\.?)+\.whl", wheel.name)


def test_batches_need_no_name_that_the_oldest_jax_lacks(monkeypatch):
    jax = pytest.importorskip("jax")
    monkeypatch.delattr("jax.interpreters.mlir.ir_attribute", raising=False)  # not in JAX 0.5.3
    factor = lapwing.cholesky(4 * jax.numpy.broadcast_to(jax.numpy.eye(3), (17, 3, 3)))  # a shape that nothing compiled before
    assert float(factor.sum()) == 17 * 3 * 2
