"""What explain says, what the log says and what ran are the same: over operations, dtypes, options and both sides of limits."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES
from lapwing.core.native import ENGINES, OPS, native

pytestmark = pytest.mark.skipif(native is None, reason="the native core is not built")

_OP = {code: name for name, code in OPS.items()}
_ENGINE = {code: name for name, code in ENGINES.items()}
HELPERS = ("finite", "hermitian")  # around every operation, with no choice of engine
SIZES = (1, 16, 17, 33, 65)
BATCHES = (0, 1, 4, 7, 8, 16)


@pytest.fixture(autouse=True)
def recording():
    native.record_runs(True)
    yield
    native.record_runs(False)


def runs():
    """(operation, engine) of what ran since the last time."""
    found = [(_OP[op], _ENGINE[engine]) for op, engine, *_ in native.take_runs()]
    return [(op, engine) for op, engine in found if op not in HELPERS]


def decisions(caplog):
    """(problem, engine) of every decision in the log."""
    lines = [r.getMessage() for r in caplog.records if r.name == "lapwing" and ", because " in r.getMessage()]
    return [tuple(line.partition(", because ")[0].rsplit(": ", 1)) for line in lines]


def agree(caplog, function, *arrays, same=None, **options):
    """The plan, after a call that ran as planned and as logged. ``same``: names that may stand for the planned operation."""
    plan = lw.explain(function, *arrays, **options)
    caplog.clear()
    native.take_runs()
    with caplog.at_level(logging.INFO, logger="lapwing"):
        function(*arrays, **options)
    ran, told = runs(), decisions(caplog)
    names = {plan.problem.operation, *(same or ())}
    where = (function.__name__, [getattr(a, "shape", a) for a in arrays], options, plan.reason, ran, told)
    engines = [engine for op, engine in ran if op in names]
    if plan.engine == "none":
        assert engines == [], where
    else:
        assert engines, where
        assert engines[0] == plan.engine, where
    assert any(text.startswith(plan.problem.operation) and engine == plan.engine for text, engine in told), where
    return plan


def matrix(dtype, *shape, kind="pos"):
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    n = shape[-1]
    if kind == "pos" and n:
        x = (x + x.conj().swapaxes(-1, -2)) / (8 * n**0.5) + np.eye(n)
    elif kind == "lower":
        x = np.tril(x) / max(n, 1) + np.eye(n)
    elif kind == "upper":
        x = np.triu(x) / max(n, 1) + np.eye(n)
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky(caplog, dtype):
    for n in SIZES:
        for batch in BATCHES:
            agree(caplog, lw.cholesky, matrix(dtype, batch, n, n))
    for n in (128, 129, {"float32": 768, "complex128": 384}.get(dtype, 512) + 1):
        agree(caplog, lw.cholesky, matrix(dtype, n - 1, n - 1))
        agree(caplog, lw.cholesky, matrix(dtype, n, n), upper=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("assume", ["general", "symmetric", "hermitian", "pos", "lower", "upper"])
def test_systems(caplog, dtype, assume):
    kind = assume if assume in ("lower", "upper") else "pos"
    for n in SIZES:
        for batch in BATCHES:
            a, b = matrix(dtype, batch, n, n, kind=kind), matrix(dtype, batch, n, 2, kind="")
            agree(caplog, lw.solve, a, b, assume=assume)
            if (n in (16, 17) and batch in (0, 1, 8)) or (n, batch) == (65, 1):
                agree(caplog, lw.inv, a, assume=assume)
                agree(caplog, lw.slogdet, a, assume=assume)
                agree(caplog, lw.factor, a, assume=assume)
    # right-hand sides for one matrix become columns, and batches broadcast
    one, many = matrix(dtype, 20, 20, kind=kind), matrix(dtype, 50, 20, 1, kind="")
    assert agree(caplog, lw.solve, one, many, assume=assume).problem.columns == 50
    assert agree(caplog, lw.solve, one[None], many, assume=assume).problem.batch == 50


def test_a_triangle_is_used_once(caplog):
    a, b = matrix("float64", 100, 48, 48, kind="lower"), np.ones((100, 48, 1))
    assert agree(caplog, lw.solve, a, b, assume="lower").engine == "batched"
    one = matrix("float64", 600, 600, kind="lower")
    assert agree(caplog, lw.solve, one, np.ones((600, 1)), assume="lower").engine == "lapack"


def test_a_triangular_determinant_needs_no_engine(caplog):
    a = matrix("float64", 3, 8, 8, kind="upper")
    plan = agree(caplog, lw.slogdet, a, assume="upper")
    assert plan.engine == "none" and "product of its diagonal" in plan.reason
    with pytest.raises(ValueError, match="no engine is used for it"):
        lw.slogdet(a, assume="upper", engine="lapack")


@pytest.mark.parametrize("assume", ["general", "pos"])
def test_mixed(caplog, assume):
    dtype, engines = "float64", []
    for n in (40, 900, 1400):
        a, b = matrix(dtype, n, n), np.ones((n, 1), dtype)
        engines.append(agree(caplog, lw.solve, a, b, assume=assume, precision="mixed").engine)
        if n == 1400:
            assert agree(caplog, lw.solve, a, np.ones((n, 65), dtype), assume=assume, precision="mixed").engine == "lapack"
            agree(caplog, lw.factor, a, assume=assume, precision="mixed")
    assert engines == ["batched", "lapack", "mixed"]
    a, b = matrix(dtype, 40, 40), np.ones((40, 1), dtype)
    plan = agree(caplog, lw.solve, a, b, assume=assume, engine="mixed")
    assert plan.engine == "mixed" and plan.host_bytes > 0


def test_a_fallback_is_what_ran():
    native.take_runs()
    a, b = np.eye(1400), np.ones((1400, 1))
    lw.solve(a, b, precision="mixed")
    a[700, 700] = np.nan
    lw.solve(a, b, precision="mixed", on_fail="nan")
    assert runs() == [("solve", "mixed"), ("solve", "lapack")]
    native.take_runs()
    x = np.ones((4096, 8))  # columns that depend on each other
    lw.qr(x, engine="tall")
    x[5, 5] = np.nan
    lw.qr(x)
    assert runs() == [("qr", "tall"), ("qr", "lapack")]


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("function", [lw.eigh, lw.eigvalsh])
def test_spectra(caplog, dtype, function):
    for n, batches in ((1, (0, 1)), (16, (1, 3)), (17, (3, 4)), (33, (7, 8)), (65, (15, 16))):
        for batch in batches:
            agree(caplog, function, matrix(dtype, batch, n, n))
    if dtype == "float32":
        for n in (224, 225):
            agree(caplog, function, matrix(dtype, 16, n, n))
    a = matrix(dtype, 65, 65)
    for subset in (slice(1), slice(-2, None), slice(3, 5), slice(None)):
        agree(caplog, function, a, subset=subset)
    agree(caplog, function, a, window=(0.5, 1.5))
    agree(caplog, function, a, b=matrix(dtype, 65, 65))
    agree(caplog, function, a, b=matrix(dtype, 65, 65), window=(0.5, 1.5))
    agree(caplog, function, a, subset=slice(2), certify=True, same={"eigh"})


@pytest.mark.parametrize(("n", "count", "engine"), [(1499, 16, "lapack"), (1500, 16, "krylov"), (1500, 17, "lapack")])
def test_ends_of_a_spectrum(caplog, n, count, engine):
    a = np.diag(0.5 ** np.arange(float(n))).astype(np.float32) + np.eye(n, dtype=np.float32)
    plan = lw.explain(lw.eigh, a, subset=slice(-count, None))
    assert plan.engine == engine or "record" in plan.reason.split("as there")[0]
    if n == 1000:
        agree(caplog, lw.eigh, a, subset=slice(-count, None))


@pytest.mark.parametrize("dtype", DTYPES)
def test_decompositions(caplog, dtype):
    shapes = [(8, 8), (17, 17), (33, 33), (65, 65), (128, 32), (129, 4), (4, 129), (5, 0)]
    for shape in (*shapes, (4096, 8), (4095, 8), (4096, 3), (600, 70)):
        for batch in (0, 1, 3, 8) if shape in shapes else (1,):
            a = matrix(dtype, batch, *shape, kind="")
            for function in (lw.qr, lw.svd, lw.svdvals):
                agree(caplog, function, a)
            if shape in ((8, 8), (33, 33), (4, 129)):
                agree(caplog, lw.svd, a, full_matrices=True)
                agree(caplog, lw.qr, a, mode="complete")


@pytest.mark.parametrize("assume", ["general", "pos", "hermitian"])
def test_derivatives_in_torch(caplog, assume):
    torch = pytest.importorskip("torch")
    for n, batch in ((8, 1), (48, 1), (48, 16), (520, 1)):
        a, b = (torch.from_numpy(x) for x in (matrix("float64", batch, n, n), np.ones((batch, n, 1))))
        for function in (lw.solve, lw.cholesky, lw.inv, lw.slogdet, lw.eigh, lw.qr, lw.svd):
            arrays = (a, b) if function is lw.solve else (a,)
            options = {"assume": assume} if function in (lw.solve, lw.inv, lw.slogdet) else {}
            agree(caplog, function, a.clone().requires_grad_(), *arrays[1:], **options)
            agree(caplog, function, *arrays, **options)
        for engine in ("lapack", "batched") if n <= 64 else ("lapack",):
            x = a.clone().requires_grad_()
            native.take_runs()
            y = lw.solve(x, b, assume=assume, engine=engine)
            assert {e for _, e in runs()} == {engine}
            y.sum().backward()
            assert x.grad is not None
    with pytest.raises(ValueError, match="engine='batched' cannot take this call"):
        lw.solve(a.clone().requires_grad_(), b, assume=assume, engine="batched")


@pytest.mark.parametrize("assume", ["general", "pos"])
def test_options_inside_jit_and_vmap(assume):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    with jax.enable_x64() if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        for n, batch in ((48, 1), (48, 100)):
            a, b = jnp.asarray(matrix("float64", batch, n, n)), jnp.ones((batch, n, 1))
            for engine in ("auto", "lapack" if batch > 1 else "batched"):
                expected = lw.explain(lw.solve, a, b, assume=assume, engine=engine).engine
                for call in (jax.jit, jax.vmap):
                    native.take_runs()
                    call(lambda a, b, engine=engine: lw.solve(a, b, assume=assume, engine=engine))(a, b).block_until_ready()
                    assert runs() == [("solve", expected)]
                if engine != "auto":
                    native.take_runs()
                    loss = lambda a, b, engine=engine: lw.solve(a, b, assume=assume, engine=engine).sum()  # noqa: E731
                    jax.grad(loss)(a, b).block_until_ready()
                    assert {e for _, e in runs()} == {engine}
        a, b = jnp.asarray(matrix("float64", 1400, 1400)), jnp.ones((1400, 1))
        native.take_runs()
        jax.jit(lambda a, b: lw.solve(a, b, assume=assume, precision="mixed"))(a, b).block_until_ready()
        jax.grad(lambda a, b: lw.solve(a, b, assume=assume, precision="mixed").sum())(a, b).block_until_ready()
        assert set(runs()) == {("solve", "mixed")}


def test_names_that_cannot_apply():
    a = np.eye(4)
    with pytest.raises(
        ValueError, match=r"engine='cusolver' cannot take this call.*\nhint: use one of 'auto', 'batched', 'lapack'"
    ):
        lw.cholesky(a, engine="cusolver")
    with pytest.raises(ValueError, match="is not known\nhint: use one of 'auto'"):
        lw.cholesky(a, engine="nosuch")
    with pytest.raises(ValueError, match='is the work of engine "mixed"'):
        lw.solve(a, a, precision="mixed", engine="lapack")
    with pytest.raises(ValueError, match="float64 and complex128"):
        lw.solve(a.astype("float32"), a.astype("float32"), engine="mixed")
    with pytest.raises(ValueError, match="thin SVD"):
        lw.svd(np.ones((100, 4)), full_matrices=True, engine="tall")


def test_default_engine(caplog):
    try:
        native.prefer(ENGINES["lapack"])
        plan = agree(caplog, lw.cholesky, np.eye(4))
        assert (plan.engine, plan.reason) == ("lapack", "LAPWING_ENGINE asks for it")
        native.prefer(ENGINES["krylov"])
        plan = agree(caplog, lw.eigh, np.eye(4))
        assert plan.engine == "batched" and "LAPWING_ENGINE=krylov cannot take this call" in plan.reason
    finally:
        native.prefer(ENGINES["auto"])


GPU = """
names = {code: name for name, code in ENGINES.items()}
native.record_runs(True)
for dtype in ("float64", "complex64"):
    for n in (0, 1, 33, 128, 129):
        for batch in (0, 1, 2, 16):
            plan = native.plan(CHOLESKY, DTYPE_CODE[dtype], CUDA, 0, 0, 0, 0, (batch, n), "")
            check(dtype, batch, n, "auto")
            ran = [(CHOLESKY, plan[0], DTYPE_CODE[dtype], batch, n)] if batch and n else []
            assert native.take_runs() == ran, (dtype, n, batch, plan)
    for n in (1, 32, 33, 64, 65):
        for batch in (1, 2):
            for part in ((0, n), (0, 1)):
                a = hermitian(dtype, batch, n)
                plan = native.plan(*eigh_call(a, "auto", part=part), "")
                native.take_runs()
                eigh(a, "auto", part=part)
                assert [run[1] for run in native.take_runs()] == [plan[0]], (dtype, n, batch, part, plan)
                assert native.scratch_bytes(*eigh_call(a, "auto", part=part)) == plan[3]
