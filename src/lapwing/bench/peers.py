"""The calls of each library for each operation: the usual one, and special routines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .libraries import open_library
from .library import Call, Library

if TYPE_CHECKING:
    from .case import Case


class Peer(NamedTuple):
    """A call in words and as a function of the input: the matrix, or a pair of it and right-hand sides."""

    text: str
    call: Call
    queued: Call | None = None  # the call that does not wait for the device, if that is another one


# Special routines: the routine, its library, and the operations and kinds of matrices that it is for.
_SPECIAL = {
    "cho_solve": ("scipy", ("solve pos",)),
    "lu_solve": ("scipy", ("solve general",)),
    "gelsy": ("scipy", ("lstsq general",)),
    "torch_solve": ("torch", ("solve pos", "solve symmetric")),
    "torch_inv": ("torch", ("inv pos",)),
    "gels": ("torch", ("lstsq general",)),
    "jax_solve": ("jax", ("solve pos",)),
    "jax_inv": ("jax", ("inv pos",)),
    "gesvd": ("torch", ("svd general", "svdvals general")),
    "gesvdj": ("torch", ("svd general", "svdvals general")),
    "gesvda": ("torch", ("svd general", "svdvals general")),
}
# in torch users can choose a driver of svd only on a GPU, and of lstsq only on the CPU
_DRIVERS = ("gesvd", "gesvdj", "gesvda")
_DEVICE_OF = {**dict.fromkeys(_DRIVERS, "cuda"), "gels": "cpu"}
# SciPy's Lanczos iterations, for a part at an end of the spectrum of one matrix
_EIGSH, _EIGSH_INVERSE = "eigsh", "eigsh_inverse"
_FAST: dict[str, Any] = {"check_finite": False}  # for SciPy, as the other libraries do not check the values either


def peer_of(library: Library, case: Case, name: str) -> Peer:
    """The library's routine of that name, or its usual call for the case; compiled if that is usual."""
    offered = _PEERS[library.name](library, case)
    key = _key(offered, case, name)
    assert key is not None, f"{name} has no {case.operation}"
    text, call, queued = offered[key]
    return Peer(text, library.compiled(call), library.compiled(queued or call))


def has_peer(library: Library, case: Case) -> bool:
    """Whether the library has a routine for the case."""
    return _key(_PEERS[library.name](library, case), case) is not None


def _key(offered: dict[str, Peer], case: Case, name: str = "") -> str | None:
    return next((k for k in (name, f"{case.operation} {case.assume}", case.operation) if k in offered), None)


def peer_text(name: str, case: Case) -> str:
    library = "scipy" if name in (_EIGSH, _EIGSH_INVERSE) else _SPECIAL[name][0] if name in _SPECIAL else name
    return peer_of(open_library(library), case, name).text


def special_routines(case: Case) -> tuple[tuple[str, str], ...]:
    """(routine, library) for each that suits the case."""
    if case.operation in ("eigh", "eigvalsh"):
        if not case.problem.at_an_end or case.batch > 1 or case.device != "cpu" or 2 * case.count >= case.n:
            return ()
        # with the inverse ARPACK finds the values near zero: the smallest ones if the matrix is surely positive definite
        inverse = case.part is not None and case.part[0] == 0 and case.matrix == "wishart_shift"
        return ((_EIGSH, "scipy"), (_EIGSH_INVERSE, "scipy")) if inverse else ((_EIGSH, "scipy"),)
    return tuple(
        (name, library) for name, (library, suits) in _SPECIAL.items()
        if f"{case.operation} {case.assume}" in suits and _DEVICE_OF.get(name, case.device) == case.device
    )  # fmt: skip


def _with_b(call: Callable[..., Any], **options: Any) -> Call:
    """A call that gets the matrix and the right-hand sides as a pair."""
    return lambda ab: call(*ab, **options)


def _spectra(case: Case, text: str, eigh: Call, eigvalsh: Call) -> dict[str, Peer]:
    """The two calls of a library without subsets; it computes all values, and the part is cut out afterwards."""
    if case.part is None:
        return {"eigh": Peer(text.format("eigh"), eigh), "eigvalsh": Peer(text.format("eigvalsh"), eigvalsh)}
    part = slice(case.part[0], sum(case.part))
    return {
        "eigh": Peer(f"{text.format('eigh')}, then the part", lambda a: tuple(x[..., part] for x in eigh(a))),
        "eigvalsh": Peer(f"{text.format('eigvalsh')}, then the part", lambda a: eigvalsh(a)[..., part]),
    }


