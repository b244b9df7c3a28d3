"""grouped: the same results as a loop, in the same order and structure, in few calls."""

from __future__ import annotations

import numpy as np
import pytest

import lapwing as lw
from backends import CPU, GPU, open_backend, random, spd


@pytest.fixture(params=CPU + GPU)
def backend(request):
    with open_backend(*request.param) as opened:
        yield opened


SIZES = (3, 16, 15, 3, 40, 1, 14, 16, 9, 38)


def close(got, expected):
    assert got.shape == expected.shape and got.dtype == expected.dtype
    assert np.abs(got - expected).max(initial=0) <= 10 * 40 * np.finfo(got.dtype).eps * max(
        1.0, np.abs(expected).max(initial=0)
    )


@pytest.mark.parametrize("dtype", ["float32", pytest.param("complex128", marks=pytest.mark.slow)])
def test_as_a_loop(backend, dtype):
    put, get = backend.put, backend.get
    matrices = [spd((n, n), dtype, n) / n for n in SIZES]
    right = [random((n, 2), dtype, n) for n in SIZES]
    arrays = [put(a.astype(dtype)) for a in matrices]
    for op, arguments, options in (
        (lw.cholesky, (), {"upper": True}),
        (lw.solve, ([put(b) for b in right],), {"assume": "pos"}),
        (lw.inv, (), {}),
        (lw.slogdet, (), {}),
        (lw.eigvalsh, (), {}),
        (lw.svdvals, (), {}),
        (lw.inv_root, (4,), {"ridge": 0.1}),
    ):
        results = lw.grouped(op, arrays, *arguments, **options)
        assert isinstance(results, list) and len(results) == len(SIZES)
        for i, result in enumerate(results):
            each = [x[i] if isinstance(x, list) else x for x in arguments]
            expected = op(arrays[i], *each, **options)
            pairs = zip(result, expected, strict=True) if isinstance(expected, tuple) else [(result, expected)]
            assert type(result) is type(expected) or not isinstance(expected, tuple)
            for x, y in pairs:
                close(np.asarray(get(x)), np.asarray(get(y)))


def test_few_calls(monkeypatch):
    shapes = []

    def counted(a):
        shapes.append(a.shape)
        return lw.eigvalsh(a)

    lw.grouped(counted, [np.eye(n) for n in SIZES])
    assert len(shapes) == len(set(SIZES)) and (2, 16, 16) in shapes
    import lapwing.ops.grouped as module

    shapes.clear()
    monkeypatch.setattr(module, "_PADDED", (counted,))
    lw.grouped(counted, [np.eye(n) for n in SIZES])
    assert sorted(shapes) == sorted([(2, 40, 40), (4, 16, 16), (9, 9), (2, 3, 3), (1, 1)])


def test_structure_batches_and_vectors():
    tree = {"w": [np.eye(2), 4 * np.eye(3)], "b": (9 * np.eye(2), np.tile(np.eye(3), (5, 1, 1)))}
    result = lw.grouped(lw.cholesky, tree)
    assert list(result) == ["w", "b"] and isinstance(result["b"], tuple) and result["w"][1][0, 0] == 2
    assert result["b"][0][1, 1] == 3 and result["b"][1].shape == (5, 3, 3)
    assert lw.grouped(lw.eigh, []) == []
    x = lw.grouped(lw.solve, [np.eye(15), 2 * np.eye(16)], [np.ones(15), np.ones(16)])
    assert x[0].shape == (15,) and (x[1] == 0.5).all()
    rectangles = lw.grouped(lw.qr, [random((5, 3), "float64"), random((3, 5), "float64"), random((5, 3), "float64", 1)])
    assert [r.Q.shape for r in rectangles] == [(5, 3), (3, 3), (5, 3)]


def test_errors_name_the_place_in_the_list():
    blocks = [np.eye(16), np.eye(3), np.eye(15), np.eye(14)]
    blocks[2] = -blocks[2]
    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.grouped(lw.cholesky, blocks)
    assert caught.value.batch_index == (2,) and caught.value.minor == 1 and "matrix 2 of 4" in str(caught.value)
    with pytest.raises(ValueError, match="grouped: argument 2 has 1"):
        lw.grouped(lw.solve, blocks, [np.ones(3)])
    with pytest.raises(ValueError, match="grouped: expected matrices"):
        lw.grouped(lw.cholesky, [np.ones(3)])


def test_gradients():
    torch = pytest.importorskip("torch")
    blocks = [torch.tensor(spd((n, n), "float64", n), requires_grad=True) for n in (8, 7, 3, 8)]
    loss = sum(x.sum() for x in lw.grouped(lw.inv_root, blocks, 2)) + sum(x.sum() for x in lw.grouped(lw.cholesky, blocks))
    gradients = torch.autograd.grad(loss, blocks)
    for block, gradient in zip(blocks, gradients, strict=True):
        (expected,) = torch.autograd.grad(lw.inv_root(block, 2).sum() + lw.cholesky(block).sum(), block)
        assert torch.allclose(gradient, expected, rtol=1e-10, atol=1e-12)


def test_dicts_are_matched_by_their_keys():
    a = {"a": spd((3, 3), "float64"), "b": 2 * spd((5, 5), "float64")}
    b = {"b": np.ones(5), "a": np.ones(3)}
    found = lw.grouped(lw.solve, a, b)
    for key in a:
        close(found[key], lw.solve(a[key], b[key]))
    with pytest.raises((KeyError, ValueError, TypeError), match="key"):
        lw.grouped(lw.solve, a, {"a": np.ones(3), "c": np.ones(5)})


def test_sides_and_modes():
    eye = np.eye(5)
    found = lw.grouped(lw.solve, [eye, eye], [np.ones((2, 5)), np.ones((3, 5))], side="right")
    assert [x.shape for x in found] == [(2, 5), (3, 5)]
    shared = lw.grouped(lw.solve, [eye, 2 * eye], np.ones(5))
    assert [float(x[0]) for x in shared] == [1.0, 0.5]
    with pytest.raises(TypeError, match="factor"):
        lw.grouped(lw.factor, [eye, eye])
