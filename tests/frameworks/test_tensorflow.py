"""TensorFlow: eager, graphs, gradients, vectorized_map, SavedModel, failures, and the GPU kernel against stand-ins."""

import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from inspect import isfunction
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

import lapwing as lw  # noqa: E402
from lapwing.core.derivatives import cholesky_jvp  # noqa: E402
from lapwing.frameworks import tensorflow as front  # noqa: E402

ROOT = Path(__file__).parents[2]
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


def normal(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


def positive(shape, dtype, seed=0):
    x = normal(shape, dtype, seed)
    n = shape[-1]
    return (x @ adjoint(x) / max(n, 1) + np.eye(n)).astype(dtype)


def poisoned(a, upper):
    """NaN in the triangle that must not be read."""
    n = a.shape[-1]
    mask = np.tri(n, k=-1, dtype=bool) if upper else np.tri(n, k=-1, dtype=bool).T
    return np.where(mask, np.nan, a).astype(a.dtype)


def tolerance(a):
    return 10 * max(a.shape[-1], 1) * np.finfo(a.dtype).eps


def check_factor(factor, a, upper=False):
    factor = factor.numpy()
    n = a.shape[-1]
    assert factor.dtype == a.dtype and factor.shape == a.shape
    product = adjoint(factor) @ factor if upper else factor @ adjoint(factor)
    assert np.all(np.abs(product - a) <= tolerance(a) * np.abs(a).max(initial=1))
    other = np.tri(n, k=-1, dtype=bool) if upper else np.tri(n, k=-1, dtype=bool).T
    assert not factor[..., other].any()


def check_close(x, y, atol):
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=atol)


# ---- values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("n", [0, 1, 5, 33])
def test_eager(way, dtype, upper, batch, n):
    a = positive((*batch, n, n), dtype)
    factor = lw.cholesky(tf.constant(poisoned(a, upper)), upper=upper)
    assert isinstance(factor, tf.Tensor)
    check_factor(factor, a, upper)
    factor, info = lw.cholesky_ex(tf.constant(a), upper=upper)
    check_factor(factor, a, upper)
    assert info.dtype == tf.int32 and tuple(info.shape) == batch and not info.numpy().any()


@pytest.mark.parametrize("spec", [[None, 5, 5], [3, None, 5], [None, None, None], None])
@pytest.mark.parametrize("upper", [False, True])
def test_graph_with_unknown_shape(way, spec, upper):
    a = positive((3, 5, 5), "float64")
    f = tf.function(lambda x: lw.cholesky_ex(x, upper=upper), input_signature=[tf.TensorSpec(spec, tf.float64)])
    check_factor(f(tf.constant(a))[0], a, upper)
    static = f.get_concrete_function().structured_outputs
    if spec is None:
        assert static.factor.shape.rank is None
    else:
        assert static.factor.shape.rank == 3 and static.info.shape.as_list() == spec[:1]
    if spec == [3, None, 5] and way == "ops":
        assert static.factor.shape.as_list() == [3, 5, 5]


@needs_ops
def test_graph_may_reuse_the_memory_of_one_matrix():
    a = positive((1, 33, 33), "float64")

    @tf.function
    def f(x):
        fresh = x + 0.0
        return lw.cholesky(fresh), lw.cholesky(x * 1.0), fresh

    first, second, fresh = f(tf.constant(a))
    check_factor(first, a)
    check_factor(second, a)
    np.testing.assert_array_equal(fresh.numpy(), a)


def test_variable(way):
    a = positive((3, 5, 5), "float64")
    variable = tf.Variable(a)
    check_factor(lw.cholesky(variable), a)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(lw.cholesky(variable))
    assert tape.gradient(loss, variable).shape == variable.shape
    check_factor(tf.function(lambda: lw.cholesky(variable))(), a)


