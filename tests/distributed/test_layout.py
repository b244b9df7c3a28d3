"""Who owns what: each entry exactly once, in layouts of every kind; the descriptors of shards; tiles and grids."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from lapwing.distributed import Axis, Layout, best_grid, default_tile, padding, valid_tiles

AXES = [
    *[Axis.cyclic(n, tile, parts) for n, tile, parts in itertools.product((0, 1, 7, 24), (1, 3, 8), (1, 2, 5))],
    *[Axis.even(n, parts) for n, parts in itertools.product((0, 1, 7, 24), (1, 2, 5))],
    Axis.blocks((3, 0, 0, 5, 1)),
    Axis.blocks((0, 4)),
    Axis.whole(6),
    Axis(9, 3, 2, (), 4),  # columns 4 to 12 of 13
]


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_each_index_has_one_owner_and_one_place(axis):
    seen = np.concatenate([axis.indices(part) for part in range(axis.parts)])
    assert sorted(seen) == list(range(axis.n))
    for part in range(axis.parts):
        mine = axis.indices(part)
        assert (np.diff(mine) > 0).all() and (axis.owner(mine) == part).all()
        local = axis.local(mine)
        assert len(local) == axis.length(part) if not axis.skip else (local < axis.length(part)).all()
        assert axis.skip or local.tolist() == list(range(axis.length(part)))
    tile = axis.as_tile
    if tile is not None and not axis.skip:
        same = Axis.cyclic(axis.n, tile, axis.parts)
        assert all(same.indices(part).tolist() == axis.indices(part).tolist() for part in range(axis.parts))


def test_axes_meet_in_what_they_share():
    a, b = Axis.cyclic(20, 3, 2), Axis.blocks((0, 9, 11))
    for i, j in itertools.product(range(2), range(3)):
        here, there = a.meeting(i, b, j)
        assert a.indices(i)[here].tolist() == b.indices(j)[there].tolist() == sorted(set(a.indices(i)) & set(b.indices(j)))


def test_layouts_cover_the_matrix_and_survive_json():
    shape = (11, 6)
    for layout in (
        Layout.rows_of(shape, 4),
        Layout.columns_of(shape, 3),
        Layout.blocks(shape, (2, 3), "C"),
        Layout.cyclic(shape, (2, 1), (3, 2)),
        Layout.cyclic(shape, 4, 5),
    ):
        count = np.zeros(shape, int)
        for rank in range(layout.size + 2):  # two ranks more than there are places
            rows, columns = layout.indices(rank)
            count[np.ix_(rows, columns)] += 1
            assert layout.local_shape(rank) == (len(rows), len(columns))
            assert layout.local_shape(rank) == layout.transposed.local_shape(rank)[::-1]
            place = layout.place(rank)
            assert place is None or layout.rank(*place) == rank
        assert (count == 1).all() and layout.shape == shape
        assert Layout.from_json(json.loads(json.dumps(layout.as_json()))) == layout
        assert layout.of_shape((4, 6)).shape == (4, 6) and layout.of_shape(shape) == layout


def test_a_row_major_shard_is_a_column_major_shard_of_the_transpose():
    """The memory of each rank, read as the descriptor says, gives the matrix back."""
    a = np.arange(60.0).reshape(10, 6)
    for layout, row_major in itertools.product(
        (
            Layout.rows_of((10, 6), 5),
            Layout.columns_of((10, 6), 3),
            Layout.blocks((10, 6), (2, 3)),
            Layout.cyclic((10, 6), 2, (2, 2)),
        ),
        (False, True),
    ):
        described = layout.descriptor(row_major)
        assert described is not None and described.transposed == row_major
        back = np.full((described.m, described.n), np.nan)
        for rank in range(layout.size):
            memory = np.array(a[np.ix_(*layout.indices(rank))], order="C" if row_major else "F").ravel("K")
            shape = described.layout.local_shape(rank)
            back[np.ix_(*described.layout.indices(rank))] = memory.reshape(shape, order="F")
        assert (back == (a.T if row_major else a)).all()
    assert Layout.rows_of((10, 6), 4).descriptor(True) is None  # blocks of 3, 3, 2, 2


def test_a_square_grid_holds_a_permuted_block_cyclic_matrix():
    n, p = 24, 2
    layout = Layout.blocks((n, n), (p, p))
    tile = layout.permuted_tile(4)
    assert tile == 4
    a = np.arange(n * n).reshape(n, n)
    cyclic = Layout.cyclic((n, n), tile, (p, p))
    read = np.zeros_like(a)
    for rank in range(p * p):
        read[np.ix_(*cyclic.indices(rank))] = a[np.ix_(*layout.indices(rank))]
    order = np.concatenate([cyclic.rows.indices(part) for part in range(p)])
    assert (read[np.ix_(order, order)] == a).all()
    assert layout.permuted_tile(5) == 4 and Layout.blocks((25, 25), (2, 2)).permuted_tile(4) is None
    assert Layout.rows_of((n, n), 4).permuted_tile(4) is None


def test_tiles_grids_and_padding():
    for n, grid in itertools.product((1, 12, 36, 100), (1, 2, 3, (2, 2), (2, 3))):
        p, q = (1, grid) if isinstance(grid, int) else grid
        for exchange in (False, True):
            for tile in range(1, n + 1):
                whole = all(n % (k * tile) == 0 and (not exchange or n // k // tile % k == 0) for k in (p, q))
                assert (tile in valid_tiles(n, grid, exchange=exchange)) == whole, (n, grid, tile, exchange)
                more = padding(n, tile, grid, exchange=exchange)
                assert tile in valid_tiles(n + more, grid, exchange=exchange)
                assert more == 0 if whole else more > 0
    for n, grid in itertools.product((4, 17, 64, 1000, 100000), ((1, 1), (2, 2), (2, 3), (4, 4))):
        tile = default_tile(n, grid, "cholesky")
        assert 1 <= tile <= 128 and (-(-n // tile) >= max(grid) or n < max(grid))
    assert default_tile(100000, (2, 2), "eigh", "cusolvermp") == 256
    for ranks in range(1, 40):
        p, q = best_grid(ranks, 10000, 10000)
        assert ranks * 0.8 <= p * q <= ranks and p <= q
    assert best_grid(8, 3, 1) == (3, 1) and best_grid(5, 0, 0) == (1, 1)
    with pytest.raises(ValueError, match="no ranks"):
        valid_tiles(4, 0)
    with pytest.raises(ValueError, match="at least one size, each 0 or more"):
        Axis.blocks((3, -1))
