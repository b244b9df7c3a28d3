"""TensorFlow: systems, inverses, determinants and decompositions in eager code, graphs, tapes, vectorized_map, SavedModel."""

import os
import warnings

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

import lapwing as lw  # noqa: E402
from lapwing.frameworks import tensorflow as front  # noqa: E402

DTYPES = ("float32", "float64", "complex64", "complex128")
needs_ops = pytest.mark.skipif(not front._OPS, reason=f"no TensorFlow ops here: {front.missing_reason}")


@pytest.fixture(params=["ops", "numpy_function"])
def way(request, monkeypatch):
    """With the compiled ops, and without them."""
    if request.param == "numpy_function":
        monkeypatch.setattr(front, "_OPS", {})
        with warnings.catch_warnings(action="ignore"):  # the first slow call warns
            front.core.warn_of_numpy(front.missing_reason)
    elif not front._OPS:
        pytest.skip(front.missing_reason)
    return request.param


def ways(names, with_ops, without):
    """Without the ops a part of the cases is enough: the rules are the same."""
    cases = [("ops", *case) for case in with_ops] + [("numpy_function", *case) for case in without]
    return pytest.mark.parametrize(("way", *names), cases, indirect=["way"])


def normal(shape, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


def square(shape, dtype="float64", seed=0):
    """Far from singular, and not symmetric."""
    return (normal(shape, dtype, seed) / shape[-1] + np.eye(shape[-1])).astype(dtype)


def positive(shape, dtype="float64", seed=0):
    x = normal(shape, dtype, seed)
    return (x @ adjoint(x) / shape[-1] + np.eye(shape[-1])).astype(dtype)


def matrix_for(assume, shape, dtype="float64", seed=0):
    return positive(shape, dtype, seed) if assume == "pos" else square(shape, dtype, seed)


def meant(a, assume):
    """The matrix that is solved with."""
    if assume in ("symmetric", "hermitian", "pos"):
        low = np.tril(a, -1)
        diagonal = np.eye(a.shape[-1]) * (a if assume == "symmetric" else a.real)
        return low + (low.swapaxes(-1, -2) if assume == "symmetric" else adjoint(low)) + diagonal
    return np.tril(a) if assume == "lower" else np.triu(a) if assume == "upper" else a


def close(x, y, factor=100):
    x, y = np.asarray(x), np.asarray(y)
    assert x.shape == y.shape and x.dtype == y.dtype
    np.testing.assert_allclose(x, y, rtol=0, atol=factor * np.finfo(y.dtype).eps * max(1, np.abs(y).max(initial=0)))


# ---- values


@ways(["dtype"], [(dtype,) for dtype in DTYPES], [("complex128",)])
@pytest.mark.parametrize("assume", ["general", "symmetric", "hermitian", "pos", "lower", "upper"])
def test_solve(way, dtype, assume):
    a, b = matrix_for(assume, (2, 3, 5, 5), dtype), normal((2, 3, 5, 4), dtype, 1)
    expected = np.linalg.solve(meant(a, assume), b).astype(dtype)
    x = lw.solve(tf.constant(a), tf.constant(b), assume=assume)
    assert isinstance(x, tf.Tensor)
    close(x, expected)
    close(tf.function(lambda p, q: lw.solve(p, q, assume=assume))(tf.constant(a), tf.constant(b)), expected)
    f = lw.factor(tf.constant(a), assume=assume)
    close(f.solve(tf.constant(b)), expected)
    inverse = np.linalg.inv(meant(a, assume)).astype(dtype)
    close(f.inv(), inverse)
    close(lw.inv(tf.constant(a), assume=assume), inverse)
    sign, logabs = lw.slogdet(tf.constant(a), assume=assume)
    for got, want, own in zip((sign, logabs), np.linalg.slogdet(meant(a, assume)), f.slogdet(), strict=True):
        close(got, want.astype(got.numpy().dtype))
        close(own, want.astype(got.numpy().dtype))
    rcond = f.rcond().numpy()
    assert rcond.shape == (2, 3) and (rcond > 0).all() and (rcond <= 1).all()


@pytest.mark.parametrize(
    "shapes", [((5, 5), (5,)), ((3, 5, 5), (5,)), ((5, 5), (2, 5, 3)), ((3, 1, 5, 5), (2, 5, 3)), ((0, 5, 5), (5, 2))]
)
@pytest.mark.parametrize("graph", ["eager", "unknown batch", "unknown"])
def test_shapes_of_right_hand_sides(way, shapes, graph):
    a, b = square(shapes[0]), normal(shapes[1], seed=1)
    wide = b[:, None] if b.ndim == 1 else b
    expected = np.linalg.solve(
        a, np.broadcast_to(wide, (*np.broadcast_shapes(a.shape[:-2], wide.shape[:-2]), *wide.shape[-2:]))
    )
    expected = expected[..., 0] if b.ndim == 1 else expected
    for call in (lw.solve, lambda p, q: lw.factor(p, assume="general").solve(q), lambda p, q: lw.lstsq(p, q).x):
        f = call
        if graph != "eager":
            keep = {"unknown batch": 2, "unknown": 0}[graph]
            specs = [
                tf.TensorSpec([n if len(x.shape) - i <= keep else None for i, n in enumerate(x.shape)], x.dtype) for x in (a, b)
            ]
            f = tf.function(call, input_signature=specs)
        close(f(tf.constant(a), tf.constant(b)), expected)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (5, 5), (0, 3)])
