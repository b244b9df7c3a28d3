"""Walks through the pages as six kinds of users: a fresh checkout, an empty environment, and nothing typed that no page says.

    python tools/walks.py [NAME ...] [--folder FOLDER] [--wheel FILE] [--python python3.12]

Each step names its page. A command must stand there as it is typed here; a block of Python is taken from the page itself.
The walks install frameworks and take several minutes each. With --wheel, ``pip install .`` installs that file.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
# what a user brings along: a program that multiplies, and one that trains
SERVE = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
with torch.inference_mode():
    for _ in range(50):
        model(torch.ones(16, 256))
"""


class Walk:
    def __init__(self, name: str, folder: Path, python: str, wheel: Path | None) -> None:
        self.wheel = wheel
        self.checkout = folder / name
        shutil.rmtree(self.checkout, ignore_errors=True)
        run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(self.checkout)])
        run([python, "-m", "venv", str(self.checkout / ".venv")])
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "LAPWING"))}
        self.environment = {**kept, "PATH": f"{self.checkout / '.venv' / 'bin'}{os.pathsep}{kept['PATH']}", "MPLBACKEND": "agg"}

    def text(self, page: str) -> str:
        source = (self.checkout / page).read_text()
        if page.endswith(".ipynb"):
            return "\n".join("".join(cell["source"]) for cell in json.loads(source)["cells"])
        return source

    def blocks(self, page: str, language: str = "python") -> list[str]:
        if page.endswith(".ipynb"):
            cells = json.loads((self.checkout / page).read_text())["cells"]
            return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        return [body for kind, body in FENCE.findall(self.text(page)) if kind == language]

    def type(self, page: str, command: str, *, seconds: float = 600, **variables: str) -> None:
        """A command of the page; words in capitals there, such as W or 30m, may be ``variables`` of the user."""
        if command not in self.text(page):
            sys.exit(f"walks: {page} does not say: {command}\nhint: the page has changed; let the walk follow it")
        for word, value in variables.items():
            command = command.replace(word, value)
        if self.wheel:
            command = re.sub(r"""pip install (["']?)\.(\[\w+\])?\1""", rf'pip install "{self.wheel}\2"', command)
        self.shell(command, seconds)

    def run(self, page: str, *, containing: str = "", name: str = "script.py") -> None:
        """The Python blocks of a page, one after the other in one program; or the block that contains a text."""
        self.save(page, name, containing=containing)
        self.shell(f"python {name}", 600)

    def save(self, page: str, name: str, *, containing: str = "", language: str = "python") -> None:
        chosen = [block for block in self.blocks(page, language) if containing in block]
        if not chosen or (containing and len(chosen) > 1):
            sys.exit(f"walks: {page} has {len(chosen)} blocks of {language} with {containing!r}")
        (self.checkout / name).write_text("\n".join(chosen))

    def shell(self, command: str, seconds: float) -> None:
        start = time.perf_counter()
        print(f"$ {command}", flush=True)
        # a terminal's own shell stays in its folder, with the environment active
        run(["bash", "-e", "-o", "pipefail", "-c", command], cwd=self.checkout, env=self.environment, timeout=seconds)
        print(f"  ({time.perf_counter() - start:.1f} s)", flush=True)


def run(command: list[str], **options: object) -> None:
    subprocess.run(command, check=True, **options)


def physicist(walk: Walk) -> None:
    """Huge systems in JAX."""
    walk.type("docs/start/jax.md", 'pip install ".[jax]"')
    walk.run("docs/start/jax.md")
    walk.type("docs/tutorials/sharded_solve.ipynb", "pip install jax rich")
    walk.run("docs/tutorials/sharded_solve.ipynb")
    walk.environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # as the next page says
    walk.type("docs/distributed-jax.md", "export XLA_FLAGS=--xla_force_host_platform_device_count=8")
    walk.run("docs/distributed-jax.md")
    walk.save("README.md", "eight.py", containing="jax.make_mesh((4, 2)", language="py")
    walk.shell("python eight.py", 600)
    walk.run("docs/coming-from/jaxmg.md")
    solve = "lapwing explain solve --shape 1000000x1000000 --dtype float32 --device cuda --devices 64 --assume pos"
    walk.type("docs/distributed.md", solve)
    del walk.environment["XLA_FLAGS"]
    walk.type("README.md", "pip install mkl mpich mpi4py")
    walk.save("README.md", "script.py", containing="ShardedMatrix.from_function", language="py")
    path = walk.checkout / "script.py"
    path.write_text(path.read_text().replace("20_000", "4_000"))  # this machine is not a cluster
    walk.type("README.md", "lapwing launch -n 4 script.py")


def statistician(walk: Walk) -> None:
    """Thousands of covariances in torch or TensorFlow."""
    walk.type("docs/start/torch.md", 'pip install ".[torch]"')
    walk.run("docs/start/torch.md")
    walk.type("docs/tutorials/gaussian_processes.ipynb", "pip install torch matplotlib")
    walk.run("docs/tutorials/gaussian_processes.ipynb")
    walk.run("docs/guide.md", containing='jitter="auto"')
    walk.run("docs/coming-from/torch.md")
    walk.shell("python examples/02_gaussian_process_torch.py", 600)  # README: "examples/ has short programs that run"
    walk.type("docs/start/tensorflow.md", 'pip install ".[tensorflow]"')
    walk.run("docs/start/tensorflow.md")


