"""Ranks over the key-value store of jax.distributed, here in threads; how ranks are told apart in words."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lapwing
from lapwing.distributed import MissingRanksError, RanksDisagreeError, ShardedMatrix
from lapwing.distributed.ranks.jax import JaxRanks
from lapwing.distributed.ranks.protocol import Alone, agree, open_communicator, patience, ranks_in_words


class Store:
    """What JaxRanks needs of jax's client."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set_bytes(self, key, value):
        with self.changed:
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get_bytes(self, key, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED: no such key")
            return self.values[key]

    def key_value_delete(self, key):
        with self.changed:
            del self.values[key]


def on_ranks(count, work):
    store = Store()
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda rank: work(JaxRanks(store, rank, range(count))), range(count))), store


def test_ranks_of_a_key_value_store():
    def work(comm):
        assert comm.allgather(comm.rank**2) == [0, 1, 4]
        assert comm.broadcast(b"word" if comm.rank == 1 else None, 1) == b"word"
        half = comm.split(comm.rank % 2, -comm.rank)
        assert half.allgather(comm.rank) == ([2, 0] if comm.rank % 2 == 0 else [1])
        assert comm.split(0 if comm.rank == 1 else None) is None or comm.rank == 1
        for _ in range(3):
            comm.barrier()
        return agree(comm, "solve", {"shape": (3, 3)}, mine=comm.rank)

    told, store = on_ranks(3, work)
    assert told == [[0, 1, 2]] * 3
    assert len(store.values) < 3 * 6  # of calls that all have read nothing is kept


def test_all_ranks_raise_the_same_words():
    def work(comm):
        with pytest.raises(RanksDisagreeError) as differ:
            agree(comm, "solve", {"shape": (3, 3), "dtype": "float64" if comm.rank != 1 else "float32"})
        with pytest.raises(TypeError, match="only here") as found:
            agree(comm, "solve", {}, error=TypeError("only here") if comm.rank == 2 else None)
        return str(differ.value), differ.value.what, differ.value.values, str(found.value)

    told, _ = on_ranks(3, work)
    assert told[0] == told[1] == told[2]
    assert told[0][1:3] == ("dtype", {"float64": (0, 2), "float32": (1,)})
    assert "float64 on ranks 0 and 2, float32 on rank 1" in told[0][0]


def test_a_rank_that_does_not_come_is_named():
    def work(comm):
        if comm.rank == 0:
            time.sleep(0.5)
            return None
        with patience(0.2), pytest.raises(MissingRanksError, match="rank 0 is missing after") as error:
            comm.barrier()
        return error.value.missing

    assert on_ranks(3, work)[0] == [None, (0,), (0,)]


def test_ranks_of_a_torch_process_group():
    """Two processes with gloo: values, parts, an exchange, and a rank that is late."""
    pytest.importorskip("torch")
    code = """
import sys, time
import numpy as np, torch.distributed as dist
from lapwing.distributed import Layout, MissingRanksError, patience
from lapwing.distributed.exchange import exchange
from lapwing.distributed.ranks.protocol import open_communicator
from lapwing.distributed.ranks.torch import TorchRanks

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
comm = TorchRanks(dist)
assert comm.allgather(rank**2) == [0, 1] and comm.broadcast(b"word" if rank else None, 1) == b"word"
assert TorchRanks(dist).allgather(rank) == [0, 1]  # a second one of the same group
assert open_communicator(dist.group.WORLD).allgather(rank + 1) == [1, 2]
part = comm.split(0, -rank)
assert part.allgather(rank) == [1, 0] and part.rank == 1 - rank
whole = np.arange(20.0).reshape(4, 5)
source, target = Layout.rows_of((4, 5), 2), Layout.columns_of((4, 5), 2)
block = np.empty(target.local_shape(rank))
exchange(comm, whole[source.indices(rank)[0]], source, block, target)
assert (block == whole[:, target.indices(rank)[1]]).all()

def missing(expected, work):
    comm.barrier()
    if rank == 1:
        time.sleep(1.5)
        return
    start = time.monotonic()
    try:
        with patience(0.5): work()
    except MissingRanksError as error: assert error.missing == expected, error
    else: raise SystemExit("no error")
    assert time.monotonic() - start < 1.2

missing((1,), lambda: comm.allgather(0, "solve"))
if rank == 1: assert comm.allgather(0, "solve") == [0, 0]  # late, not lost
missing((1,), lambda: exchange(comm, whole[:2], source, block, target))
print("done", flush=True)
import os; os._exit(0)  # gloo's connections are broken by now
"""
    environment = os.environ | {"PYTHONPATH": str(Path(lapwing.__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
        started = [subprocess.Popen([sys.executable, "-c", code, folder, str(rank)], **pipes) for rank in range(2)]
        texts = [process.communicate(timeout=100)[0] for process in started]
    assert all("done" in text for text in texts), texts


def test_the_rank_that_serves_the_store_ends_first():
    """Rank 0 leaves torch and ends while rank 1 has not read its values yet; and it may start torch again on the same port."""
    pytest.importorskip("torch")
    code = """
import sys, time
import torch.distributed as dist
from lapwing.distributed.ranks import torch as torch_ranks
port, rank = sys.argv[1], int(sys.argv[2])
for _ in range(2):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    comm = torch_ranks.TorchRanks(dist)
    comm.barrier()
    if rank == 1:
        read = torch_ranks._Store.get
        torch_ranks._Store.get = lambda *arguments: (time.sleep(0.5), read(*arguments))[1]
    assert comm.allgather(rank) == [0, 1]
    if rank == 1: torch_ranks._Store.get = read
    dist.destroy_process_group()
    time.sleep(0.5 * rank)  # rank 0 serves the new store
print("done", flush=True)
"""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    environment = os.environ | {"PYTHONPATH": str(Path(lapwing.__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    started = [subprocess.Popen([sys.executable, "-c", code, port, str(rank)], **pipes) for rank in range(2)]
    texts = [process.communicate(timeout=100)[0] for process in started]
    assert all("done" in text for text in texts), texts


def test_one_process_alone_and_refusals():
    assert isinstance(open_communicator(), Alone) and agree(Alone(), "x", {}, mine=3) == [3]
    with pytest.raises(KeyError):
        agree(Alone(), "x", {}, error=KeyError("y"))
    with pytest.raises(TypeError, match=r"MPI\.COMM_WORLD"):
        open_communicator("world")
    with pytest.raises(ValueError, match="not a positive number"), patience(0):
        pass
    assert ranks_in_words([5]) == "rank 5" and ranks_in_words(range(64)) == "ranks 0 to 63"
    assert ranks_in_words(range(0, 64, 2)).endswith("and 32 in all")
    a = ShardedMatrix.scatter(np.arange(6.0).reshape(2, 3), None)
    assert a.comm is None and a.T.shape == (3, 2) and a.astype("complex64").dtype == np.complex64
    with pytest.raises(TypeError, match="gather"):
        np.asarray(a)