@ways(["spec"], [(spec,) for spec in (*DTYPES, "known", "rows", "unknown")], [("float32",), ("complex64",), ("unknown",)])
def test_decompositions(way, shape, spec):
    """Eagerly for each dtype, and in graphs that know more or less."""
    dtype = spec if spec in DTYPES else "complex128"
    a = normal((2, *shape), dtype)
    m, n = shape
    k = min(m, n)
    known = {"known": [2, m, n], "rows": [None, m, None], "unknown": [None, None, None]}.get(spec)

    def call(function, **options):
        f = lambda x: function(x, **options)  # noqa: E731
        return (f if known is None else tf.function(f, input_signature=[tf.TensorSpec(known, dtype)]))(tf.constant(a))

    for mode, c in (("reduced", k), ("complete", m)):
        q, r = call(lw.qr, mode=mode)
        assert q.shape == (2, m, c) and r.shape == (2, c, n)
        close(q @ r, a)
        close(tf.linalg.adjoint(q) @ q, np.broadcast_to(np.eye(c, dtype=dtype), (2, c, c)))
        close(np.tril(r.numpy(), -1), np.zeros(r.shape, dtype))
    s = np.linalg.svd(a, compute_uv=False)
    close(call(lw.svdvals), s)
    for full in (False, True):
        u, values, vh = call(lw.svd, full_matrices=full)
        assert u.shape == (2, m, m if full else k) and vh.shape == (2, n if full else k, n)
        close(values, s)
        close((u[..., :k] * tf.cast(values, dtype)[..., None, :]) @ vh[..., :k, :], a)
    if k:
        u, p = call(lw.polar)
        close(u @ p, a)


def test_static_shapes(way):
    spec = tf.TensorSpec([None, 7, 4], tf.complex64)
    outputs = tf.function(lambda x: (*lw.qr(x), *lw.svd(x)), input_signature=[spec]).get_concrete_function().outputs
    assert [x.shape.as_list() for x in outputs] == [[None, 7, 4], [None, 4, 4], [None, 7, 4], [None, 4], [None, 4, 4]]
    assert [x.dtype for x in outputs[-2:]] == [tf.float32, tf.complex64]
    specs = [tf.TensorSpec([3, None, None], tf.float64), tf.TensorSpec([3, 5, None], tf.float64)]
    made = tf.function(lambda a, b: lw.solve_ex(a, b), input_signature=specs).get_concrete_function().structured_outputs
    assert made.result.shape.as_list() == [3, 5, None] and made.info.shape.as_list() == [3]


@needs_ops
def test_unknown_rank():
    a, b = square((2, 3, 5, 5)), normal((2, 3, 5, 4), seed=1)
    anything = tf.TensorSpec(None, tf.float64)
    f = tf.function(lambda p, q: gradient_of(lambda x: tf.reduce_sum(lw.solve(x, q)), p), input_signature=[anything, anything])
    expected = gradient_of(lambda x: tf.reduce_sum(lw.solve(x, tf.constant(b))), tf.constant(a))
    close(f(tf.constant(a), tf.constant(b)), expected)
    g = tf.function(lambda p: gradient_of(lambda x: tf.reduce_sum(lw.polar(x).u), p), input_signature=[anything])
    close(g(tf.constant(a)), gradient_of(lambda x: tf.reduce_sum(lw.polar(x).u), tf.constant(a)), 1000)


