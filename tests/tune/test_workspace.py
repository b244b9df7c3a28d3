"""The memory of kernels on streams, with a stand-in for torch.cuda: no GPU is needed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from lapwing.tune.backends.kernels import workspace  # noqa: E402


class Cuda:
    """A stand-in for torch.cuda: ``capturing``, and ``left``, the numbers that can still be allocated."""

    def __init__(self, monkeypatch):
        self.capturing, self.left, self.zeros = False, float("inf"), torch.zeros
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        monkeypatch.setattr(torch, "zeros", self.made)
        monkeypatch.setattr(workspace, "_arenas", {})
        monkeypatch.setattr(workspace, "_spare", {})

    def made(self, size, dtype, device):
        if size > self.left:
            raise torch.cuda.OutOfMemoryError("no memory")
        self.left -= size
        return self.zeros(size, dtype=dtype)

    def room(self, stream, parts, capturing=False):
        self.capturing = capturing
        return workspace.arena(0, stream, parts=parts).parts.numel()


def test_what_ran_on_one_stream_can_be_captured_on_another(monkeypatch):
    cuda = Cuda(monkeypatch)
    assert cuda.room(0, 1000) == 1000 and cuda.room(1, 10) >= 10
    assert cuda.room(2, 1000, capturing=True) == 1000
    cuda.room(0, 10)  # makes another spare, as large
    assert cuda.room(3, 1000, capturing=True) == 1000
    cuda.room(0, 5000)
    assert cuda.room(2, 5000, capturing=True) == 5000  # the stream of the first graph, a larger product
    cuda.room(4, 5000, capturing=True)
    with pytest.raises(RuntimeError, match="hint: run the model once before the capture, on the same stream"):
        cuda.room(5, 10, capturing=True)


def test_memory_for_others_does_not_fail_a_call(monkeypatch):
    cuda = Cuda(monkeypatch)
    for stream in (1, 2, 3):
        cuda.room(stream, 20)
    cuda.left = 2500
    assert cuda.room(3, 2000) == 2000
    with pytest.raises(torch.cuda.OutOfMemoryError):
        cuda.room(3, 3000)
