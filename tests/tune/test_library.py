"""The library finds exactly the products that were tuned in this environment."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace

import pytest

from lapwing.tune import Gemm
from lapwing.tune.backends.base import Refused
from lapwing.tune.library import Entry, EnvironmentMismatch, Library, build, merge
from lapwing.tune.library.tokens import widen
from tune.cases import FakeBackend, FakeComparison, fake_library, linear

BASE = linear(16, 512, 256, "bf16")


def opened(folder, backend=None, **options):
    return Library(folder, backends={"fake": backend or FakeBackend()}, **options)


def test_finds_exactly_the_complete_product(tmp_path):
    dropped = FakeComparison(linear(99, 512, 256, "bf16"), kept=False)
    lib = opened(fake_library(tmp_path, FakeComparison(BASE), dropped))
    entry = lib.lookup(BASE)
    assert entry.gemm == BASE and entry.config == {"way": "tuned"} and entry.ratio == 2 and len(lib) == 1
    changes = [
        {"m": 511, "lda": 256},
        {"n": 17},
        {"k": 255},
        {"batch": 2},
        {"lda": 264},
        {"ldb": 300},
        {"ldd": 520},
        {"alpha": 0.5},
    ]
    changes += [
        {"beta": 1.0},
        {"bias": "bf16"},
        {"activation": "relu"},
        {"d_type": "f32"},
        {"a_type": "f16"},
        {"compute": "tf32"},
    ]
    changes += [{"alpha": 0.5}, {"compute": "tf32"}, {"scale_a": "tensor"}, {"deterministic": True}, {"trans_a": "N", "lda": 0}]
    for change in changes:
        assert lib.lookup(replace(BASE, **change)) is None, change


def test_who_needs_the_same_bits_gets_only_such_kernels(tmp_path):
    sure = replace(BASE, deterministic=True)
    lib = opened(fake_library(tmp_path, FakeComparison(sure)))
    assert lib.lookup(sure).gemm == sure
    assert lib.lookup(BASE).gemm == sure  # good enough for other products too


def test_token_counts_by_validated_buckets(tmp_path):
    steps = [FakeComparison(linear(16, 512, 256, "bf16"), buckets=((9, 16),)), FakeComparison(linear(64, 512, 256, "bf16"))]
    steps += [FakeComparison(linear(128, 512, 256, "bf16"), buckets=((100, 128), (129, 130)))]
    lib = opened(fake_library(tmp_path, *steps))

    def serves(n):
        found = lib.lookup(linear(n, 512, 256, "bf16"))
        return found and found.gemm.n

    answers = {n: serves(n) for n in (1, 8, 9, 15, 16, 17, 63, 64, 65, 99, 100, 127, 128, 129, 130, 131)}
    assert answers == {
        **dict.fromkeys((1, 8, 17, 63, 65, 99, 131)),
        **dict.fromkeys((9, 15, 16), 16),
        64: 64,
        **dict.fromkeys((100, 127, 128, 129, 130), 128),
    }
    assert lib.lookup(linear(12, 512, 256, "bf16", bias="bf16")) is None  # another ladder
    turned = Gemm.row_major(12, 512, 256, left="T", right="T")
    assert lib.lookup(turned) is None  # its leading dimension depends on the number of tokens


def test_buckets_are_validated_and_timed(tmp_path):
    """Correct from 5 tokens on, faster than the default from 20 on; wrong again between 65 and 79."""
    tried = []

    class Bench:
        def __init__(self, gemm):
            self.n = gemm.n

        def build(self, config):
            if config.get("way") == "tuned" and self.n == 3:
                raise Refused("compile", "too small")
            return config["way"]

        def check(self, kernel):
            tried.append(self.n)
            if self.n < 5 or 64 < self.n < 80:
                raise Refused("correctness", "wrong")
            return {}

        def time(self, kernels, samples):
            return [[1.0 if way == "default" else 0.9 if self.n >= 20 else 1.1] * samples for way in kernels]

        def close(self):
            tried.append("closed")

    backend = FakeBackend()
    backend.open = lambda gemm, device, seed: Bench(gemm)
    path = fake_library(tmp_path, *(FakeComparison(linear(n, 512, 256, "bf16")) for n in (4, 64, 128)), backend=backend)
    lines = []
    assert widen(path, backends={"fake": backend}, progress=lines.append) == 2
    found = {e.gemm.n: e.buckets for e in opened(path, backend).entries.values()}
    # 5..64 fails at 5, 35..64 holds; 65..128 fails, 97..128 holds; the smallest does not hold at 2 or 3
    assert found == {4: (), 64: ((35, 64),), 128: ((97, 128),)} and len(lines) == 2
    assert tried.count("closed") >= len([n for n in tried if n != "closed"])
    assert opened(path, backend).lookup(linear(40, 512, 256, "bf16")).gemm.n == 64


def test_another_environment_is_refused_field_by_field(tmp_path):
    path = fake_library(tmp_path, FakeComparison(BASE))
    other = FakeBackend(torch="10.0", driver="7")
    with pytest.raises(EnvironmentMismatch, match=r"fake: torch is 10\.0 here and 9\.9 there") as caught:
        opened(path, other)
    assert caught.value.differences == (("fake: driver", "7", ""), ("fake: torch", "10.0", "9.9"))
    assert pickle.loads(pickle.dumps(caught.value)).differences == caught.value.differences
    assert len(opened(path, other, check=False)) == 1
    with pytest.raises(EnvironmentMismatch, match="unknown backend 'fake'"):
        Library(path)
    gone = FakeBackend()
    gone.missing = lambda: "no beads"
    with pytest.raises(EnvironmentMismatch, match="no beads"):
        opened(path, gone)


def test_what_cannot_be_trusted_is_a_miss_with_one_warning(tmp_path, caplog):
    path = fake_library(tmp_path, *(FakeComparison(linear(n, 512, 256, "bf16")) for n in range(1, 13)))
    files = sorted((path / "entries").glob("*.json"))
    good = json.loads(files[0].read_text())
    files[0].write_text(files[0].read_text()[:100])  # torn
    files[1].write_text("[1]")
    files[2].write_text(json.dumps(good))  # another product's
    for file, change in zip(
        files[3:11],
        (
            {"schema": 2},
            {"tuned_us": 0},
            {"tuned_us": "fast"},
            {"config": {"a": [1]}},
            {"gemm": {"m": "8"}},
            {"buckets": [[5, 2]]},
            {"backend": "../other"},
            {"error": float("nan")},
        ),
        strict=True,
    ):
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    (path / "entries" / "deep.json").write_text("[" * 100_000)
    (path / "entries" / "huge.json").write_text(" " * (2 << 20))
    (path / "entries" / "foreign.json").write_text(json.dumps(good | {"backend": "elsewhere"}))
    with caplog.at_level("WARNING", logger="lapwing"):
        lib = opened(path)
    assert len(lib) == 1 and len(lib.bad) == 14
    assert len(caplog.records) == 1 and "and 13 more" in caplog.text


def test_manifest(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a tuned library"):
        Library(tmp_path)
    path = fake_library(tmp_path / "a", FakeComparison(BASE))
    for text in ("", "{}", '{"schema": 9}', '{"schema": 1}', '{"schema": 1, "environment": {"fake": 3}}'):
        (path / "manifest.json").write_text(text)
        with pytest.raises(ValueError, match="tune: "):
            opened(path)


def test_build_replaces_what_did_not_win_again(tmp_path):
    path = fake_library(tmp_path, FakeComparison(BASE), FakeComparison(linear(1, 8, 8)))
    build(tmp_path, [FakeComparison(BASE)], tmp_path, backends={"fake": FakeBackend()})
    assert list(opened(path).entries) == [BASE.key]
    assert not list(path.rglob("*.tmp"))


def test_entries_survive_a_round_trip(tmp_path):
    made = Entry.from_comparison(FakeComparison(BASE, buckets=((1, 16),)))
    assert Entry.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert made.interval == (1.9, 2.1) and made.holds_for(3) and not made.holds_for(17)


def test_merge_keeps_a_ledger(tmp_path):
    one, two, three, four = (linear(n, 512, 256, "bf16") for n in (1, 2, 3, 4))
    a = fake_library(tmp_path / "a", FakeComparison(one), FakeComparison(two, tuned_us=10), FakeComparison(three, tuned_us=10))
    b = fake_library(
        tmp_path / "b",
        FakeComparison(two, tuned_us=5, config={"way": "new"}),
        FakeComparison(three, tuned_us=9.9),
        FakeComparison(four),
    )
    (b / "entries" / "bad.json").write_text("{}")
    ledger = merge([a, b], tmp_path / "c")
    marks = {(line.mark, line.gemm and line.gemm.n, line.source[-1]) for line in ledger}
    assert marks == {("O", 1, "a"), ("!", 2, "b"), ("-", 3, "b"), ("O", 3, "a"), ("O", 4, "b"), ("X", None, "b")}
    assert "2.000x" in str(next(x for x in ledger if x.mark == "!")) and "tie" in str(next(x for x in ledger if x.mark == "-"))
    merged = opened(tmp_path / "c")
    assert {e.gemm.n: e.tuned_us for e in merged.entries.values()} == {1: 10, 2: 5, 3: 10, 4: 10}

    merge([a, b], a, "force")  # the result may be a source
    assert {e.gemm.n: e.tuned_us for e in opened(a).entries.values()} == {1: 10, 2: 5, 3: 9.9, 4: 10}
    with pytest.raises(FileExistsError, match="already holds"):
        merge([a, b], tmp_path / "c")
    with pytest.raises(ValueError, match="winner, force, newest"):
        merge([a], tmp_path / "d", "best")


def test_merge_takes_the_newest(tmp_path):
    a, b = (fake_library(tmp_path / x, FakeComparison(BASE, config={"from": x})) for x in "ab")
    for path, made in ((a, "2026-05-02T00:00:00+00:00"), (b, "2026-05-01T00:00:00+00:00")):
        file = path / "entries" / f"{BASE.key}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"made": made, "tuned_us": 1.0 if path is b else 2.0}))
    merge([b, a], tmp_path / "c", "newest")
    merge([a, b], tmp_path / "d", "newest")
    assert [opened(tmp_path / x).lookup(BASE).config["from"] for x in "cd"] == ["a", "a"]
    merge([a, b], tmp_path / "e")
    assert opened(tmp_path / "e").lookup(BASE).config["from"] == "b"


def test_merge_never_mixes_environments(tmp_path):
    a = fake_library(tmp_path / "a", FakeComparison(BASE))
    b = fake_library(tmp_path / "b", FakeComparison(BASE), backend=FakeBackend(device="slide rule"))
    with pytest.raises(EnvironmentMismatch, match=r"fake: device is abacus in .*a and slide rule in .*b"):
        merge([a, b], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_library_from_before_fast_accum(tmp_path):
    """Its files do not have the field, and are named by a key without it. They were tuned as torch's default: False."""
    gemm = linear(16, 32, 64, "f8e4m3", c_type="bf16", d_type="bf16", scale_a="tensor", scale_b="tensor")
    path = fake_library(tmp_path, FakeComparison(gemm))
    file = path / "entries" / "1a1e48eeb110420b.json"
    content = json.loads(file.read_text())
    del content["gemm"]["fast_accum"]
    file.write_text(json.dumps(content))
    library = Library(path, backends={"fake": FakeBackend()})
    assert not library.bad and library.lookup(gemm) is not None
    assert library.lookup(replace(gemm, fast_accum=True)) is None
    assert replace(linear(16, 32, 64), fast_accum=True).key == linear(16, 32, 64).key  # nothing but 8-bit floats has it


