"""Kernel matrices on every library, against plain formulas in float64."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from backends import CPU, open_backend
from lapwing import gram

KERNELS = {
    "squared": gram.euclidean,
    "distance": partial(gram.euclidean, squared=False),
    "gaussian": partial(gram.gaussian, length_scale=1.7),
    "laplacian": partial(gram.laplacian, length_scale=1.7),
    "dispersal": partial(gram.dispersal, length_scale=1.7, gamma=1.3),
    "ntk": partial(gram.ntk_relu, depth=3, bias=0.5),
    "ntk_linear": gram.ntk_relu,
    "ntk_sphere": partial(gram.ntk_relu_unit_sphere, depth=4, bias=0.25),
}
POSITIVE = ("gaussian", "laplacian", "dispersal", "ntk", "ntk_linear", "ntk_sphere")
SHAPES = [(37, 20, 9), (530, 515, 3)]  # each is compiled separately
MORE = [(0, 3, 2), (1, 1, 1), (7, 5, 0), (37, 20, 8), (530, 515, 40)]
EVERY_SHAPE = ("gaussian", "ntk")  # one with directions and one without: the others differ by their formula alone


def points(n, d, dtype, seed=0, kernel=""):
    x = np.random.default_rng(seed).standard_normal((n, d))
    if kernel == "ntk_sphere" and d:
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(dtype)


def plain(kernel, x, y):
    """By the definitions, in float64, from differences; angles by the two-argument arc tangent."""
    x, y = x.astype(float), y.astype(float)
    d2 = ((x[:, None] - y[None]) ** 2).sum(-1)
    d = np.sqrt(d2)
    if kernel in ("squared", "distance"):
        return d2 if kernel == "squared" else d
    if not kernel.startswith("ntk"):
        exponent = {"gaussian": d2 / (2 * 1.7**2), "laplacian": d / 1.7, "dispersal": d**1.3 / 1.7}[kernel]
        return np.exp(-exponent)
    depth, bias = {"ntk": (3, 0.5), "ntk_linear": (1, 0.0), "ntk_sphere": (4, 0.25)}[kernel]
    r, c = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
    p, q = x / np.where(r > 0, r, 1)[:, None], y / np.where(c > 0, c, 1)[:, None]
    far, near = np.linalg.norm(p[:, None] - q[None], axis=-1), np.linalg.norm(p[:, None] + q[None], axis=-1)
    angle = 2 * np.arctan2(far, near)
    size = r[:, None] * c
    angle = np.where(size == 0, np.pi / 2, angle)
    if kernel == "ntk_sphere" and not x.shape[1]:
        size, angle = np.ones_like(size), np.zeros_like(angle)
    k = size * np.cos(angle) + bias**2
    for _ in range(1, depth):
        kappa0 = 1 - angle / np.pi
        kappa1 = np.cos(angle) * kappa0 + np.sin(angle) / np.pi
        k = k * kappa0 + size * kappa1 + bias**2
        angle = np.arccos(np.clip(kappa1, -1, 1))
    return k


def close(kernel, got, want, d):
    """To a few eps of the largest value there is."""
    eps = np.finfo(got.dtype).eps
    assert got.shape == want.shape
    limit = 10 * max(d, 4) * eps * max(np.abs(want).max(initial=0), 1)
    # arccos in the plain formula: sqrt(eps of float64)
    limit += 1e-7 if kernel.startswith("ntk") else 0
    assert np.abs(got - want).max(initial=0) <= limit


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_values(backend, kernel, dtype):
    for n, m, d in SHAPES + MORE * (dtype == "float64" and kernel in EVERY_SHAPE):
        x, y = points(n, d, dtype, 1, kernel), points(m, d, dtype, 2, kernel)
        got = backend.get(KERNELS[kernel](backend.put(x), backend.put(y)))
        assert got.dtype == x.dtype
        close(kernel, got, plain(kernel, x, y), d)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_with_itself(backend, kernel, dtype):
    for n, _, d in SHAPES + MORE * (dtype == "float64" and kernel in EVERY_SHAPE):
        x = points(n, d, dtype, 1, kernel)
        placed = backend.put(x)
        got = backend.get(KERNELS[kernel](placed))
        close(kernel, got, plain(kernel, x, x), d)
        assert np.array_equal(got, got.T)
        assert np.array_equal(got, backend.get(KERNELS[kernel](placed, placed)))
        if not kernel.startswith("ntk"):
            assert (np.diagonal(got) == (0 if kernel in ("squared", "distance") else 1)).all()
        if kernel in POSITIVE and 0 < n < 100:
            least = np.linalg.eigvalsh(got.astype(float))[0]
            assert least >= -10 * n * np.finfo(dtype).eps * np.abs(got).max()


@pytest.mark.parametrize("d", [3, 50])
def test_far_from_the_origin_nothing_is_lost(backend, d):
    x = points(60, d, "float64", 1)
    shifted = x + 1000.0
    want = plain("distance", shifted, shifted)
    for dtype in ("float32", "float64"):
        if backend.name == "jax" and dtype == "float32" and d > 8:
            continue  # without float64 as everywhere else
        moved = shifted.astype(dtype)
        got = backend.get(gram.euclidean(backend.put(moved), squared=False))
        exact = plain("distance", moved, moved) if dtype == "float32" else want
        assert np.abs(got - exact).max() <= 100 * np.finfo(dtype).eps * exact.max() * (1 if dtype == "float32" else 1000)


@pytest.mark.parametrize("d", [2, 40])
def test_duplicates(backend, d):
    x = points(30, d, "float64", 1)
    x[20:] = x[:10]
    got = backend.get(gram.laplacian(backend.put(x)))
    exact = d <= 8 or backend.name in ("numpy", "torch", "cupy")
    assert np.abs(np.diagonal(got[20:, :10]) - 1).max() <= (0 if exact else 1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_points_that_are_not_finite_fill_their_own_row_and_column(backend, kernel):
    for d in (2, 40):
        x = points(20, d, "float64", kernel=kernel)
        x[3, 1], x[5, 0], x[7, 1], x[8] = np.nan, np.inf, -np.inf, np.inf
        bad = [3, 5, 7, 8]
        placed = backend.put(x)
        for other in (None, backend.put(x.copy())):
            got = backend.get(KERNELS[kernel](placed, other))
            assert np.isfinite(np.delete(np.delete(got, bad, 0), bad, 1)).all()
            assert np.isnan(got[bad]).all() and np.isnan(got[:, bad]).all()


SCALES = {"float32": (1e-40, 1e-20, 1e20, 1e200), "float64": (5e-324, 1e-163, 1e-155, 1e155, 1e200)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "dispersal"])
def test_tiny_and_huge_length_scales(backend, kernel, dtype):
    """Points of ordinary size are then equal or infinitely far, or all alike; points of the size of the scale are ordinary."""
    for d in (3, 12):
        x = points(6, d, dtype, 1)
        placed = backend.put(x)
        for scale in SCALES[dtype]:
            for other in (None, backend.put(x.copy())):
                got = backend.get(getattr(gram, kernel)(placed, other, scale))
                if backend.name in ("jax", "tensorflow") and d == 12 and other is not None and scale < 1:
                    continue  # they do not repeat close pairs: see test_duplicates
                assert np.array_equal(got, np.eye(6) if scale < 1 else np.ones((6, 6)))
    small, large = (1e-30, 1e30) if dtype == "float32" else (1e-200, 1e200)
    x = points(6, 3, dtype, 1)
    want = backend.get(getattr(gram, kernel)(backend.put(x), None, 1.0))
    for scale in (small, large):
        got = backend.get(getattr(gram, kernel)(backend.put((x * scale).astype(dtype)), None, scale))
        np.testing.assert_allclose(got, want, rtol=0, atol=300 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_copies_of_points_have_distance_zero(dtype):
    x = points(40, 12, dtype, 1) + 3
    for library in ("numpy", "torch"):
        with open_backend(library, "cpu") as backend:
            got = backend.get(gram.euclidean(backend.put(x), backend.put(x[:3].copy())))
            assert (np.diagonal(got) == 0).all() and (got >= 0).all()


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_one_length_scale_per_coordinate(backend, kernel):
    x, z = points(9, 3, "float64", 1), points(7, 3, "float64", 2)
    call = getattr(gram, kernel)
    scales = [0.5, 2.0, 3.0]
    want = call(x / np.array(scales), z / np.array(scales))
    placed = backend.put(x), backend.put(z)
    for given in (scales, tuple(scales), np.array(scales), backend.put(np.array(scales))):
        np.testing.assert_allclose(backend.get(call(*placed, given)), want, rtol=1e-14)
    np.testing.assert_allclose(backend.get(call(*placed, 0.7)), call(x, z, length_scale=0.7), rtol=1e-14)
    assert np.array_equal(backend.get(call(placed[0], None, [1e-200, 1e-300, 1e-250])), np.eye(9))


def test_the_length_scale_of_each_coordinate_has_a_gradient():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(points(5, 3, "float64", 1))
    scales = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: gram.gaussian(x, None, s), scales)


def test_zero_points_in_the_tangent_kernel(backend):
    x = points(6, 3, "float64")
    x[2] = 0
    got = backend.get(KERNELS["ntk"](backend.put(x)))
    close("ntk", got, plain("ntk", x, x), 3)


def test_large_and_small_lengths(backend):
    x = points(5, 4, "float32")
    k = backend.get(gram.ntk_relu(backend.put(x), depth=2))
    for scale in (1e-15, 1e15):
        scaled = (x * scale).astype("float32")
        got = backend.get(gram.ntk_relu(backend.put(scaled), depth=2)) / scale**2
        # n points of d coordinates through two layers, each of which turns an angle by an arc cosine: its root of eps
        np.testing.assert_allclose(got, k, rtol=0, atol=10 * 4 * np.sqrt(np.finfo("float32").eps) * 1e-2 * np.abs(k).max())


def gradient_of(backend, kernel, x, y, weights):
    """d sum(weights * kernel(x, y)) / d (x, y); y None: of x alone."""
    if backend.name == "torch":
        import torch

        tensors = [backend.put(t).requires_grad_() for t in (x, y) if t is not None]
        loss = (KERNELS[kernel](*tensors) * backend.put(weights)).sum()
        return [backend.get(g) for g in torch.autograd.grad(loss, tensors)]
    arrays = [backend.put(t) for t in (x, y) if t is not None]
    if backend.name == "jax":
        import jax

        where = tuple(range(len(arrays)))
        return [np.asarray(g) for g in jax.grad(lambda *a: (KERNELS[kernel](*a) * weights).sum(), where)(*arrays)]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        for a in arrays:
            tape.watch(a)
        loss = tf.reduce_sum(KERNELS[kernel](*arrays) * weights)
    return [g.numpy() for g in tape.gradient(loss, arrays)]


@pytest.fixture(params=[p for p in CPU if "numpy" not in p.id])
def differentiable(request):
    with open_backend(*request.param) as opened:
        yield opened


@pytest.mark.parametrize(
    ("kernel", "d", "alone"),
    [
        (kernel, d, alone)
        for kernel in KERNELS
        for d, alone in ((3, False), (20, True), (3, True), (20, False))
        if kernel in EVERY_SHAPE or (kernel != "ntk_sphere" and alone is (d == 20))
    ],
)
def test_gradients(differentiable, kernel, d, alone):
    x, y = points(6, d, "float64", 1), None if alone else points(5, d, "float64", 2)
    weights = points(6, 6 if alone else 5, "float64", 3)
    got = gradient_of(differentiable, kernel, x, y, weights)
    step = 1e-6
    for place, (g, given) in enumerate(zip(got, (x, y), strict=False)):
        for i, k in ((0, 0), (3, d - 1)):
            moved = []
            for sign in (1, -1):
                other = given.copy()
                other[i, k] += sign * step
                pair = (other, other) if alone else ((other, y) if place == 0 else (x, other))
                moved.append((plain(kernel, *pair) * weights).sum())
            assert g[i, k] == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=2e-4, abs=2e-4)


@pytest.mark.parametrize("d", [2, 20])
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_are_finite_where_points_coincide(differentiable, kernel, d):
    x = points(6, d, "float64", 1, kernel)
    x[4] = x[1]
    x[5] = -x[0]
    if kernel != "ntk_sphere":
        x[3] = 0
    for y in (None, x.copy()):
        for g in gradient_of(differentiable, kernel, x, y, np.ones((6, 6))):
            assert np.isfinite(g).all()


def test_the_length_scale_has_a_gradient(differentiable):
    x = points(6, 2, "float64", 1)
    want = (plain("squared", x, x) / 1.7**3 * plain("gaussian", x, x)).sum()
    if differentiable.name == "torch":
        import torch

        scale = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
        gram.gaussian(differentiable.put(x), length_scale=scale).sum().backward()
        got = scale.grad.item()
    elif differentiable.name == "jax":
        import jax

        got = float(jax.grad(lambda s: gram.gaussian(differentiable.put(x), length_scale=s).sum())(1.7))
    else:
        import tensorflow as tf

        scale = tf.Variable(1.7, dtype=tf.float64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(gram.gaussian(differentiable.put(x), length_scale=scale))
        got = float(tape.gradient(loss, scale))
    assert got == pytest.approx(want, rel=1e-9)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torch_transforms():
    torch = pytest.importorskip("torch")
    for d in (3, 9):  # by differences, and by a product
        x = torch.from_numpy(points(4, d, "float64", 1))
        batch = torch.stack([x, 2 * x])
        each = torch.stack([gram.laplacian(b) for b in batch])
        assert torch.allclose(torch.vmap(gram.laplacian)(batch), each)
        reverse = torch.func.jacrev(lambda t: gram.gaussian(t).sum(0))(x)
        forward = torch.func.jacfwd(lambda t: gram.gaussian(t).sum(0))(x)
        assert torch.allclose(reverse, forward, atol=1e-10)
        assert torch.autograd.gradgradcheck(lambda t: gram.gaussian(t), (x.clone().requires_grad_(),))


def test_jax_transforms():
    jax = pytest.importorskip("jax")
    with open_backend("jax", "cpu") as backend:
        for d in (3, 9):  # by differences, and by a product
            x = backend.put(points(4, d, "float64", 1))
            batch = jax.numpy.stack([x, 2 * x])
            each = jax.numpy.stack([gram.laplacian(b) for b in batch])
            assert jax.numpy.allclose(jax.jit(jax.vmap(gram.laplacian))(batch), each)
            reverse, forward = (j(lambda t: gram.gaussian(t).sum(0))(x) for j in (jax.jacrev, jax.jacfwd))
            assert jax.numpy.allclose(reverse, forward, atol=1e-10)
            assert jax.numpy.isfinite(jax.hessian(lambda t: gram.gaussian(t).sum())(x)).all()


def test_tensorflow_graph_with_unknown_shapes():
    tf = pytest.importorskip("tensorflow")
    for shape in ([None, 3], [None, None]):
        call = tf.function(KERNELS["laplacian"], input_signature=[tf.TensorSpec(shape, tf.float64)])
        x = points(9, 3, "float64", 1)
        got = call(tf.constant(x)).numpy()
        assert np.array_equal(got, got.T)
        np.testing.assert_allclose(got, plain("laplacian", x, x), atol=1e-7)


def test_byte_swapped_and_strided_arrays():
    x = points(9, 6, "float64", 1)
    want = gram.gaussian(np.ascontiguousarray(x[::2, ::2]))
    assert np.array_equal(gram.gaussian(x[::2, ::2]), want)
    assert np.array_equal(gram.gaussian(x[::2, ::2].astype(">f8")), want)


def test_memory_is_the_result_and_a_little():
    code = """
