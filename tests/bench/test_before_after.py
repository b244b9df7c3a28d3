"""benchmarks/before_after.py: two checkouts in turns; here both are this one, on the CPU."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from lapwing.core.native import native

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "before_after.py"


@pytest.fixture
def before_after(monkeypatch):
    spec = spec_from_file_location("before_after", SCRIPT)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "before_after", module)
    spec.loader.exec_module(module)
    return module


def test_a_checkout_against_itself(before_after, tmp_path, capsys):
    pytest.importorskip("torch")
    output = tmp_path / "times.json"
    words = [
        str(ROOT),
        str(ROOT),
        "--device",
        "cpu",
        "--cells",
        "cholesky:32,lstsq:33",
        "--turns",
        "2",
        "--output",
        str(output),
    ]
    assert before_after.main(words) == 0
    result = json.loads(output.read_text())
    assert result["before"] == result["after"] and not result["left out"]
    assert [row["cell"] for row in result["rows"]] == [str(c) for c in before_after.cells_of("cholesky:32,lstsq:33", "cpu")]
    for row in result["rows"]:
        assert row["ratio"] == row["after"]["least"] / row["before"]["least"] > 0
        assert 0 <= row["before"]["error"] == row["after"]["error"] <= 10  # the same numbers in both
    assert "wrong answers: none" in capsys.readouterr().out


@pytest.mark.skipif(native is None, reason="the native core was not built")
def test_every_cell_has_kernels(before_after):
    worker = before_after.Worker("cuda", 90)
    for cell in before_after.cells_of("", "cuda"):
        assert worker.kernels(cell), cell


def test_differences_are_named(before_after):
    before = {"eig.cu -DA": "1", "eig.cu -DB": "2", "svd.cu -DA": "3"}
    assert before_after.in_words(before, dict(before)) == "same"
    assert before_after.in_words(before, before | {"eig.cu -DB": "4"}) == "eig"
    assert before_after.in_words(before, before | {"svd.cu -DA": ""}) == "unknown"
    assert before_after.in_words(before, {"eig.cu -DA": "1"}) == "other kernels"


def test_what_is_no_checkout_is_refused(before_after, tmp_path):
    with pytest.raises(SystemExit, match="src/lapwing"):
        before_after.main([str(tmp_path), str(ROOT)])