tell(ok=True)
"""


def test_gpu_rules_through_the_stand_in_driver(tmp_path_factory, tmp_path):
    sys.path.append(str(Path(__file__).parents[1] / "native" / "mock"))
    import harness

    if harness.COMPILER is None or not harness.NATIVE.is_dir():
        pytest.skip("needs a C++ compiler and the sources")
    folder = tmp_path_factory.getbasetemp() / "emulated"  # kernels that the stand-in has no twin of run as host code
    folder.mkdir(exist_ok=True)
    settings = {"MOCK_EMULATE": str(folder), "MOCK_EMULATOR": str(harness.EMULATOR)}
    assert harness.Children(harness.libraries(tmp_path_factory), tmp_path)(GPU, **settings)[1]["ok"]


def test_plans_for_a_gpu_that_is_not_here():
    plan = lw.explain(lw.cholesky, lw.spec((1000, 64, 64), "float32", device="cuda"))
    assert plan.engine == "batched"
    if not native.gpus():
        assert "the shipped record of NVIDIA H200" in plan.reason and "no GPU here" in plan.reason
        assert "no usable GPU" in plan.missing
    assert lw.explain(lw.eigh, lw.spec((16384, 16384), device="cuda"), subset=slice(-16, None)).engine == "krylov"
    assert lw.explain(lw.solve, lw.spec((32768, 32768), device="cuda"), lw.spec((32768, 1), device="cuda")).engine == "cusolver"
    options = {"assume": "pos", "precision": "mixed"}
    system = lw.spec((32768, 32768), device="cuda"), lw.spec((32768, 1), device="cuda")
    assert lw.explain(lw.solve, *system, **options).engine == "mixed"
    assert lw.explain(lw.qr, lw.spec((100000, 64), device="cuda")).engine == "tall"


def test_solves_from_the_right_are_planned_as_they_run(caplog):
    a, b = np.eye(1400) * 4, np.ones((1, 1400))
    assert agree(caplog, lw.solve, a, b, side="right", precision="mixed").engine == "mixed"


@pytest.mark.parametrize("n", SIZES)
def test_determinants(caplog, n):
    for batch in BATCHES:
        for assume in ("general", "pos", "lower"):
            agree(caplog, lw.det, np.broadcast_to(np.eye(n), (batch, n, n)).copy(), assume=assume)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (lw.cholesky, {"on_fail": "x"}),
        (lw.cholesky, {"upper": "x"}),
        (lw.cholesky, {"jitter": "x"}),
        (lw.svd, {"full_matrices": 2}),
        (lw.solve, {"side": "foo"}),
        (lw.solve, {"unit": True}),
    ],
)
def test_explain_refuses_what_the_call_refuses(function, options):
    arrays = (np.eye(3), np.ones(3))[: 2 if function is lw.solve else 1]
    with pytest.raises((ValueError, TypeError)) as called:
        function(*arrays, **options)
    with pytest.raises((ValueError, TypeError)) as explained:
        lw.explain(function, *arrays, **options)
    assert str(explained.value) == str(called.value)


# a named engine where sizes are not numbers yet: the native core refuses when the call runs
NAMED = {
    "cholesky": lambda x: lw.cholesky(x, engine="lapack"),
    "solve": lambda x: lw.solve(x, x, engine="lapack"),
    "eigvalsh": lambda x: lw.eigvalsh(x, engine="lapack"),
    "qr": lambda x: lw.qr(x, engine="lapack").R,
    "svdvals": lambda x: lw.svdvals(x, engine="lapack"),
    "det": lambda x: lw.det(x, engine="lapack"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # torch's own
@pytest.mark.parametrize("name", NAMED)
def test_named_engines_without_graph_breaks(name):
    torch = pytest.importorskip("torch")
    x = torch.eye(20) * 2
    torch._dynamo.reset()
    compiled = torch.compile(NAMED[name], fullgraph=True, backend="eager", dynamic=True)
    assert torch.equal(compiled(x), NAMED[name](x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # torch's own
def test_named_engines_with_unknown_sizes():
    torch, jax, tf = (pytest.importorskip(name) for name in ("torch", "jax", "tensorflow"))
    from jax import export

    class Model(torch.nn.Module):
        def forward(self, x):
            return NAMED["cholesky"](x)

    batch = torch.eye(20).expand(3, 20, 20).clone()
    program = torch.export.export(Model(), (batch,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert program.module()(batch[:2]).shape == (2, 20, 20)
    for name in ("cholesky", "solve", "eigvalsh"):
        targets = [
            export.DisabledSafetyCheck.custom_call(target) for target in ("lapwing", f"lapwing_{name}", "lapwing_hermitian")
        ]
        symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("b, n, n"), "float32")
        export.export(jax.jit(NAMED[name]), disabled_checks=targets)(symbolic)
    graph = tf.function(NAMED["cholesky"], input_signature=[tf.TensorSpec([None, 20, 20])])
    assert graph(tf.eye(20, batch_shape=[2])).shape == (2, 20, 20)
    with pytest.raises(ValueError, match="is not known"):
        tf.function(lambda x: lw.cholesky(x, engine="nope"), input_signature=[tf.TensorSpec([None, 20, 20])])(batch.numpy())


def test_engines_of_sharded_matrices_are_refused_by_name():
    with pytest.raises(ValueError, match=r"cholesky: engine='scalapack' is for sharded matrices.*\n.*'batched', 'lapack'"):
        lw.cholesky(np.eye(3), engine="scalapack")
