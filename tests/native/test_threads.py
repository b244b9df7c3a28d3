"""The pool of threads of the CPU core."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = Path("/proc/self/task")

_CALLS = """
import os, time
import numpy as np
import lapwing as lw

a = np.eye(64, dtype=np.float32) + np.zeros((512, 1, 1), np.float32)
usual = os.sched_getaffinity(0)
one = {min(usual)}
call = lambda: (lw.cholesky(a) == a).all() or exit("wrong")
call()
threads = [int(task) for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]
for _ in range(10):
    # all fall asleep on the core where the next call is
    for task in (0, *threads):
        os.sched_setaffinity(task, one)
    call()
    time.sleep(0.02)
    for task in threads:
        os.sched_setaffinity(task, usual)
    call()
# one that came too late for work takes its cores back too, as soon as it runs
for _ in range(100):
    away = [task for task in threads if os.sched_getaffinity(task) != usual]
    if not away:
        break
    time.sleep(0.05)
print(len(threads), away)
"""


@pytest.mark.skipif(not TASKS.is_dir() or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores")
def test_threads_keep_the_cores_of_their_process():
    """One that was woken away from its waker's core has all its cores back after the call."""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", _CALLS], env=environment, capture_output=True, text=True, check=True)
    count, away = done.stdout.split(maxsplit=1)
    assert int(count) > 0 and away.strip() == "[]"
