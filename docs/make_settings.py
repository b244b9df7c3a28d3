"""Writes docs/settings.md from lapwing.core.settings. Run it after changing a setting; a test compares."""

from __future__ import annotations

from pathlib import Path

from lapwing.core.settings import SETTINGS

PAGE = Path(__file__).with_name("settings.md")

HEAD = """# Environment variables

Every variable whose name begins with `LAPWING_`, and those of other programs that change what lapwing does. This page is made
by `docs/make_settings.py` from the list in `lapwing/core/settings.py`.

lapwing also reads these variables, with their usual meaning: `LD_LIBRARY_PATH` and `MKLROOT` (where libraries are),
`CUDA_VISIBLE_DEVICES`, the ranks that a launcher announces (`PMI_*`, `PMIX_RANK`, `OMPI_*`, `SLURM_*`, `MPI_LOCALRANKID`),
`CXX` (in the demo of a C++ solver), and `TERM`, `NO_COLOR`, `DISPLAY` and `WAYLAND_DISPLAY` (how to show things).
"""


def page() -> str:
    text = HEAD
    for part in dict.fromkeys(s.part for s in SETTINGS):
        rows = [f"| `{s.name}` | {s.default} | {s.what} |" for s in SETTINGS if s.part == part]
        text += f"\n## {part}\n\n| variable | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
