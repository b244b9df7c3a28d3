"""Settings of the site: `make docs` builds it into build/site.

Sphinx, because the docstrings are written for it (numpydoc, as in NumPy and SciPy), so that every public name becomes a page
with links between them; MyST reads the same Markdown that reads well in a repository, and the notebooks; the search needs no
server.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
sys.path.insert(0, str(ROOT / "docs" / "site"))

import charts  # noqa: E402

from lapwing import __version__  # noqa: E402

project = "lapwing"
author = "the lapwing authors"
copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["site", "**/.ipynb_checkpoints"]
templates_path = ["site/templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the outputs are stored; the slow tests run the notebooks
nb_merge_streams = True

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
smartquotes = False  # "pos" is typed with straight quotes
suppress_warnings = ["autodoc.mocked_object"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "lapwing"
html_static_path = ["site/static"]
html_favicon = "site/static/icon.svg"
html_css_files = ["extra.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_sidebars = {"index": [], "performance": []}
html_theme_options: dict[str, Any] = {
    "logo": {"text": "lapwing", "image_light": "site/static/icon.svg", "image_dark": "site/static/icon.svg", "alt_text": ""},
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    # the code of notebooks needs the width
    "secondary_sidebar_items": {"**": ["page-toc"], **{f"tutorials/{path.stem}": [] for path in TUTORIALS}},
}

# links from a page to files of the repository outside docs/
OUTSIDE = r"\[([^\]]*)\]\((?:\.\./)+((?:examples|src|benchmarks)[^)#]*)\)"


def prepare(app: Any, name: str, source: list[str]) -> None:
    """Charts in place of the comments that name them; files outside docs/ are copied to source/ and linked there."""
    up = "../" * name.count("/")

    def inside(found: re.Match[str]) -> str:
        end = "/index.html" if (ROOT / found[2]).is_dir() else ""
        return f'<a href="{up}source/{found[2]}{end}">{found[1].strip("`")}</a>'

    text = charts.insert(source[0], f"{up}_static/")
    source[0] = re.sub(OUTSIDE, inside, text)


def finish(app: Any, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    out = Path(app.outdir)
    (out / "_static" / "plotly.min.js").write_text(charts.plotly())
    # from all pages, also those that this process did not read
    for page in app.env.found_docs:
        for _, name in re.findall(OUTSIDE, Path(app.env.doc2path(page)).read_text()):
            copy_outside(ROOT / name, out / "source" / name)


def copy_outside(path: Path, to: Path) -> None:
    """A file, or every file of a folder and a page that lists them."""
    if path.is_file():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
        return
    to.mkdir(parents=True, exist_ok=True)
    files = sorted(child for child in path.iterdir() if child.is_file())
    for child in files:
        shutil.copy(child, to / child.name)
    items = "\n".join(f'<li><a href="{child.name}">{child.name}</a></li>' for child in files)
    name = path.relative_to(ROOT).as_posix()
    (to / "index.html").write_text(
        f"<!doctype html><meta charset=utf-8><title>{name}</title><h1>{name}</h1>\n<ul>\n{items}\n</ul>\n"
    )


def plain_marks(app: Any, kind: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """|x|, u_hat_ and *shape in a docstring are mathematics, not markup."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", "..")):
            parts = re.split(r"(``.*?``|`.*?`|\*\*.*?\*\*)", line)
            parts[::2] = [re.sub(r"\||(?<=\w)_(?=[^\w]|$)|(?<!\S)\*(?=\w)", r"\\\g<0>", part) for part in parts[::2]]
            lines[i] = "".join(parts)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_marks, priority=900)  # after numpydoc
    app.connect("source-read", prepare)
    app.connect("build-finished", finish)
