"""Importing lapwing.distributed loads none of its parts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import lapwing
from lapwing import distributed


def test_parts_are_loaded_when_they_are_used():
    code = """
import json, sys
import lapwing.distributed as distributed
first = [name for name in sys.modules if name.startswith("lapwing.distributed.")]
distributed.Layout, distributed.predict, distributed.patience
second = [name.removeprefix("lapwing.distributed.") for name in sys.modules if name.startswith("lapwing.distributed.")]
print(json.dumps([first, second, [name for name in ("mpi4py", "matplotlib", "jax", "torch") if name in sys.modules]]))
"""
    environment = os.environ | {"PYTHONPATH": str(Path(lapwing.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, second, others = json.loads(done.stdout)
    assert first == [] and others == []
    assert {"cost", "layout", "ranks.protocol"} <= set(second) <= {"cost", "layout", "tiles", "ranks", "ranks.protocol"}


def test_names():
    assert set(distributed.__all__) <= set(dir(distributed))
    for names in distributed._MODULES.values():
        assert set(names) <= set(distributed.__all__) and all(hasattr(distributed, name) for name in names)
    assert not hasattr(distributed, "nonesuch")