def test_a_merge_names_both_environments(tmp_path):
    a = fake_library(tmp_path / "a", FakeComparison(BASE), backend=FakeBackend(device="NVIDIA H200"))
    b = fake_library(tmp_path / "b", FakeComparison(BASE), backend=FakeBackend(device="NVIDIA H100"))
    with pytest.raises(EnvironmentMismatch) as caught:
        merge([a, b], tmp_path / "c")
    assert f"device is NVIDIA H200 in {a} and NVIDIA H100 in {b}" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value) and not (tmp_path / "c").exists()


def test_a_pipe_among_the_entries_is_not_waited_for(tmp_path):
    path = fake_library(tmp_path, FakeComparison(BASE))
    os.mkfifo(path / "entries" / "fifo.json")
    (path / "entries" / "folder.json").mkdir()
    os.symlink("loop.json", path / "entries" / "loop.json")
    library = opened(path)
    assert len(library) == 1 and set(library.bad) == {"fifo.json", "folder.json", "loop.json"}
    assert library.bad["fifo.json"] == "it is not a plain file"


def test_hints_name_the_folder_and_the_number_of_threads(tmp_path):
    """The hints for a workdir instead of its library, and for a process with another number of threads."""
    path = fake_library(tmp_path / "final", FakeComparison(BASE), backend=FakeBackend(**{"blas threads": "4"}))
    with pytest.raises(FileNotFoundError, match=f"hint: did you mean {path}\\?"):
        opened(tmp_path)
    with pytest.raises(FileNotFoundError, match="hint: lapwing tune all"):
        opened(tmp_path / "entries")
    with pytest.raises(
        EnvironmentMismatch,
        match=r"\nhint: OPENBLAS_NUM_THREADS=4 \(or OMP_NUM_THREADS\), set before.* same number of threads$",
    ):
        opened(path, FakeBackend(**{"blas threads": "2"}))
    with pytest.raises(EnvironmentMismatch, match=r"NUM_THREADS=4 .*for the other differences tune again on this machine"):
        opened(path, FakeBackend(**{"blas threads": "2", "torch": "10"}))


def test_records_from_json_are_checked_field_by_field():
    from lapwing.tune.files import from_json
    from lapwing.tune.workdir import Trial

    line = {
        "schema": 1,
        "backend": "own",
        "device": 0,
        "gemm": "key",
        "configuration": {"a": 1, "b": "w", "c": True},
        "time": 1,
    }
    assert from_json(Trial, line | {"newer": 1}, schema=1).configuration["c"] is True
    for change in ({"device": True}, {"time": "x"}, {"time": 0}, {"configuration": {"a": [1]}}, {"errors": []}, {"schema": 2}):
        with pytest.raises(ValueError, match=next(iter(change))):
            from_json(Trial, line | change, schema=1)
    with pytest.raises(ValueError, match="missing 1 required positional argument: 'backend'"):
        from_json(Trial, {name: value for name, value in line.items() if name != "backend"}, schema=1)
    # a product with a field that is not known is another product
    with pytest.raises(ValueError, match="unknown fields of a Gemm: newer"):
        Entry.from_dict(Entry.from_comparison(FakeComparison(BASE)).to_dict() | {"gemm": BASE.to_dict() | {"newer": 1}})