def test_lstsq_of_low_rank(way):
    a = normal((3, 6, 2)) @ normal((3, 2, 4), seed=1)
    b = normal((3, 6, 2), seed=2)
    expected = np.linalg.pinv(a, rcond=1e-12) @ b
    for f in (
        lw.lstsq,
        tf.function(lw.lstsq),
        tf.function(lw.lstsq, input_signature=[tf.TensorSpec([None] * 3, tf.float64)] * 2),
    ):
        made = f(tf.constant(a), tf.constant(b))
        close(made.x, expected, 1000)
        assert made.rank.dtype == tf.int32 and made.rank.numpy().tolist() == [2, 2, 2]
        close(made.residuals, (np.abs(b - a @ expected) ** 2).sum(-2), 1000)


@needs_ops
def test_graph_may_reuse_the_memory_of_one_matrix():
    a, b = square((1, 33, 33)), normal((1, 33, 33), seed=1)

    @tf.function
    def f(x, y):
        fresh, right = x + 0.0, y + 0.0
        return lw.solve(fresh, right), lw.inv(x * 1.0), lw.solve(x, y * 1.0), lw.solve(x * 1.0, x * 1.0), fresh, right

    first, inverse, second, eye, fresh, right = f(tf.constant(a), tf.constant(b))
    for x in (first, second):
        close(x, np.linalg.solve(a, b), 1000)
    close(inverse, np.linalg.inv(a), 1000)
    close(eye, np.eye(33)[None], 1000)
    np.testing.assert_array_equal(fresh, a)
    np.testing.assert_array_equal(right, b)


def test_variables(way):
    a, b = square((3, 5, 5)), normal((3, 5, 2), seed=1)
    left, right = tf.Variable(a), tf.Variable(b)
    close(lw.solve(left, tf.constant(b)), np.linalg.solve(a, b))
    close(lw.solve(tf.constant(a), right), np.linalg.solve(a, b))
    close(tf.function(lambda: lw.solve(left, right))(), np.linalg.solve(a, b))
    with tf.GradientTape() as tape:
        x = lw.solve(left, right) + lw.factor(left, assume="general").solve(right) + lw.lstsq(left, right).x
        loss = (
            tf.reduce_sum(x) + tf.reduce_sum(lw.inv(left)) + tf.reduce_sum(lw.qr(left).R) + tf.reduce_sum(lw.slogdet(left)[1])
        )
    assert [g.shape for g in tape.gradient(loss, [left, right])] == [left.shape, right.shape]


def test_keras_variables():
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras works on another backend here")
    a, b = square((5, 5), "float32"), normal((5,), "float32", 1)
    left, right = keras.Variable(a), keras.Variable(b)
    for p, q in ((left, right), (left, tf.constant(b)), (tf.constant(a), right)):
        close(lw.solve(p, q), np.linalg.solve(a, b))
        close(lw.factor(p, assume="general").solve(q), np.linalg.solve(a, b))
        close(lw.lstsq(p, q).x, np.linalg.solve(a, b))
    close(lw.inv(left), np.linalg.inv(a))
    close(lw.svdvals(left), np.linalg.svd(a, compute_uv=False))


# ---- failures


def test_raises_eagerly(way):
    a, b = square((2, 3, 5, 5)), tf.ones((2, 3, 5, 1), tf.float64)
    a[1, 2, :, 3] = 0
    for call in (lambda x: lw.solve(x, b), lw.inv, lambda x: lw.factor(x, assume="general")):
        with pytest.raises(lw.SingularMatrixError) as caught:
            call(tf.constant(a))
        assert caught.value.batch_index == (1, 2) and caught.value.pivot == 4 and not caught.value.nonfinite
    with pytest.raises(lw.NotPositiveDefiniteError):
        lw.solve(tf.constant(-positive((5, 5))), tf.ones((5,), tf.float64), assume="pos")
    a[1, 2, 0, 0] = np.nan
    with pytest.raises(lw.SingularMatrixError) as caught:
        lw.solve(tf.constant(a), b)
    assert caught.value.nonfinite
    with pytest.raises(lw.ConvergenceError):
        lw.svd(tf.constant(a))


