"""Eigenvalues and eigenvectors of a real symmetric tridiagonal matrix inside shard_map, by divide and conquer.

Each device keeps its own rows of all eigenvectors, and the first and last row of every half, which is all that a merge needs.
The eigenvectors of a merge follow from O(n) numbers by a formula: each device evaluates it for some columns at a time and
multiplies its own rows. So no matrix travels, and a device never has more than its rows and one panel.

Blocks of some hundred rows are merged up from single rows by one loop, in which the nodes of a block grow; above them each
level has shapes of its own.

The merge is that of Gu and Eisenstat: roots of the secular equation as distances from the nearest pole, then the weights that
have exactly these roots, from which eigenvectors are orthogonal whatever the spectrum. Poles that are equal within rounding
become one by a reflection, and the others deflate; sizes are static, so deflated columns are columns of the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .layout import place
from .panels import Panels
from .substitution import dot

BLOCK = 256  # least order of the blocks, inside which one loop does all levels; each level above takes a second to compile
STEPS = 60  # at most for one root; five to eight are usual


@dataclass(frozen=True)
class Tree:
    """Blocks of order ``devices * width``, ``2 ** levels`` of them: each device has ``width`` rows of every block."""

    n: int
    devices: int
    width: int
    levels: int

    @property
    def block(self) -> int:
        return self.devices * self.width

    @property
    def padded(self) -> int:
        return self.block << self.levels

    def rows(self, stride: int = 1) -> Panels:
        """How the rows of the result (every ``stride``-th one) are divided among the devices."""
        return Panels(-(-self.n // stride), self.width // stride, self.devices, 1 << self.levels)

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """For each level inside a block, and each row: where its node begins, and where the second half of the node begins."""
        spans, levels = [(0, self.block)], []
        while any(end - start > 1 for start, end in spans):
            halves = [(start, (start + end) // 2, end) for start, end in spans]
            sizes = [end - start for start, end in spans]
            levels.append([np.repeat([x[i] for x in halves], sizes) for i in (0, 1)])
            spans = [span for start, middle, end in halves for span in ((start, middle), (middle, end)) if span[0] < span[1]]
        table = np.array(levels[::-1], np.int32).reshape(-1, 2, self.block)
        return table[:, 0], table[:, 1]


def tree_for(n: int, devices: int) -> Tree:
    """The tree with least padding; its width is even."""
    if n <= BLOCK:
        return Tree(n, devices, 2 * max(1, -(-n // (2 * devices))), 0)
    least = 2 * max(1, -(-BLOCK // (2 * devices)))
    trees = []
    for width in range(least, 2 * least, 2):
        levels = 0
        while (devices * width) << levels < n:
            levels += 1
        trees.append(Tree(n, devices, width, levels))
    return min(trees, key=lambda tree: tree.padded)


class _Nodes(NamedTuple):
    """For each block its eigenvalues, and rows of its eigenvectors: first and last row of each node, then this device's own."""

    values: Any
    rows: Any


