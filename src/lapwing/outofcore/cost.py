"""The cost of a call on a hosted matrix: memory, bytes moved, and time by a model."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.hosted import HostedMatrix
from ..core.plan import bytes_in_words
from ..core.problem import ITEMSIZE, REAL
from ..core.request import Request
from .plan import BUS, DISK, FLOPS, factor_sizes, row_sizes, tall_rows
from .stores import in_memory

_PASSES = 15  # of an iteration for part of a spectrum that converges quickly


@dataclass(frozen=True)
class HostedCost:
    """How a call on a hosted matrix will run. Nothing has run yet."""

    operation: str
    shape: tuple[int, int]
    dtype: str
    engine: str  # "hosted-cuda" or "hosted-cpu"
    panel: int  # columns, or rows, that are worked on together
    panels: int
    device_bytes: int  # buffers on the GPU
    host_bytes: int  # buffers in the host's memory
    scratch_bytes: int  # a temporary factor, in host memory or on disk
    flops: float
    bytes_read: int  # from the host's memory to the GPU, or from disk
    bytes_written: int
    work_seconds: float  # modelled, not measured
    moving_seconds: float  # modelled, not measured
    missing: str = ""  # why the device cannot be used

    modelled = True

    @property
    def predicted_seconds(self) -> float:
        """The longer of the two, as blocks are moved while products run."""
        return max(self.work_seconds, self.moving_seconds)

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    def __str__(self) -> str:
        m, n = self.shape
        way = "over the bus" if self.engine == "hosted-cuda" else "from and to disk or memory"
        limit = "products" if self.work_seconds > self.moving_seconds else "moving the blocks"
        buffers = f"{bytes_in_words(self.device_bytes)} on the device, {bytes_in_words(self.host_bytes)} on the host"
        scratch = f", and {bytes_in_words(self.scratch_bytes)} for the factor" if self.scratch_bytes else ""
        return "\n".join(
            [
                f"{self.operation} of a hosted {m} x {n} {self.dtype} matrix",
                f"  engine      {self.engine}",
                f"  panels      {self.panels} of {self.panel}",
                f"  workspace   {buffers}{scratch}",
                f"  work        {self.flops:.3g} flop",
                f"  moved       {bytes_in_words(self.bytes_read)} in, {bytes_in_words(self.bytes_written)} out, {way}",
                f"  modelled    about {self.predicted_seconds:.2g} s, not measured: {self.work_seconds:.2g} s of products,"
                f" {self.moving_seconds:.2g} s of moving blocks; the limit is {limit}",
                *([f"  note        not usable on this machine: {self.missing}"] if self.missing else []),
            ]
        )


def cost_of(request: Request, a: HostedMatrix, device: str, memory: int, columns: int, part: bool) -> HostedCost:
    """The cost of a call with ``columns`` right-hand sides; ``part``: only some singular values."""
    (m, n), size, on_gpu = a.shape, ITEMSIZE[a.dtype], device != "cpu"
    operation, pos = request.operation, request.assume == "pos"
    speed = speed_of(a, on_gpu)
    scratch = 0
    if operation in ("eigh", "eigvalsh") or part:
        sizes, _ = row_sizes(request.name, max(m, n), 64, size, memory, on_gpu)
        panel, panels, buffers = sizes.chunk, -(-m // sizes.chunk), sizes.bytes
        whole = m * n * size // (1 if part else 2)
        resident = min(whole, max(0, int(0.9 * memory) - sizes.bytes))
        read, written = whole + (_PASSES - 1) * (whole - resident), m * 64 * size
        flops = 2.0 * m * n * 32 * _PASSES
        buffers += resident
    elif operation in ("qr", "svd", "svdvals"):
        rows = tall_rows(request.name, m, n, size, memory)
        panel, panels, buffers = rows, -(-m // rows), (6 * n * n + 6 * n * rows) * size
        vectors = operation == "svd" or (operation == "qr" and request.mode != "r")
        read, written = (2 if vectors else 1) * m * n * size, (2 if vectors else 0) * m * n * size
        flops = (6.0 if vectors else 2.0) * m * n * n
    elif request.assume in ("lower", "upper"):
        sizes, vectors_at_once = row_sizes(request.name, n, columns, size, memory, on_gpu, 1 if on_gpu else 2)
        panel, panels, buffers = sizes.chunk, -(-n // sizes.chunk), sizes.bytes
        read, written = n * n * size // 2 * -(-columns // vectors_at_once), n * columns * size
        flops = 1.0 * n * n * columns
    else:
        sizes = factor_sizes(request.name, max(n, 1), size, memory, on_gpu, pos, speed)
        panel, panels, buffers = sizes.panel, -(-n // sizes.panel), sizes.bytes
        # each panel reads the finished columns once, below its diagonal block or, without symmetry, below the first one
        finished = range(0, n, panel)
        again = sum(k * (n - k) if pos else k * n - k * k // 2 for k in finished)
        read, written = (again + (n * n // 2 if pos else n * n)) * size, n * n * size // (2 if pos else 1)
        flops = n**3 / 3 if pos else 2 * n**3 / 3
        if operation in ("solve", "inv"):
            count = columns if operation == "solve" else n
            _, at_once = row_sizes(request.name, n, count, size, memory, on_gpu, 1 if on_gpu else 2)
            triangle = 1 if operation == "solve" or not pos else 3  # only a triangle of the inverse is computed
            read += n * n * size * -(-count // at_once) // triangle
            written += n * count * size
            flops += 2.0 * n * n * count / triangle
        scratch = 0 if operation == "cholesky" or request.overwrite else n * n * size
    flops *= 4 if a.dtype.startswith("complex") else 1
    rate = FLOPS["cuda" if on_gpu else "cpu"] * (2 if REAL[a.dtype] == "float32" and not on_gpu else 1)
    # the bus moves bytes in both directions at once
    moving = max(read, written) / speed if speed == BUS else (read + written) / speed
    stages = 512 << 20 if on_gpu else 0  # pinned buffers
    return HostedCost(
        request.name, a.shape, a.dtype, "hosted-cuda" if on_gpu else "hosted-cpu", panel, panels,
        buffers if on_gpu else 0, stages if on_gpu else buffers, scratch, flops, int(read), int(written), flops / rate, moving,
    )  # fmt: skip


def speed_of(a: HostedMatrix, on_gpu: bool) -> float:
    """Bytes per second at which blocks of the matrix arrive, by the model."""
    return BUS if on_gpu and in_memory(a.source) else DISK
