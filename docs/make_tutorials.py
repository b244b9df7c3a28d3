"""Run the notebooks of docs/tutorials and store their outputs.

    python docs/make_tutorials.py [name ...]

Needs nbclient, ipykernel, matplotlib, torch and jax.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parent / "tutorials"


def main() -> None:
    for path in [TUTORIALS / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(TUTORIALS.glob("*.ipynb")):
        nbformat.write(run(path), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} KB")


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with new outputs, run in an empty folder."""
    book = nbformat.read(path, as_version=4)
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the kernel's debugger otherwise prints a warning about frozen modules
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(book, timeout=600, record_timing=False, resources={"metadata": {"path": folder}}).execute()
    book.metadata = {key: value for key, value in book.metadata.items() if key == "kernelspec"}
    return book


if __name__ == "__main__":
    main()