def test_keras_variable():
    keras = pytest.importorskip("keras")
    a = positive((5, 5), "float32")
    variable = keras.Variable(a)
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras works on another backend here")
    check_factor(lw.cholesky(variable), a)
    assert front.describe(variable).shape == (5, 5)


def test_batch_equals_loop():
    a = tf.constant(positive((7, 9, 9), "float32"))
    one_by_one = tf.stack([lw.cholesky(m) for m in tf.unstack(a)])
    np.testing.assert_array_equal(lw.cholesky(a).numpy(), one_by_one.numpy())


@needs_ops
def test_dataset():
    a = positive((4, 5, 5), "float64")
    factors = list(tf.data.Dataset.from_tensor_slices(a).map(lw.cholesky))
    check_factor(tf.stack(factors), a)


def test_explain_and_description():
    spec = front.describe(tf.ones((2, 5, 5), tf.complex64))
    assert (spec.shape, spec.dtype, spec.device) == ((2, 5, 5), "complex64", "cpu")

    @tf.function(input_signature=[tf.TensorSpec([None, 5, 5], tf.float32)])
    def f(x):
        assert front.traced(x) and front.shape_of(x) == (None, 5, 5)
        with pytest.raises(ValueError, match="not known yet"):
            front.describe(x)
        return x

    f.get_concrete_function()


# ---- failures


def test_raises_eagerly(way):
    a = positive((2, 3, 5, 5), "float64")
    a[1, 2, 3, 3] = -1
    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.cholesky(tf.constant(a))
    assert caught.value.batch_index == (1, 2) and caught.value.minor == 4 and not caught.value.nonfinite
    a[1, 2, 3, 3] = np.inf
    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.cholesky(tf.constant(a))
    assert caught.value.nonfinite


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_failed_matrix_is_nan(way, dtype):
    a = positive((3, 5, 5), dtype)
    bad = a.copy()
    bad[1, 2, 2] = -1
    factor, info = tf.function(lw.cholesky_ex)(tf.constant(bad))
    assert info.numpy().tolist() == [0, 3, 0]
    assert np.isnan(factor.numpy()[1].real).all()
    check_factor(tf.gather(factor, [0, 2]), a[[0, 2]])
    # "raise" cannot look at values in a graph
    np.testing.assert_array_equal(tf.function(lw.cholesky)(tf.constant(bad)).numpy(), factor.numpy())
    np.testing.assert_array_equal(lw.cholesky(tf.constant(bad), on_fail="nan").numpy(), factor.numpy())


def test_only_the_failed_gradient_is_nan(way):
    bad = positive((3, 5, 5), "float64")
    bad[1, 2, 2] = -1
    x = tf.constant(bad)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(lw.cholesky(x, on_fail="nan"))
    gradient = tape.gradient(loss, x).numpy()
    assert np.isnan(gradient[1]).any() and np.isfinite(gradient[[0, 2]]).all()


def test_wrong_input():
    with pytest.raises(TypeError, match="int32"):
        lw.cholesky(tf.ones((2, 2), tf.int32))
    with pytest.raises(ValueError, match="square"):
        lw.cholesky(tf.ones((2, 3)))
    with pytest.raises(ValueError, match="square"):
        tf.function(lw.cholesky)(tf.ones((2, 3)))


@needs_ops
def test_wrong_shape_is_seen_when_it_is_known():
    f = tf.function(lw.cholesky, input_signature=[tf.TensorSpec(None, tf.float32)])
    for shape in ((2, 3), (3,)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"LapwingCholesky.*square"):
            f(tf.ones(shape))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="square"):
        tf.function(lambda x: front._OPS["cholesky"](x))(tf.ones((2, 3)))


@needs_ops
def test_unknown_engine_is_an_error_and_nothing_worse():
    with pytest.raises(tf.errors.InternalError, match=r"LapwingCholesky: .*engine"):
        front._OPS["cholesky"](tf.eye(3), engine=99)


