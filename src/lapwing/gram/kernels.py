"""The kernels. Each is a formula of squared distances, which gram/compute.py evaluates."""

from __future__ import annotations

from typing import Any, Never

import numpy as np

from ..core.keywords import unknown_keyword
from . import formulas
from .compute import divide, kernel_matrix
from .formulas import Kernel
from .points import Points, check_count, check_number, check_points, check_positive, in_safe_range, per_coordinate


def euclidean(x: Any, y: Any = None, *, squared: bool = True) -> Any:
    """Squared distances |x_i - y_j|^2 between points, or with ``squared=False`` the distances.

    Parameters
    ----------
    x : array, shape (n, d)
        float32 or float64, from NumPy, PyTorch, JAX, TensorFlow or CuPy.
    y : array, shape (m, d), optional
        From the same library, with the same dtype and device. Default: the points of ``x``.
    squared : bool
        False takes the square root. Its derivative where points coincide is zero.

    Returns
    -------
    array, shape (n, m)
        Never negative. Zero on the diagonal and exactly symmetric when ``x`` is compared with itself.

    Raises
    ------
    ValueError, TypeError
        Wrong rank, number of coordinates or dtype, or arrays of different libraries, dtypes or devices.

    Notes
    -----
    Up to 8 coordinates the differences are summed directly. With more, a matrix product does the work, on points shifted to
    their mean, in float64, and pairs too close for it are computed again from their differences. JAX, TensorFlow and torch
    under a transform do not repeat close pairs, and JAX without float64 uses float32 for the product, so that a squared
    distance has an absolute error of about eps (|x|^2 + |y|^2).

    A point with a coordinate that is NaN or Inf makes its whole row and column NaN.

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
    return kernel_matrix(points, Kernel(formulas.squared if squared else formulas.distance))


def gaussian(x: Any, y: Any = None, length_scale: Any = 1.0, **unknown: Never) -> Any:
    """Gaussian kernel exp(-|x_i - y_j|^2 / (2 length_scale^2)).

    Parameters
    ----------
    x, y : arrays, shapes (n, d) and (m, d)
        As for :func:`euclidean`.
    length_scale : float, list of d floats, or array of the same library, of shape () or (d,)
        Positive: one for all coordinates, or one for each. An array has a gradient too.

    Returns
    -------
    array, shape (n, m)
        Ones on the diagonal and exactly symmetric when ``x`` is compared with itself.

    Raises
    ------
    ValueError, TypeError
        As for :func:`euclidean`; ``length_scale`` is not positive, or has not one value per coordinate.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> x = np.random.default_rng(0).standard_normal((100, 3))
    >>> k = gram.gaussian(x, length_scale=2.0)
    >>> bool((k == k.T).all() and (np.diagonal(k) == 1).all())
    True
    >>> np.allclose(gram.gaussian(x, x[:5], [2.0, 2.0, 2.0]), k[:, :5])
    True
    """
    if unknown:
        raise unknown_keyword(gaussian, unknown)
    return _with_length_scale("gaussian", x, y, length_scale)


def laplacian(x: Any, y: Any = None, length_scale: Any = 1.0, **unknown: Never) -> Any:
    """Laplacian kernel exp(-|x_i - y_j| / length_scale), with the Euclidean distance.

    Parameters, result and errors are those of :func:`gaussian`.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> gram.laplacian(np.array([[0.0], [2.0]]), length_scale=2.0).round(3)
    array([[1.   , 0.368],
           [0.368, 1.   ]])
    """
    if unknown:
        raise unknown_keyword(laplacian, unknown)
    return _with_length_scale("laplacian", x, y, length_scale)


def _with_length_scale(operation: str, x: Any, y: Any, length_scale: Any) -> Any:
    points = check_points(operation, x, y)
    scales = per_coordinate(points, "length_scale", length_scale)
    if scales is None:
        points, scale = in_safe_range(points, check_positive(operation, "length_scale", length_scale))
    else:
        points, scale = _divided(points, scales), 1.0
    return kernel_matrix(points, Kernel(getattr(formulas, operation)), scale)


def _divided(points: Points, scales: Any) -> Points:
    if isinstance(scales, list) and scales:
        largest = max(scales)
        points, safe = in_safe_range(points, largest)
        least = float(np.finfo(points.framework.dtype_of(points.x)).tiny)
        scales = [max(s * (safe / largest), least) for s in scales]
    return divide(points, scales)


def dispersal(x: Any, y: Any = None, length_scale: Any = 1.0, gamma: Any = 1.0, **unknown: Never) -> Any:
    """Dispersal kernel exp(-|x_i - y_j|^gamma / length_scale).

    Parameters
    ----------
    x, y : arrays, shapes (n, d) and (m, d)
        As for :func:`euclidean`.
    length_scale : float, or scalar array of the same library
        Positive. It divides the power of the distance, not the distance.
    gamma : float, or scalar array of the same library
        Positive. The matrix is positive definite for gamma <= 2.

    Result and errors are those of :func:`gaussian`.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> x = np.random.default_rng(0).standard_normal((5, 2))
    >>> np.allclose(gram.dispersal(x, length_scale=3.0, gamma=1.0), gram.laplacian(x, length_scale=3.0))
    True
    """
    if unknown:
        raise unknown_keyword(dispersal, unknown)
    points = check_points("dispersal", x, y)
    scale = check_positive("dispersal", "length_scale", length_scale)
    gamma = check_positive("dispersal", "gamma", gamma)
    points, scale = in_safe_range(points, scale, gamma)
    return kernel_matrix(points, Kernel(formulas.dispersal), scale, gamma)


def ntk_relu(x: Any, y: Any = None, *, depth: int = 1, bias: Any = 0.0) -> Any:
    """Neural tangent kernel of a fully connected ReLU network.

    Parameters
    ----------
    x, y : arrays, shapes (n, d) and (m, d)
        As for :func:`euclidean`.
    depth : int
        Number of layers. With one the kernel is x_i . y_j + bias^2.
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
    Angles are computed from distances between directions, not by the inverse cosine, so that nearly parallel points keep
    their digits.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> gram.ntk_relu(np.array([[1.0, 0.0], [0.0, 2.0]]), depth=2).round(3)
    array([[2.   , 0.637],
           [0.637, 8.   ]])
    """
    return _ntk("ntk_relu", x, y, depth, bias, directions=True)


def ntk_relu_unit_sphere(x: Any, y: Any = None, *, depth: int = 1, bias: Any = 0.0) -> Any:
    """:func:`ntk_relu` for points of length one, which saves dividing by the lengths. The lengths are not checked.

    Parameters, result and errors are those of :func:`ntk_relu`.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import gram
    >>> x = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> np.allclose(gram.ntk_relu_unit_sphere(x, depth=3), gram.ntk_relu(x, depth=3))
    True
    """
    return _ntk("ntk_relu_unit_sphere", x, y, depth, bias, directions=False)


def _ntk(operation: str, x: Any, y: Any, depth: Any, bias: Any, directions: bool) -> Any:
    points = check_points(operation, x, y)
    depth, bias = check_count(operation, "depth", depth), check_number(operation, "bias", bias)
    return kernel_matrix(points, Kernel(formulas.ntk, depth, directions), bias)
