"""The plan that both carriers of an exchange follow."""

import numpy as np
import pytest

from lapwing.distributed.exchange import packed, plan, unpacked
from lapwing.distributed.layout import Axis, Layout

SOURCE = Layout(Axis.blocks((0, 7, 4)), Axis.cyclic(9, 2, 2))


@pytest.mark.parametrize("portion", [8, 100, 1 << 20])
@pytest.mark.parametrize(
    "target, offset",
    [
        (Layout.cyclic((11, 5), 3, (2, 2)), (0, 3)),
        (Layout.rows_of((11, 9), 5), (0, 0)),
        (Layout.cyclic((4, 9), 2, (2, 3), "C"), (6, 0)),
    ],
)
def test_each_number_moves_once(target, offset, portion):
    """The portions of all ranks together are the matrix, for any two layouts and a part of the rows or columns."""
    size = 6
    whole = np.arange(99).reshape(11, 9)
    blocks = [whole[np.ix_(*SOURCE.indices(rank))] for rank in range(size)]
    result = [np.full(target.local_shape(rank), -1) for rank in range(size)]
    messages = {}
    steps = [list(plan(rank, size, SOURCE, target, 8, portion=portion, offset=offset)) for rank in range(size)]
    for rank in range(size):
        for step in steps[rank]:
            for number, (rows, columns) in enumerate(step.leaving):
                values = np.concatenate([blocks[rank][i : i + h, j : j + w].ravel() for i, _, h in rows for j, _, w in columns])
                assert values.size * 8 <= max(portion, 8 * sum(w for _, _, w in columns))
                messages[rank, step.to_rank, number] = values
    for rank in range(size):
        for step in steps[rank]:
            for number, (rows, columns) in enumerate(step.coming):
                values = messages.pop((step.from_rank, rank, number))
                for _, k, h in rows:
                    for _, l, w in columns:
                        part = result[rank][k : k + h, l : l + w]
                        assert (part == -1).all()
                        part[...], values = values[: h * w].reshape(h, w), values[h * w :]
                assert not len(values)
    assert not messages
    for rank in range(size):
        rows, columns = target.indices(rank)
        assert (result[rank] == whole[np.ix_(rows + offset[0], columns + offset[1])]).all()


@pytest.mark.parametrize("upper", [False, True])
def test_triangle(upper):
    """Both sides cut the same portions, and all of the triangle is in them."""
    n, size = 13, 4
    source, target = Layout.rows_of((n, n), size), Layout.cyclic((n, n), 2, (2, 2))
    steps = [list(plan(rank, size, source, target, 8, portion=100, upper=upper)) for rank in range(size)]
    covered = np.zeros((n, n), bool)
    for rank in range(size):
        rows, columns = source.indices(rank)
        for step in steps[rank]:
            (back,) = [x for x in steps[step.to_rank] if x.from_rank == rank]
            assert back.coming == step.leaving
            for portion in step.leaving:
                i = np.concatenate([rows[a : a + length] for a, _, length in portion[0]])
                j = np.concatenate([columns[a : a + length] for a, _, length in portion[1]])
                covered[np.ix_(i, j)] = True
    assert (covered >= (np.triu if upper else np.tril)(np.ones((n, n), bool))).all() and not covered.all()


def test_runs_through_a_buffer():
    runs = ((5, 0, 2), (9, 7, 3))
    assert packed(runs) == ((5, 0, 2), (9, 2, 3)) and unpacked(runs) == ((0, 0, 2), (2, 7, 3))