def test_only_the_failed_matrix_is_nan(way):
    a, b = square((3, 5, 5)), normal((3, 5, 2), seed=1)
    expected = np.linalg.solve(a, b)
    a[1, :, 2] = 0
    x, info = tf.function(lw.solve_ex)(tf.constant(a), tf.constant(b))
    assert info.numpy().tolist() == [0, 3, 0] and np.isnan(x.numpy()[1]).all()
    close(tf.gather(x, [0, 2]), expected[[0, 2]])
    np.testing.assert_array_equal(tf.function(lw.solve)(tf.constant(a), tf.constant(b)), x)
    left = tf.constant(a)
    gradient = gradient_of(lambda p: tf.reduce_sum(lw.solve(p, tf.constant(b), on_fail="nan")), left).numpy()
    assert np.isnan(gradient[1]).any() and np.isfinite(gradient[[0, 2]]).all()


def test_wrong_input():
    a = tf.eye(5, dtype=tf.float64)
    with pytest.raises(ValueError, match="5 rows and b has 4"):
        tf.function(lw.solve)(a, tf.ones((4, 1), tf.float64))
    with pytest.raises(TypeError, match="b has dtype int32"):
        lw.solve(a, tf.ones(5, tf.int32))
    with pytest.raises(ValueError, match="do not broadcast"):
        lw.solve(tf.stack([a, a]), tf.ones((3, 5, 1), tf.float64))
    with pytest.raises(NotImplementedError, match="lapwing: solve cannot be compiled by XLA"):
        tf.function(lw.solve, jit_compile=True)(a, a)


