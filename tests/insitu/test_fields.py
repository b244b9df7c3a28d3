"""Arrays over the solver's memory: no copy, right strides, read-only, and invalid after the step."""

from __future__ import annotations

import gc
import importlib.util

import numpy as np
import pytest

from lapwing import insitu
from lapwing.core.memory import Memory, _exported, capsule_of_memory, memory_of_capsule
from lapwing.insitu.solver import arrays, bridge
from lapwing.insitu.solver.field import Field

CODES = {"float32": ("f", 32), "float64": ("f", 64), "complex64": ("c", 64), "complex128": ("c", 128), "int32": ("i", 32),
         "uint8": ("u", 8), "int64": ("i", 64), "bool": ("b", 8), "float16": ("f", 16)}  # fmt: skip


def described(a: np.ndarray, writable: bool = False, device: tuple[int, int] = (1, 0)) -> Memory:
    code, bits = CODES[a.dtype.name]
    strides = tuple(s // a.itemsize for s in a.strides)
    return Memory.describe("u", a.__array_interface__["data"][0], a.shape, strides, code, bits, *device, writable, a)


def layouts():
    a = np.arange(2 * 6 * 10.0).reshape(12, 10)
    return {
        "plain": a,
        "fortran": np.asfortranarray(a),
        "strided": a[::2, 1:9:3],
        "negative": a[::-1, ::-2],
        "ghosts": a[1:-1, 1:-1],
        "broadcast": np.broadcast_to(a[0], (5, 10)),
        "scalar": np.array(3.5),
        "one": a[:1, :1],
    }


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_layouts(name, library):
    pytest.importorskip(library)
    a = layouts()[name]
    field = Field("u", memory=described(a), library=library)
    if library == "torch" and name == "negative":
        with pytest.raises(TypeError, match="'u' has negative strides"):
            field.array()
        return
    made = field.array()
    assert type(made).__module__.startswith(library if library != "jax" else "jaxlib")
    assert np.array_equal(np.asarray(made), a)
    if library != "jax":  # the very same memory
        back = np.asarray(made)
        assert back.__array_interface__["data"][0] == a.__array_interface__["data"][0]
        assert all(n <= 1 or s == t for n, s, t in zip(a.shape, back.strides, a.strides, strict=True))


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_types(dtype, library):
    pytest.importorskip(library)
    a = np.array([0, 1, 1, 0, 1]).astype(dtype)
    made = Field("u", memory=described(a)).array(library)
    assert str(made.dtype).removeprefix("torch.") == dtype  # also in JAX without its 64-bit flag
    assert np.array_equal(np.asarray(made), a)


def test_read_only_and_writable():
    a = np.zeros(4)
    with pytest.raises(ValueError, match="read-only"):
        Field("u", memory=described(a)).array()[0] = 1
    Field("u", memory=described(a, writable=True)).array()[1] = 2
    assert a[1] == 2
    seen = []
    insitu.Hub([insitu.on_step(lambda ctx, u: seen.append(u.flags.writeable))], output=None, quiet=True).step(0, 0.0, u=a)
    insitu.Hub([insitu.on_step(lambda ctx, u: seen.append(u.flags.writeable))], output=None, quiet=True, writable=True).step(
        0, 0.0, u=a
    )
    assert seen == [False, True] and a.flags.writeable


def test_the_solvers_own_array_is_not_copied():
    a = np.zeros((3, 4))
    seen = []
    hub = insitu.Hub([insitu.on_step(lambda ctx, u: seen.append(np.shares_memory(u, a)))], output=None, quiet=True)
    hub.step(0, 0.0, u=a)
    hub.step(1, 0.0, u=a[::2, ::-1])
    assert seen == [True, True]


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("source", ["numpy", "torch", "jax"])
def test_between_libraries(source, to):
    pytest.importorskip(source)
    pytest.importorskip(to)
    a = np.arange(16, dtype=np.float32)
    if source == "torch":
        import torch

        given = torch.from_numpy(a)
    elif source == "jax":
        import jax

        given = jax.numpy.asarray(a)
    else:
        given = a
    seen = []

    def look(ctx, u):
        seen.append((type(u).__module__.partition(".")[0].removesuffix("lib"), np.asarray(u).copy()))

    hub = insitu.Hub([insitu.on_step(look)], output=None, quiet=True, xp=to)
    assert hub.step(0, 0.0, u=given) == 0, hub.last_error
    assert seen[0][0] == to and np.array_equal(seen[0][1], a)


def test_use_after_the_step():
    kept = []
    hub = insitu.Hub([insitu.on_step(lambda ctx, u: kept.append(ctx.fields["u"]))], output=None, quiet=True)
    hub.step(3, 0.0, u=np.zeros(2))
    for use in (lambda f: f.array(), np.asarray, lambda f: f.pointer, lambda f: f.to_host(), lambda f: f.__dlpack_device__()):
        with pytest.raises(RuntimeError, match=r"'u' was used after its step \(3\)"):
            use(kept[0])
    assert "after its step" in repr(kept[0])
    assert hub.ctx.fields == {}


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_debug_spoils_what_is_kept(library):
    pytest.importorskip(library)
    kept, a = [], np.ones(8)
    hub = insitu.Hub([insitu.on_step(lambda ctx, u: kept.append(u))], output=None, quiet=True, debug=True, xp=library)
    assert hub.step(0, 0.0, u=a) == 0, hub.last_error
    assert (a == 1).all()  # the solver's own memory is untouched
    if library == "jax":
        with pytest.raises(RuntimeError, match="deleted"):
            np.asarray(kept[0])
    else:
        assert np.isnan(np.asarray(kept[0])).all()


def test_device_memory_as_numpy():
    """A pointer NumPy must never follow."""
    memory = Memory.describe("temperature", 0xDEAD0000, (4,), None, "f", 64, 2, 1, False)
    field = Field("temperature", memory=memory)
    for use in (lambda: np.asarray(field), lambda: field.array("numpy")):
        with pytest.raises(TypeError, match="'temperature' is on CUDA device 1"):
            use()
    assert field.__cuda_array_interface__["data"][0] == 0xDEAD0000 and field.__cuda_array_interface__["stream"] == 1
    with pytest.raises(AttributeError):
        _ = Field("u", memory=described(np.zeros(2))).__cuda_array_interface__


def test_no_library_for_a_device(monkeypatch):
    from lapwing.insitu.solver import arrays

    monkeypatch.setattr(arrays, "_for_gpus", lambda: None)
    with pytest.raises(TypeError, match="CUDA device 0"):
        Field("u", memory=Memory.describe("u", 4096, (4,), None, "f", 64, 2, 0, False)).array()


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_missing_library_is_said():
    with pytest.raises(ImportError, match="pip install cupy"):
        Field("u", memory=described(np.zeros(2))).array("cupy")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pointer": 0}, "null pointer"),
        ({"code": "x"}, "no known type"),
        ({"bits": 24}, "24 bits"),
        ({"device_type": 99}, "unknown type 99"),
        ({"shape": (-1,)}, "shape"),
        ({"strides": (1, 1)}, "1 dimensions but 2 strides"),
    ],
)
def test_bad_descriptions(change, words):
    given = {"name": "u", "pointer": 64, "shape": (4,), "strides": None, "code": "f", "bits": 64, "device_type": 1,
             "device_id": 0, "writable": False}  # fmt: skip
    with pytest.raises(ValueError, match=words) as raised:
        Memory.describe(**(given | change))
    assert "'u'" in str(raised.value)


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_empty(shape, library):
    pytest.importorskip(library)
    a = np.ones(shape)
    pointer = 0 if a.size == 0 else a.__array_interface__["data"][0]
    memory = Memory.describe("u", pointer, shape, None, "f", 64, 1, 0, False, a)
    assert tuple(Field("u", memory=memory).array(library).shape) == shape


