"""Products on the CPU: every configuration is correct, and the workflow runs on them."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest

from lapwing.tune import Library
from lapwing.tune.backends import choose, get, usable
from lapwing.tune.backends.base import Refused
from lapwing.tune.backends.cpu import DEFAULT
from lapwing.tune.backends.processors import blas_threads, control
from lapwing.tune.gemm import Gemm
from lapwing.tune.library import build
from lapwing.tune.search import make
from lapwing.tune.search.session import run
from lapwing.tune.validate import pages as report
from lapwing.tune.validate import results
from lapwing.tune.validate.comparison import compare
from lapwing.tune.workdir import Target, Workdir

CPU = get("cpu")


def types(name: str) -> dict[str, str]:
    return {
        **dict.fromkeys(("a_type", "b_type", "c_type", "d_type"), name),
        "compute": "f32" if name in ("bf16", "f16") else name,
    }


GEMMS = [
    Gemm(70, 35, 140, "T", "N", **types("bf16")),
    Gemm(70, 35, 140, "N", "T", lda=80, ldd=71, bias="f32", activation="gelu", alpha=0.5, **types("f32")),
    Gemm(65, 33, 130, "N", "N", batch=3, beta=0.5, **types("f64")),
    Gemm(70, 40, 130, "C", "N", **types("c64")),
    Gemm(257, 1, 512, "T", "N", activation="swish", bias="f32", **types("f32")),
    Gemm(5, 0, 3, **types("f32")),
]


@pytest.mark.parametrize("gemm", GEMMS, ids=str)
def test_every_way_is_right(gemm):
    bench = CPU.open(gemm, 0, 0)
    space = CPU.space(gemm, 0)
    assert space.seeds[0] == DEFAULT == CPU.default(gemm)
    search = make("random", space, 1)
    seen: dict[str, set] = {}
    for _ in range(20):
        if (config := search.ask()) is None:
            break
        kernel = bench.build(config)
        errors = bench.check(kernel)
        assert all(0 <= e <= 1 for e in errors.values()) and ("padded" in errors or gemm.n == 0)
        for name, value in config.items():
            seen.setdefault(name, set()).add(value)
        search.tell(config, 1.0)
    if gemm.n > 1:
        assert seen["order"] == {"direct", "swapped"} and len(seen["pack"]) == 4
    times = bench.time([bench.build(DEFAULT), bench.build(config or DEFAULT)], 3)
    assert [len(t) for t in times] == [3, 3] and min(map(min, times)) > 0
    bench.close()


def test_what_it_does_not_do():
    assert "i8" in CPU.supports(Gemm(2, 2, 2, **types("i8")))
    with pytest.raises(Refused, match="block scales"):
        CPU.open(Gemm(2, 2, 2, scale_a="block"), 0, 0)
    assert "bf16 runs in float32" in CPU.note(Gemm(2, 2, 2)) and CPU.note(Gemm(2, 2, 2, **types("f32"))) == ""
    with pytest.raises(Refused, match="the parameters must be"):
        CPU.open(Gemm(2, 2, 2), 0, 0).build({"x": 1})
    assert {"device", "threads", "numpy", "blas"} <= set(CPU.environment(0))


def test_threads_are_put_back():
    blas = control()
    if blas is None:
        pytest.skip("the number of BLAS threads cannot be set here")
    before = blas[0]()
    with blas_threads(1):
        assert blas[0]() == 1
        with blas_threads(2):
            pass
    assert blas[0]() == before


@pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
def test_callable(layout):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    gemm = Gemm(48, 20, 64, layout[0], layout[1], bias="f32", **types("f32"))
    config = {**DEFAULT, "order": "swapped", "tile_m": 32}
    f = CPU.callable(gemm, config, 0)
    x = rng.standard_normal((20, 64) if layout[1] == "N" else (64, 20)).astype(np.float32)
    w = rng.standard_normal((64, 48) if layout[0] == "N" else (48, 64)).astype(np.float32)
    bias = rng.standard_normal(48).astype(np.float32)
    xs, ws = (x if layout[1] == "N" else x.T), (w if layout[0] == "N" else w.T)
    expected = xs.astype(np.float64) @ ws + bias
    allowed = 64 * np.finfo(np.float32).eps * (np.abs(xs) @ np.abs(ws) + np.abs(bias))
    assert (np.abs(f(x, w, bias) - expected) <= allowed).all()
    out = np.empty((20, 48), np.float32)
    assert f(x, w, bias, out=out) is out and (np.abs(out - expected) <= allowed).all()
    if layout[1] == "N":
        assert (f(x.reshape(4, 5, 64), w, bias) == f(x, w, bias).reshape(4, 5, 48)).all()
    tensors = [torch.from_numpy(v) for v in (x, w, bias)]
    y = f(*tensors)
    assert isinstance(y, torch.Tensor) and (np.abs(y.numpy() - expected) <= allowed).all()
    place = torch.empty(20, 48)
    assert f(*tensors, out=place) is place and (np.abs(place.numpy() - expected) <= allowed).all()
    half = f(*[t.bfloat16() for t in tensors])
    assert half.dtype == torch.bfloat16 and np.abs(half.float().numpy() - expected).max() < 64 * 2**-8
    with pytest.raises(ValueError, match="do not match"):
        f(x, w[..., :-1, :-1], bias)


def test_workflow_on_the_cpu(tmp_path, monkeypatch):
    """From a configuration to a comparison, with small products."""
    monkeypatch.setattr(report, "_draw", lambda *_: {})  # pictures take seconds
    monkeypatch.setenv(
        "OPENBLAS_NUM_THREADS", "1"
    )  # in the workers: threads of BLAS wait long for each other on a busy machine
    folder = Workdir(tmp_path)
    folder.add_config(Target("BBS_TN_0", Gemm(130, 40, 160, "T", "N"), 3, 1e-3, 75.0))
    folder.add_config(Target("SSS_NN_0", Gemm(24, 24, 24, batch=16, activation="gelu", **types("f32")), 3, 1e-4, 25.0))
    summary = run(folder, backend="cpu", evaluations=4)
    assert [p.evaluations for p in summary.problems] == [4, 4] and all(p.invalid == 0 for p in summary.problems)
    assert any("bf16 runs in float32" in note for note in summary.problems[0].notes)
    found = compare(folder)
    assert [c.name for c in found] == ["BBS_TN_0", "SSS_NN_0"]
    for c in found:
        assert c.ratio >= 1.0 and c.backend == "cpu" and 0 <= c.error <= 1 and c.default_us > 0 and c.reason
        assert c.tuned_us <= c.default_us * 1.0001
    assert [c.arithmetic for c in found] == ["float32 arithmetic", ""]
    assert found[0].validated[0] == "product, float32 arithmetic" and found[1].validated[0] == "product"
    results.write(folder, found)
    page = report.write(tmp_path).with_suffix(".md").read_text()
    assert "in float32 arithmetic, not in the types of the log: BBS_TN_0." in page and "cpu, float32 arithmetic" in page

    # as if it had won: the entry says it too, and no torch tensor uses it
    library = Library(build(tmp_path, [replace(found[0], kept=True)]))
    (entry,) = library.entries.values()
    assert entry.arithmetic == "float32 arithmetic" and all("float32" in name for name in entry.validated)
    torch = pytest.importorskip("torch")
    from lapwing.tune.dispatch.dispatcher import Dispatcher

    x, w = torch.randn(40, 160).bfloat16(), torch.randn(130, 160).bfloat16()
    # torch's own bf16 product is not called: on some virtual machines it crashes
    assert Dispatcher([library]).linear(lambda *_: "torch's own", x, w) == "torch's own"


def test_arithmetic_is_named():
    said = {name: CPU.arithmetic(Gemm(2, 2, 2, **types(name))) for name in ("bf16", "f16", "f32", "f64", "c64")}
    assert said == {"bf16": "float32 arithmetic", "f16": "float32 arithmetic", "f32": "", "f64": "", "c64": ""}
    assert CPU.arithmetic(Gemm(2, 2, 2, **(types("f32") | {"compute": "tf32"}))) == "float32 arithmetic"


def test_registry():
    here = usable()
    assert here["cpu"] is None and set(here) == {"cpu", "cublaslt", "triton", "triton_frozen", "hipblaslt"}
    assert choose("cpu") == ("cpu",) and choose("auto")
    with pytest.raises(ValueError, match="no backend is named"):
        choose(" , ")
    with pytest.raises(ValueError, match=r"cannot be used here: the file .* does not exist"):
        choose("replay:/nowhere/x.jsonl")


def test_a_torch_for_rocm(monkeypatch):
    """It says "cuda" of AMD's GPUs, and that their compute capability is 9.4."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 4))
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    triton = ModuleType("triton")
    triton.__spec__ = ModuleSpec("triton", None)
    monkeypatch.setitem(sys.modules, "triton", triton)
    here = usable()
    assert all("built for AMD's GPUs" in here[name] for name in ("cublaslt", "triton", "triton_frozen"))
    for names in ("auto", "triton"):
        with pytest.raises(ValueError, match="hint: --backend hipblaslt"):
            choose(names)
    assert choose("cpu") == ("cpu",)
