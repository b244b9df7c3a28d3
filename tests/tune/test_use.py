"""A library in use: its kernels for products that it has, torch's functions for all others, and the same results."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest

import lapwing as lw
from lapwing.tune.dispatch.installed import enable, use
from lapwing.tune.library.folder import Library
from tune.cases import FakeBackend, FakeComparison, fake_library, linear

torch = pytest.importorskip("torch")
F = torch.nn.functional
EPS = torch.finfo(torch.float32).eps


@pytest.fixture
def tuned(tmp_path):
    """A library with x (8, 64) w (32, 64): plain, with bias, a bucket, a product of rows, a batch; and its backend."""
    backend = FakeBackend()
    gemms = [linear(8, 32, 64), linear(8, 32, 64, bias="f32"), linear(8, 32, 64, lda=80, ldb=72), linear(8, 32, 64, batch=3)]
    gemms += [linear(8, 32, 64, "f64")]
    found = [FakeComparison(g) for g in gemms] + [FakeComparison(linear(100, 32, 64), buckets=((90, 100),))]
    # derivatives of the first: dX = G W is NN, dW = G^T X is NT
    found += [FakeComparison(type(gemms[0]).row_major(8, 64, 32, dtype="f32"))]
    found += [FakeComparison(type(gemms[0]).row_major(32, 64, 8, left="T", dtype="f32"))]
    fake_library(tmp_path / "final", *found, backend=backend)
    return Library(tmp_path / "final", backends={"fake": backend}), backend


def tensors(*shapes, dtype=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def close(a, b, k=64):
    return a.shape == b.shape and a.dtype == b.dtype and bool((a - b).abs().max() <= 10 * k * torch.finfo(a.dtype).eps)


def test_hits_only_what_the_key_describes(tuned):
    library, backend = tuned
    x, w, bias = tensors((8, 64), (32, 64), (32,))
    wide_x, wide_w = tensors((8, 72), (32, 80))
    batch, weights, many = tensors((3, 8, 64), (3, 32, 64), (95, 64))
    layer = torch.nn.Linear(64, 32, bias=False).requires_grad_(False)
    hits = {
        "linear": lambda: F.linear(x, w),
        "bias": lambda: F.linear(x, w, bias),
        "folded": lambda: F.linear(x.view(2, 4, 64), w),
        "padded": lambda: F.linear(wide_x[:, :64], wide_w[:, :64]),
        "mm": lambda: torch.mm(x, w.t()),
        "method": lambda: x.mm(w.mT),
        "@": lambda: x @ w.t(),
        "matmul": lambda: torch.matmul(x, w.t()),
        "addmm": lambda: torch.addmm(bias, x, w.t()),
        "bmm": lambda: torch.bmm(batch, weights.mT),
        "batch": lambda: batch @ weights.mT,
        "bucket": lambda: F.linear(many, w),
        "double": lambda: F.linear(x.double(), w.double()),
        "parameter": lambda: F.linear(x, torch.nn.Parameter(w, requires_grad=False)),
        "lapwing": lambda: lw.matmul(x, w.t()),
        "default device": lambda: _on_cpu_by_default(lambda: F.linear(x, w)),
        "layer": lambda: layer(x),
    }
    other_x = x[:, ::2].repeat_interleave(2, 1)
    misses = {
        "rows": lambda: F.linear(x[:7], w),
        "transposed": lambda: F.linear(x.t().contiguous().t(), w),
        "weight transposed": lambda: F.linear(x, w.t().contiguous().t()),
        "padding": lambda: F.linear(wide_x[:, :64], w),
        "outside of the bucket": lambda: F.linear(many[:89], w),
        "not aligned": lambda: F.linear(torch.cat([x.new_zeros(1), x.flatten()])[1:].view(8, 64), w),
        "expanded": lambda: F.linear(x[:1].expand(8, 64), w),
        "matrix bias": lambda: torch.addmm(bias.expand(8, 32), x, w.t()),
        "alpha": lambda: torch.addmm(bias, x, w.t(), alpha=2),
        "strided bias": lambda: F.linear(x, w, bias.repeat_interleave(2)[::2]),
        "out": lambda: torch.mm(x, w.t(), out=torch.empty(8, 32)),
        "vector": lambda: x @ w[0],
        "nowhere": lambda: torch.zeros_like(F.linear(x.to("meta"), w.to("meta")), device="cpu"),
        "complex": lambda: F.linear(x + 1j, w + 0j).real,
        "negated": lambda: F.linear(torch._neg_view(other_x), w),
        "vmap": lambda: torch.func.vmap(lambda row: F.linear(row, w))(x[:, None])[:, 0],
        "forward mode": lambda: torch.func.jvp(lambda t: F.linear(t, w), (x,), (x,))[1],
        "autocast": lambda: _autocast(lambda: F.linear(x, w)),
        "sparse": lambda: torch.mm(x.to_sparse(), w.t()),
        "subclass": lambda: F.linear(x.as_subclass(_Labelled), w).as_subclass(torch.Tensor),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's forward mode uses functions that it has deprecated
        want = {name: call() for name, call in (hits | misses).items()}
    with use(library, compiled=False):
        for name, call in hits.items():
            before = len(backend.calls)
            got = call()
            assert len(backend.calls) == before + 1, name
            assert close(got, want[name]), name
        count = len(backend.calls)
        for name, call in misses.items():
            assert torch.equal(call(), want[name]) or name == "autocast", name
            assert len(backend.calls) == count, name


class _Labelled(torch.Tensor):
    pass


def _autocast(call):
    with torch.autocast("cpu", dtype=torch.float16):
        return call().float()


def _on_cpu_by_default(call):
    with torch.device("cpu"):
        return call()


def test_determinism_is_respected(tuned):
    library, backend = tuned
    x, w = tensors((8, 64), (32, 64))
    torch.use_deterministic_algorithms(True)
    try:
        with use(library, compiled=False):
            F.linear(x, w)
            assert not backend.calls
    finally:
        torch.use_deterministic_algorithms(False)


def test_modes_see_torchs_own_functions(tuned):
    from torch.utils._python_dispatch import TorchDispatchMode

    library, backend = tuned
    x, w = tensors((8, 64), (32, 64))
    seen = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    with use(library, compiled=False):
        with Spy():
            F.linear(x, w)
        with Watch():
            F.linear(x, w)
    assert "linear" in seen and any("mm" in name for name in seen) and not backend.calls


def test_gradients(tuned):
    library, backend = tuned
    x, w, bias, g = tensors((8, 64), (32, 64), (32,), (8, 32))
    leaves = [t.requires_grad_() for t in (x, w, bias)]

    def value():
        y = F.linear(x, w, bias)
        return torch.autograd.grad(y, leaves, g, create_graph=True)

    want = value()
    twice = torch.autograd.grad((want[0] * want[0]).sum(), [w])
    with use(library, compiled=False):
        got = value()
        ways = {(c.n, c.m, c.layout) for c in backend.calls}
        assert ways == {(8, 32, "TN"), (8, 64, "NN"), (32, 64, "NT")}  # forward, dX, dW
        again = torch.autograd.grad((got[0] * got[0]).sum(), [w])
        three = F.linear(x.view(2, 4, 64), w, bias)
        batch = torch.autograd.grad(three, leaves, g.view(2, 4, 32))
        nothing = F.linear(x.detach(), w.detach(), bias.detach())
    for a, b in zip((*got, *again, *batch), (*want, *twice, *want), strict=True):
        assert close(a.reshape(b.shape), b, 64 * 32)
    assert not nothing.requires_grad
    x64, w64 = (t.detach().double().requires_grad_() for t in (x, w))
    with use(library, compiled=False):
        before = len(backend.calls)
        assert torch.autograd.gradcheck(lambda a, b: F.linear(a, b).sum(), (x64, w64), fast_mode=True)
        assert len(backend.calls) > before


def test_everything_is_put_back(tuned, tmp_path):
    library, backend = tuned
    places = [(F, "linear"), (torch, "mm"), (torch, "matmul"), (torch, "addmm"), (torch, "bmm"), (torch, "_scaled_mm")]
    places += [(torch.Tensor, name) for name in ("__matmul__", "matmul", "mm", "bmm")]
    before = [place.__dict__.get(name) for place, name in places]
    inner = FakeBackend()
    other = fake_library(tmp_path / "inner", FakeComparison(linear(8, 32, 64)), backend=inner)
    x, w, narrow = tensors((8, 64), (32, 64), (95, 64))
    with pytest.raises(ZeroDivisionError), use(library, compiled=False):
        with use(other, compiled=False, backends={"fake": inner}):
            F.linear(x, w)
            F.linear(narrow, w)  # only the outer library has it
            assert (len(inner.calls), len(backend.calls)) == (1, 1)
        F.linear(x, w)
        assert (len(inner.calls), len(backend.calls)) == (1, 2)
        raise ZeroDivisionError
    assert [place.__dict__.get(name) for place, name in places] == before

    first, second = use(library, compiled=False), use(other, compiled=False, backends={"fake": inner})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # it did not begin last
    F.linear(narrow, w)
    assert len(backend.calls) == 2
    second.__exit__(None, None, None)
    assert [place.__dict__.get(name) for place, name in places] == before


def test_somebody_elses_patch_stays(tuned, monkeypatch):
    library, _ = tuned
    x, w = tensors((8, 64), (32, 64))
    theirs = []
    original = F.linear
    monkeypatch.setattr(F, "linear", original)
    with use(library, compiled=False):
        ours = F.linear
        F.linear = lambda *a: theirs.append(1) or ours(*a)
    F.linear(x, w)
    assert theirs and F.linear is not original


def test_threads(tuned):
    library, _ = tuned
    x, w = tensors((8, 64), (32, 64))
    want, wrong = x @ w.t(), []
    before = F.linear

    def work():
        for _ in range(30):
            with use(library, compiled=False):
                wrong.extend([1] if not close(F.linear(x, w), want) else [])

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong and F.linear is before


@pytest.mark.parametrize("way", ["refused", "fails", "wrong"])
def test_a_bad_kernel_costs_a_warning_and_no_answer(tmp_path, caplog, way):
    backend = FakeBackend()
    path = fake_library(tmp_path, FakeComparison(linear(8, 32, 64), config={"way": way}), backend=backend)
    x, w = tensors((8, 64), (32, 64))
    w.requires_grad_(way == "fails")
    want = F.linear(x, w)
    with use(path, compiled=False, backends={"fake": backend}), caplog.at_level("WARNING", logger="lapwing"):
        for _ in range(3):
            assert torch.equal(F.linear(x, w), want)
    assert len(caplog.records) == 1 and len(backend.calls) <= 1


def test_layers_of_a_model(tuned, caplog):
    library, backend = tuned

    class Own(torch.nn.Linear):
        def forward(self, input):
            return super().forward(input) + 1

    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), Own(32, 64), torch.nn.Linear(64, 32, bias=False))
    x = tensors((8, 64))[0]
    want = model(x)
    want.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    handle = enable(model, library, compiled=False)
    assert handle.layers == 2
    got = model(x)
    assert len(backend.calls) == 2 and close(got, want)
    got.sum().backward()
    assert all(close(p.grad, g, 2048) for p, g in zip(model.parameters(), grads, strict=True))
    twin = copy.deepcopy(model)
    assert twin[0].forward.layer is twin[0]
    loaded = pickle.loads(pickle.dumps(torch.nn.Sequential(model[0], model[3])))  # a pickle has no library
    count = len(backend.calls)
    assert torch.equal(loaded[0](x), F.linear(x, model[0].weight, model[0].bias))
    assert len(backend.calls) == count
    model.half().float()
    model(x)
    handle.remove()
    handle.remove()
    count = len(backend.calls)
    assert torch.equal(model(x), F.linear(model[2](model[1](model[0](x))), model[3].weight))
    assert "forward" not in model[0].__dict__ and len(backend.calls) == count
    with pytest.raises(TypeError, match="expected a torch"):
        enable(print, library)
    assert not caplog.records
    with enable(torch.nn.ReLU(), library, compiled=False):
        assert "no torch.nn.Linear" in caplog.text
    for entry in library.entries.values():
        object.__setattr__(entry, "backend", "cpu")
    with enable(model, library, compiled=False):
        assert "are for NumPy arrays" in caplog.text


def test_eight_bit_floats_with_scales(tmp_path):
    backend = FakeBackend()
    gemm = linear(16, 32, 64, "f8e4m3", c_type="bf16", d_type="bf16", scale_a="tensor", scale_b="tensor")
    rows = linear(16, 32, 64, "f8e4m3", c_type="bf16", d_type="bf16", scale_a="row", scale_b="row")
    path = fake_library(tmp_path, FakeComparison(gemm), FakeComparison(rows), backend=backend)
    x, w = (t.to(torch.float8_e4m3fn) for t in tensors((16, 64), (32, 64)))
    a, b = torch.tensor(2.0), torch.tensor(0.5)
    with use(path, compiled=False, backends={"fake": backend}):
        y = torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)
        z = torch._scaled_mm(x, w.t(), torch.full((16, 1), 2.0), torch.full((1, 32), 0.5), out_dtype=torch.bfloat16)
        # another way to keep the sums is another product
        torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16, use_fast_accum=True)
        torch._scaled_mm(x, w.t(), a, b, None, None, torch.bfloat16, True)
    assert [c.scale_a for c in backend.calls] == ["tensor", "row"]
    backend.calls.clear()
    fast = fake_library(tmp_path / "fast", FakeComparison(replace(gemm, fast_accum=True)), backend=backend)
    with use(fast, compiled=False, backends={"fake": backend}):
        torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)
        torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16, use_fast_accum=False)
        assert not backend.calls
        torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16, use_fast_accum=True)
    assert [c.fast_accum for c in backend.calls] == [True]
    want = x.float() @ w.float().t()
    assert (y.float() - want).abs().max() <= 2**-8 * want.abs().max() and torch.equal(y, z)


def test_numpy_through_lapwing(tuned):
    library, backend = tuned
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((8, 64)), rng.standard_normal((32, 64))
    with use(library, compiled=False):
        got = lw.matmul(x, w.T)
        assert len(backend.calls) == 1
        lw.matmul(x[:5], w.T)
        lw.matmul(x[:, 0], x)
    assert len(backend.calls) == 1
    assert np.abs(got - x @ w.T).max() <= 640 * np.finfo(float).eps
    lw.matmul(x, w.T)
    assert len(backend.calls) == 1


def test_dynamo_sees_only_torch(tuned):
    library, _ = tuned
    x, w = tensors((8, 64), (32, 64))
    graphs = []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    torch._dynamo.reset()
    with use(library, compiled=False):
        got = torch.compile(lambda a, b: F.linear(a, b) @ b, backend=backend, fullgraph=True)(x, w)
    assert len(graphs) == 1 and any("linear" in name for name in graphs[0])
    assert torch.equal(got, F.linear(x, w) @ w)


def test_compile_pass_replaces_products_of_fixed_shape(tuned):
    """The pass on a graph like Inductor's; running Inductor needs a compiler and half a minute."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from lapwing.tune.dispatch.compiled import install, replace_products
    from lapwing.tune.dispatch.dispatcher import Dispatcher

    library, backend = tuned
    graph = torch.fx.Graph()
    with FakeTensorMode():
        shapes = {"x": (8, 64), "wt": (64, 32), "bias": (32,), "v": (32, 7)}
        nodes = {}
        for name, shape in shapes.items():
            nodes[name] = graph.placeholder(name)
            value = torch.empty(shape) if name != "wt" else torch.empty(32, 64).t()
            nodes[name].meta["val"] = value
        aten = torch.ops.aten
        y = graph.call_function(aten.mm.default, (nodes["x"], nodes["wt"]))
        z = graph.call_function(aten.addmm.default, (nodes["bias"], nodes["x"], nodes["wt"]))
        y.meta["val"] = z.meta["val"] = torch.empty(8, 32)
        out = graph.call_function(aten.mm.default, (y, nodes["v"]))
        out.meta["val"] = torch.empty(8, 7)
        graph.output((out, z))
    import torch._inductor.config as config

    before = config.post_grad_custom_post_pass
    dispatcher = Dispatcher([library])
    undo = install(dispatcher, library.digest)
    config.post_grad_custom_post_pass(graph)
    assert library.digest in config.post_grad_custom_post_pass.uuid()
    undo()
    assert config.post_grad_custom_post_pass is before
    assert [n.target is torch.ops.lapwing.tuned_product.default for n in (y, z, out)] == [True, True, False]
    assert replace_products(graph, dispatcher, library.digest) == 0
    x, w, bias, v = tensors((8, 64), (32, 64), (32,), (32, 7))
    made = torch.fx.GraphModule({}, graph)(x, w.t(), bias, v)
    assert [c.bias for c in backend.calls] == ["", "f32"]
    assert close(made[0], x @ w.t() @ v, 64 * 32) and close(made[1], F.linear(x, w, bias))


