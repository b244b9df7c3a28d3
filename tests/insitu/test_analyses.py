"""The ready-made analyses other than POD and DMD."""

from __future__ import annotations

import numpy as np
import pytest

from insitu.cases import EPS, burgers, run
from lapwing import insitu

RNG = np.random.default_rng(0)
HISTORY = 3.0 + RNG.standard_normal((50, 6, 8))


def put(library, x):
    module = pytest.importorskip(library)
    if library == "torch":
        return module.from_numpy(np.array(x))
    return module.numpy.asarray(x) if library == "jax" else np.array(x)


def hand_over(analyses, history, library="numpy", **options):
    hub = insitu.Hub(analyses, **({"output": None, "quiet": True} | options))
    with hub:
        for n, x in enumerate(history):
            hub.step(n, 0.1 * n, u=put(library, x))
    return hub


def nan_at(step):
    bad = HISTORY.copy()
    bad[step, 2, 3] = np.nan
    return bad


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_stats(library):
    a = HISTORY.astype(np.float32)
    stats, sample = insitu.Stats("u"), insitu.Stats("u", spread=1)
    hub = hand_over([stats, sample], a, library)
    assert hub.errors == 0, hub.last_error
    wide = a.astype(float)
    assert np.abs(np.asarray(stats.mean()) - wide.mean(axis=0)).max() < 50 * EPS * 10
    assert np.abs(np.asarray(stats.variance("u")) - wide.var(axis=0)).max() < 50 * EPS * 10
    assert np.abs(np.asarray(sample.variance()) - wide.var(axis=0, ddof=1)).max() < 50 * EPS * 10
    assert np.array_equal(np.asarray(stats.minimum()), a.min(axis=0)) and np.array_equal(
        np.asarray(stats.maximum()), a.max(axis=0)
    )
    overall = stats.overall()
    assert overall["mean"] == pytest.approx(wide.mean()) and overall["variance"] == pytest.approx(wide.var())
    assert overall["min"] == wide.min() and overall["max"] == wide.max()
    with pytest.raises(ValueError, match="no field 'w'"):
        stats.mean("w")


def test_stats_with_a_large_mean():
    """The textbook formula, mean of squares minus square of the mean, has no correct digit here."""
    a = 1e9 + HISTORY
    stats = insitu.Stats("u")
    hand_over([stats], a)
    assert np.abs(stats.variance() - a.var(axis=0)).max() < 1e-5


def test_stats_merge_and_complex():
    one, two = insitu.Stats("u"), insitu.Stats("u")
    a = HISTORY + 1j * HISTORY[::-1]
    hand_over([one], a[:20])
    hand_over([two], a[20:])
    one.merge(two)
    assert one.count() == 50 and one.mean() == pytest.approx(a.mean(axis=0)) and one.variance() == pytest.approx(a.var(axis=0))
    assert one.minimum() is None  # complex numbers have no order
    real, rest = insitu.Stats("u"), insitu.Stats("u")
    hand_over([real], HISTORY[:7])
    hand_over([rest], HISTORY[7:])
    real.merge(rest)
    assert np.array_equal(real.maximum(), HISTORY.max(axis=0)) and real.variance() == pytest.approx(HISTORY.var(axis=0))


