"""Spectra and QR of a larger matrix on 2 and 8 CPU devices: memory, buffers, accuracy. Prints one line of JSON for each."""

from __future__ import annotations

import json
import re
import sys
import time
from math import prod

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lapwing.distributed.backends.xla import dense, sharding

jax.config.update("jax_enable_x64", True)


def largest_buffer(text):
    """Numbers in the largest array that a compiled program keeps; what is inside of a fusion is never in memory."""
    sizes, fused = [], False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            fused = "fused" in line.split("(")[0]
        elif not fused:
            kept = line.partition(" = ")[2].partition("(")[0] if "fusion(" in line or "dot(" in line else line
            sizes += [prod(map(int, dims.split(","))) for dims in re.findall(r"\b[fcsu]\d+\[([\d,]+)\]", kept)]
    return max(sizes)


def program(name, where, n):
    return {
        "eigh": lambda a: dense.eigh(where, False, (0, n), True, a)[:2],
        "svd": lambda a: dense.svd(where, True, a)[:3],
        "qr": lambda a: dense.qr(where, a),
    }[name]


def report(name, n, devices, run):
    mesh = Mesh(np.array(jax.devices()[:devices]).reshape(-1, 2), ("x", "y"))
    kind = jax.ShapeDtypeStruct((n, n), "float64", sharding=NamedSharding(mesh, P("x", "y")))
    where = sharding.Placement(mesh, sharding.grid_of(P("x", "y"), mesh))
    start = time.time()
    built = jax.jit(program(name, where, n)).lower(kind).compile()
    block, memory = n * n // devices, built.memory_analysis()
    found = {
        "name": name, "devices": devices, "compile": time.time() - start,
        "temporary": memory.temp_size_in_bytes / (8 * block),
        "temporary_bytes": memory.temp_size_in_bytes,
        "bytes": memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes,
        "largest": largest_buffer(built.as_text()) / (n * n),
    }  # fmt: skip
    if run:
        x = np.random.default_rng(5).standard_normal((n, n))
        a = x + x.T if name == "eigh" else x
        held = jax.device_put(a, kind.sharding)
        start = time.time()
        got = [np.asarray(each) for each in jax.block_until_ready(built(held))]
        found["seconds"] = time.time() - start
        unit = n * np.finfo(float).eps * np.linalg.norm(a, 2)
        if name == "eigh":
            w, v = got
            found["residual"] = np.abs(a @ v - v * w).max() / unit
            bases = [v]
        elif name == "svd":
            u, s, vh = got
            found["residual"] = np.abs(u * s @ vh - a).max() / unit
            bases = [u, vh.T]
        else:
            q, r = got
            found["residual"] = np.abs(q @ r - a).max() / unit
            bases = [q]
        found["orthogonality"] = max(np.abs(q.T @ q - np.eye(n)).max() / (n * np.finfo(float).eps) for q in bases)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    order, *names = sys.argv[1:]
    for each in [each for each in names if each != "only-plan"] or ("eigh", "svd", "qr"):
        for count in (2, 8):
            report(each, int(order), count, count == 8 and "only-plan" not in names)