def test_the_pass_waits_for_the_first_compile(tuned, monkeypatch):
    import sys

    from lapwing.tune.dispatch import compiled

    library, _ = tuned
    installed = []
    monkeypatch.setattr(compiled, "_install", lambda *a: installed.append("in") or (lambda: installed.append("out")))
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    monkeypatch.setattr(torch, "compile", lambda function, **named: function)
    before = torch.compile
    with use(library):
        assert torch.compile is not before and not installed
        with use(library):
            assert torch.compile(len) is len and torch.compile(abs) is abs
        ours = torch.compile
    assert installed == ["in", "out"] and torch.compile is before
    ours(len)  # called after it was removed
    assert len(installed) == 2
    with use(library, compiled=False):
        assert torch.compile is before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_inductor_runs_tuned_kernels(tuned):
    library, backend = tuned
    torch._dynamo.reset()
    x, w, bias = tensors((8, 64), (32, 64), (32,))
    w.requires_grad_()
    function = torch.compile(lambda a, b, c: F.linear(a, b, c).relu().sum())
    with use(library):
        got = function(x, w, bias)
        got.backward()
    assert {c.layout for c in backend.calls} >= {"TN"}
    want = F.linear(x, w.detach(), bias).relu().sum()
    assert abs(got - want) <= 1e-3 * abs(want)