def tridiagonal_eigh(
    d: Any, e: Any, tree: Tree, axes: tuple[str, ...], *, vectors: bool, part: tuple[int, int], stride: int = 1
) -> tuple[Any, Any]:
    """The eigenvalues number ``part[0]`` to ``sum(part) - 1``, and this device's rows of their eigenvectors (or None).

    ``d``, ``e``: diagonal and off-diagonal, the same on every device. The rows have shape (blocks, width, part[1]); with
    ``stride`` 2 every second row is left out.
    """
    start, count = part
    size, many = tree.block, 1 << tree.levels
    # padding is above the spectrum, with no ties to other rows
    norm = jnp.max(jnp.abs(d)) + 2 * jnp.max(jnp.abs(e), initial=0)
    norm = jnp.where(norm > 0, norm, 1).astype(d.dtype)
    d = jnp.concatenate([d, jnp.full(tree.padded - tree.n, 1.25 * norm, d.dtype)])
    e = jnp.concatenate([e, jnp.zeros(tree.padded - e.shape[0], d.dtype)])
    # T = D + sum_i |e_i| u_i u_i^T with u_i = (1, sign(e_i)) in rows i and i + 1
    d = d - jnp.abs(e) - jnp.concatenate([jnp.zeros(1, d.dtype), jnp.abs(e[:-1])])
    tolerance = 4 * jnp.finfo(d.dtype).eps * norm
    # so many columns at a time that they need a quarter of the memory for this device's rows
    most = max(tree.padded // (4 * tree.devices * stride * stride), 16)
    nodes = _blocks(d.reshape(many, size), e.reshape(many, size), tree, axes, vectors, stride, tolerance, most)
    ties = e[size - 1 :: size]
    for level in range(tree.levels):
        wanted = part if level == tree.levels - 1 else (0, 2 * nodes.values.shape[1])
        # the ties of this level are every 2^(level+1)-th, from the 2^level-th on
        nodes = _merged(nodes, ties[(1 << level) - 1 :: 2 << level], tree, axes, wanted, tolerance, most)
    values, rows = nodes.values[0], nodes.rows[:, 2:]
    if not tree.levels:
        values, rows = values[start : start + count], rows[..., start : start + count]
    return values, rows.reshape(many, tree.width // stride, count) if vectors else None


def _blocks(d: Any, e: Any, tree: Tree, axes: tuple[str, ...], vectors: bool, stride: int, tolerance: Any, most: int) -> _Nodes:
    """The eigenvectors of each block, from single rows up."""
    size = tree.block
    index = jnp.arange(size)
    starts, middles = map(jnp.asarray, tree.nodes())
    width = _halved(size, most)
    own = place(axes) * tree.width + jnp.arange(0, tree.width if vectors else 0, stride)
    rows = jnp.concatenate([jnp.ones((2, size), d.dtype), (own[:, None] == index).astype(d.dtype)])

    def level(i: Any, nodes: _Nodes) -> _Nodes:
        start, middle = starts[i], middles[i]
        in_first = index < middle
        # a node of one row has no second half, and no tie
        alone = middle == start
        tie = jnp.where(alone, 0, e[:, jnp.maximum(middle - 1, 0)])
        first, last = nodes.rows[:, 0], nodes.rows[:, 1]
        z = jnp.where(in_first, last, jnp.where(tie < 0, -first, first))
        z = jnp.where(tie == 0, 0, z)
        values, merge = _secular(nodes.values, z, jnp.abs(tie), start, axes, tree.devices, tolerance, most)
        # the first row of a node is that of its first half, the last row that of its second half
        kept = jnp.stack([in_first | alone, ~in_first])
        rows = nodes.rows.at[:, :2].multiply(kept.astype(d.dtype))

        def panel(i: Any, out: Any) -> Any:
            return lax.dynamic_update_slice(out, dot(rows, _vectors(merge, i * width, width)), (0, 0, i * width))

        return _Nodes(values, lax.fori_loop(0, size // width, panel, jnp.zeros_like(rows)))

    nodes = _Nodes(d, jnp.broadcast_to(rows, (d.shape[0], *rows.shape)))
    return lax.fori_loop(0, starts.shape[0], level, nodes)  # type: ignore[no-any-return]


def _merged(
    nodes: _Nodes, ties: Any, tree: Tree, axes: tuple[str, ...], wanted: tuple[int, int], tolerance: Any, most: int
) -> _Nodes:
    """The nodes two by two."""
    half = nodes.values.shape[1]
    pairs = nodes.values.reshape(-1, 2 * half)
    many = pairs.shape[0]
    rows = nodes.rows.reshape(many, 2, -1, half)
    tie = ties[:, None]
    z = jnp.concatenate([rows[:, 0, 1], jnp.where(tie < 0, -rows[:, 1, 0], rows[:, 1, 0])], 1)
    rho = jnp.broadcast_to(jnp.abs(tie), pairs.shape)
    values, merge = _secular(pairs, z, rho, None, axes, tree.devices, tolerance, most)

    start, count = wanted
    width = _halved(2 * half, most)
    steps = -(-count // width)

    def panel(i: Any, out: Any) -> Any:
        at = start + i * width
        # the last panel may overlap the one before, so its columns are moved to where they belong
        begin = jnp.minimum(at, 2 * half - width)
        new = jnp.matmul(rows, _vectors(merge, begin, width).reshape(many, 2, half, width), precision=lax.Precision.HIGHEST)
        edges = jnp.stack([new[:, 0, 0], new[:, 1, 1]], 1)
        new = jnp.concatenate([edges, new[:, 0, 2:], new[:, 1, 2:]], 1)
        new = jnp.roll(new, begin - at, -1) if start else new
        return lax.dynamic_update_slice(out, new, (0, 0, i * width))

    out = jnp.zeros((many, 2 * rows.shape[2] - 2, steps * width), pairs.dtype)
    out = lax.fori_loop(0, steps, panel, out) if steps > 1 else panel(0, out)
    return _Nodes(values[:, start : start + count], out[..., :count])


def _halved(columns: int, most: int) -> int:
    """How many of the columns at a time."""
    while columns % 2 == 0 and columns > most:
        columns //= 2
    return columns


class _Merge(NamedTuple):
    """The numbers that give the eigenvectors of D + rho z z^T; rows in the order of D, columns by ascending eigenvalue."""

    poles: Any
    weights: Any  # zero where deflated
    mirror: Any  # of the reflections that bring equal poles together
    group: Any
    origin: Any  # for each column: the pole next to the eigenvalue
    distance: Any  # from that pole to the eigenvalue
    row: Any  # of a deflated column, the one that is not zero; else -1
    start: Any  # of the node of each row and column; None: there is one node


def _vectors(merge: _Merge, at: Any, width: int) -> Any:
    """Columns ``at`` to ``at + width - 1`` of the eigenvectors, shape (blocks, order, width)."""
    origin, distance, row = (
        lax.dynamic_slice_in_dim(x, at, width, 1)[:, None] for x in (merge.origin, merge.distance, merge.row)
    )
    order = merge.poles.shape[1]
    gap = (merge.poles[..., None] - origin) - distance
    u = merge.weights[..., None] / jnp.where(gap == 0, 1, gap)
    if merge.start is not None:
        u = jnp.where(merge.start[:, None] == lax.dynamic_slice_in_dim(merge.start, at, width), u, 0)
    u = jnp.where(row < 0, u, (jnp.arange(order)[:, None] == row).astype(u.dtype))
    u = u / jnp.sqrt(jnp.sum(u * u, 1, keepdims=True))

    def reflected(u: Any) -> Any:
        mirror = merge.mirror[..., None]
        sums = jax.vmap(lambda x, group: jax.ops.segment_sum(x, group, order))(mirror * u, merge.group)
        return u - 2 * mirror * jax.vmap(lambda x, group: x[group])(sums, merge.group)

    return lax.cond(jnp.any(merge.mirror != 0), reflected, lambda u: u, u)


def _secular(
    d: Any, z: Any, rho: Any, start: Any, axes: tuple[str, ...], devices: int, tolerance: Any, most: int
) -> tuple[Any, _Merge]:
    """Eigenvalues of diag(d) + rho z z^T for each node, ascending, and the :class:`_Merge` for its eigenvectors.

    ``rho`` has one number for each row. ``start``: where the node of each row begins; None: each line is one node.
    """
    order = d.shape[1]
    index = jnp.arange(order)
    begin = jnp.zeros(order, index.dtype) if start is None else start.astype(index.dtype)
    sort = partial(_in_nodes, None if start is None else begin)
    z, rho = z / jnp.sqrt(jnp.asarray(2, d.dtype)), 2 * rho
    z = jnp.where(rho * jnp.abs(z) > tolerance, z, 0)
    weights, mirror, group = jax.vmap(partial(_together, sort, begin))(d, z, jnp.floor(d / tolerance))

    # the poles that are kept come first, ascending
    kept = weights != 0
    order_of_d = jax.vmap(sort)(jnp.where(kept, d, jnp.inf))
    pole, square = (jnp.take_along_axis(x, order_of_d, 1) for x in (d, rho * weights * weights))
    live = jnp.take_along_axis(kept, order_of_d, 1)
    if start is None:
        count = jnp.broadcast_to(jnp.sum(kept, 1, keepdims=True), d.shape)
    else:
        count = jax.vmap(lambda kept: jax.ops.segment_sum(kept.astype(jnp.int32), begin, order)[begin])(kept)
    share = order // devices
    mine = place(axes) * share + jnp.arange(share)
    parts = share // _halved(share, most)
    known: dict[str, Any] = {"begin": begin, "single": start is None}

    def in_parts(function: Any, *arrays: Any) -> Any:
        """``function`` for my columns, some at a time, as each needs as much memory as a column of the matrix."""
        of = lambda index: jax.vmap(lambda *x: function(*x, index=index, **known))(*arrays)  # noqa: E731
        if parts == 1:
            return of(mine)
        return tuple(jnp.moveaxis(x, 0, 1).reshape(d.shape[0], share) for x in lax.map(of, mine.reshape(parts, -1)))

    near, distance = _joined(in_parts(_roots, pole, square, count), axes)
    (new,) = _joined(in_parts(_exact_weights, pole, near, distance, count), axes)
    new = jnp.where(live, new, 0)

    values = jnp.where(live, near + distance, pole)
    ascending = jax.vmap(sort)(values)
    row = jnp.where(live, -1, order_of_d)
    values, near, distance, row = (jnp.take_along_axis(x, ascending, 1) for x in (values, near, distance, row))
    new = jnp.take_along_axis(new, jnp.argsort(order_of_d, 1), 1)
    return values, _Merge(d, jnp.where(weights < 0, -new, new), mirror, group, near, distance, row, start)


def _in_nodes(begin: Any, key: Any) -> Any:
    """The order in which the keys ascend inside each node."""
    if begin is None:
        return jnp.argsort(key)
    return lax.sort((begin, key, jnp.arange(key.shape[0])), num_keys=2)[2]


def _joined(parts: tuple[Any, ...], axes: tuple[str, ...]) -> Any:
    """Gather arrays of which each device has some columns, in one message."""
    return lax.all_gather(jnp.stack(parts), axes, axis=2, tiled=True) if axes else parts


def _together(sort: Any, begin: Any, d: Any, z: Any, number: Any) -> tuple[Any, Any, Any]:
    """One weight for all poles of one number, by a reflection: the weights, the vector of the reflection, and the groups."""
    order = d.shape[0]
    order_of_d = sort(d)
    back = jnp.argsort(order_of_d)
    number = number[order_of_d]
    new = jnp.concatenate([jnp.ones(1, bool), (number[1:] != number[:-1]) | (begin[1:] != begin[:-1])])
    group = (jnp.cumsum(new).astype(jnp.int32) - 1)[back]
    last = jnp.concatenate([new[1:], jnp.ones(1, bool)])[back]
    sums = jax.ops.segment_sum(jnp.stack([jnp.where(last, 0, z * z), jnp.where(last, z, 0)], 1), group, order)[group]
    others, at_last = sums[:, 0], sums[:, 1]
    size = jnp.sqrt(others + at_last * at_last)
    signed = jnp.where(at_last < 0, -size, size)
    # z -> -signed e_last
    v = z + jnp.where(last, signed, 0)
    length = jnp.sqrt(2 * size * (size + jnp.abs(at_last)))
    several = others > 0
    mirror = jnp.where(several, v / jnp.where(length > 0, length, 1), 0)
    return jnp.where(several, jnp.where(last, -signed, 0), z), mirror, group


def _roots(d: Any, square: Any, count: Any, begin: Any, index: Any, single: bool) -> tuple[Any, Any]:
    """Roots number ``index`` of 1 + sum_i square_i / (d_i - x): the pole that each is nearest to, and the distance from it.

    On both sides of a root the sum is interpolated by one pole and a constant (Bunch, Nielsen and Sorensen), in brackets.
    """
    order, eps = d.shape[0], jnp.finfo(d.dtype).eps
    many, first = count[index], begin[index]
    dead = index - first >= many
    index = jnp.where(dead, first, index)
    final = index - first == many - 1
    after = jnp.minimum(index + 1, order - 1)

    def weights() -> Any:
        return square[:, None] if single else jnp.where(begin[:, None] == first, square[:, None], 0)

    total = jnp.sum(weights(), 0)
    left = d[index]
    gap = jnp.where(final, total, d[after] - left)
    gap = jnp.where(gap > 0, gap, 1)  # a node without roots
    at_left, at_right = square[index], jnp.where(final, 0, square[after])

    def terms(origin: Any, x: Any) -> Any:
        """The sums on the left and on the right, and their derivatives, at the distance x from the origin.

        Every array with a row for each pole is made here, as the loop would keep one from outside in memory. The barrier stops
        XLA from moving them out.
        """
        poles, number, x = lax.optimization_barrier((d, index, x))
        below = jnp.arange(order)[:, None] <= number
        delta = (poles[:, None] - origin) - x
        delta = jnp.where(delta != 0, delta, jnp.inf)
        t = weights() / delta
        s = t / delta
        zero = jnp.zeros((), d.dtype)
        parts = tuple(jnp.where(side, y, 0) for y in (t, s) for side in (below, ~below))
        # in one pass
        return lax.reduce(parts, (zero,) * 4, lambda x, y: tuple(map(jnp.add, x, y)), (0,))

    low, high, *_ = terms(left, jnp.where(final, gap, gap / 2))
    value = 1 + low + high
    to_left = final | (value >= 0)
    origin = d[jnp.where(to_left, index, after)]
    one, two = jnp.where(to_left, 0, -gap), jnp.where(to_left, gap, 0)
    lo, hi = jnp.where(to_left, 0, -gap / 2), jnp.where(to_left, gap / 2, 0)
    hi = jnp.where(final, gap, hi)

    # the first guess: the two poles, and the remainder of the sum as it is in the middle
    remainder = value + jnp.where(final, at_left / gap, 2 * (at_left - at_right) / gap)
    signed = jnp.where(to_left, gap, -gap)
    x = _smaller_root(at_left + at_right + remainder * signed, jnp.where(to_left, at_left, at_right) * signed, remainder)
    x = jnp.where(final, at_left / remainder, x)
    x = jnp.where((x > lo) & (x < hi), x, (lo + hi) / 2)

    def step(state: Any) -> Any:
        x, lo, hi, done, many = state
        low, high, d_low, d_high = terms(origin, x)
        value = 1 + low + high
        error = 2 * eps * (1 + jnp.abs(low) + jnp.abs(high))
        lo, hi = jnp.where(value < 0, x, lo), jnp.where(value < 0, hi, x)
        one_x, two_x = one - x, two - x
        both = one_x * two_x
        c = value - one_x * d_low - two_x * d_high
        change = _smaller_root((one_x + two_x) * value - both * (d_low + d_high), both * value, c)
        change = jnp.where(final, one_x * value / (value - one_x * d_low), change)
        new = x + change
        new = jnp.where((new > lo) & (new < hi), new, (lo + hi) / 2)
        done = done | (jnp.abs(value) <= error) | (new == x) | ~((lo < new) & (new < hi))
        return jnp.where(done, x, new), lo, hi, done, many + 1

    start = (x, lo, hi, dead, jnp.zeros((), jnp.int32))
    x, *_ = lax.while_loop(lambda state: ~jnp.all(state[3]) & (state[4] < STEPS), step, start)
    return origin, x


def _smaller_root(a: Any, b: Any, c: Any) -> Any:
    """The root of c x^2 - a x + b between the poles."""
    root = jnp.sqrt(jnp.abs(a * a - 4 * b * c))
    return jnp.where(a > 0, 2 * b / (a + root), (a - root) / (2 * c))


def _exact_weights(d: Any, near: Any, distance: Any, count: Any, begin: Any, index: Any, single: bool) -> tuple[Any]:
    """The weights number ``index`` with which the roots are exact (Loewner), but for their sign and a common factor."""
    order = d.shape[0]
    j = jnp.arange(order)[:, None]
    rank = j - begin[:, None]
    # the roots left of pole i are compared with the pole on their left, the others with the one on their right
    partner = jnp.where(j < index, d[:, None], jnp.roll(d, -1)[:, None])
    many = count[:, None]
    numerator = (near[:, None] - d[index]) + distance[:, None]
    denominator = jnp.where(rank == many - 1, 1, partner - d[index])
    ratio = jnp.abs(numerator / jnp.where(denominator == 0, 1, denominator))
    used = rank < many
    used = used if single else used & (begin[:, None] == begin[index])
    return (jnp.sqrt(jnp.prod(jnp.where(used, ratio, 1), 0)),)