def _usual(prefix: str, linalg: Any, case: Case) -> dict[str, Peer]:
    """The calls that NumPy, CuPy and torch share."""
    uplo = "U" if case.upper else "L"
    return {
        **_spectra(case, f"{prefix}.{{}}(a)", partial(linalg.eigh, UPLO=uplo), partial(linalg.eigvalsh, UPLO=uplo)),
        "solve": Peer(f"{prefix}.solve(a, b)", _with_b(linalg.solve)),
        "inv": Peer(f"{prefix}.inv(a)", linalg.inv),
        "slogdet": Peer(f"{prefix}.slogdet(a)", linalg.slogdet),
        "det": Peer(f"{prefix}.det(a)", linalg.det),
        "qr": Peer(f"{prefix}.qr(a)", linalg.qr),
        "svd": Peer(f"{prefix}.svd(a, full_matrices=False)", partial(linalg.svd, full_matrices=False)),
        "svdvals": Peer(f"{prefix}.svd(a, compute_uv=False)", lambda a: linalg.svd(a, compute_uv=False)),
        "lstsq": Peer(f"{prefix}.lstsq(a, b, rcond=None)[0]", lambda ab: linalg.lstsq(*ab, rcond=None)[0]),
        **_general(prefix + ".{}(a)", linalg),
    }


def _general(text: str, linalg: Any) -> dict[str, Peer]:
    """Eigenvalues of general matrices, if the library has them: CuPy since release 14."""
    names = [name for name in ("eig", "eigvals") if hasattr(linalg, name)]
    return {name: Peer(text.format(name), getattr(linalg, name)) for name in names}


def _numpy(library: Library, case: Case) -> dict[str, Peer]:
    call: Call = np.linalg.cholesky
    if case.upper:
        try:
            np.linalg.cholesky(np.eye(1), upper=True)
            call = partial(np.linalg.cholesky, upper=True)
        except TypeError:  # before NumPy 2
            call = lambda a: np.conj(np.swapaxes(np.linalg.cholesky(a), -1, -2))  # noqa: E731
    return {**_usual("numpy.linalg", np.linalg, case), "cholesky": Peer("numpy.linalg.cholesky(a)", call)}


def _cupy(library: Any, case: Case) -> dict[str, Peer]:
    import cupyx.scipy.linalg as cl

    linalg = library.cupy.linalg
    upper = lambda a: linalg.cholesky(a).conj().swapaxes(-1, -2)  # noqa: E731
    call = upper if case.upper else linalg.cholesky
    return {
        **_usual("cupy.linalg", linalg, case),
        "cholesky": Peer("cupy.linalg.cholesky(a)", call),
        "solve lower": Peer("cupyx.scipy.linalg.solve_triangular(a, b, lower=True)", _with_b(cl.solve_triangular, lower=True)),
        "lu": Peer("cupyx.scipy.linalg.lu_factor(a)", partial(cl.lu_factor, check_finite=False)),
    }


