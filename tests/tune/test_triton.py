"""Our kernels: the space, what runs in Triton's interpreter, what compiles for an H200 without one, and what runs on a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lapwing.tune.backends import choose, get
from lapwing.tune.backends.base import Refused
from lapwing.tune.backends.kernels.compiled import compile_step
from lapwing.tune.backends.kernels.plan import plan
from lapwing.tune.backends.kernels.space import PARAMETERS, allowed, score, seeds
from lapwing.tune.backends.triton import TritonBackend
from lapwing.tune.gemm import Gemm

TILE = {
    "template": "tile",
    "bm": 64,
    "bn": 16,
    "bk": 128,
    "split": 2,
    "reduce": "last",
    "stages": 4,
    "warps": 4,
    "group": 1,
    "swap": 0,
    "pdl": 0,
}
SKINNY = TILE | {"template": "skinny", "bm": 32, "bk": 64, "reduce": "cluster"}
STREAM = TILE | {"template": "stream", "split": 1}
DECODE = Gemm.row_major(16, 6144, 4096, right="T")

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_space_starts_where_it_allows():
    for gemm in (
        DECODE,
        Gemm.row_major(1, 2304, 16384, right="T"),
        Gemm.row_major(4096, 4096, 4096, left="T"),
        replace(DECODE, n=64),
    ):
        found = seeds(gemm, 132)
        assert found and all(allowed(gemm, c) and score(gemm, 132, c) > 0 for c in found)
        assert all(c[name] in values for c in found for name, values in PARAMETERS.items())
    assert {c["template"] for c in seeds(DECODE, 132)} == {"tile", "stream", "skinny"}
    deterministic = replace(DECODE, deterministic=True)
    assert allowed(DECODE, TILE | {"reduce": "atomic"}) and not allowed(deterministic, TILE | {"reduce": "atomic"})
    # a row that does not start at 16 bytes, a sum that ends inside 128: not for the kernel without masks
    assert (
        allowed(DECODE, SKINNY)
        and not allowed(replace(DECODE, lda=4099), SKINNY)
        and not allowed(replace(DECODE, k=4088, lda=0), SKINNY)
    )


def test_weights_are_read_ahead_by_one_backend_only():
    plain, frozen = get("triton"), get("triton_frozen")
    assert (plain.name, frozen.name, get("cublaslt").name) == ("triton", "triton_frozen", "cublaslt")
    assert set(plain.space(DECODE, 0).parameters["pdl"]) == {0}
    assert set(TritonBackend(overlap=True).space(DECODE, 0).parameters["pdl"]) == {0, 1, 2, 3, 4}
    space = frozen.space(DECODE, 0)
    assert set(space.parameters["pdl"]) == {5, 6} == {c["pdl"] for c in space.seeds}
    with pytest.raises(Refused, match="triton_frozen") as refused:
        plain.bind(DECODE, SKINNY | {"pdl": 5})
    assert refused.value.kind == "constraints"
    assert frozen.supports(DECODE) is None and "columns" in str(frozen.supports(replace(DECODE, n=129)))
    assert choose("auto,cpu")[-1] == "cpu" and "triton_frozen" not in choose("auto")


def test_what_is_sent_ahead_fits_into_the_cache():
    """All blocks together send a power of two of steps, under 24 MB, or one step."""
    for gemm in (DECODE, Gemm.row_major(16, 128256, 4096, right="T"), Gemm.row_major(32, 1280, 8192, right="T")):
        for config in (TILE, SKINNY):
            for pdl in (1, 3, 4, 5):
                if not allowed(gemm, config | {"pdl": pdl}):
                    assert config is TILE and pdl == 5
                    continue
                (step,) = plan(gemm, config | {"pdl": pdl})
                count = dict(step.constants)["AHEAD"]
                programs = step.grid[0] * step.grid[1]
                size = programs * (64 * 128 * 2 if config is TILE else 32 * 128)
                assert (count > 0) == (pdl in (3, 4)) and count & (count - 1) == 0
                assert count <= 1 or size * count <= 24 << 20 < 2 * size * count


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"a_type": "f64"}, "take"),
        ({"d_type": "f8e4m3"}, "write"),
        ({"scale_a": "block"}, "block"),
        ({"m": 0, "lda": 0}, "zero"),
    ],
)
def test_unsupported_says_why(change, reason):
    assert TritonBackend().supports(DECODE) is None
    assert reason in str(TritonBackend().supports(replace(DECODE, **change)))


INTERPRETED = """
import json, sys
import numpy, torch
from lapwing.tune.backends.kernels import tile
from lapwing.tune.backends.kernels.plan import plan
from lapwing.tune.backends.triton import allowed
from lapwing.tune.backends.cuda_operands import reference, Operands
from lapwing.tune.gemm import Gemm