def test_xla_is_refused_by_name(way):
    a = tf.constant(positive((2, 5, 5), "float32"))
    with pytest.raises(NotImplementedError, match=r"lapwing: cholesky cannot be .*XLA(.|\n)*jit_compile=False"):
        tf.function(lw.cholesky, jit_compile=True)(a)

    @tf.function
    def inner(x):
        return lw.cholesky(x)

    with pytest.raises(NotImplementedError, match="lapwing: cholesky"):
        tf.function(lambda x: inner(x) + 1, jit_compile=True)(a)


@needs_ops
def test_xla_error_names_the_op_where_the_trace_is_older():
    a = tf.constant(positive((2, 5, 5), "float32"))
    ready = tf.function(lw.cholesky).get_concrete_function(a)
    with pytest.raises(tf.errors.InvalidArgumentError, match="LapwingCholesky"):
        tf.function(lambda x: ready(x), jit_compile=True)(a)


# ---- derivatives


def loss_of(w, upper):
    """A real loss of the factor that sees every entry, real and imaginary."""
    return lambda x: tf.reduce_sum(tf.math.real(tf.math.conj(w) * lw.cholesky(x, upper=upper)))


def gradient_of(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = f(x)
    return tape.gradient(value, x)


def numeric_gradient(f, a, h=1e-6):
    """dL/dx + i dL/dy, entry by entry, for one matrix."""
    gradient = np.zeros_like(a)
    for index in np.ndindex(a.shape):
        for unit in (1, 1j) if np.iscomplexobj(a) else (1,):
            step = np.zeros_like(a)
            step[index] = h * unit
            step = (step + adjoint(step)) / 2  # the function is that of (A + A^H)/2
            gradient[index] += unit * (f(a + step) - f(a - step)) / (2 * h)
    return gradient


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("upper", [False, True])
def test_gradient_is_the_numeric_one(way, dtype, upper):
    a, w = positive((4, 4), dtype), normal((4, 4), dtype, 1)
    f = loss_of(w, upper)
    gradient = gradient_of(f, tf.constant(a)).numpy()
    check_close(gradient, adjoint(gradient), 1e-14)
    check_close(gradient, numeric_gradient(lambda x: f(tf.constant(x)).numpy(), a), 1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("spec", ["eager", "known", "unknown"])
def test_gradient_is_tensorflows_own_on_a_symmetric_argument(way, dtype, batch, spec):
    a, w = positive((*batch, 5, 5), dtype), normal((*batch, 5, 5), dtype, 1)

    def own(x):
        return tf.reduce_sum(tf.math.real(tf.math.conj(w) * tf.linalg.cholesky((x + tf.linalg.adjoint(x)) / 2)))

    ours = lambda x: gradient_of(loss_of(w, False), x)  # noqa: E731
    if spec != "eager":
        signature = tf.TensorSpec(None if spec == "unknown" else a.shape, dtype)
        ours = tf.function(ours, input_signature=[signature])
    x = tf.constant(a)
    expected = gradient_of(own, x).numpy()
    scale = np.abs(expected).max(initial=1)
    check_close(ours(x), expected, tolerance(a) * scale)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_second_gradient(way, dtype, upper, graph):
    a, w = positive((3, 4, 4), dtype), normal((3, 4, 4), dtype, 1)
    v = normal((3, 4, 4), dtype, 2)
    v = v + adjoint(v)
    f = loss_of(w, upper)

    def along_v(x):
        return tf.reduce_sum(tf.math.real(tf.math.conj(v) * gradient_of(f, x)))

    second = lambda x: gradient_of(along_v, x)  # noqa: E731
    if graph:
        second = tf.function(second, input_signature=[tf.TensorSpec(None, dtype)])
    h = 1e-6
    # the second derivative is symmetric: H v is how the gradient changes along v
    expected = (gradient_of(f, tf.constant(a + h * v)) - gradient_of(f, tf.constant(a - h * v))) / (2 * h)
    check_close(second(tf.constant(a)), expected, 1e-7)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("upper", [False, True])
def test_forward_mode(way, dtype, upper):
    a, tangent = positive((3, 5, 5), dtype), normal((3, 5, 5), dtype, 2)
    x = tf.constant(a)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(tangent)) as forward:
        factor = lw.cholesky(x, upper=upper)
    expected = cholesky_jvp(front.Namespace, (int(upper),), (x,), (factor,), (tf.constant(tangent),))[0]
    check_close(forward.jvp(factor), expected, tolerance(a) * np.abs(expected.numpy()).max())


def test_gradient_of_empty_matrices(way):
    x = tf.zeros((3, 0, 0), tf.float64)
    assert gradient_of(lambda x: tf.reduce_sum(lw.cholesky(x)), x).shape == (3, 0, 0)


@needs_ops
def test_jacobian():
    x = tf.constant(positive((3, 3), "float64"))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        factor = lw.cholesky(x)
    by_loop = tape.jacobian(factor, x, experimental_use_pfor=False)
    check_close(tape.jacobian(factor, x), by_loop, 1e-13)


# ---- AutoGraph, subnormal numbers


def test_autograph_leaves_our_functions_alone():
    from tensorflow.python.autograph.impl.api import is_autograph_artifact

    for name in lw.__all__:
        entity = getattr(lw, name)
        if isfunction(entity):
            assert is_autograph_artifact(entity), name
    a = lw.factor(tf.eye(2))
    for method in (a.solve, a.inv, a.slogdet, a.logdet, a.rcond):
        assert is_autograph_artifact(method)


@needs_ops
def test_first_call_of_a_gaussian_process_step_is_quick():
    a, y = tf.constant(positive((3, 20, 20), "float64")), tf.constant(normal((3, 20, 1), "float64", 1))

    @tf.function
    def step(a, y):
        with tf.GradientTape() as tape:
            tape.watch(a)
            f = lw.factor(a)
            loss = tf.reduce_sum(y * lw.solve(a, y, assume="pos")) + tf.reduce_sum(f.logdet() + lw.slogdet(a).logabsdet)
            loss += tf.reduce_sum(tf.math.log(tf.linalg.diag_part(lw.cholesky(a))))
        return loss, tape.gradient(loss, a)

    begun = time.process_time()
    step(a, y)
    assert time.process_time() - begun < 4


@needs_ops
def test_subnormal_matrices():
    x = np.random.default_rng(0).standard_normal((64, 4, 12))
    a = (x * 1e-41).astype("float32")
    s = tf.function(lambda a: lw.svd(a, engine="lapack").S)(tf.constant(a)).numpy()
    assert (s >= 0).all() and (np.diff(s) <= 0).all()
    check_close(s, np.linalg.svd(a.astype("float64"), compute_uv=False), 10 * 12 * 1.5e-45)
    h = (x[..., :4] + adjoint(x[..., :4])).astype("float32") * np.float32(1e-41)
    w = tf.function(lambda a: lw.eigvalsh(a, engine="lapack"))(tf.constant(h)).numpy()
    check_close(w, np.linalg.eigvalsh(h.astype("float64")), 10 * 4 * 1.5e-45)


# ---- vectorized_map, SavedModel


@needs_ops
@pytest.mark.parametrize("upper", [False, True])
def test_vectorized_map_is_one_batched_call(monkeypatch, upper):
    a = positive((6, 5, 5), "float64")
    op, ranks = front._OPS["cholesky"], []

    def recorded(x, **attributes):
        ranks.append(x.shape.rank)
        return op(x, **attributes)

    monkeypatch.setitem(front._OPS, "cholesky", recorded)
    f = tf.function(lambda x: tf.vectorized_map(lambda m: lw.cholesky_ex(m, upper=upper), x))
    factor, info = f(tf.constant(a))
    check_factor(factor, a, upper)
    assert info.shape == (6,)
    assert ranks == [2, 3]  # the body as it was written, then what became of it
    assert not any("While" in x.type for x in f.get_concrete_function(tf.constant(a)).graph.get_operations())


@needs_ops
def test_vectorized_map_of_gradients():
    a = tf.constant(positive((6, 5, 5), "float64"))
    one = lambda m: gradient_of(lambda x: tf.reduce_sum(lw.cholesky(x)), m)  # noqa: E731
    check_close(tf.vectorized_map(one, a), tf.stack([one(m) for m in a]), 1e-13)


LOAD = """
import sys, numpy as np, tensorflow as tf
import lapwing.frameworks.tensorflow
model = tf.saved_model.load(sys.argv[1])
a = 4 * np.eye(4) + np.ones((3, 4, 4))
x = tf.constant(a)
with tf.GradientTape() as tape:
    tape.watch(x)
    u = model(x)
    loss = tf.reduce_sum(u)
np.testing.assert_allclose(tf.linalg.matmul(u, u, adjoint_a=True).numpy(), a, atol=1e-14)
assert np.isfinite(tape.gradient(loss, x).numpy()).all()
"""


@needs_ops
def test_saved_model_round_trip(tmp_path):
    """Saved here, loaded by another process."""

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 4, 4], tf.float64)])
        def __call__(self, x):
            return lw.cholesky(x, upper=True)

    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(Model(), str(tmp_path / "model"), options=options)
    run_python(LOAD, str(tmp_path / "model"))