def _scipy(library: Library, case: Case) -> dict[str, Peer]:
    import scipy.linalg as sl

    lower = not case.upper
    pos = {"assume_a": "pos", "lower": lower}
    try:
        sl.inv(np.eye(1), **pos)
        inverse = Peer('scipy.linalg.inv(a, assume_a="pos")', partial(sl.inv, **_FAST, **pos))
    except TypeError:  # before SciPy 1.17
        inverse = Peer("scipy.linalg.inv(a)", partial(sl.inv, **_FAST))
    part = {} if case.part is None else {"subset_by_index": [case.part[0], sum(case.part) - 1]}
    pairs = partial(sl.eigh, lower=lower, **part, **_FAST)
    pairs_text = f"scipy.linalg.eigh(a, check_finite=False{', subset_by_index' if part else ''})"
    end = "SA" if case.part and not case.part[0] else "LA"
    return {
        "cholesky": Peer(
            "scipy.linalg.cholesky(a, lower=True, check_finite=False)", partial(sl.cholesky, lower=lower, **_FAST)
        ),
        "eigh": Peer(pairs_text, pairs),
        "eigvalsh": Peer(pairs_text, partial(pairs, eigvals_only=True)),
        _EIGSH: Peer(f"scipy.sparse.linalg.eigsh(a, k, which={end!r}, tol=n*eps/8)", _eigsh(case, which=end)),
        _EIGSH_INVERSE: Peer("scipy.sparse.linalg.eigsh(a, k, sigma=0, tol=n*eps/8)", _eigsh(case, which="LM", sigma=0.0)),
        "solve": Peer('scipy.linalg.solve(a, b, assume_a="gen")', _with_b(sl.solve, assume_a="gen", **_FAST)),
        "solve pos": Peer('scipy.linalg.solve(a, b, assume_a="pos")', _with_b(sl.solve, **pos, **_FAST)),
        "solve symmetric": Peer('scipy.linalg.solve(a, b, assume_a="sym")', _with_b(sl.solve, assume_a="sym", **_FAST)),
        "solve lower": Peer(
            "scipy.linalg.solve_triangular(a, b, lower=True)", _with_b(sl.solve_triangular, lower=True, **_FAST)
        ),
        "cho_solve": Peer(
            "scipy.linalg.cho_solve(cho_factor(a), b)",
            lambda ab: sl.cho_solve(sl.cho_factor(ab[0], lower=lower, **_FAST), ab[1], **_FAST),
        ),
        "lu_solve": Peer(
            "scipy.linalg.lu_solve(lu_factor(a), b)", lambda ab: sl.lu_solve(sl.lu_factor(ab[0], **_FAST), ab[1], **_FAST)
        ),
        "inv": Peer("scipy.linalg.inv(a)", partial(sl.inv, **_FAST)),
        "inv pos": inverse,
        "det": Peer("scipy.linalg.det(a)", partial(sl.det, **_FAST)),
        "lu": Peer("scipy.linalg.lu_factor(a)", partial(sl.lu_factor, **_FAST)),
        "qr": Peer('scipy.linalg.qr(a, mode="economic")', partial(sl.qr, mode="economic", **_FAST)),
        "svd": Peer("scipy.linalg.svd(a, full_matrices=False)", partial(sl.svd, full_matrices=False, **_FAST)),
        "svdvals": Peer("scipy.linalg.svdvals(a)", partial(sl.svdvals, **_FAST)),
        "lstsq": Peer("scipy.linalg.lstsq(a, b)[0]", lambda ab: sl.lstsq(*ab, **_FAST)[0]),
        "eig": Peer("scipy.linalg.eig(a)", partial(sl.eig, **_FAST)),
        "eigvals": Peer("scipy.linalg.eigvals(a)", partial(sl.eigvals, **_FAST)),
        "schur": Peer("scipy.linalg.schur(a)", partial(sl.schur, **_FAST)),
        "gelsy": Peer(
            'scipy.linalg.lstsq(a, b, lapack_driver="gelsy")[0]', lambda ab: sl.lstsq(*ab, lapack_driver="gelsy", **_FAST)[0]
        ),
    }


def _eigsh(case: Case, **options: Any) -> Call:
    """With the tolerance of lapwing's iteration, n eps / 8; by default ARPACK would continue to eps."""
    values_only = case.operation == "eigvalsh"

    def call(a: np.ndarray) -> Any:
        from scipy.sparse.linalg import eigsh

        tolerance = case.n / 8 * float(np.finfo(case.dtype).eps)
        result = eigsh(a, k=case.count, tol=tolerance, return_eigenvectors=not values_only, **options)
        if values_only:
            return np.sort(result)
        order = np.argsort(result[0])
        return result[0][order], result[1][:, order]

    return call


