"""Who owns what, drawn."""

import numpy as np
import pytest

from lapwing.distributed import Axis, Layout, plot_layout
from lapwing.distributed.plot import owners

pytest.importorskip("matplotlib")


def test_owners_are_those_of_the_layout():
    layout = Layout.cyclic((7, 10), (2, 3), (2, 2), "C")
    found = owners(layout)
    for (i, j), rank in np.ndenumerate(found):
        assert layout.rank(int(layout.rows.owner(i)), int(layout.columns.owner(j))) == rank


@pytest.mark.parametrize(
    "n, grid, order", [(16, (2, 2), "R"), ((9, 14), (2, 3), "C"), (12, 4, "R"), (3, (2, 2), "R"), (200, (8, 8), "R")]
)
def test_both_pictures(tmp_path, n, grid, order):
    figure, axes = plot_layout(n, 2, grid, order=order)
    before, after = (ax.images[0].get_array() for ax in axes)
    shape = (n, n) if isinstance(n, int) else n
    p, q = (1, grid) if isinstance(grid, int) else grid
    assert (after == owners(Layout.cyclic(shape, 2, grid, order))).all()
    assert (before == owners(Layout.blocks(shape, (p, q), order))).all()
    named = {int(text.get_text()) for text in axes[1].texts}
    assert named == set(np.unique(after).tolist())
    figure.savefig(tmp_path / "layout.png")


def test_any_layout_before():
    _, axes = plot_layout(10, 3, (2, 2), before=Layout(Axis.blocks((0, 7, 2, 1)), Axis.whole(10)))
    assert set(np.unique(axes[0].images[0].get_array())) == {1, 2, 3}
    with pytest.raises(ValueError, match="before is a layout"):
        plot_layout(10, 3, 2, before=Layout.rows_of((9, 9), 2))


@pytest.mark.parametrize("n", [0, (0, 5)])
def test_nothing_to_draw(n):
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_layout(n, 2, (2, 2))
    assert plot_layout(np.int64(8), 2, (2, 2))
