"""PyTorch: autograd, forward mode, torch.func, compile, export, and tensors of every layout."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import lapwing as lw
from backends import residual, spd

torch = pytest.importorskip("torch")

# raised inside torch itself while it compiles
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch._prims_common.check.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*functools.lru_cache.*:UserWarning"),
    # torch's own, of a thread of its backward pass that meets cuBLAS first
    pytest.mark.filterwarnings("ignore:.*no current CUDA context.*:UserWarning"),
]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def matrices(shape, dtype="float64", device="cpu", seed=0):
    return torch.from_numpy(spd(shape, dtype, seed)).to(device)


def herm(x):
    return (x + x.mH) / 2


def scalar(function):
    return lambda x: function(herm(x)).sin().sum()


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_first_and_second_order(device, dtype, upper):
    x = matrices((2, 3, 3), dtype, device).requires_grad_()

    def function(x):
        return lw.cholesky(herm(x), upper=upper)

    assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, (x,))


def test_gradient_is_hermitian_and_ignores_the_other_triangle(device):
    x = matrices((5, 5), "complex128", device)
    given = x.clone()
    given[torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)] = torch.nan
    given.requires_grad_()
    (gradient,) = torch.autograd.grad(lw.cholesky(given).abs().sum(), given)
    assert torch.equal(gradient, gradient.mH)
    own = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(torch.linalg.cholesky(herm(own)).abs().sum(), own)
    assert (gradient - expected).abs().max() < 50 * np.finfo("float64").eps * expected.abs().max()


def test_failed_matrix_makes_only_its_own_gradient_nan(device):
    x = matrices((3, 4, 4), device=device)
    x[1] = -x[1]
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(lw.cholesky(x, on_fail="nan").nansum(), x)
    assert gradient[1].isnan().all()
    assert gradient[[0, 2]].isfinite().all()


TRANSFORMS = {
    "vmap": lambda f: torch.vmap(f),
    "nested vmap": lambda f: lambda a: torch.vmap(torch.vmap(f))(a.reshape(2, 3, *a.shape[1:])),
    "vmap over the last axis": lambda f: lambda a: torch.vmap(f, in_dims=2)(a.movedim(0, 2)),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(scalar(f))),
    "grad": lambda f: torch.func.grad(scalar(f)),
    "jacrev": lambda f: lambda a: torch.func.jacrev(lambda x: f(herm(x)))(a[0]),
    "jacfwd": lambda f: lambda a: torch.func.jacfwd(lambda x: f(herm(x)))(a[0]),
    "hessian": lambda f: lambda a: torch.func.hessian(scalar(f))(a[0]),
    "vmap of jvp": lambda f: torch.vmap(lambda x: torch.func.jvp(lambda y: f(herm(y)), (x,), (x,))[1]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_torch_func(device, name):
    a = matrices((6, 4, 4), device=device)
    ours, own = TRANSFORMS[name](lw.cholesky)(a), TRANSFORMS[name](torch.linalg.cholesky)(a)
    assert (ours - own).abs().max() <= 200 * np.finfo("float64").eps * own.abs().max()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_torch_func_compiled(name):
    """The back end that writes C++ is tested with the plain call: what lapwing adds ends before it."""
    a = matrices((6, 4, 4))
    ours = torch.compile(TRANSFORMS[name](lw.cholesky), fullgraph=True, backend="aot_eager")(a)
    own = TRANSFORMS[name](torch.linalg.cholesky)(a)
    assert (ours - own).abs().max() <= 200 * np.finfo("float64").eps * own.abs().max()


def test_compile_with_dynamic_shapes(device):
    compiled = torch.compile(lambda x: lw.cholesky(herm(x)).sin().sum(), fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((3, 5, 5), (7, 6, 6), (4, 4)):
        x = matrices(shape, device=device).requires_grad_()
        (ours,) = torch.autograd.grad(compiled(x), x)
        (own,) = torch.autograd.grad(scalar(torch.linalg.cholesky)(x), x)
        assert (ours - own).abs().max() <= 200 * np.finfo("float64").eps * own.abs().max()


def test_compile_without_grad_behaves_as_nan(device):
    a = matrices((3, 5, 5), device=device)
    a[1] = -a[1]
    l = torch.compile(lw.cholesky, fullgraph=True)(a)
    assert l[1].isnan().all()
    assert l[[0, 2]].isfinite().all()


def test_export_with_dynamic_batch(device):
    class Module(torch.nn.Module):
        def forward(self, x):
            return lw.cholesky(herm(x))

    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(Module(), (matrices((3, 5, 5), device=device),), dynamic_shapes=({0: batch},))
    a = matrices((7, 5, 5), device=device, seed=1)
    assert torch.equal(exported.module()(a), lw.cholesky(herm(a)))


def test_compile_is_the_first_call_of_the_process():
    code = """