types = {"f16": torch.float16, "f32": torch.float32}
generator = torch.Generator().manual_seed(3)

def matrix(gemm, x):
    rows, columns = gemm.stored(x)
    ld = getattr(gemm, f"ld{x}")
    stride = getattr(gemm, f"stride_{x}") or ld * columns
    memory = torch.full((stride * (gemm.batch - 1) + ld * columns + 64,), float("nan"), dtype=types[getattr(gemm, f"{x}_type")])
    view = memory.as_strided((gemm.batch, columns, rows), (stride, ld, 1))
    if x != "d":
        view.copy_(torch.randn(view.shape, generator=generator) / gemm.k ** 0.25)
    return memory, view if gemm.batch > 1 else view[0]

for gemm, config in json.load(sys.stdin):
    gemm = Gemm.from_dict(gemm)
    memory, views = {}, {}
    for x in "abcd":
        memory[x], views[x] = matrix(gemm, x)
    memory["bias"] = torch.randn(gemm.m, generator=generator).to(types[gemm.bias or "f32"])
    memory["scale_a"], memory["scale_b"] = (torch.rand(size, generator=generator) + 0.5 for size in (gemm.m, gemm.n))
    scales = {}
    for x in ("scale_a", "scale_b"):
        scales[x] = {"none": None, "tensor": memory[x][:1], "row": memory[x]}[getattr(gemm, x)]
    exact, size = reference(gemm, Operands(**views, bias=memory["bias"] if gemm.bias else None, **scales))
    steps = plan(gemm, config, 3)
    memory["work"] = torch.zeros(max(max(s.sums, s.parts) for s in steps) + 1)
    memory["locks"] = torch.zeros(4096, dtype=torch.int32)
    for _ in range(2):  # the second time shows that counters and sums were left clean
        memory["d"].fill_(float("nan"))
        for step in steps:
            arguments = [memory[a.value] if a.kind == "pointer" else a.value for a in step.arguments]
            getattr(tile, step.kernel)[step.grid](*arguments, **dict(step.constants))
    unit = torch.finfo(views["d"].dtype).eps
    error = ((views["d"].double() - exact).abs() / (unit * exact.abs() + 4 * gemm.k * 2.0**-24 * size + 1e-6)).amax()
    inside = torch.zeros_like(memory["d"], dtype=torch.bool)
    inside.as_strided(views["d"].shape, views["d"].stride()).fill_(True)
    print(json.dumps([float(error), bool(memory["d"][~inside].isnan().all()), int(memory["locks"].abs().sum())]))
