"""The kernels. Each is a formula of squared distances; gram/compute.py makes the matrix of it."""

from __future__ import annotations

from typing import Any

from . import formulas
from .compute import kernel_matrix
from .points import check_count, check_number, check_points, check_positive

__all__ = ["dispersal", "euclidean", "gaussian", "laplacian", "ntk_relu", "ntk_relu_unit_sphere"]


def euclidean(x: Any, y: Any = None, *, squared: bool = True) -> Any:
    """Squared distances |x_i - y_j|^2 between points, or with ``squared=False`` the distances.

    Parameters
    ----------
    x : array, shape (n, d)
        float32 or float64, of NumPy, PyTorch, JAX, TensorFlow or CuPy.
    y : array, shape (m, d), optional
        Of the same library, dtype and device. None: the points of ``x``.
    squared : bool
        False takes the square root. Its derivative where points coincide is zero.

    Returns
    -------
    array, shape (n, m)
        Never negative. Zero on the diagonal and exactly symmetric when ``x`` is compared with itself.

    Raises
    ------
    ValueError, TypeError
        Wrong rank, number of coordinates, dtype, or arrays of different libraries, dtypes or devices.

    Notes
    -----
    Up to 8 coordinates the differences are summed directly. Beyond, a matrix product does the work, on points shifted to
    their mean, in float64, and pairs too close for it are done again from their differences. JAX without float64 uses
    float32 there; JAX and TensorFlow do not repeat close pairs, so that a squared distance has an absolute error of about
    eps (|x|^2 + |y|^2).

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> gram.euclidean(np.array([[0.0, 0.0], [3.0, 4.0]]))
    array([[ 0., 25.],
           [25.,  0.]])
    """
    if type(squared) is not bool:
        raise TypeError(f"euclidean: squared={squared!r} is not True or False")
    points = check_points("euclidean", x, y)
    return kernel_matrix(points, formulas.squared if squared else formulas.distance)


def gaussian(x: Any, y: Any = None, *, length_scale: Any = 1.0) -> Any:
    """Gaussian kernel exp(-|x_i - y_j|^2 / (2 length_scale^2)).

    Parameters
    ----------
    x, y : arrays, shapes (n, d) and (m, d)
        As for :func:`euclidean`.
    length_scale : float, or scalar array of the same library
        Positive. As an array it has a gradient too.

    Returns
    -------
    array, shape (n, m)
        Ones on the diagonal and exactly symmetric when ``x`` is compared with itself.

    Raises
    ------
    ValueError, TypeError
        As for :func:`euclidean`; ``length_scale`` is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> k = gram.gaussian(np.random.default_rng(0).standard_normal((100, 3)), length_scale=2.0)
    >>> bool((k == k.T).all() and (np.diagonal(k) == 1).all())
    True
    """
    points = check_points("gaussian", x, y)
    return kernel_matrix(points, formulas.gaussian, check_positive("gaussian", "length_scale", length_scale))


def laplacian(x: Any, y: Any = None, *, length_scale: Any = 1.0) -> Any:
    """Laplacian kernel exp(-|x_i - y_j| / length_scale), with the Euclidean distance.

    Parameters
    ----------
    x, y : arrays, shapes (n, d) and (m, d)
        As for :func:`euclidean`.
    length_scale : float, or scalar array of the same library
        Positive.

    Returns
    -------
    array, shape (n, m)

    Raises
    ------
    ValueError, TypeError
        As for :func:`gaussian`.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> gram.laplacian(np.array([[0.0], [2.0]]), length_scale=2.0).round(3)
    array([[1.   , 0.368],
           [0.368, 1.   ]])
    """
    points = check_points("laplacian", x, y)
    return kernel_matrix(points, formulas.laplacian, check_positive("laplacian", "length_scale", length_scale))


def dispersal(x: Any, y: Any = None, *, length_scale: Any = 1.0, gamma: Any = 1.0) -> Any:
    """Dispersal kernel exp(-|x_i - y_j|^gamma / length_scale).

    Parameters
    ----------
    x, y : arrays, shapes (n, d) and (m, d)
        As for :func:`euclidean`.
    length_scale : float, or scalar array of the same library
        Positive. It divides the power of the distance, not the distance.
    gamma : float, or scalar array of the same library
        Positive. The matrix is positive definite for gamma <= 2.

    Returns
    -------
    array, shape (n, m)

    Raises
    ------
    ValueError, TypeError
        As for :func:`gaussian`.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> x = np.random.default_rng(0).standard_normal((5, 2))
    >>> np.allclose(gram.dispersal(x, length_scale=3.0, gamma=1.0), gram.laplacian(x, length_scale=3.0))
    True
    """
    points = check_points("dispersal", x, y)
    scale = check_positive("dispersal", "length_scale", length_scale)
    return kernel_matrix(points, formulas.dispersal, scale, check_positive("dispersal", "gamma", gamma))


def ntk_relu(x: Any, y: Any = None, *, depth: int = 1, bias: Any = 0.0) -> Any:
    """Neural tangent kernel of a fully connected ReLU network.

    Parameters
    ----------
    x, y : arrays, shapes (n, d) and (m, d)
        As for :func:`euclidean`.
    depth : int
        Layers. With one the kernel is x_i . y_j + bias^2.
    bias : float, or scalar array of the same library

    Returns
    -------
    array, shape (n, m)

    Raises
    ------
    ValueError, TypeError
        As for :func:`euclidean`; ``depth`` is not a positive integer.

    See Also
    --------
    ntk_relu_unit_sphere : for points of length one.

    Notes
    -----
    Angles come from distances of directions, not from the inverse cosine, so that nearly parallel points keep their digits.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> gram.ntk_relu(np.array([[1.0, 0.0], [0.0, 2.0]]), depth=2).round(3)
    array([[2.   , 0.637],
           [0.637, 8.   ]])
    """
    points = check_points("ntk_relu", x, y)
    depth, bias = check_count("ntk_relu", "depth", depth), check_number("ntk_relu", "bias", bias)
    return kernel_matrix(points, formulas.ntk, bias, depth=depth, directions=True)


def ntk_relu_unit_sphere(x: Any, y: Any = None, *, depth: int = 1, bias: Any = 0.0) -> Any:
    """:func:`ntk_relu` for points that have length one; that they do is not checked.

    Parameters
    ----------
    x, y : arrays, shapes (n, d) and (m, d)
        As for :func:`euclidean`.
    depth : int
        Layers.
    bias : float, or scalar array of the same library

    Returns
    -------
    array, shape (n, m)

    Raises
    ------
    ValueError, TypeError
        As for :func:`ntk_relu`.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> x = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> np.allclose(gram.ntk_relu_unit_sphere(x, depth=3), gram.ntk_relu(x, depth=3))
    True
    """
    name = "ntk_relu_unit_sphere"
    points = check_points(name, x, y)
    depth, bias = check_count(name, "depth", depth), check_number(name, "bias", bias)
    return kernel_matrix(points, formulas.ntk, bias, depth=depth)
