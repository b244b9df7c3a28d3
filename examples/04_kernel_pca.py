"""Kernel PCA of 20,000 points end to end: the kernel matrix, its eight largest eigenpairs, a picture.

    python examples/04_kernel_pca.py [points]

Two noisy spiral arms lie inside each other, so no straight line tells them apart. In the leading kernel components they fall
apart. The matrix takes 1.6 GB in float32; all of it is written once and only products with it are needed.
"""

import importlib.util
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

import lapwing as lw
from lapwing import gram

points = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
components = 8

rng = np.random.default_rng(0)
turn = np.sqrt(rng.uniform(0.04, 1.0, points)) * 3 * np.pi  # the position of a point along its arm
arm = rng.integers(0, 2, points)
angle = turn + np.pi * arm
x = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) + 0.25 * rng.standard_normal((points, 2))
x = x.astype("float32")

begun = perf_counter()
k = gram.gaussian(x, length_scale=1.0)
made = perf_counter()

# centred in feature space, in place: K <- K - m 1^T - 1 m^T + mean
mean = k.mean(1, dtype="float64")
k -= (mean - mean.mean() / 2).astype("float32")[:, None]
k -= (mean - mean.mean() / 2).astype("float32")[None, :]
centred = perf_counter()

w, v = lw.eigh(k, subset=slice(-components, None))
found = perf_counter()

residual = np.linalg.norm(k @ v - v * w) / np.linalg.norm(w)
scores = (v * np.sqrt(w))[:, ::-1]  # the largest component first

# how well a linear rule on the components, fitted by least squares, separates the arms
design = np.concatenate([scores, np.ones((points, 1))], 1)
rule = np.linalg.lstsq(design, 2.0 * arm - 1, rcond=None)[0]
right = np.mean((design @ rule > 0) == (arm == 1))
flat = np.linalg.lstsq(np.c_[x, np.ones(points)], 2.0 * arm - 1, rcond=None)[0]
straight = np.mean((np.c_[x, np.ones(points)] @ flat > 0) == (arm == 1))

print(f"kernel matrix {made - begun:.1f} s, centring {centred - made:.1f} s, {components} eigenpairs {found - centred:.1f} s")
print(f"engine {lw.explain(lw.eigh, k, subset=slice(-components, None)).engine}, residual {residual:.1e}")
print(f"arms told apart: {100 * right:.1f} % by the components, {100 * straight:.1f} % by a straight line")
assert residual < 1e-3 and right > straight

if importlib.util.find_spec("matplotlib"):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    some = slice(None, None, max(1, points // 5000))
    for axis, values, title in zip(
        figure.subplots(1, 3),
        (arm, scores[:, 0], design @ rule),
        ("the two arms", "first kernel component", f"linear rule on {components} components: {100 * right:.1f} % right"),
        strict=True,
    ):
        axis.scatter(*x[some].T, c=values[some], s=4, cmap="coolwarm")
        axis.set(title=title, aspect="equal", xticks=[], yticks=[])
    path = Path("kernel_pca.png")
    figure.savefig(path, dpi=120)
    print(f"a picture is in ./{path}")
