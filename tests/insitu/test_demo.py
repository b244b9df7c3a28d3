"""lapwing insitu demo: the published numbers from one command, with and without a compiler."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from insitu.cases import check_burgers
from insitu.harness import compiler, need_embedding
from lapwing.__main__ import main
from lapwing.cli import insitu_demo
from lapwing.insitu.live.reader import Reader


def check(text: str, folder, how: str) -> None:
    assert how in text and text.count("  right   ") == 5 and "WRONG" not in text, text
    check_burgers(text)
    assert "u[10]    0.0733873" in text and "exact (Cole-Hopf) solution at t = 2.001: 5.0e-02" in text
    view = Reader(folder / "insitu").read()
    assert view.state == "finished" and view.status["step"] == 2000
    if importlib.util.find_spec("matplotlib"):
        assert {p.name for p in view.pictures} == {"Field_evolution.png", "SVD_Eigenvectors.png"}
        assert str(folder / "insitu" / "SVD_Eigenvectors.png") in text


def test_compiled(tmp_path, capfd):
    need_embedding()
    compiler("g++")
    assert main(["insitu", "demo", "--keep", str(tmp_path / "demo"), "--no-show"]) == 0
    check(capfd.readouterr().out, tmp_path / "demo", "burgers.cpp -o burgers")


@pytest.mark.parametrize("library", ["jax", "numpy"])
def test_without_a_compiler(tmp_path, capfd, monkeypatch, library):
    if library == "jax":
        pytest.importorskip("jax")
    else:
        monkeypatch.setattr(insitu_demo, "find_spec", lambda name: None)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert main(["insitu", "demo", "--keep", str(tmp_path / "demo"), "--no-show"]) == 0
    text = capfd.readouterr().out
    assert "there is no C++ compiler\nhint: install g++" in text and "runs instead" in text
    check(text, tmp_path / "demo", f"burgers_{library}.py")


def test_obstacles_are_named(monkeypatch, tmp_path):
    assert "no C++ compiler" in insitu_demo._obstacle("")
    monkeypatch.setattr(insitu_demo, "LIBRARY", tmp_path / "none.so")
    assert "installed without a C++ compiler" in insitu_demo._obstacle(sys.executable)
    monkeypatch.setattr(insitu_demo, "LIBRARY", tmp_path)
    monkeypatch.setattr(insitu_demo, "shared_python", lambda: None)
    assert "has no shared libpython" in insitu_demo._obstacle(sys.executable)
    monkeypatch.setattr(insitu_demo, "shared_python", lambda: tmp_path)
    assert insitu_demo._obstacle(sys.executable) == ""


def test_a_compiler_that_refuses_is_shown(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(insitu_demo, "_obstacle", lambda compiler: "")
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'import+sys;sys.exit(\"no+such+flag\")'".replace("+", " "))
    assert insitu_demo._compiled(tmp_path) is None
    assert "the compiler failed:\nno such flag" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("code", "change"),
    [(1, ("", "")), (0, ("0.0733873", "0.0733934")), (0, ("26.8645742", "26.8645743")), (0, ("singular", "sing"))],
)
def test_wrong_numbers_are_called_wrong(code, change, capsys):
    good = "A random value in the solution array: 0.0733873\nsingular values 471.259287 104.637607 26.8645742 8.45897393\n"
    assert insitu_demo._compare(0, good)
    capsys.readouterr()
    assert not insitu_demo._compare(code, good.replace(*change)) and "WRONG" in capsys.readouterr().out


def test_the_users_own_settings_do_not_disturb(monkeypatch):
    monkeypatch.setenv("LAPWING_INSITU", "0")
    monkeypatch.setenv("LAPWING_INSITU_SCRIPT", "other.py")
    found = insitu_demo._environment()
    assert "LAPWING_INSITU" not in found and "LAPWING_INSITU_SCRIPT" not in found
    assert found["LAPWING_INSITU_PYTHON"] == sys.executable and os.environ["LAPWING_INSITU"] == "0"