def _torch(library: Any, case: Case) -> dict[str, Peer]:
    torch, linalg, upper = library.torch, library.torch.linalg, case.upper

    def factor(a: Any) -> Any:
        return linalg.cholesky(a, upper=upper)

    def factor_ex(a: Any) -> Any:
        return linalg.cholesky_ex(a, upper=upper)[0]

    general = Peer("torch.linalg.solve(a, b)", _with_b(linalg.solve), lambda ab: linalg.solve_ex(*ab)[0])
    inverse = Peer("torch.linalg.inv(a)", linalg.inv, lambda a: linalg.inv_ex(a)[0])
    values = case.operation == "svdvals"
    decompose = linalg.svdvals if values else partial(linalg.svd, full_matrices=False)
    return {
        **_usual("torch.linalg", linalg, case),
        "cholesky": Peer(
            "torch.linalg.cholesky(a); queued: torch.linalg.cholesky_ex(a)", factor if upper else linalg.cholesky, factor_ex
        ),
        "solve": general,
        "solve pos": Peer(
            "torch.cholesky_solve(b, torch.linalg.cholesky(a))",
            lambda ab: torch.cholesky_solve(ab[1], factor(ab[0]), upper=upper),
            lambda ab: torch.cholesky_solve(ab[1], factor_ex(ab[0]), upper=upper),
        ),
        "solve symmetric": Peer(
            "torch.linalg.ldl_solve(*torch.linalg.ldl_factor(a), b)",
            lambda ab: linalg.ldl_solve(*linalg.ldl_factor(ab[0]), ab[1]),
            lambda ab: linalg.ldl_solve(*linalg.ldl_factor_ex(ab[0])[:2], ab[1]),
        ),
        "solve lower": Peer("torch.linalg.solve_triangular(a, b, upper=False)", _with_b(linalg.solve_triangular, upper=False)),
        "torch_solve": general,
        "inv": inverse,
        "lu": Peer("torch.linalg.lu_factor(a)", linalg.lu_factor, lambda a: linalg.lu_factor_ex(a)[:2]),
        "svdvals": Peer("torch.linalg.svdvals(a)", linalg.svdvals),
        "inv pos": Peer(
            "torch.cholesky_inverse(torch.linalg.cholesky(a))",
            lambda a: torch.cholesky_inverse(factor(a), upper=upper),
            lambda a: torch.cholesky_inverse(factor_ex(a), upper=upper),
        ),
        "torch_inv": inverse,
        **{
            name: Peer(
                f'torch.linalg.{"svdvals(a, " if values else "svd(a, full_matrices=False, "}driver="{name}")',
                partial(decompose, driver=name),
            )
            for name in _DRIVERS
        },
        "lstsq": Peer("torch.linalg.lstsq(a, b).solution", lambda ab: linalg.lstsq(*ab).solution),
        "gels": Peer('torch.linalg.lstsq(a, b, driver="gels").solution', lambda ab: linalg.lstsq(*ab, driver="gels").solution),
    }


def _jax(library: Any, case: Case) -> dict[str, Peer]:
    jnp, lax, upper = library.jax.numpy, library.jax.lax.linalg, case.upper
    options = {"UPLO": "U" if upper else "L", "symmetrize_input": False}

    def factor(a: Any) -> Any:
        l = lax.cholesky(a, symmetrize_input=False)
        return jnp.conj(l.mT) if upper else l

    def solved(a: Any, b: Any) -> Any:
        l = lax.cholesky(jnp.conj(a.mT) if upper else a, symmetrize_input=False)
        y = lax.triangular_solve(l, b, left_side=True, lower=True)
        return lax.triangular_solve(l, y, left_side=True, lower=True, transpose_a=True, conjugate_a=True)

    def least(a: Any, b: Any) -> Any:
        return jnp.linalg.lstsq(a, b)[0]

    def factored_rows(a: Any) -> Any:
        lu, _, rows = lax.lu(a)
        return lu, rows

    def inverted(a: Any) -> Any:
        return solved(a, jnp.broadcast_to(jnp.eye(case.n, dtype=a.dtype), a.shape))

    general = Peer("jax.jit(jax.numpy.linalg.solve)(a, b)", _with_b(jnp.linalg.solve))
    inverse = Peer("jax.jit(jax.numpy.linalg.inv)(a)", jnp.linalg.inv)
    factored = "jax.jit of jax.lax.linalg.cholesky and two triangular_solve"
    spectra = partial(jnp.linalg.eigh, **options), partial(jnp.linalg.eigvalsh, **options)
    return {
        **_spectra(case, "jax.jit(jax.numpy.linalg.{})(a), symmetrize_input=False", *spectra),
        "cholesky": Peer("jax.jit(jax.lax.linalg.cholesky)(a), symmetrize_input=False", factor),
        "solve": general,
        "solve pos": Peer(f"{factored} of b", _with_b(solved)),
        "jax_solve": general,
        "solve lower": Peer(
            "jax.jit(jax.lax.linalg.triangular_solve)(a, b)", _with_b(lax.triangular_solve, left_side=True, lower=True)
        ),
        "slogdet": Peer("jax.jit(jax.numpy.linalg.slogdet)(a)", jnp.linalg.slogdet),
        "det": Peer("jax.jit(jax.numpy.linalg.det)(a)", jnp.linalg.det),
        "lu": Peer("jax.jit(jax.lax.linalg.lu)(a)", factored_rows),
        "svdvals": Peer("jax.jit(jax.numpy.linalg.svd)(a), compute_uv=False", partial(jnp.linalg.svd, compute_uv=False)),
        "inv": inverse,
        "inv pos": Peer(f"{factored} of I", inverted),
        "jax_inv": inverse,
        "qr": Peer("jax.jit(jax.numpy.linalg.qr)(a)", jnp.linalg.qr),
        "svd": Peer("jax.jit(jax.numpy.linalg.svd)(a), full_matrices=False", partial(jnp.linalg.svd, full_matrices=False)),
        "lstsq": Peer(
            "jax.jit(jax.numpy.linalg.lstsq)(a, b)[0], under vmap for a batch",
            _with_b(library.jax.vmap(least) if case.lead else least),
        ),
        **_general("jax.jit(jax.numpy.linalg.{})(a)", jnp.linalg),
        **_jax_schur(library, case),
    }