import resource, numpy as np
from lapwing import gram
for d in (2, 40):
    x = np.random.default_rng(0).standard_normal((4000, d))
    gram.laplacian(x[:600])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    k = gram.laplacian(x)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert more < 1.25 * k.nbytes, (d, more / k.nbytes)
    del k
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_errors():
    x = points(4, 3, "float64")
    with pytest.raises(ValueError, match=r"gaussian: x must have shape \(points, coordinates\), got \(4,\)"):
        gram.gaussian(x[:, 0])
    with pytest.raises(ValueError, match="laplacian: the points of x have 3 coordinates, those of y have 2"):
        gram.laplacian(x, x[:, :2].copy())
    with pytest.raises(TypeError, match="euclidean: x is float64 and y is float32"):
        gram.euclidean(x, x.astype("float32"))
    with pytest.raises(TypeError, match="dtype int64, which is not float32 or float64"):
        gram.euclidean(np.arange(6).reshape(3, 2))
    with pytest.raises(TypeError, match="expected an array of NumPy"):
        gram.gaussian([[1.0, 2.0]])
    for bad in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="length_scale"):
            gram.gaussian(x, length_scale=bad)
    with pytest.raises(TypeError, match="length_scale='a' is not a number"):
        gram.gaussian(x, length_scale="a")
    with pytest.raises(ValueError, match="gaussian: length_scale has 2 values for points of 3 coordinates"):
        gram.gaussian(x, length_scale=[1.0, 2.0])
    with pytest.raises(ValueError, match="laplacian: length_scale=-2 is not positive"):
        gram.laplacian(x, None, [1.0, -2.0, 3.0])
    with pytest.raises(TypeError, match="is not a list of numbers"):
        gram.gaussian(x, length_scale=[1.0, "a", 3.0])
    with pytest.raises(ValueError, match="gamma=-1 is not positive"):
        gram.dispersal(x, gamma=-1)
    with pytest.raises(ValueError, match="depth=0 is not a positive integer"):
        gram.ntk_relu(x, depth=0)
    with pytest.raises(TypeError, match=r"depth=1.5 is not an integer"):
        gram.ntk_relu_unit_sphere(x, depth=1.5)
    with pytest.raises(TypeError, match="squared=1 is not True or False"):
        gram.euclidean(x, squared=1)


def test_mixed_libraries():
    torch = pytest.importorskip("torch")
    x = points(4, 3, "float64")
    with pytest.raises(TypeError, match="gaussian: x is a torch array and y a numpy array"):
        gram.gaussian(torch.from_numpy(x), x)
