"""Invariances of functions in a kernel's space: regularizers of `ProxKernelFeatures`."""

from typing import Any

import keras
import numpy as np

from proxnet_tf.checks import check_choice, check_integer, check_number
from proxnet_tf.ops import kernels
from proxnet_tf.ops.linear.number import real_array

_KINDS = ("gradient_flatness", "graph_laplacian", "gradient_variation")


@keras.saving.register_keras_serializable(package="proxnet_tf")
class Invariance:
    """An invariance that `ProxKernelFeatures` gives its functions f at `points` x_i.

    | kind | R(f) |
    | --- | --- |
    | `"gradient_flatness"` | weight/2 sum_i of the squared norms of grad f(x_i) |
    | `"graph_laplacian"` | weight/2 sum_ij w_ij (f(x_i) - f(x_j))^2, w_ij = 1 for neighbours |
    | `"gradient_variation"` | weight sum_i sqrt(squared norm of grad f(x_i) + smoothing^2) |

    The last, a total variation, is not quadratic: its proximal map has no closed form.

    Args:
        kind: one of the above.
        points: (p, d) array of the x_i; None (the default) takes the landmarks.
        weight: > 0; 1 by default.
        num_neighbors: of every point, for the graph Laplacian; 5 by default.
        smoothing: for the gradient variation, > 0; 1e-2 by default.

    Raises:
        ValueError: an unknown kind, or a value out of range.

    Example:
        >>> Invariance("graph_laplacian", points=[[0.0], [1.0], [3.0]], num_neighbors=1).quadratic
        True

    Reference: Li, Ma, Zhang (2020), section 3.
    """

    def __init__(
        self,
        kind: str,
        *,
        points: Any = None,
        weight: float = 1.0,
        num_neighbors: int = 5,
        smoothing: float = 1e-2,
    ):
        check_choice("kind", kind, _KINDS)
        self.kind = kind
        self.points = None if points is None else finite_matrix("points", points)
        self.weight = check_number("weight", weight, above=0.0)
        self.num_neighbors = check_integer("num_neighbors", num_neighbors)
        self.smoothing = check_number("smoothing", smoothing, above=0.0)

    @property
    def quadratic(self) -> bool:
        """Whether the proximal map is linear."""
        return self.kind != "gradient_variation"

    def functionals(self, landmarks: np.ndarray) -> kernels.Functionals:
        """The representers of R / weight in float64."""
        points = landmarks if self.points is None else self.points
        if points.shape[1] != landmarks.shape[1]:
            raise ValueError(
                f"The points of an Invariance must have the landmarks' {landmarks.shape[1]} "
                f"features. Received: points of shape {points.shape}"
            )
        if self.kind == "graph_laplacian":
            adjacency = kernels.neighbor_adjacency(points, self.num_neighbors)
            return kernels.graph_laplacian(points, adjacency)
        return kernels.Functionals(points, derivative=True)

    def get_config(self) -> dict[str, Any]:
        """Every argument."""
        return {
            "kind": self.kind,
            "points": None if self.points is None else self.points.tolist(),
            "weight": self.weight,
            "num_neighbors": self.num_neighbors,
            "smoothing": self.smoothing,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Invariance":
        """The inverse of `get_config`."""
        return cls(**config)


def finite_matrix(name: str, value: Any) -> np.ndarray:
    """`value` as a float64 matrix, or a `ValueError` if it is no matrix or not finite."""
    matrix = real_array(f"`{name}`", value)
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise ValueError(
            f"`{name}` must be a finite array of shape (rows, features), neither of them 0. "
            f"Received: shape {matrix.shape}"
        )
    return matrix