# -------------------------------------------------------------------------------------------------------------- DLPack


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_dlpack_out(library):
    module = pytest.importorskip(library)
    gc.collect()
    before = len(_exported)
    a = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    field = Field("u", memory=described(a, writable=True))
    made = (module.dlpack if library == "jax" else module).from_dlpack(field)
    assert np.array_equal(np.asarray(made), a)
    del made
    gc.collect()
    assert len(_exported) == before  # given back
    del a
    unused = capsule_of_memory(field.memory)
    assert len(_exported) == before + 1
    del unused
    assert len(_exported) == before


@pytest.mark.parametrize("name", ["plain", "fortran", "strided", "negative"])
def test_dlpack_in(name, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "seen = []\nfrom lapwing import insitu\n@insitu.on_step\ndef look(ctx, u):\n    seen.append((u, u.sum()))\n"
    )
    session = bridge.start(str(script), f'{{"output": "{tmp_path}", "quiet": true}}')
    a = layouts()[name]
    session.dlpack("u", capsule_of_memory(described(a)))
    assert session.step(0, 0.0) == 0, session.error()
    kept, total = session.hub.analyses[0].function.__globals__["seen"][0]
    assert total == a.sum() and np.shares_memory(kept, a)
    session.dlpack("u", "not a capsule")
    assert session.step(1, 0.0) == 1 and "not a DLPack capsule" in session.error()
    session.finalize()


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.2.0", reason="this NumPy exports no read-only arrays")
def test_versioned_capsules():
    a = np.arange(6.0)
    a.flags.writeable = False
    memory = memory_of_capsule("u", a.__dlpack__(max_version=(1, 0)))
    assert memory.pointer == a.__array_interface__["data"][0] and not memory.writable and memory.shape == (6,)


# ----------------------------------------------------------------------------------------------------------------- JAX