def _jax_schur(library: Any, case: Case) -> dict[str, Peer]:
    """Only on the CPU, and one matrix at a time."""
    if case.device != "cpu" or case.lead:
        return {}
    from jax.scipy.linalg import schur

    return {"schur": Peer("jax.jit(jax.scipy.linalg.schur)(a)", schur)}


def _tensorflow(library: Any, case: Case) -> dict[str, Peer]:
    linalg, real = library.tf.linalg, library.tf.math.real  # eigenvalues of complex matrices come as complex numbers

    def lower(a: Any) -> Any:
        return linalg.adjoint(a) if case.upper else a

    def pairs(a: Any) -> Any:
        w, v = linalg.eigh(lower(a))
        return real(w), v

    def decomposed(a: Any) -> Any:
        s, u, v = linalg.svd(a, full_matrices=False)
        return u, s, linalg.adjoint(v)

    factor = (lambda a: linalg.adjoint(linalg.cholesky(a))) if case.upper else linalg.cholesky
    return {
        **_spectra(case, "tensorflow.linalg.{}(a)", pairs, lambda a: real(linalg.eigvalsh(lower(a)))),
        "cholesky": Peer("tensorflow.linalg.cholesky(a)", factor),
        "solve": Peer("tensorflow.linalg.solve(a, b)", _with_b(linalg.solve)),
        "solve pos": Peer(
            "tensorflow.linalg.cholesky_solve(tensorflow.linalg.cholesky(a), b)",
            lambda ab: linalg.cholesky_solve(linalg.cholesky(lower(ab[0])), ab[1]),
        ),
        "solve lower": Peer("tensorflow.linalg.triangular_solve(a, b)", _with_b(linalg.triangular_solve, lower=True)),
        "slogdet": Peer("tensorflow.linalg.slogdet(a)", lambda a: tuple(linalg.slogdet(a))),
        "det": Peer("tensorflow.linalg.det(a)", linalg.det),
        "lu": Peer("tensorflow.linalg.lu(a)", lambda a: tuple(linalg.lu(a))),
        "svdvals": Peer("tensorflow.linalg.svd(a, compute_uv=False)", partial(linalg.svd, compute_uv=False)),
        "inv": Peer("tensorflow.linalg.inv(a)", linalg.inv),
        "qr": Peer("tensorflow.linalg.qr(a)", linalg.qr),
        "svd": Peer("tensorflow.linalg.svd(a)", decomposed),
        "lstsq": Peer("tensorflow.linalg.lstsq(a, b, fast=False)", _with_b(linalg.lstsq, fast=False)),
        **_general("tensorflow.linalg.{}(a)", linalg),
    }


_PEERS: dict[str, Callable[[Any, Case], dict[str, Peer]]] = {
    "numpy": _numpy,
    "scipy": _scipy,
    "torch": _torch,
    "jax": _jax,
    "tensorflow": _tensorflow,
    "cupy": _cupy,
}