def test_weights_are_read_ahead_only_where_that_was_promised(tmp_path):
    """Entries of triton_frozen are used only by enable(frozen=True), and never with gradients."""
    from lapwing.tune.library import build

    backend, product = FakeBackend(), linear(8, 32, 64)
    backends = {"triton_frozen": backend}
    build(tmp_path, [FakeComparison(product, backend="triton_frozen")], tmp_path, backends=backends)
    library = Library(tmp_path, backends=backends)
    layer = torch.nn.Linear(64, 32, bias=False)
    x = tensors((8, 64))[0]
    with pytest.raises(ValueError, match=r"hint: model\.requires_grad_"):
        enable(layer, library, frozen=True)
    layer.requires_grad_(False)
    want = layer(x)
    with use(library, compiled=False):
        F.linear(x, layer.weight)
    with enable(layer, library, compiled=False):
        layer(x)
    assert not backend.asked
    with enable(layer, library, compiled=False, frozen=True):
        assert close(layer(x), want) and len(backend.calls) == 1
        copy.deepcopy(layer)(x)
        assert len(backend.calls) == 2
        leaf = x.clone().requires_grad_()
        layer(leaf).sum().backward()  # the kernel in front may be what made an operand of a derivative
        layer.requires_grad_(True)
        layer(x)
        assert len(backend.calls) == 2 and close(leaf.grad, layer.weight.detach().sum(0).expand(8, 64))