"""


def interpreter_works() -> bool:
    """The interpreter of Triton 3.6 wants a NumPy before 2.4; 3.9 works with 2.4."""
    import numpy
    import triton

    triton_version, numpy_version = (tuple(int(x) for x in m.__version__.split(".")[:2]) for m in (triton, numpy))
    return triton_version >= (3, 9) or numpy_version < (2, 4)


@needs_triton
@needs_torch
def test_templates_in_the_interpreter():
    if not interpreter_works():
        pytest.skip("this Triton's interpreter does not work with this NumPy")
    small = TILE | {"bm": 32, "bk": 32, "stages": 2}
    decode = Gemm.row_major(5, 70, 100, right="T", dtype="f16")
    work = [(decode, small | {"split": 1, "reduce": "none", "swap": swap}) for swap in (0, 1)]
    work += [(decode, small | {"split": 3, "reduce": reduce}) for reduce in ("last", "atomic", "two-pass")]
    work += [(decode, small | {"template": "stream", "split": 2})]
    for (left, right), template in (("NN", "tile"), ("TN", "stream"), ("TT", "tile")):
        gemm = Gemm.row_major(37, 70, 100, left=left, right=right, dtype="f16")
        work += [(gemm, small | {"template": template, "group": 8})]
    full = {"bias": "f16", "alpha": 0.7, "beta": 0.3, "scale_a": "row", "scale_b": "tensor", "ldd": 48, "lda": 80}
    work += [
        (Gemm.row_major(33, 40, 64, right="T", dtype="f16", activation=act, **full), small) for act in ("relu", "gelu", "swish")
    ]
    work += [(Gemm.row_major(9, 40, 64, right="T", dtype="f32", batch=3), small | {"reduce": "two-pass"})]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        input=json.dumps([(g.to_dict(), c) for g, c in work]),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    results = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(results) == len(work)
    for (gemm, config), (error, untouched, locks) in zip(work, results, strict=True):
        assert error <= 1 and untouched and locks == 0, (str(gemm), config, error, untouched, locks)


# a few of each template, and each kind of epilogue and type
SHIPPED = [
    (DECODE, TILE),
    (DECODE, TILE | {"reduce": "atomic", "pdl": 2}),
    (DECODE, TILE | {"pdl": 3}),
    (replace(DECODE, n=64), TILE | {"bn": 64, "bm": 128, "warps": 8, "bk": 64, "split": 1, "reduce": "none"}),
    (DECODE, STREAM),
    (replace(DECODE, a_type="f8e4m3", b_type="f8e4m3", scale_a="tensor", scale_b="row"), TILE | {"reduce": "two-pass"}),
    (Gemm.row_major(4096, 4096, 4096, bias="bf16", activation="gelu"),
     TILE | {"bm": 128, "bn": 256, "bk": 64, "stages": 3, "warps": 8, "split": 1, "reduce": "none", "group": 8}),
    (Gemm.row_major(16, 4096, 4096, right="T", dtype="f32", compute="tf32"), TILE | {"bk": 32, "swap": 1}),
]  # fmt: skip
SHIPPED_CUDA = [
    (DECODE, SKINNY),
    (DECODE, SKINNY | {"pdl": 4}),
    (DECODE, SKINNY | {"pdl": 5}),
    (
        replace(DECODE, n=1, bias="bf16", activation="swish"),
        SKINNY | {"bm": 16, "bn": 8, "split": 1, "reduce": "none", "pdl": 2},
    ),
    (
        replace(DECODE, n=32, a_type="f16", b_type="f16", c_type="f16", d_type="f32"),
        SKINNY | {"bn": 32, "reduce": "last", "stages": 2},
    ),
]


def resources(cubin: bytes, folder: Path) -> tuple[int, int]:
    """Registers per thread, and bytes that spilled."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    (folder / "kernel.cubin").write_bytes(cubin)
    text = subprocess.run([tool, "-res-usage", folder / "kernel.cubin"], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", text.stdout + text.stderr)
    assert found
    return int(found[1]), int(found[2])


@needs_triton
@pytest.mark.parametrize(("gemm", "config"), SHIPPED, ids=lambda x: x["template"] if isinstance(x, dict) else str(x))
def test_compiles_for_an_h200_without_one(gemm, config, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert allowed(gemm, config)
    for step in plan(gemm, config):
        made = compile_step(gemm, step)
        registers, spilled = resources(made.cubin, tmp_path)
        assert made.shared <= 227 << 10 and registers * made.threads <= 65536 and spilled == 0


@needs_triton
@pytest.mark.parametrize(("gemm", "config"), SHIPPED_CUDA, ids=lambda x: "skinny" if isinstance(x, dict) else str(x))
def test_cuda_kernel_compiles_without_a_gpu(gemm, config, tmp_path, monkeypatch):
    from lapwing.tune.backends.kernels.compiled import library

    try:
        library()
    except OSError:
        pytest.skip("NVRTC is not installed")
    monkeypatch.setenv("LAPWING_CACHE", str(tmp_path / "cache"))
    assert allowed(gemm, config)
    (step,) = plan(gemm, config)
    made = compile_step(gemm, step)
    registers, spilled = resources(made.cubin, tmp_path)
    assert registers * made.threads <= 65536 and spilled == 0
    assert compile_step(gemm, step).cubin == made.cubin  # now from the cache
    assert len(list((tmp_path / "cache").rglob("*.cubin"))) == 1


@needs_triton
def test_what_does_not_compile_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    too_large = TILE | {"bm": 256, "bn": 64, "bk": 256, "stages": 6}
    assert not allowed(DECODE, too_large)
    with pytest.raises(Refused, match="shared memory") as refused:
        for step in plan(DECODE, too_large):
            compile_step(DECODE, step)
    assert refused.value.kind == "compile"


ON_GPU = [
    *[(DECODE, TILE | change) for change in ({}, {"reduce": "atomic", "split": 6}, {"reduce": "two-pass"})],
    *[(DECODE, TILE | {"pdl": pdl}) for pdl in (1, 2, 3, 4)],
    (replace(DECODE, m=6100, n=29, ldc=0, ldd=0), TILE | {"bn": 32, "pdl": 3}),
    *[(DECODE, SKINNY | {"pdl": pdl}) for pdl in (3, 4, 5, 6)],
    (replace(DECODE, m=6100, n=29, ldc=0, ldd=0), SKINNY | {"bn": 32, "stages": 2, "pdl": 4}),
    (replace(DECODE, n=64), TILE | {"bn": 64, "swap": 1, "split": 4, "reduce": "atomic", "warps": 8}),
    (DECODE, STREAM),
    *[(DECODE, SKINNY | change) for change in ({}, {"reduce": "last"}, {"pdl": 1}, {"split": 1, "reduce": "none", "pdl": 2})],
    (replace(DECODE, n=1), SKINNY | {"bm": 48, "bn": 8, "split": 3}),
    (replace(DECODE, n=45), SKINNY | {"bm": 64, "bn": 48, "warps": 8, "stages": 2, "group": 4}),
    (replace(DECODE, n=64), SKINNY | {"bm": 128, "bn": 64, "warps": 8, "stages": 2, "group": 4, "reduce": "last", "split": 3}),
    (replace(DECODE, n=29, bias="bf16", activation="gelu", alpha=0.5, beta=2.0), SKINNY | {"bn": 16, "reduce": "last"}),
    (replace(DECODE, n=29, bias="bf16", activation="gelu"), TILE | {"bn": 32}),
    (replace(DECODE, a_type="f8e4m3", b_type="f8e4m3", scale_a="tensor", scale_b="tensor"), TILE),
    (replace(DECODE, a_type="f8e4m3", b_type="f8e4m3", scale_a="row", scale_b="row"), TILE),
    (replace(DECODE, a_type="f8e4m3", b_type="f8e4m3", scale_a="tensor", scale_b="tensor"), SKINNY),
    (Gemm.row_major(32, 1000, 1024, right="T", dtype="f32", compute="tf32"), TILE | {"bk": 32}),
    (Gemm.row_major(700, 1000, 1024, left="T", dtype="f16"), TILE | {"bn": 64, "split": 1, "reduce": "none"}),
    (Gemm.row_major(40, 200, 512, right="T", batch=3), TILE),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("gemm", "config"), ON_GPU, ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else str(x)
)
def test_right_on_a_gpu(gemm, config):
    deterministic = config["reduce"] != "atomic"
    bench = TritonBackend(frozen=True).open(replace(gemm, deterministic=deterministic), 0, 5)
    try:
        kernel = bench.build(config)
        assert bench.check(kernel)
        assert all(0 < t < 0.1 for t in bench.time([kernel], 2)[0])  # other tests may use the GPU as well
    finally:
        bench.close()


@pytest.mark.gpu
def test_callable_in_eager_and_in_a_graph():
    import torch

    x, w = (torch.randn(n, 4096, device="cuda", dtype=torch.bfloat16) for n in (16, 6144))
    expected = torch.nn.functional.linear(x, w)
    # the last bit of bfloat16, and sums of 4096 products, each about 1, in another order
    near = {"rtol": 2.0**-7, "atol": 4096 * 2.0**-23 * 4096**0.5}
    for config in (TILE, SKINNY, TILE | {"reduce": "atomic", "pdl": 2}):
        call = TritonBackend().callable(DECODE, config, 0)
        for _ in range(3):
            torch.testing.assert_close(call(x, w), expected, **near)
        shifted = torch.empty(16 * 4096 + 1, device="cuda", dtype=torch.bfloat16)[1:].view(16, 4096).copy_(x)
        torch.testing.assert_close(call(shifted, w), torch.nn.functional.linear(shifted, w), rtol=0, atol=0)  # not aligned
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(x, w)
        for _ in range(2):
            y.zero_()
            graph.replay()
            torch.testing.assert_close(y, expected, **near)


@pytest.mark.gpu
@pytest.mark.parametrize("template", ["tile", "skinny"])
@pytest.mark.parametrize("pdl", [1, 2, 3, 4, 5, 6])
def test_what_the_kernel_in_front_writes_is_seen(template, pdl):
    """The previous kernel writes B late, also one of our own; it writes A too, unless weights are promised to be constant."""
    import torch

    gemm = Gemm.row_major(32, 4096, 4096, right="T")
    config = (TILE if template == "tile" else SKINNY) | {"bn": 32, "stages": 4 if template == "tile" else 2, "pdl": pdl}
    if not allowed(gemm, config):
        pytest.skip("there is no such kernel")
    torch.manual_seed(0)
    call = TritonBackend(frozen=True).callable(gemm, config, 0)
    plain = TritonBackend().callable(gemm, config | {"pdl": 0}, 0)
    where = {"device": "cuda", "dtype": torch.bfloat16}
    weights = [torch.randn(4096, 4096, **where) / 64 for _ in range(4)]
    late = [torch.randn(32, 16384, **where) / 128 for _ in range(4)]
    made = torch.randn(16384, 4096, **where)
    x = torch.zeros(32, 4096, **where)
    for w in weights:
        call(x, w)
    for i in range(40):
        x.fill_(float("nan"))
        torch.mm(late[i % 4], made, out=x)
        w = weights[i % 4]
        if pdl < 5 or i % 5 == 0:  # torch counts this write: the next call waits for it, whatever it was made for
            w.fill_(float("nan"))
            torch.mul(weights[(i + 1) % 4], 0.5, out=w)
        y = call(x, w)
        torch.testing.assert_close(y, torch.nn.functional.linear(x, w), rtol=2.0**-7, atol=4096 * 2.0**-23 * 4096**0.5)
        weights[i % 4] = torch.randn(4096, 4096, **where) / 64
        call(x, weights[i % 4])

    def chain(product):
        y = late[0][:, :4096].contiguous()
        for i in range(40):
            y = product(y, weights[i % 4])
        return y

    chain(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = chain(call)
    expected = chain(plain)
    for _ in range(3):
        y.zero_()
        graph.replay()
        torch.testing.assert_close(y, expected, rtol=0.0, atol=0.0)
