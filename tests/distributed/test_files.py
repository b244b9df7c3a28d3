"""Sharded matrices in folders: a save replaces the one before only when it is complete; damaged manifests are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lapwing
from lapwing.distributed import Layout, ShardedMatrix

OLD, NEW = np.arange(12.0).reshape(3, 4), -np.arange(30.0).reshape(5, 6)


def matrix(a):
    return ShardedMatrix.scatter(a, None)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_save_replaces_its_own_files_alone(tmp_path):
    """The user's files stay, also those with names like ours; those of the save before, and of a killed one, go."""
    kept = {"block-00000.npy", "block-data.npy", "notes.txt"}
    for name in kept:
        (tmp_path / name).write_text("the user's")
    matrix(OLD).save(tmp_path)
    (tmp_path / "block-00003-0123456789abcdef.npy.part").write_text("of a save that was killed")
    (tmp_path / "block-00003-0123456789abcdef.npy").write_text("of a save that was killed")
    first = set(names(tmp_path))
    matrix(NEW).save(tmp_path)
    second = set(names(tmp_path))
    assert second & first == kept | {"manifest.json"} and len(second) == len(kept) + 2
    assert all((tmp_path / name).read_text() == "the user's" for name in kept)
    assert (ShardedMatrix.load(tmp_path, None).local == NEW).all()


@pytest.mark.parametrize("step", ["block", "manifest"])
def test_a_save_that_fails_leaves_the_one_before(tmp_path, monkeypatch, step):
    matrix(OLD).save(tmp_path)
    before = names(tmp_path)

    def full(*_):
        raise OSError("30 requested and 12 written")  # as NumPy has it on a full disk: without a number

    with monkeypatch.context() as patched:
        patched.setattr(np, "save", full) if step == "block" else patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match=r"save: .* cannot be written: 30 requested and 12 written; .* free") as caught:
            matrix(NEW).save(tmp_path)
    assert "None" not in str(caught.value) and "\nhint: " in str(caught.value)
    assert (ShardedMatrix.load(tmp_path, None).local == OLD).all()
    if step == "block":
        assert names(tmp_path) == before
    matrix(NEW).save(tmp_path)
    assert (ShardedMatrix.load(tmp_path, None).local == NEW).all() and len(names(tmp_path)) == 2


def test_space_is_named_where_it_is_the_reason(tmp_path):
    (tmp_path / "file").write_text("the user's")
    with pytest.raises(OSError, match=r"save: .*file cannot be written: .*\nhint: choose another folder") as caught:
        matrix(NEW).save(tmp_path / "file")
    assert "free" not in str(caught.value) and "room" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "the user's"


def test_a_limit_of_the_system(tmp_path):
    """A real failure to write, as a full disk or a quota gives one."""
    code = """
import resource, sys, numpy as np
from lapwing.distributed import ShardedMatrix
ShardedMatrix.scatter(np.ones((4, 4)), None).save(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    ShardedMatrix.scatter(np.zeros((400, 400)), None).save(sys.argv[1])
except OSError as error:
    print(error)
assert (ShardedMatrix.load(sys.argv[1], None).local == 1).all()
"""
    environment = os.environ | {"PYTHONPATH": str(Path(lapwing.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ShardedMatrix.save: ") and "cannot be written" in done.stdout
    assert "is unchanged" in done.stdout and "None" not in done.stdout


def test_saves_of_the_first_format(tmp_path):
    layout = Layout.rows_of(OLD.shape, 2)
    for rank in range(2):
        np.save(tmp_path / f"block-{rank:05d}.npy", OLD[layout.indices(rank)[0]])
    manifest = {"format": "lapwing sharded matrix 1", "dtype": "float64", "shape": [3, 4], "layout": layout.as_json()}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    a = ShardedMatrix.load(tmp_path, None)
    assert (a.local == OLD).all()
    a.save(tmp_path)
    assert len(names(tmp_path)) == 2 and (ShardedMatrix.load(tmp_path, None).local == OLD).all()


def changed(**values):
    return lambda manifest: manifest | values


def in_layout(axis, **values):
    return lambda manifest: manifest | {"layout": manifest["layout"] | {axis: manifest["layout"][axis] | values}}


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: [],
        lambda manifest: None,
        lambda manifest: "manifest",
        lambda manifest: {},
        changed(dtype="float128x"),
        changed(dtype=None),
        changed(dtype="object"),
        changed(dtype=["<f8"]),
        changed(shape=[300, 4]),  # rows that no block has
        changed(shape=[3]),
        changed(shape="3 x 4"),
        changed(label="../../elsewhere"),
        changed(label=7),
        changed(layout=None),
        changed(layout=[]),
        changed(layout={"order": "R"}),
        in_layout("rows", n="3"),
        in_layout("rows", n=float("nan")),
        in_layout("rows", n=1e30),
        in_layout("rows", n=10**30),
        in_layout("rows", n=-1),
        in_layout("rows", n=True),
        in_layout("rows", parts=0),
        in_layout("rows", parts=10**12),
        in_layout("rows", tile=-1),
        in_layout("rows", tile=1.5),
        in_layout("rows", sizes=[2]),
        in_layout("rows", sizes=["3"]),
        in_layout("rows", sizes=None),
        in_layout("columns", sizes=[1, 1, 1, 1]),
    ],
)
def test_damaged_manifests(tmp_path, change):
    matrix(OLD).save(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=r"ShardedMatrix\.load: .* cannot be read: .*manifest\.json"):
        ShardedMatrix.load(tmp_path, None)


def test_a_layout_of_more_blocks_than_files(tmp_path):
    """Not a loop over 10^12 files."""
    matrix(OLD).save(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    axis = {"n": 3, "parts": 10**12, "tile": 1, "sizes": []}
    path.write_text(json.dumps(manifest | {"layout": manifest["layout"] | {"rows": axis}}))
    with pytest.raises(FileNotFoundError, match=r"block-999999999999-.* does not exist"):
        ShardedMatrix.load(tmp_path, None)


@pytest.mark.parametrize("text", ["", "{", "[" * 200_000, "\0"])
def test_manifests_that_are_no_json(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="is not JSON"):
        ShardedMatrix.load(tmp_path, None)


def test_damaged_blocks(tmp_path):
    matrix(OLD).save(tmp_path)
    (block,) = tmp_path.glob("block-*")
    np.save(block, OLD[:2])
    with pytest.raises(ValueError, match=r"has shape \(2, 4\)"):
        ShardedMatrix.load(tmp_path, None)
    block.write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"ShardedMatrix\.load: "):
        ShardedMatrix.load(tmp_path, None)
    block.unlink()
    with pytest.raises(FileNotFoundError, match="does not exist\nhint"):
        ShardedMatrix.load(tmp_path, None)
    matrix(NEW).save(tmp_path)  # over a damaged one
    assert np.array_equal(ShardedMatrix.load(tmp_path, None).local, NEW)


def test_layouts_with_skipped_rows_survive():
    """Columns of a larger matrix that still has them in its blocks."""
    from dataclasses import replace

    layout = Layout.cyclic((6, 6), 2, (1, 2))
    part = replace(layout, columns=replace(layout.columns, n=3, skip=3))
    assert Layout.from_json(json.loads(json.dumps(part.as_json()))) == part