def test_import_lapwing_does_not_import_tensorflow():
    run_python("import lapwing, sys; assert 'tensorflow' not in sys.modules")


def run_python(program, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(lw.__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- the C interface: our declarations against TensorFlow's headers, and the GPU kernel against stand-ins

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or not (ROOT / "native").is_dir(), reason="needs g++ and the sources"
)

SAME = """
#include <cstdint>
#include <type_traits>
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
using Status = TF_Status; using Tensor = TF_Tensor; using OpBuilder = TF_OpDefinitionBuilder;
using KernelBuilder = TF_KernelBuilder; using Construction = TF_OpKernelConstruction;
using Context = TF_OpKernelContext;
using Shape = TF_ShapeHandle; using Dimension = TF_DimensionHandle; using ShapeContext = TF_ShapeInferenceContext;
// enums are ints to us, and two pointers that we never look into are void*
template <class T> using Plain = std::conditional_t<std::is_enum_v<T>, int,
    std::conditional_t<std::is_same_v<T, SP_Stream> || std::is_same_v<T, TF_AllocatorAttributes*>, void*, T>>;
template <class R, class... A> auto plain(R (*)(A...)) -> Plain<R> (*)(Plain<A>...);
#define CHECK(result, name, arguments) \\
  static_assert(std::is_same_v<decltype(plain(&::name)), result(*) arguments>, #name);
LAPWING_TENSORFLOW(CHECK)
static_assert(TF_INVALID_ARGUMENT == 3 && TF_RESOURCE_EXHAUSTED == 8 && TF_INTERNAL == 13);
static_assert(TF_FLOAT == 1 && TF_DOUBLE == 2 && TF_INT32 == 3 && TF_UINT8 == 4);
static_assert(TF_COMPLEX64 == 8 && TF_COMPLEX128 == 18);
"""


@needs_compiler
def test_declarations_match_the_headers(tmp_path):
    source = (ROOT / "native/bind/tensorflow.cc").read_text()
    table = re.search(r"#define LAPWING_TENSORFLOW\(X\)(.*\\\n)*.*\n", source)
    (tmp_path / "same.cc").write_text(table[0] + SAME)
    include = tf.sysconfig.get_include()
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-isystem{include}", str(tmp_path / "same.cc")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Stand-ins for TensorFlow, the driver and the core. Each call that matters is written down.
STAND_IN = r"""
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define API extern "C" __attribute__((visibility("default")))
API void note(const char*, ...);
#if PART == 1
struct Status { int code; char text[800]; };
struct Tensor { int type, rank; int64_t dims[8]; void* data; const char* name; };
using Create = void* (*)(void*);
using Compute = void (*)(void*, void*);
using Destroy = void (*)(void*);
struct Builder { char device[8]; int type; Create create; Compute compute; Destroy destroy; };
struct Context { int type, rank; const int64_t* dims; bool plugin; };
static char text[1 << 16];
static int live;
static Builder* builders[256];
static char ops[256][32];
static int n_builders;
API void note(const char* format, ...) {
  va_list list; va_start(list, format);
  size_t used = strlen(text);
  vsnprintf(text + used, sizeof text - used, format, list);
  strcat(text, "\n");
  va_end(list);
}
static Tensor* tensor(int type, const int64_t* dims, int rank, const char* name) {
  live++;
  auto* t = new Tensor{type, rank, {}, malloc(4096), name};
  for (int i = 0; i < rank; i++) t->dims[i] = dims[i];
  return t;
}
API Status* TF_NewStatus() { live++; return new Status{}; }
API void TF_DeleteStatus(Status* s) { live--; delete s; }
API int TF_GetCode(const Status* s) { return s->code; }
API const char* TF_Message(const Status* s) { return s->text; }
API void TF_SetStatus(Status* s, int code, const char* t) {
  s->code = code;
  snprintf(s->text, sizeof s->text, "%s", t);
}
API void* TF_NewOpDefinitionBuilder(const char*) { return nullptr; }
#define EMPTY(name) API void name() {}
EMPTY(TF_OpDefinitionBuilderAddAttr) EMPTY(TF_OpDefinitionBuilderAddInput) EMPTY(TF_OpDefinitionBuilderAddOutput)
EMPTY(TF_OpDefinitionBuilderSetShapeInferenceFunction) EMPTY(TF_RegisterOpDefinition) EMPTY(TF_NewShapeHandle)
EMPTY(TF_DeleteShapeHandle) EMPTY(TF_NewDimensionHandle) EMPTY(TF_DeleteDimensionHandle)
EMPTY(TF_DimensionHandleValueKnown) EMPTY(TF_DimensionHandleValue) EMPTY(TF_ShapeInferenceContextGetInput)
EMPTY(TF_ShapeInferenceContextSetOutput) EMPTY(TF_ShapeInferenceContextRankKnown) EMPTY(TF_ShapeInferenceContextRank)
EMPTY(TF_ShapeInferenceContextWithRankAtLeast) EMPTY(TF_ShapeInferenceContextDim)
EMPTY(TF_ShapeInferenceContextSubshape) EMPTY(TF_ShapeInferenceContextVectorFromSize)
EMPTY(TF_ShapeInferenceContextSetUnknownShape)
EMPTY(TF_ShapeInferenceContextConcatenateShapes) EMPTY(TF_DeleteKernelBuilder) EMPTY(TF_OpKernelConstruction_Failure)
API Builder* TF_NewKernelBuilder(const char* op, const char* device, Create create, Compute compute, Destroy destroy) {
  auto* b = new Builder{{}, 0, create, compute, destroy};
  strcpy(b->device, device); strcpy(ops[n_builders], op);
  return builders[n_builders++] = b;
}
API void TF_KernelBuilder_TypeConstraint(Builder* b, const char*, int type, Status*) { b->type = type; }
API void TF_RegisterKernelBuilder(const char*, Builder*, Status*) {}
API void TF_OpKernelConstruction_GetAttrInt64(void*, const char* name, int64_t* value, Status*) {
  *value = !strcmp(name, "flags");
}
API void TF_OpKernelContext_Failure(Context*, Status* s) { note("failure %d %s", s->code, s->text); }
API void TF_GetInput(Context* c, int, Tensor** t, Status*) { *t = tensor(c->type, c->dims, c->rank, "input"); }
API Tensor* TF_AllocateOutput(Context*, int i, int type, const int64_t* dims, int rank, size_t bytes, Status*) {
  note("output %d type %d rank %d bytes %zu", i, type, rank, bytes);
  return tensor(type, dims, rank, "output");
}
API Tensor* TF_ForwardInputOrAllocateOutput(Context* c, const int*, int, int i, const int64_t* dims, int rank, int*,
                                            Status*) {
  note("forward %d rank %d", i, rank);
  return tensor(c->type, dims, rank, "output");
}
API Tensor* TF_AllocateTemp(Context*, int type, const int64_t* dims, int rank, void*, Status*) {
  note("scratch type %d size %lld", type, (long long)dims[0]);
  return tensor(type, dims, rank, "scratch");
}
API void* TF_GetStream(Context* c, Status* s) {
  if (!c->plugin) TF_SetStatus(s, 9, "Accessing device stream is only supported for pluggable devices.");
  return nullptr;
}
API int TF_GetDeviceId(Context*) { return 1; }
API int TF_TensorType(const Tensor* t) { return t->type; }
API int TF_NumDims(const Tensor* t) { return t->rank; }
API int64_t TF_Dim(const Tensor* t, int i) { return t->dims[i]; }
API void* TF_TensorData(const Tensor* t) { return t->data; }
API void TF_DeleteTensor(Tensor* t) {
  if (strcmp(t->name, "input")) note("free %s", t->name);
  live--;
  free(t->data);
  delete t;
}
API const char* play(const char* op, const char* device, int type, int rank, const int64_t* dims, int plugin) {
  text[0] = 0;
  for (int i = 0; i < n_builders; i++)
    if (!strcmp(ops[i], op) && !strcmp(builders[i]->device, device) && builders[i]->type == type) {
      Context context{type, rank, dims, plugin != 0};
      void* kernel = builders[i]->create(nullptr);
      builders[i]->compute(kernel, &context);
      builders[i]->destroy(kernel);
      note("live %d", live);
      return text;
    }
  return "no such kernel";
}
#elif PART == 2
API int cuInit(unsigned) { return 0; }
API int cuDevicePrimaryCtxRetain(void** c, int device) { note("retain %d", device); *c = c; return 0; }
API int cuDevicePrimaryCtxRelease_v2(int device) { note("release %d", device); return 0; }
API int cuCtxPushCurrent_v2(void*) { note("push"); return 0; }
API int cuCtxPopCurrent_v2(void**) { note("pop"); return 0; }
API int cuCtxSynchronize() { note("wait"); return 0; }
#else
#include "frame.h"
API int lapwing_run(lapwing::Frame* f) {
  note("run op %d dtype %d device %d ordinal %d flags %u batch %lld n %lld stream %d", f->op, f->dtype, f->device,
       f->ordinal, f->flags, (long long)f->size[0], (long long)f->size[1], f->stream != nullptr);
  if (f->scratch.get && !f->scratch.get(f->scratch.self, 64)) note("no scratch");
  if (f->size[1] == 13) { snprintf(f->error, sizeof f->error, "unlucky"); return 1; }
  return 0;
}
#endif
"""
PLAY = """
import ctypes, sys
folder = sys.argv[1]
framework = ctypes.CDLL(f"{folder}/framework.so", ctypes.RTLD_GLOBAL)
ctypes.CDLL(f"{folder}/driver.so")
front = ctypes.CDLL(f"{folder}/_tensorflow.abi3.so")
front.lapwing_tensorflow_problem.restype = framework.play.restype = ctypes.c_char_p
assert front.lapwing_tensorflow_problem() == b"", front.lapwing_tensorflow_problem()
op, device, type, plugin, *dims = sys.argv[2:]
dims = (ctypes.c_int64 * len(dims))(*map(int, dims))
print(framework.play(op.encode(), device.encode(), int(type), len(dims), dims, int(plugin)).decode(), end="")
"""


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    if front._OPS == {}:
        pytest.skip(front.missing_reason)
    folder = tmp_path_factory.mktemp("stand_ins")
    (folder / "stand_in.cc").write_text(STAND_IN)
    compiler = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{ROOT / 'native'}", str(folder / "stand_in.cc")]
    names = {"framework.so": "libtensorflow_framework.so.2", "driver.so": "libcuda.so.1", "_native.abi3.so": "core"}
    for part, (name, soname) in enumerate(names.items(), 1):
        own = [f"-DPART={part}", f"-Wl,-soname,{soname}", "-o", str(folder / name)]
        subprocess.run([*compiler, *own], check=True)
    shutil.copy(Path(lw.__file__).parent / "_tensorflow.abi3.so", folder)

    def play(op, device, tf_type, dims, plugin=False):
        return run_python(PLAY, str(folder), op, device, str(tf_type), str(int(plugin)), *map(str, dims)).splitlines()

    return play


@needs_compiler
def test_gpu_kernel_waits_around_the_work(stand_ins):
    assert stand_ins("LapwingCholesky", "GPU", 18, (2, 3, 5, 5)) == [
        "output 0 type 18 rank 4 bytes 2400",
        "output 1 type 3 rank 2 bytes 24",
        "retain 1",
        "push",
        "wait",  # inputs and fresh memory
        "run op 0 dtype 3 device 1 ordinal 1 flags 1 batch 6 n 5 stream 0",
        "scratch type 4 size 64",
        "wait",  # fresh memory
        "wait",  # the results
        "pop",
        "release 1",
        "free scratch",
        "free output",
        "free output",
        "live 0",
    ]


@needs_compiler
def test_gpu_kernel_failures(stand_ins):
    events = stand_ins("LapwingCholesky", "GPU", 1, (2, 13, 13))
    assert events[-1] == "live 0" and "failure 13 LapwingCholesky: unlucky" in events
    assert events.index("failure 13 LapwingCholesky: unlucky") > max(i for i, e in enumerate(events) if e == "wait")

    events = stand_ins("LapwingFinite", "GPU", 1, (2, 5, 5), plugin=True)
    assert any(e.startswith("failure 13 LapwingFinite: this GPU belongs to a TensorFlow plug-in") for e in events)
    assert not any(e.startswith("run") for e in events) and events[-1] == "live 0"


@needs_compiler
def test_kernel_forwards_one_matrix_only(stand_ins):
    assert "forward 0 rank 3" in stand_ins("LapwingCholesky", "CPU", 2, (1, 5, 5))
    assert not any(e.startswith("forward") for e in stand_ins("LapwingCholesky", "CPU", 2, (2, 5, 5)))
    assert "failure 3 LapwingCholesky: the matrices must be square" in stand_ins("LapwingCholesky", "CPU", 2, (2, 5, 4))


@needs_compiler
def test_kernel_with_several_inputs_and_other_outputs(stand_ins):
    events = stand_ins("LapwingSolve", "CPU", 2, (1, 5, 5))  # both inputs have this shape
    assert events[:2] == ["forward 0 rank 3", "output 1 type 3 rank 1 bytes 4"] and events[2].startswith("run op 6 dtype 1")
    assert events[-1] == "live 0"
    assert stand_ins("LapwingQr", "CPU", 18, (2, 7, 4))[:2] == [
        "output 0 type 18 rank 3 bytes 896",
        "output 1 type 18 rank 3 bytes 512",
    ]
    assert stand_ins("LapwingQrComplete", "GPU", 18, (2, 7, 4))[:2] == [
        "output 0 type 18 rank 3 bytes 1568",
        "output 1 type 18 rank 3 bytes 896",
    ]
    assert "failure 3 LapwingSolve: the matrices must be square" in stand_ins("LapwingSolve", "GPU", 2, (2, 5, 4))