def kernels(walk: Walk) -> None:
    """The top of the spectrum of a kernel matrix."""
    walk.type("README.md", 'pip install ".[plot]"')
    walk.run("docs/start/numpy.md")
    walk.run("docs/tutorials/kernel_pca.ipynb")
    walk.run("docs/coming-from/kernel_tools.md")
    walk.run("docs/coming-from/scipy.md")
    walk.type("docs/eigh.md", "lapwing bench eigh --sizes 1024,2048 --subset -16: --matrix kernel --peers --plot eigh.png")
    walk.run("docs/hosted.md")


def optimiser(walk: Walk) -> None:
    """Thousands of matrices of middle size."""
    walk.type("docs/start/torch.md", 'pip install ".[torch]"')
    walk.type("docs/tutorials/optimiser.ipynb", "pip install torch matplotlib")
    walk.run("docs/tutorials/optimiser.ipynb")
    walk.run("docs/start/torch.md")
    walk.shell("python examples/06_shampoo_torch.py && python examples/07_soap_torch.py", 600)
    (walk.checkout / "script.py").write_text("import torch\n\ntorch.linalg.qr(torch.randn(500, 16, 16))\n")
    walk.type("docs/install.md", "lapwing run --install torch,numpy --report script.py arguments")


def engineer(walk: Walk) -> None:
    """Matrix products of a model that serves."""
    walk.type("docs/start/torch.md", 'pip install ".[torch]"')
    (walk.checkout / "serve.py").write_text(SERVE)
    walk.type("README.md", "lapwing tune record -o gemms.csv -- python serve.py")
    walk.type("docs/tune.md", "lapwing tune read LOG", LOG="gemms.csv")
    walk.type("README.md", "lapwing tune all gemms.csv --workdir W --budget 30m", **{"30m": "1m"})
    use = "\n".join(line.replace("y = model(x)", "pass") for line in walk.blocks("README.md", "py")[-1].splitlines())
    (walk.checkout / "use.py").write_text(f"{use}\nprint(lapwing.tune.report())\n")
    walk.shell("python use.py", 600)
    walk.run("docs/tune.md")
    walk.run("docs/coming-from/hipblaslt.md")
    walk.type("docs/tutorials/tuning.ipynb", "pip install matplotlib")
    walk.shell("pip install ipython", 600)  # which jupyter lab brings along
    walk.run("docs/tutorials/tuning.ipynb")
    walk.shell("python examples/05_tune.py", 600)


def cfd(walk: Walk) -> None:
    """Modes of a running solver."""
    walk.type("docs/insitu.md", 'pip install ".[insitu]"')
    walk.type("docs/insitu.md", "lapwing insitu demo")
    walk.type("docs/insitu.md", 'python "$(python -m lapwing.insitu --examples)/two_d/burgers_2d.py" --memory 200')
    walk.run("docs/start/numpy.md")
    walk.run("docs/tutorials/pod.ipynb")
    walk.run("docs/coming-from/insitu.md")
    walk.save("docs/insitu.md", "analysis.py", containing='def analyses():\n    pod = insitu.POD("u", rank=4)')
    walk.save("docs/insitu.md", "heat.c", containing="int main(void)", language="c")
    walk.type("docs/insitu.md", "gcc heat.c -o heat $(python -m lapwing.insitu --cflags --libs) -lm")
    walk.type("docs/insitu.md", "./heat")
    walk.save("docs/insitu.md", "plate.cpp", containing="lapwing_insitu_stub.h", language="cpp")
    walk.type("docs/insitu.md", "g++ -std=c++17 plate.cpp -o plate $(python -m lapwing.insitu --cflags) -ldl")
    walk.type("docs/insitu.md", "LAPWING_INSITU_LIB=$(python -m lapwing.insitu --libfile) ./plate")
    if shutil.which("gfortran"):
        walk.save("docs/insitu.md", "ring.f90", containing="program ring", language="fortran")
        fortran = 'gfortran "$(python -m lapwing.insitu --fortran)" ring.f90 -o ring $(python -m lapwing.insitu --libs)'
        walk.type("docs/insitu.md", fortran)
        walk.type("docs/insitu.md", "./ring")


WALKS: dict[str, Callable[[Walk], None]] = {f.__name__: f for f in (physicist, statistician, kernels, optimiser, engineer, cfd)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="walk through the pages as a user would")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(WALKS)} (default: all)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "walks", help="where the checkouts go")
    parser.add_argument("--wheel", type=Path, help="install this wheel instead of the checkout")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environments")
    options = parser.parse_args()
    if unknown := set(options.names) - set(WALKS):
        parser.error(f"there is no walk {', '.join(unknown)}; use one of {', '.join(WALKS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or WALKS:
        print(f"== {name}: {WALKS[name].__doc__}", flush=True)
        WALKS[name](Walk(name, options.folder.resolve(), options.python, options.wheel and options.wheel.resolve()))