import torch, lapwing as lw
a = torch.eye(3).expand(2, 3, 3) * 4
compiled = lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")
assert torch.equal(compiled(lambda x: lw.cholesky(x))(a), a / 2)
assert torch.equal(compiled(torch.vmap(lambda x: lw.cholesky(x)))(a), a / 2)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def test_compiled_torch_func_reports_the_same_status():
    a = matrices((4, 3, 3))
    a[1] *= torch.inf
    a[2, 1, 1] = torch.inf
    a[3, 2, 2] = -1
    factor, info = torch.compile(torch.vmap(lambda x: tuple(lw.cholesky_ex(x))), fullgraph=True, backend="aot_eager")(a)
    expected = lw.cholesky_ex(a)
    assert info.tolist() == expected.info.tolist() == [0, 1, 2, 3]
    assert factor[1:].isnan().all()


def test_overwrite_is_seen_by_autograd():
    a = matrices((300, 300))
    w = torch.ones(300, 300, dtype=torch.float64, requires_grad=True)
    y = (w * a).sum()
    lw.cholesky(a, overwrite=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    p = torch.nn.Parameter(matrices((3, 3)))
    with torch.no_grad():
        assert not lw.cholesky(p, overwrite=True).requires_grad


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_jit_trace():
    traced = torch.jit.trace(lambda x: lw.cholesky(x), (matrices((3, 5, 5)),), check_trace=False)
    a = matrices((3, 5, 5), seed=9)
    assert torch.equal(traced(a), lw.cholesky(a))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning")
@pytest.mark.parametrize("kind", ["meta", "fake", "freed", "zero"])
def test_tensors_without_memory(kind):
    """Beside tensors with memory they are refused; native code would read address 0."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    a = torch.eye(3)
    if kind == "fake":
        with FakeTensorMode():
            b = torch.eye(3)
    elif kind == "zero":
        b = torch._efficientzerotensor((3, 3))
    else:
        b = torch.eye(3, device="meta" if kind == "meta" else "cpu")
    if kind == "freed":
        b.untyped_storage().resize_(0)
    for call in (lambda: lw.solve(a, b), lambda: lw.lstsq(a, b), lambda: lw.factor(a).solve(b)):
        with pytest.raises(TypeError, match=r"has no memory\nhint: give all tensors memory, or none of them"):
            call()
    if kind == "freed":
        with pytest.raises(TypeError, match=r"cholesky: a Tensor on cpu of shape \(3, 3\) has no memory"):
            lw.cholesky(b)
    else:
        with pytest.raises(TypeError, match="has no memory"):
            lw.eigh(b, b=a)
    assert lw.cholesky(torch.empty(0, 3, 3)).shape == (0, 3, 3)  # empty: no memory is needed


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        a = mode.from_tensor(matrices((3, 5, 5)))
        assert lw.cholesky(a).shape == a.shape
        _, info = lw.cholesky_ex(a)
        assert info.shape == (3,) and info.dtype == torch.int32


def test_opcheck(device):
    lw.cholesky(matrices((2, 2)).requires_grad_())  # registers the op
    op = torch.ops.lapwing.cholesky.default
    for a in (
        matrices((3, 5, 5), device=device),
        matrices((4, 4), device=device).mT,
        matrices((0, 3, 3), device=device),
    ):
        torch.library.opcheck(op, (a, [0], 0))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_layouts(device, dtype):
    a = matrices((6, 5, 5), dtype, device)
    expected = lw.cholesky(a)
    tolerance = 50 * np.finfo("float64").eps * expected.abs().max()
    layouts = {
        "transposed": a.mT.contiguous().mT,
        "strided": a.repeat_interleave(2, 0)[::2],
        "expanded": a[:1].expand(6, 5, 5),
        "channels moved": a.movedim(0, 2).contiguous().movedim(2, 0),
        "lazy conjugate": a.conj().resolve_conj().conj(),
        "offset": torch.cat([a.flatten()[:1], a.flatten()])[1:].view(6, 5, 5),
    }
    for name, given in layouts.items():
        before = given.clone()
        l = lw.cholesky(given)
        want = expected if name != "expanded" else expected[:1].expand(6, 5, 5)
        assert (l - want).abs().max() <= tolerance, name
        assert torch.equal(given, before), name
    assert lw.cholesky(layouts["transposed"]).stride() == layouts["transposed"].stride()


def test_overwrite_reuses_memory(device):
    a = matrices((300, 300), device=device)
    where = a.data_ptr()
    assert lw.cholesky(a, overwrite=True).data_ptr() == where
    a = matrices((300, 300), device=device).requires_grad_()
    before = a.detach().clone()
    lw.cholesky(a, overwrite=True).sum().backward()  # what autograd needs is never overwritten
    assert torch.equal(a.detach(), before)


def test_inference_mode_and_parameters():
    a = matrices((4, 4))
    with torch.inference_mode():
        assert torch.equal(lw.cholesky(a), lw.cholesky(a.clone()))
    p = torch.nn.Parameter(a)
    lw.cholesky(p).sum().backward()
    assert p.grad is not None
    with torch.no_grad():
        assert not lw.cholesky(p).requires_grad


def test_thread_limit_of_torch_is_kept():
    a = matrices((2000, 24, 24))
    expected = lw.cholesky(a)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(lw.cholesky(a), expected)
    finally:
        torch.set_num_threads(before)


def test_other_devices_and_layouts():
    meta = lw.cholesky(torch.empty(2, 3, 3, device="meta"))
    assert meta.is_meta and meta.shape == (2, 3, 3)
    with pytest.raises(ValueError, match="not on meta"):
        lw.cholesky(torch.empty(3, 3, device="meta"), engine="lapack")
    with pytest.raises(TypeError, match="dense"):
        lw.cholesky(torch.eye(3).to_sparse())


@pytest.mark.gpu
def test_current_stream_and_graph_capture():
    a = matrices((64, 16, 16), "float32", "cuda")
    expected = lw.cholesky(a)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        b = a * 1.0
        l = lw.cholesky(b, on_fail="nan")
    side.synchronize()
    assert torch.equal(l, expected)
    for shape in ((64, 16, 16), (8, 100, 100), (1, 700, 700), (3000, 3000)):
        static = matrices(shape, "float64", "cuda")
        lw.cholesky(static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = lw.cholesky(static)
        static.copy_(matrices(shape, "float64", "cuda", seed=5))
        graph.replay()
        torch.cuda.synchronize()
        assert residual(static.cpu().numpy(), captured.cpu().numpy(), False) < 10


@pytest.mark.gpu
def test_a_million_matrices_by_vmap():
    a = matrices((1000, 4, 4), "float32", "cuda").repeat(1000, 1, 1)
    l = torch.vmap(lw.cholesky)(a)
    assert torch.equal(l[:1000], l[-1000:])
    assert residual(a[:1000].cpu().numpy(), l[:1000].cpu().numpy(), False) < 10


def test_lapack_of_torch_is_borrowed_for_its_tensors_alone():
    """Where torch has MKL and the CPU is of its maker; NumPy arrays, and a forked child, stay with NumPy's LAPACK."""
    code = """
import os, numpy as np, torch
import lapwing as lw
from lapwing.core.lapack import libraries
lender = lambda: "for torch tensors" in libraries()
a = np.random.default_rng(0).standard_normal((300, 300))
first = lw.qr(a)
lw.qr(torch.from_numpy(a))
assert bool(lender()) == ("GenuineIntel" in open("/proc/cpuinfo").read() and torch.backends.mkl.is_available()), libraries()
again = lw.qr(a)
assert np.array_equal(first.Q, again.Q) and np.array_equal(first.R, again.R)
child = os.fork()
if child == 0:
    assert not lender()
    q, r = lw.qr(torch.from_numpy(a))
    x = lw.solve(torch.from_numpy(a), torch.from_numpy(a))
    good = np.abs(q.numpy() @ r.numpy() - a).max() < 1e-12 and np.abs(x.numpy() - np.eye(300)).max() < 1e-9
    os._exit(0 if good else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def symmetrised(m):
    return (m + m.mT) / 2 + 4 * torch.eye(4, dtype=m.dtype)


OF_ONE_MATRIX = {
    "general": lambda m, b: lw.solve(m, b),
    "pos": lambda m, b: lw.solve(symmetrised(m), b, assume="pos"),
    "lower": lambda m, b: lw.solve(m, b, assume="lower"),
    "symmetric": lambda m, b: lw.solve(m, b, assume="symmetric"),
    "inv": lambda m, b: lw.inv(m),
    "inv_pos": lambda m, b: lw.inv(symmetrised(m), assume="pos"),
    "slogdet": lambda m, b: lw.slogdet(m).logabsdet,
    "slogdet_pos": lambda m, b: lw.slogdet(symmetrised(m), assume="pos").logabsdet,
    "qr": lambda m, b: lw.qr(m).R,
    "lstsq": lambda m, b: lw.lstsq(m[:, :3], b).x,
    "svdvals": lambda m, b: lw.svdvals(m),
    "polar": lambda m, b: lw.polar(m).p,
    "factor": lambda m, b: lw.factor(m).solve(b),
    "factor_pos": lambda m, b: lw.factor(symmetrised(m), assume="pos").solve(b),
}


@pytest.mark.parametrize("name", OF_ONE_MATRIX)
def test_compile_around_func(name):
    """There no autograd.Function can carry every rule: a derivative of zero would go unseen."""
    rng = np.random.default_rng(0)
    a, b = torch.from_numpy(rng.standard_normal((4, 4)) + 4 * np.eye(4)), torch.from_numpy(rng.standard_normal((4, 2)))

    def f(m):
        return torch.sin(OF_ONE_MATRIX[name](m, b)).sum()

    want = torch.func.grad(f)(a)
    torch._dynamo.reset()
    both = torch.compile(lambda m: (torch.func.grad(f)(m), torch.func.jvp(f, (m,), (m,))[1]), backend="eager")
    got, along = both(a)
    assert abs(got - want).max() < 1e-12 and abs(along - (want * a).sum()) < 1e-12


@pytest.mark.parametrize("shape", [(0, 0), (0, 5, 5)])
def test_a_second_backward_through_empty_matrices(shape):
    """Empty tensors share the address 0; none of them was overwritten."""
    a = torch.zeros(shape, dtype=torch.complex128, requires_grad=True)
    for x in (
        lw.cholesky(a, upper=True),
        lw.cholesky_ex(a.mT, upper=True).factor,
        lw.solve(a.mH, a, assume="upper"),
    ):
        for _ in range(2):
            (gradient,) = torch.autograd.grad(x.abs().sum(), a, retain_graph=True)
            assert gradient.shape == shape


def test_compile_of_empty_matrices():
    sign, logabs = torch.compile(lw.slogdet, fullgraph=True, backend="aot_eager")(torch.zeros(0, 0))
    assert sign == 1 and logabs == 0


@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
def test_forward_mode_jacobian_of_complex_matrices(shape):
    """torch has an internal error for the lazy conjugate of a tensor with a batch of tangents."""
    x = matrices((4, 4), "complex128")[: shape[0], : shape[1]] + 1j
    for function in (lambda x: lw.qr(x).R, lambda x: lw.qr(x).Q, lambda x: lw.lstsq(x, x).residuals):
        ours = torch.autograd.functional.jacobian(function, x, strategy="forward-mode", vectorize=True)
        units = torch.eye(x.numel(), dtype=x.dtype).unflatten(-1, shape)
        one_by_one = torch.stack([torch.func.jvp(function, (x,), (unit,))[1] for unit in units], -1)
        assert (ours.flatten(-2) - one_by_one).abs().max() < 1e-12


def test_no_derivative_is_said():
    a = torch.eye(5, 3, dtype=torch.float64).requires_grad_()
    for made in (lw.qr(a, mode="complete").R, lw.svd(a, full_matrices=True).S):
        with pytest.raises(NotImplementedError, match="beyond"):
            made.sum().backward()


def test_the_first_call_does_not_load_torchs_compiler():
    """Its import takes longer than a second."""
    code = "import sys, torch, lapwing as lw; lw.cholesky(torch.eye(3)); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("assume", ["symmetric", "hermitian"])
def test_small_symmetric_systems(assume, dtype):
    g = torch.randn(6, 6, dtype=dtype, generator=torch.Generator().manual_seed(1))
    a = g + (g.mT if assume == "symmetric" else g.mH)
    for b in (torch.ones(6, dtype=dtype), torch.ones(6, 2, dtype=dtype)):
        x = lw.solve(a, b, assume=assume)
        allowed = 10 * 6 * torch.finfo(dtype).eps * float(torch.linalg.matrix_norm(a) * x.abs().max())
        assert x.shape == b.shape and float((a @ x - b).abs().max()) <= allowed


@pytest.mark.parametrize(("rows", "columns"), [(5, 3), (3, 5)])
def test_least_squares_of_a_vector(rows, columns):
    a, b = torch.randn(rows, columns, dtype=torch.float64), torch.randn(rows, dtype=torch.float64)
    found, expected = lw.lstsq(a, b), lw.lstsq(a.numpy(), b.numpy())
    assert found.x.shape == (columns,) and found.residuals.shape == expected.residuals.shape
    assert np.allclose(found.x, expected.x)


@pytest.mark.parametrize("kind", ["plain", "parameter", "transposed", "negated", "conjugated", "vmap", "mixed"])
def test_the_short_way_sees_what_a_tensor_stands_for(kind):
    rng = np.random.default_rng(5)
    host = rng.standard_normal((2, 2)) + 4 * np.eye(2) + 1j * rng.standard_normal((2, 2))
    a, b = torch.from_numpy(host.real.copy()), torch.from_numpy(rng.standard_normal((2, 1)))
    if kind == "parameter":
        a = torch.nn.Parameter(a, requires_grad=False)
    elif kind == "transposed":
        a = a.mT
    elif kind == "negated":
        a = torch._neg_view(a)
    elif kind == "conjugated":
        a, b = torch.from_numpy(host).conj(), b.to(torch.complex128)
    elif kind == "mixed":
        b = b.float()
    wanted = torch.linalg.solve(a.resolve_conj().resolve_neg().detach(), b.to(a.dtype))
    solve = torch.func.vmap(lw.solve, (None, 0)) if kind == "vmap" else lw.solve
    x = solve(a, b[None])[0] if kind == "vmap" else solve(a, b)
    assert (x - wanted).abs().max() <= 10 * 2 * np.finfo(np.float64).eps
    inverse = lw.inv(a)
    assert (inverse @ a.resolve_conj().resolve_neg() - torch.eye(2)).abs().max() <= 10 * 2 * np.finfo(np.float64).eps


@pytest.mark.parametrize("place", [0, 1])
def test_subclasses_of_tensors_are_seen_in_every_place(place):
    """torch dispatches on each argument: a tensor that is made of two others has no memory of its own."""
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = 4 * torch.eye(3, dtype=torch.float64) + torch.ones(3, 3), torch.ones(3, 2, dtype=torch.float64)
    arrays = [a, b]
    arrays[place] = TwoTensor(arrays[place], 2 * arrays[place])
    x = lw.solve(*arrays)
    assert type(x) is TwoTensor
    arrays = [[y.a, y.b] if type(y) is TwoTensor else [y, y] for y in arrays]
    for got, matrix, right in zip((x.a, x.b), *arrays, strict=True):
        assert (matrix @ got - right).abs().max() <= 10 * 3 * np.finfo(np.float64).eps

    class Named(torch.Tensor):
        pass

    arrays = [a, b]
    arrays[place] = arrays[place].as_subclass(Named)
    assert type(lw.solve(*arrays)) is Named
