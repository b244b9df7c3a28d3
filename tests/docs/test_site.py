"""The site builds without a warning, its links lead somewhere, every public name has a page, and it works in a browser."""

from __future__ import annotations

import functools
import http.server
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
NEEDS = (
    "sphinx",
    "pydata_sphinx_theme",
    "myst_nb",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "plotly",
    "jax",
    "lineax",
)
MODULES = ("lapwing", "lapwing.distributed", "lapwing.tune", "lapwing.insitu", "lapwing.gram", "lapwing.linalg")
COMPAT = ("lapwing.compat.jaxmg", "lapwing.compat.kernel_tools", "lapwing.compat.kernel_tools.kernels", "lapwing.compat.magma")
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if "sphinx" in missing:
        pytest.skip("needs sphinx: pip install .[docs]")
    assert not missing, f"a part of the extra docs is missing: {missing}"  # not a reason to skip: make test installs it whole
    # a copy: the build writes a page for each name next to the sources
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("names"))
    for name in ("benchmarks", "examples", "src"):
        (folder / name).symlink_to(ROOT / name)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(folder / "docs"),
        str(folder / "out"),
    ]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    built = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "out"


class Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.names.update(v for k in ("id", "name") if (v := values.get(k)))
        key = {"a": "href", "link": "href", "img": "src", "script": "src"}.get(tag)
        if key and (link := values.get(key)):
            self.links.append(link)


@functools.cache
def read(path: Path) -> Links:
    return Links(path.read_text())


@functools.cache
def find(folder: Path, link: str) -> Path | None:
    target = Path(os.path.normpath(folder / unquote(link)))
    if target.is_dir():
        target /= "index.html"
    return target if target.exists() else None


def test_links_and_images(site):
    broken = []
    pages = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    for page in pages:
        for link in read(page).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = find(page.parent, parts.path) if parts.path else page
            name = unquote(parts.fragment)
            if target is None or (name and target.suffix == ".html" and name not in read(target).names):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert len(pages) > 200 and not broken, broken


@pytest.mark.parametrize("module", [*MODULES, *COMPAT])
def test_every_public_name_has_a_page(site, module):
    pages = {path.stem for path in (site / "reference" / "names").glob("*.html")}
    here = importlib.import_module(module)
    lost = [
        name
        for name in here.__all__
        if not inspect.ismodule(getattr(here, name)) and name != "__version__" and f"{module}.{name}" not in pages
    ]
    assert not lost, lost


def test_search_knows_cholesky(site):
    index = (site / "searchindex.js").read_text()
    terms = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["terms"]
    assert any(word.startswith(("choleski", "cholesky")) for word in terms)


def test_the_chart_of_batches_agrees_with_its_table(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    import charts

    table = (ROOT / "docs" / "performance.md").read_text().partition("<!-- gpu-batched -->")[2].partition("<!-- end -->")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]
    shown = {(cell[0], int(cell[1]), cell[8]) for cell in cells}
    drawn = {
        (t["name"], n, f"{y:.2f}x") for t in charts.batches("h200-batched")["data"] for n, y in zip(t["x"], t["y"], strict=True)
    }
    assert len(drawn) > 20 and drawn <= shown, drawn - shown


@pytest.mark.slow
def test_in_a_browser(site, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium")
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pages = [f"http://127.0.0.1:{server.server_port}/{name}" for name in _PAGES]
        results = [_open(browser, page, tmp_path / str(i)) for i, page in enumerate(pages)]
        server.shutdown()
    errors = [
        line for _, log in results for line in log.splitlines() if "CONSOLE" in line and re.search("error|uncaught", line, re.I)
    ]
    assert not errors
    _start, performance, _tutorial, search = (page for page, _ in results)
    charts = (ROOT / "docs" / "performance.md").read_text().count("<!-- chart:")
    assert performance.count('class="plot-container') == charts > 0  # all are drawn
    assert "lapwing.cholesky.html" in search


_PAGES = ("index.html", "performance.html", "tutorials/gaussian_processes.html", "search.html?q=cholesky")


def _open(browser: str, page: str, profile: Path) -> tuple[str, str]:
    """The page as it is after its scripts have run, and what they logged."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={profile}"]
    command = [browser, *flags, "--virtual-time-budget=15000", "--dump-dom", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout, done.stderr


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_have_outputs(path):
    text = path.read_text()
    assert len(text) < 150_000
    outputs = [output for cell in json.loads(text)["cells"] for output in cell.get("outputs", ())]
    assert outputs and all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)
    words = json.dumps([{k: v for k, v in output.get("data", output).items() if k != "image/png"} for output in outputs])
    assert not re.search(r"/(home|root|tmp|work|usr)/|Warning", words)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_say_what_to_install(path):
    first, *others = json.loads(path.read_text())["cells"]
    code = "".join(line for cell in others if cell["cell_type"] == "code" for line in [*cell["source"], "\n"])
    imported = set(re.findall(r"^(?:import|from) (\w+)", code, re.M)) - sys.stdlib_module_names
    behind = {"visualize_array_sharding": "rich", ".png": "matplotlib"}  # what these need, without an import in the notebook
    wanted = imported - {"lapwing", "numpy", "IPython"} | {package for text, package in behind.items() if text in code}
    installed = re.findall(r"`pip install (.+?)`", "".join(first["source"]))
    assert wanted == set(" ".join(installed).split())


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run(path, monkeypatch):
    for name in ("nbclient", "ipykernel", "matplotlib", "torch", "jax"):
        pytest.importorskip(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    # in a process of its own, as nbclient starts event loops whose warnings are not ours
    script = (
        "import sys; sys.path.insert(0, 'docs'); import pathlib, make_tutorials; make_tutorials.run(pathlib.Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