@pytest.mark.parametrize("make", [lambda: insitu.Stats("u"), lambda: insitu.Spectrum("u")])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_nan_and_new_shape_are_named(make, library):
    hub = hand_over([make()], nan_at(13), library)
    assert hub.errors == 1 and "'u'" in hub.last_error and "step 13" in hub.last_error
    hub = insitu.Hub([make()], output=None, quiet=True)
    hub.step(0, 0.0, u=np.ones(4))
    hub.step(1, 0.0, u=np.ones(5))
    assert "'u'" in hub.last_error and "(5,)" in hub.last_error and "step 1" in hub.last_error


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_probe(library):
    a = HISTORY.astype(np.float32)
    probe = insitu.Probe("u", points=[(1, 2), (-1, -1), (2.0, 0.5)], every=2)
    hub = hand_over([probe], a, library, mesh={"spacing": (1.0, 0.25), "origin": (0.0, 0.0)})
    assert hub.errors == 0, hub.last_error
    assert np.array_equal(probe.values("u"), np.stack([a[::2, 1, 2], a[::2, -1, -1], a[::2, 2, 2]], axis=1))
    assert probe.steps == list(range(0, 50, 2)) and probe.times[1] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("points", "words"),
    [([(9, 0)], "outside the field 'u'"), ([(1,)], "outside"), ([(0.5, 0.5)], "did not describe its mesh")],
)
def test_bad_probes(points, words):
    hub = hand_over([insitu.Probe("u", points=points)], HISTORY)
    assert hub.errors == 1 and words in hub.last_error
    with pytest.raises(ValueError, match="at least one point"):
        insitu.Probe("u", points=[])


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_spectrum(library, axis):
    spectrum = insitu.Spectrum("u", axis=axis)
    hub = hand_over([spectrum], HISTORY, library, mesh={"spacing": (0.1, 0.2)})
    assert hub.errors == 0, hub.last_error
    n = HISTORY.shape[1 + axis]
    direct = (np.abs(np.fft.fft(HISTORY, axis=1 + axis) / n) ** 2).mean(axis=(0, 2 - axis))
    folded = direct[: n // 2 + 1].copy()
    folded[1 : (n + 1) // 2] *= 2  # a real field: both signs alike
    tol = 1e-12 if library != "jax" else 1e-5
    assert np.abs(spectrum.power - folded).max() < tol * folded.max()
    assert spectrum.power.sum() == pytest.approx((HISTORY**2).mean(), rel=max(tol, 1e-12))  # Parseval
    assert spectrum.wavenumbers[1] == pytest.approx(2 * np.pi / (n * (0.1, 0.2)[axis]))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_spectrum_of_every_length(n):
    u = RNG.standard_normal((5, n)) + 1j * RNG.standard_normal((5, n))
    spectrum = insitu.Spectrum("u")
    hub = hand_over([spectrum], u)
    assert hub.errors == 0, hub.last_error
    assert len(spectrum.power) == len(spectrum.wavenumbers) == n // 2 + 1
    assert spectrum.power.sum() == pytest.approx((np.abs(u) ** 2).mean())


def test_spectrum_window_and_axis():
    noise = RNG.standard_normal((200, 512))
    spectrum = insitu.Spectrum("u", window="hann")
    hand_over([spectrum], noise)
    assert spectrum.power.sum() == pytest.approx(1, rel=0.05)
    hub = hand_over([insitu.Spectrum("u", axis=2)], HISTORY)
    assert "no axis 2" in hub.last_error
    hub = hand_over([insitu.Spectrum("u", axis=0)], HISTORY, mesh={"global_shape": (12, 8), "offset": (6, 0)})
    assert "6 of the 12 points" in hub.last_error
    with pytest.raises(ValueError, match="hann"):
        insitu.Spectrum("u", window="box")


def test_snapshots():
    one = HISTORY[0].nbytes
    snapshots = insitu.Snapshots("u", limit=10 * one)
    run([snapshots], HISTORY)  # spoils its fields
    assert snapshots.bytes <= 10 * one and snapshots.steps[0] == 0
    gaps = set(np.diff(snapshots.steps))
    assert len(gaps) == 1 and snapshots.steps[-1] > 50 - 1 - gaps.pop()  # even, and up to the end
    assert np.array_equal(snapshots.history("u"), HISTORY[snapshots.steps])
    every = insitu.Snapshots(every=10)
    run([every], HISTORY)
    assert every.steps == [0, 10, 20, 30, 40] and np.array_equal(every.history(), HISTORY[::10])
    hub = run([insitu.Snapshots("u", limit=10)], HISTORY)
    assert "limit" in hub.last_error


def test_pictures_of_the_published_case(tmp_path):
    pytest.importorskip("matplotlib")
    history = burgers()[:, 1:-1]
    pod = insitu.POD("u", rank=10, every=4)
    spectrum = insitu.Spectrum("u", every=100)
    pictures = [insitu.Plot("u", every=400), insitu.Plot(pod, every=400), insitu.Plot(spectrum, every=400)]
    before = set(__import__("sys").modules)
    hub = insitu.Hub([pod, spectrum, *pictures], output=tmp_path, quiet=True)
    with hub:
        for n, u in enumerate(history):
            hub.step(n, 0.001 * (n + 1), u=u)
    assert hub.errors == 0, hub.last_error
    assert [step for step, _, _ in pictures[0]._lines] == [0, 400, 800, 1200, 1600, 2000]
    assert hub.status()["pictures"] == ["Field_evolution.png", "SVD_Eigenvectors.png", "Spectrum.png"]
    from matplotlib.image import imread

    for name in hub.status()["pictures"]:
        image = imread(tmp_path / name)
        assert image.shape[0] > 200 and image[..., :3].std() > 0.01  # something is on it
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob(".*"))
    assert "matplotlib.pyplot" not in set(__import__("sys").modules) - before  # its global state is left alone


def test_pictures_of_two_dimensions_and_refresh(tmp_path):
    pytest.importorskip("matplotlib")
    pod = insitu.POD("u", rank=3)
    pictures = [insitu.Plot("u", file="u.png", refresh=0), insitu.Plot(pod, file="modes.pdf")]
    hub = hand_over([pod, *pictures], HISTORY[:3], output=tmp_path)
    assert hub.errors == 0, hub.last_error
    assert (tmp_path / "u.png").stat().st_size > 1000 and (tmp_path / "modes.pdf").stat().st_size > 1000
    many = insitu.Plot("u")
    hand_over([many], RNG.standard_normal((100, 30)), output=tmp_path)
    assert len(many._lines) <= 12
    with pytest.raises(TypeError, match="Plot"):
        insitu.Plot(3)


class Kept(insitu.Plot):
    """Keeps the last figure."""

    def _modes(self, figure, mesh, pod):
        super()._modes(figure, mesh, pod)
        self.figure = figure

    def _field(self, figure, mesh):
        super()._field(figure, mesh)
        self.figure = figure


def test_pictures_have_physical_axes_and_true_proportions(tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib.figure")
    monkeypatch.setattr(matplotlib.Figure, "savefig", lambda figure, path, **options: path.touch())
    y, x = np.meshgrid(1 + 0.5 * np.arange(20), -3 + 0.25 * np.arange(30), indexing="ij")
    pod = insitu.POD("u", rank=2)
    field, modes, positive = Kept("u", file="u.png"), Kept(pod, file="modes.png"), Kept("p", file="p.png")
    mesh = {"spacing": (0.5, 0.25), "origin": (1.0, -3.0)}
    with insitu.Hub([pod, field, modes, positive], output=tmp_path, quiet=True, mesh=mesh) as hub:
        for n in range(4):
            hub.step(n, 0.0, u=np.sin(x - 0.1 * n) * y, p=1 + n + np.abs(x))
    assert hub.errors == 0, hub.last_error
    for picture, images in ((field, 1), (modes, 2), (positive, 1)):
        axes = picture.figure.get_axes()
        assert len(axes) == images, "colour bars are inside their axes"
        for one in axes:
            (image,) = one.get_images()
            assert image.get_extent() == [-3.125, 4.375, 0.75, 10.75] and one.get_aspect() == 1
            assert image.colorbar is not None
            low, high = image.get_clim()
            if picture is positive:
                assert image.get_cmap().name == "viridis" and low > 0
            else:
                assert image.get_cmap().name == "RdBu_r" and low == -high
    # one dimension
    pod = insitu.POD("u", rank=1)
    lines = Kept(pod, file="line.png")
    with insitu.Hub([pod, lines], output=tmp_path, quiet=True, mesh={"spacing": (0.1,), "origin": (5.0,)}) as hub:
        hub.step(0, 0.0, u=np.sin(np.arange(40.0)))
    assert lines.figure.get_axes()[0].get_lines()[0].get_xdata() == pytest.approx(5 + 0.1 * np.arange(40))


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_stop_when_steady(library):
    history = [np.float32(1) + np.exp(-np.float32(n)) * np.ones(10, np.float32) for n in range(30)]
    stop = insitu.Stop("u", when="steady", tol=1e-3)
    hub = insitu.Hub([stop], output=None, quiet=True)
    status = [hub.step(n, 0.0, u=put(library, u)) for n, u in enumerate(history)]
    assert status.index(2) == 8 and hub.errors == 0 and "steady" in hub.stop_reason


def test_stop_conditions():
    zero = insitu.Stop("u", when="steady")
    hub = insitu.Hub([zero], output=None, quiet=True)
    assert [hub.step(n, 0.0, u=np.zeros(3)) for n in range(2)] == [0, 2]
    for bad, limit in ((np.array([1.0, np.nan]), np.inf), (np.array([1.0, 11.0]), 10.0)):
        hub = insitu.Hub([insitu.Stop("u", when="diverged", limit=limit)], output=None, quiet=True)
        assert [hub.step(0, 0.0, u=np.ones(2)), hub.step(1, 0.0, u=bad)] == [0, 2] and "'u'" in hub.stop_reason
    hub = insitu.Hub([insitu.Stop("u", when=lambda ctx, u: ctx.step >= 3 and "long enough")], output=None, quiet=True)
    assert [hub.step(n, 0.0, u=np.ones(2)) for n in range(4)] == [0, 0, 0, 2] and hub.stop_reason == "long enough"
    with pytest.raises(ValueError, match="steady, diverged"):
        insitu.Stop("u", when="tired")
    with pytest.raises(TypeError, match="at least one field"):
        insitu.Stop(when="steady")


@pytest.mark.parametrize("form", ["npz", "hdf5"])
def test_writer(form, tmp_path):
    if form == "hdf5":
        h5py = pytest.importorskip("h5py")
    pod, stats, probe = insitu.POD("u", rank=2, centre=True), insitu.Stats("u"), insitu.Probe("u", points=[(0, 0)])
    dmd, spectrum, snapshots = insitu.DMD(pod), insitu.Spectrum("u"), insitu.Snapshots("u", every=25)
    sources = [pod, stats, probe, dmd, spectrum, snapshots]
    writer = insitu.Writer("u", *sources, every=20, format=form)
    hub = hand_over([*sources, writer], HISTORY, output=tmp_path)
    assert hub.errors == 0, hub.last_error
    names = {type(s).__name__.lower() for s in sources}
    if form == "npz":
        with np.load(tmp_path / "fields-000040.npz") as file:
            assert np.array_equal(file["u"], HISTORY[40]) and file["step"] == 40 and file["time"] == pytest.approx(4.0)
        for name in names:
            np.load(tmp_path / f"{name}.npz").close()
        with np.load(tmp_path / "pod.npz") as file:
            assert np.array_equal(file["modes_u"], pod.modes()) and file["coefficients"].shape == (50, 2)
            assert file["mean_u"] == pytest.approx(HISTORY.mean(axis=0))
    else:
        with h5py.File(tmp_path / "fields.h5") as file:
            assert sorted(file) == ["000000", "000020", "000040"] and np.array_equal(file["000020/u"], HISTORY[20])
            assert file["000020"].attrs["step"] == 20
        assert {p.stem for p in tmp_path.glob("*.h5")} == names | {"fields"}
    assert not list(tmp_path.glob("*.partial"))


def test_writer_refuses():
    with pytest.raises(ValueError, match="npz"):
        insitu.Writer("u", format="csv")
    with pytest.raises(TypeError, match="no results"):
        insitu.Writer(insitu.Progress())


def test_progress(capsys):
    progress = insitu.Progress(total=1000, seconds=3600)
    hub = insitu.Hub([progress], output=None)
    for n in range(50):
        hub.step(n, 0.5 * n)
    shown = capsys.readouterr().err
    assert progress.lines == 1 and shown.count("\n") == 1 and "step 0" in shown
    progress.seconds = 0
    hub.step(50, 25.0)
    assert "step 50, t = 25" in (line := capsys.readouterr().err) and "left" in line and "ms per step" in line


def test_missing_extras_are_said(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install h5py"):
        insitu.Writer("u", format="hdf5")
    hub = hand_over([insitu.Plot("u")], HISTORY)
    assert hub.errors == 1 and "pip install matplotlib" in hub.last_error


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_steady_at_any_scale(scale):
    def stopped_at(values):
        with insitu.Hub([insitu.Stop("u", when="steady", tol=1e-6)], output=None, quiet=True) as hub:
            for n, value in enumerate(values):
                if hub.step(n, 0.0, u=scale * np.array([1.0, value])) == 2:
                    return n
        return None

    assert stopped_at([1, 2, 3, 4]) is None
    assert stopped_at([1, 2, 2 + 1e-9, 3]) == 2
