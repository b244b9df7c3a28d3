"""Run the notebooks of docs/tutorials and store their outputs.

    python docs/make_tutorials.py [name ...]

Needs nbclient, ipykernel, matplotlib, torch and jax.
"""

from __future__ import annotations

import base64
import io
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

TUTORIALS = Path(__file__).parent / "tutorials"


def main() -> None:
    for path in [TUTORIALS / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(TUTORIALS.glob("*.ipynb")):
        book = run(path)
        for cell in book.cells:
            for output in cell.get("outputs", ()):
                if picture := output.get("data", {}).get("image/png"):
                    output.data["image/png"] = small(picture)
        nbformat.write(book, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} KB")


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with new outputs, run in an empty folder."""
    book = nbformat.read(path, as_version=4)
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the kernel's debugger otherwise prints a warning about frozen modules
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(book, timeout=600, record_timing=False, resources={"metadata": {"path": folder}}).execute()
    book.metadata = {key: value for key, value in book.metadata.items() if key == "kernelspec"}
    return book


def small(picture: str) -> str:
    """The PNG with 128 colours: a third of the size, and no difference that one sees in a diagram."""
    file = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize(128).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    main()