@needs_ops
def test_wrong_shape_is_seen_when_it_is_known():
    unknown = tf.TensorSpec([None, None], tf.float64)
    f = tf.function(lw.solve, input_signature=[unknown, unknown])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"LapwingSolve.*as many rows"):
        f(tf.eye(5, dtype=tf.float64), tf.ones((4, 1), tf.float64))
    ops, eye = front._OPS, tf.eye(3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="same batch"):
        ops["solve"](eye[None], tf.ones((2, 3, 1)))
    for rows in ([0, 1], [[0, 1, 2]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="LapwingLuSolve"):
            ops["lu_solve"](eye, eye, tf.constant(rows), tf.ones((3, 1)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="LapwingCholeskySolve"):
        ops["cholesky_solve"](eye, tf.eye(2), tf.ones((3, 1)))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="do not fit"):
        tf.function(lambda: ops["solve"](eye, tf.ones((4, 1))))()


# ---- derivatives


def gradient_of(f, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = f(*inputs)
    found = tape.gradient(value, inputs)
    return found[0] if len(found) == 1 else found


def inner(x, y):
    return float(np.real(np.sum(np.conj(x) * y)))


def weighed(*outputs):
    """A real number that sees every entry, real and imaginary."""
    total = 0.0
    for i, x in enumerate(outputs):
        w = normal(x.shape, x.dtype.name, 50 + i)
        total = total + tf.reduce_sum(tf.math.real(tf.math.conj(w) * x))
    return total


def hermitian_part(x):
    return (x + tf.linalg.adjoint(x)) / 2


def spectral(a):
    """Values and vectors, whatever the phases of the vectors are."""
    u, s, vh = lw.svd(a)
    return weighed((u * tf.cast(s**2, u.dtype)[..., None, :]) @ vh, s)


def with_real_diagonal(a):
    """Q and R up to the phases of the columns, which a finite difference may turn."""
    q, r = lw.qr(a)
    d = tf.linalg.diag_part(r)
    phase = d / tf.cast(tf.abs(d), d.dtype)
    return weighed(q * phase[..., None, :], tf.math.conj(phase)[..., :, None] * r)


A, P, B, V = ("square", (4, 4)), ("positive", (4, 4)), ("normal", (4, 2)), ("normal", (4,))
TALL, WIDE = ("normal", (5, 3)), ("normal", (3, 5))
LOSSES = {
    "solve": (lambda a, b: weighed(lw.solve(a, b)), (A, B)),
    "solve vector": (lambda a, b: weighed(lw.solve(a, b)), (A, V)),
    "solve pos": (lambda a, b: weighed(lw.solve(hermitian_part(a), b, assume="pos")), (P, B)),
    "solve pos upper": (lambda a, b: weighed(lw.solve(hermitian_part(a), b, assume="pos", upper=True)), (P, B)),
    "solve lower": (lambda a, b: weighed(lw.solve(a, b, assume="lower")), (A, B)),
    "solve upper": (lambda a, b: weighed(lw.solve(a, b, assume="upper")), (A, B)),
    "solve hermitian": (lambda a, b: weighed(lw.solve(hermitian_part(a), b, assume="hermitian")), (A, B)),
    "inv": (lambda a: weighed(lw.inv(a)), (A,)),
    "inv pos": (lambda a: weighed(lw.inv(hermitian_part(a), assume="pos")), (P,)),
    "inv lower": (lambda a: weighed(lw.inv(a, assume="lower")), (A,)),
    "slogdet": (lambda a: weighed(*lw.slogdet(a)), (A,)),
    "slogdet upper": (lambda a: weighed(*lw.slogdet(a, assume="upper")), (A,)),
    "factor": (lambda a, b: weighed(lw.factor(a, assume="general").solve(b)), (A, B)),
    "factor pos": (lambda a, b: weighed(lw.factor(hermitian_part(a)).solve(b), lw.factor(hermitian_part(a)).logdet()), (P, B)),
    "qr": (with_real_diagonal, (TALL,)),
    "qr square": (with_real_diagonal, (A,)),
    "qr wide": (with_real_diagonal, (WIDE,)),
    "svd": (spectral, (TALL,)),
    "svd wide": (spectral, (WIDE,)),
    "svdvals": (lambda a: weighed(lw.svdvals(a)), (TALL,)),
    "lstsq": (lambda a, b: weighed(*lw.lstsq(a, b)[:2]), (TALL, ("normal", (5, 2)))),
    "lstsq wide": (lambda a, b: weighed(lw.lstsq(a, b)[0]), (WIDE, ("normal", (3, 2)))),
    "polar": (lambda a: weighed(*lw.polar(a)), (TALL,)),
    "polar left": (lambda a: weighed(*lw.polar(a, side="left")), (WIDE,)),
}
HIGHER = ("solve", "solve pos", "solve lower", "inv", "slogdet", "factor", "qr", "svd", "svdvals", "lstsq", "polar")


def inputs_of(name, dtype, batch=()):
    make = {"square": square, "positive": positive, "normal": normal}
    return [make[kind]((*batch, *shape), dtype, 7 + i) for i, (kind, shape) in enumerate(LOSSES[name][1])]


def difference(f, arrays, directions, h):
    ahead, behind = ([a + sign * h * d for a, d in zip(arrays, directions, strict=True)] for sign in (1, -1))
    return (f(*ahead) - f(*behind)) / (2 * h)


@ways(
    ["name", "dtype"],
    [(name, dtype) for name in LOSSES for dtype in ("float64", "complex128")],
    [(name, "complex128") for name in (*HIGHER, "factor pos", "qr wide")],
)
def test_gradient(way, name, dtype):
    f, arrays = LOSSES[name][0], inputs_of(name, dtype)
    tensors = [tf.constant(a) for a in arrays]
    gradients = tf.nest.flatten(gradient_of(f, *tensors))
    for seed in (20, 21):
        directions = [normal(a.shape, dtype, seed + 2 * i) for i, a in enumerate(arrays)]
        expected = difference(lambda *x: f(*map(tf.constant, x)).numpy(), arrays, directions, 1e-6)
        found = sum(inner(g, d) for g, d in zip(gradients, directions, strict=True))
        assert abs(found - expected) < 1e-7 * max(1, abs(expected))
    # in a graph the tape does not see the call as it was made
    if dtype == "complex128":
        for g, expected in zip(tf.nest.flatten(gradient_of(tf.function(f), *tensors)), gradients, strict=True):
            close(g, expected, 1e4)


@needs_ops
@pytest.mark.parametrize("name", ["solve", "inv", "qr", "qr wide", "svd wide", "lstsq", "polar"])
def test_gradient_with_unknown_shapes(name):
    def f(*tensors):
        return gradient_of(lambda *x: sum(tf.reduce_sum(tf.math.real(y)) for y in made(*x)), *tensors)

    made = {
        "solve": lambda a, b: [lw.solve(a, b)],
        "inv": lambda a: [lw.inv(a)],
        "lstsq": lambda a, b: lw.lstsq(a, b)[:2],
        "polar": lw.polar,
        "svd wide": lambda a: [lw.svdvals(a), lw.polar(a).u],
    }.get(name, lw.qr)
    tensors = [tf.constant(a) for a in inputs_of(name, "float64", (2,))]
    expected = tf.nest.flatten(f(*tensors))
    compiled = tf.function(f, input_signature=[tf.TensorSpec([None, None, None], tf.float64)] * len(tensors))
    for g, e in zip(tf.nest.flatten(compiled(*tensors)), expected, strict=True):
        close(g, e, 1e4)


@pytest.mark.parametrize("name", HIGHER)
def test_second_order(name, dtype="complex128"):
    f, arrays = LOSSES[name][0], inputs_of(name, dtype)
    directions = [normal(a.shape, dtype, 30 + i) for i, a in enumerate(arrays)]

    def along(*tensors):
        found = tf.nest.flatten(gradient_of(f, *tensors))
        return sum(tf.reduce_sum(tf.math.real(tf.math.conj(d) * g)) for d, g in zip(directions, found, strict=True))

    tensors = [tf.constant(a) for a in arrays]
    second = tf.nest.flatten(gradient_of(along, *tensors))
    if name in ("solve", "inv"):
        graph = tf.function(lambda *x: gradient_of(along, *x))
        for x, y in zip(tf.nest.flatten(graph(*tensors)), second, strict=True):
            close(x, y)
    # second derivatives commute: the gradient along one direction, along another
    others = [normal(a.shape, dtype, 40 + i) for i, a in enumerate(arrays)]
    expected = difference(lambda *x: along(*map(tf.constant, x)).numpy(), arrays, others, 1e-5)
    found = sum(inner(g, d) for g, d in zip(second, others, strict=True))
    assert abs(found - expected) < 1e-5 * max(1, abs(expected))


@pytest.mark.parametrize("name", HIGHER)
def test_forward_mode(name):
    f, arrays = LOSSES[name][0], inputs_of(name, "float64")
    directions = [normal(a.shape, "float64", 30 + i) for i, a in enumerate(arrays)]
    tensors = [tf.constant(a) for a in arrays]
    with tf.autodiff.ForwardAccumulator(tensors, [tf.constant(d) for d in directions]) as forward:
        value = f(*tensors)
    expected = difference(lambda *x: f(*map(tf.constant, x)).numpy(), arrays, directions, 1e-6)
    assert abs(float(forward.jvp(value)) - expected) < 1e-7 * max(1, abs(expected))


def test_float32_gradients(way):
    a, b = square((3, 5, 5), "float32"), normal((3, 5, 2), "float32", 1)
    f = lambda x, y: tf.reduce_sum(lw.solve(x, y)) + tf.reduce_sum(lw.inv(x)) + tf.reduce_sum(lw.polar(x).u)  # noqa: E731
    low = gradient_of(f, tf.constant(a), tf.constant(b))
    high = gradient_of(f, tf.constant(a.astype("float64")), tf.constant(b.astype("float64")))
    for x, y in zip(low, high, strict=True):
        assert x.dtype == tf.float32
        np.testing.assert_allclose(x, y, atol=2e-4)


def test_factor_once_differentiate_b_later(way):
    a, b = square((5, 5)), tf.constant(normal((3, 5, 2), seed=1))
    f = lw.factor(tf.constant(a), assume="general")
    assert f._handle.a is None  # no tape was there to ask for its derivative
    g = gradient_of(lambda x: tf.reduce_sum(f.solve(x)), b)
    close(g, np.broadcast_to(np.linalg.solve(a.T, np.ones((5, 2))), (3, 5, 2)))


@needs_ops
def test_a_tape_sees_one_factorisation(monkeypatch):
    calls = []
    for name in ("lu", "lu_solve", "solve"):
        op = front._OPS[name]
        monkeypatch.setitem(front._OPS, name, lambda *x, op=op, name=name, **k: calls.append(name) or op(*x, **k))
    a, b = tf.constant(square((5, 5))), tf.ones((5, 1), tf.float64)
    lw.solve(a, b)
    assert calls == ["solve"]
    calls.clear()
    gradient_of(lambda x: tf.reduce_sum(lw.solve(x, b)), a)
    assert calls == ["lu", "lu_solve", "lu_solve"]


@needs_ops
def test_jacobian():
    a, b = tf.constant(square((3, 3))), tf.constant(normal((3, 2)))
    for f in (lw.solve, lambda x, y: lw.solve(hermitian_part(x), y, assume="hermitian"), lambda x, y: lw.lstsq(x, y).x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([a, b])
            x = f(a, b)
        for target in (a, b):
            by_loop = tape.jacobian(x, target, experimental_use_pfor=False)
            close(tape.jacobian(x, target), by_loop, 1000)


# ---- vectorized_map, SavedModel


@needs_ops
@pytest.mark.parametrize("stacked", ["both", "a", "b"])
@pytest.mark.parametrize("assume", ["general", "pos", "lower"])
def test_vectorized_map(monkeypatch, stacked, assume):
    a, b = matrix_for(assume, (6, 5, 5)), normal((6, 5, 2), seed=1)
    name = "triangular" if assume == "lower" else "solve"
    op, shapes = front._OPS[name], []
    monkeypatch.setitem(front._OPS, name, lambda *x, **k: shapes.append([y.shape.as_list() for y in x]) or op(*x, **k))
    one = lambda x, y: lw.solve_ex(x, y, assume=assume)  # noqa: E731
    maps = {
        "both": lambda x, y: tf.vectorized_map(lambda t: one(*t), (x, y)),
        "a": lambda x, y: tf.vectorized_map(lambda t: one(t, y[0]), x),
        "b": lambda x, y: tf.vectorized_map(lambda t: one(x[0], t), y),
    }
    f = tf.function(maps[stacked])
    x, info = f(tf.constant(a), tf.constant(b))
    left, right = meant(a if stacked != "b" else a[:1], assume), b if stacked != "a" else b[:1]
    close(x, np.stack([np.linalg.solve(left[i % len(left)], right[i % len(right)]) for i in range(6)]))
    assert info.shape == (6,) and not info.numpy().any()
    # the body as it was written, then what became of it: many right-hand sides for one matrix are its columns
    assert shapes == [[[5, 5], [5, 2]], [[5, 5], [5, 12]] if stacked == "b" else [[6, 5, 5], [6, 5, 2]]]
    assert not any("While" in x.type for x in f.get_concrete_function(tf.constant(a), tf.constant(b)).graph.get_operations())


@needs_ops
def test_vectorized_map_of_the_others():
    a = tf.constant(normal((6, 5, 3), "complex128"))
    p = tf.constant(square((6, 3, 3)))
    for f, x in (
        (lw.qr, a),
        (lw.polar, a),
        (lw.svdvals, a),
        (lw.inv, p),
        (lw.slogdet, p),
        (lambda x: lw.factor(x, assume="general").solve(tf.eye(3, dtype=tf.float64)), p),
        (lambda x: gradient_of(lambda y: tf.reduce_sum(lw.solve(y, p[0])), x), p),
        (lambda x: gradient_of(lambda y: tf.reduce_sum(lw.inv(y)), x), p),
        (lambda x: gradient_of(lambda y: tf.reduce_sum(lw.solve(p[0], y)), x), p),
    ):
        made = tf.nest.flatten(tf.vectorized_map(f, x))
        one_by_one = [tf.nest.flatten(f(m)) for m in x]
        for i, got in enumerate(made):
            close(got, tf.stack([found[i] for found in one_by_one]), 1000)


@needs_ops
def test_saved_model_round_trip(tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None, 4], tf.float64), tf.TensorSpec([None, 4, None], tf.float64)])
        def __call__(self, a, b):
            return lw.solve(a, b), lw.svdvals(a), lw.qr(a).R

    tf.saved_model.save(Model(), str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True))
    model = tf.saved_model.load(str(tmp_path))
    a, b = tf.constant(square((3, 4, 4))), tf.ones((3, 4, 2), tf.float64)
    x, s, r = model(a, b)
    close(a @ x, b)
    close(s, np.linalg.svd(a, compute_uv=False))
    close(tf.linalg.adjoint(r) @ r, tf.linalg.adjoint(a) @ a)
    gradients = gradient_of(lambda p, q: tf.reduce_sum(model(p, q)[0]), a, b)
    for found, expected in zip(gradients, gradient_of(lambda p, q: tf.reduce_sum(lw.solve(p, q)), a, b), strict=True):
        close(found, expected)