def test_a_written_weight_is_not_read_ahead():
    from lapwing.tune.backends.kernels.call import unwritten

    seen = {}
    w = torch.nn.Parameter(torch.zeros(4, 4), requires_grad=False)
    assert [unwritten(seen, w), unwritten(seen, w), unwritten(seen, w.t())] == [False, True, True]
    w.add_(1)
    assert [unwritten(seen, w.t()), unwritten(seen, w)] == [False, True]
    seen[id(w)] = (lambda: None), w._version  # another tensor that lived at this address
    assert not unwritten(seen, w)
    with torch.inference_mode():
        new = torch.zeros(4, 4)
    assert not unwritten(seen, new) and not unwritten(seen, new)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_enabled_twice_and_removed_in_any_order(tuned, order):
    library, backend = tuned
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False).double())
    x = torch.randn(8, 64).double()
    handles = [enable(model, library, compiled=False) for _ in range(2)]
    model(x)
    count = len(backend.calls)
    assert count == 1
    handles[order[0]].remove()
    model(x)
    assert len(backend.calls) == count + 1  # the other one still holds
    handles[order[1]].remove()
    model(x)
    assert len(backend.calls) == count + 1 and "forward" not in model[0].__dict__


def test_an_unpickled_model_can_be_enabled_again(tuned):
    library, backend = tuned
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False).double())
    with enable(model, library, compiled=False):
        again = pickle.loads(pickle.dumps(model))
    x = torch.randn(8, 64).double()
    again(x)
    assert not backend.calls
    with enable(again, library, compiled=False) as handle:
        again(x)
        assert handle.layers == 1 and len(backend.calls) == 1


