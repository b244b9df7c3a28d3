"""Two thousand random calls; see tests/fuzz.py, which runs any number of them by hand."""

import pytest

import fuzz

pytest.importorskip("lapwing._native", reason="the native core was not built")


def test_random_calls():
    records = list(fuzz.failures(1000, seed=0))
    wrong = [record for record in records if "known" not in record]
    assert not wrong, "\n".join(f"{r['what']}\n  {r['call']}\n  python tests/fuzz.py --only {r['index']}" for r in wrong)
    # most calls are tried
    assert len(records) < 250


def test_a_call_is_always_the_same():
    assert [str(fuzz.draw(3, index)) for index in range(50)] == [str(fuzz.draw(3, index)) for index in range(50)]


@pytest.mark.parametrize("layout", ["plain", "transposed", "step", "reversed", "broadcast", "unaligned", "swapped", "readonly"])
def test_a_changed_input_is_seen(layout):
    import numpy as np

    memory = fuzz.Memory(np.arange(24.0).reshape(2, 3, 4), layout)
    memory.check(overwritten=False)
    memory.array.flags.writeable = True
    memory.array[1, 2, 1] += 1
    memory.check(overwritten=True)
    with pytest.raises(fuzz.Wrong, match="input was changed"):
        memory.check(overwritten=False)
    memory.buffer[3] += 1
    with pytest.raises(fuzz.Wrong, match="beside"):
        memory.check(overwritten=True)


def test_a_wrong_answer_is_seen(monkeypatch):
    import lapwing as lw

    right = lw.solve
    monkeypatch.setattr(lw, "solve", lambda a, b, **options: right(a, b, **options) * (1 + 1e-4))
    wrong = tried = 0
    for index in range(900):
        call = fuzz.draw(1, index)
        if call.operation != "solve" or call.library != "numpy" or call.flaw or fuzz.known_failure(call):
            continue
        # an engine may refuse the call; a backward error forgives more where the condition is bad
        if call.dtype in ("float64", "complex128") and "engine" not in call.options and call.condition <= 1e3:
            tried += call.n > 0 and 0 not in call.batch and call.columns != 0 and not fuzz.overflows(call)
            try:
                fuzz.perform(call)
            except fuzz.Wrong:
                wrong += 1
    assert wrong == tried > 5