def test_jax_does_not_see_the_solvers_next_step():
    """A view would: JAX's sum is queued, and the solver overwrites its buffer meanwhile (8 000 000 instead of 4 000 000)."""
    jax = pytest.importorskip("jax")
    n = 4_000_000
    buffer = np.zeros(n + 16, np.float32)
    start = (-buffer.ctypes.data % 64) // 4
    u = buffer[start : start + n]  # aligned as XLA wants it: the view would not be copied by accident
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, y: y * 1.0 + 0.0, x).sum())
    slow(jax.numpy.zeros(n, np.float32)).block_until_ready()
    sums = []
    hub = insitu.Hub([insitu.on_step(lambda ctx, u: sums.append(slow(u)))], output=None, quiet=True, xp="jax")
    for step in range(3):
        u[:] = step + 1
        assert hub.step(step, 0.0, u=u) == 0, hub.last_error
        u[:] = 99  # the solver goes on while JAX may still be at work
    assert [float(x) for x in sums] == pytest.approx([n, 2 * n, 3 * n])


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_jax_and_alignment(shift):
    pytest.importorskip("jax")
    u = np.arange(100.0)[shift:]
    made = Field("u", memory=described(u)).array("jax")
    u[:] = -1
    assert np.array_equal(np.asarray(made), np.arange(100.0)[shift:])


def test_jax_flag_is_left_alone():
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    Field("u", memory=described(np.arange(3.0))).array("jax")
    pod = insitu.POD("u", rank=2)
    with insitu.Hub([pod, insitu.Stats("u")], output=None, quiet=True, xp="jax") as hub:
        for n in range(30):
            hub.step(n, 0.0, u=np.sin(np.arange(20.0) + n))
    assert hub.errors == 0, hub.last_error
    assert jax.config.jax_enable_x64 == before
    a = np.sin(np.arange(20.0) + np.arange(30.0)[:, None])
    assert pod.sigma == pytest.approx(np.linalg.svd(a, compute_uv=False)[:2], rel=1e-12)  # float64 all the way


# ----------------------------------------------------------------------------------------------------------------- GPU


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch", "jax"])
def test_gpu_zero_copy_and_stream(library):
    pytest.importorskip(library)
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    u = torch.zeros(1 << 20, device="cuda", dtype=torch.float64)
    busy = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    pointers, sums, steps = [], [], 200

    class Look(insitu.Analysis):
        fields = ("u",)

        def on_step(self, ctx, a):
            pointers.append(a.data_ptr() if library == "torch" else a.data.ptr if library == "cupy" else None)
            sums.append(a.sum())

    session = bridge.Session(insitu.Hub([Look()], output=None, quiet=True, xp=library))
    with torch.cuda.stream(stream):
        for n in range(steps):
            torch.mm(busy, busy)  # the solver is late: who does not wait for its stream sees the step before
            u.fill_(n + 1)
            session.field("u", u.data_ptr(), (1 << 20,), None, "f", 64, 2, 0, stream.cuda_stream, False)
            assert session.step(n, 0.0) == 0, session.error()
    torch.cuda.synchronize()
    assert [float(s) for s in sums] == [(n + 1) * 2.0**20 for n in range(steps)]
    assert library == "jax" or set(pointers) == {u.data_ptr()}


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gpu_pod(library, dtype):
    pytest.importorskip(library)
    torch = pytest.importorskip("torch")
    from insitu.cases import with_spectrum

    a = with_spectrum(100, 70_000, 10.0 ** -np.arange(0.0, 8.0, 0.5), dtype)
    on_gpu = torch.from_numpy(a).cuda()
    pods = [insitu.POD("u", rank=5), insitu.POD("u", rank=5, centre=True)]
    stats = insitu.Stats("u")
    session = bridge.Session(insitu.Hub([*pods, stats], output=None, quiet=True, xp=library))
    code, bits = CODES[dtype]
    for n in range(len(a)):
        stream = torch.cuda.current_stream().cuda_stream
        session.field("u", on_gpu[n].data_ptr(), (70_000,), None, code, bits, 2, 0, stream, False)
        assert session.step(n, 0.0) == 0, session.error()
    assert session.finalize() == 0, session.error()
    eps = float(np.finfo(dtype).eps)
    for pod, x in zip(pods, (a, a - a.mean(axis=0)), strict=True):
        s = np.linalg.svd(x.astype(float), compute_uv=False)
        assert np.abs(pod.sigma - s[:5]).max() < 100 * eps * s[0]
        modes = arrays.to_host(pod.modes()).astype(float)
        assert np.abs(modes @ modes.T - np.eye(5)).max() < 1000 * eps


@pytest.mark.parametrize(("kind", "hint"), [(2, "pip install cupy-cuda13x"), (10, "install a build of CuPy or torch for ROCm")])
def test_no_library_for_a_gpu(monkeypatch, kind, hint):
    monkeypatch.setattr(arrays, "_for_gpus", lambda: None)
    with pytest.raises(TypeError, match=f"hint: {hint}"):
        arrays.choose_library(Memory(64, (2,), (1,), np.dtype("f4"), (kind, 0), True))