def test_a_report_counts_hits_and_misses(tmp_path):
    """Which entries were hit, how often, which never, and which products have none."""
    lw.tune.report(reset=True)
    backend = FakeBackend()
    path = fake_library(tmp_path, FakeComparison(linear(8, 32, 64)), FakeComparison(linear(8, 96, 64)), backend=backend)
    x, w, other = torch.randn(8, 64), torch.randn(32, 64), torch.randn(7, 64)
    with use(path, backends={"fake": backend}):
        for _ in range(3):
            F.linear(x, w)
        F.linear(other, w)  # another number of tokens
        for _ in range(2):
            x @ x.t()
        with torch.autocast("cpu", torch.bfloat16):
            F.linear(x, w)
    report = lw.tune.report()
    ours = [u for u in report.entries if u.library == str(path)]
    assert [(u.product, u.hits, u.passed, u.backend) for u in ours] == [
        (str(linear(8, 32, 64)), 3, 1, "fake"),
        (str(linear(8, 96, 64)), 0, 0, "fake"),
    ]
    assert {u.product: u.passed for u in report.misses} == {str(linear(7, 32, 64)): 1, "SSS_TN 8x8x64": 2}
    text = str(report)
    assert (
        f"3  {linear(8, 32, 64)} by fake, 1 left to the framework" in text and "without an entry: 2 products, 3 calls" in text
    )
    lw.tune.report(reset=True)
    assert not lw.tune.report().misses and not any(u.hits for u in lw.tune.report().entries)


def test_a_report_of_numpy_arrays(tmp_path):
    lw.tune.report(reset=True)
    gemm = lw.tune.Gemm.row_major(8, 32, 64, dtype="f64")
    backend = FakeBackend()
    path = fake_library(tmp_path, FakeComparison(gemm), backend=backend)
    x, w = np.ones((8, 64)), np.ones((64, 32))
    with use(path, backends={"fake": backend}):
        lw.matmul(x, w), lw.matmul(x, w), lw.matmul(x[:7], w)
    report = lw.tune.report(reset=True)
    assert [u.hits for u in report.entries if u.library == str(path)] == [2]
    assert [(u.product, u.passed) for u in report.misses] == [("DDD_NN 32x7x64", 1)]
