"""Writes docs/support.md from the engines' capability rows. Run it after changing one; a test compares."""

from __future__ import annotations

from pathlib import Path

from lapwing.core.plan import Capability
from lapwing.distributed.backends.choice import PUBLIC
from lapwing.planner import ALL, capabilities

PAGE = Path(__file__).with_name("support.md")

HEAD = """# What runs where

Every operation with the engines that can do it; `lapwing info` says which of them work on your machine. This page is made by
`docs/make_support.py` from the engines' own tables.

AMD GPUs: the code is compiled and was tested on an emulation, but not run on a GPU: [state](amd.md).

| operation | engine | device | dtypes | how | AMD |
|---|---|---|---|---|---|
"""

TAIL = """
Matrices that are spread over several devices ([many devices](distributed.md), [sharded JAX arrays](distributed-jax.md)). Some
operations have limits; the error then says which:

SEVERAL
Each engine, in words:

"""

FRAMEWORKS = """
| | NumPy | PyTorch | JAX | TensorFlow | CuPy |
|---|---|---|---|---|---|
| CPU | yes | yes | yes | yes | - |
| CUDA | - | yes | yes | written, not run on a GPU | yes |
| ROCm | - | not run on a GPU | not run on a GPU | - | not run on a GPU |
| gradients, first and second order | - | yes | yes | yes | - |
| forward mode | - | yes | yes | yes | - |
| vmap | - | yes | yes | vectorized_map | - |
| compile | - | torch.compile, torch.export | jit, export | tf.function, SavedModel | - |
| result may reuse the input's memory | overwrite | overwrite | donate | - | overwrite |

The framework's own routine computes `torch.func` inside `torch.compile` (torch.linalg), and the triangular solves inside every
derivative. Neither counts in the figures of lapwing's speed.
"""


AMD = "compiled, emulated, not run on a GPU"


def on_amd(row: Capability) -> str:
    """What is known of this engine on GPUs of AMD."""
    if row.device == "cpu" or row.engine in ("cusolver", "two_stage"):  # two_stage needs more shared memory than they have
        return "-"
    if row.engine == "lapack":
        return "on the host"
    return f"{AMD}; float32" if row.engine == "tiled" else AMD


def page() -> str:
    rows = [
        f"| {c.operation} | {c.engine} | {c.device} | {', '.join(c.dtypes)} | {c.note} | {on_amd(c)} |"
        for c in sorted(capabilities(), key=lambda c: (c.operation, c.device, c.engine))
    ]
    several = ["| engine | device | operations | takes |", "|---|---|---|---|"]
    several += [f"| {e.name} | {', '.join(e.devices)} | {', '.join(e.operations)} | {e.takes} |" for e in PUBLIC]
    tail = TAIL.replace("SEVERAL", "\n".join(several) + "\n")
    # what a library is called differs between machines
    words = [f"- `{e.name}`: {e.what.partition(' from lib')[0]}" for e in ALL.values()]
    words += [f"- `{e.name}`: {e.what}" for e in PUBLIC]
    return HEAD + "\n".join(rows) + "\n" + tail + "\n".join(words) + "\n" + FRAMEWORKS


if __name__ == "__main__":
    PAGE.write_text(page())
