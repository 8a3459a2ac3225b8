"""Solvers of the multiview proximal layers, as arguments: `ProxCCA(solver=Newton(...))`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import keras

from proxnet_tf.checks import check_device, check_integer, check_number
from proxnet_tf.ops.multiview.newton import Settings


@dataclass(frozen=True)
class MultiviewSolver(Settings):
    """What the solvers of the multiview layers share; see `Newton` for the arguments."""

    def __post_init__(self) -> None:
        if not isinstance(self.jit_compile, bool) and self.jit_compile != "auto":
            raise ValueError(
                "`jit_compile` must be True, False or 'auto'. "
                f"Received: jit_compile={self.jit_compile!r}"
            )
        checked = {
            "tolerance": check_number("tolerance", self.tolerance, above=0.0),
            "max_iterations": check_integer("max_iterations", self.max_iterations),
            "device": "auto" if self.device == "auto" else check_device(self.device),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the way to write to a frozen dataclass

    def get_config(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MultiviewSolver":
        return cls(**config)


@keras.saving.register_keras_serializable(package="proxnet_tf")
@dataclass(frozen=True)
class Newton(MultiviewSolver):
    """Trust-region Newton with conjugate gradients: the default solver of `ProxCCA`, `ProxGCCA`.

    The problem has D x D unknowns, D the number of columns of all views, however many rows the
    batch has. It is solved in float64. Solvers are values: they compare by their arguments and
    are saved in the configuration of the layer.

    Args:
        tolerance: bound > 0 on the relative residuals: ||F|| / ||R|| of equation (4) for the map,
            and that of the linear system for its gradient.
        max_iterations: bound >= 1 on the evaluations of the problem.
        jit_compile: whether XLA compiles the iterations: True, False or "auto" (the default), True
            where TensorFlow was built with XLA. The results are equal up to the tolerance. With
            XLA the first call takes a few seconds longer and every later one is faster.
        device: where the problem is solved, such as "CPU:0"; only D x D matrices move there. None
            leaves it to TensorFlow. "auto" (the default) is the host if there is a GPU and D is at
            most 256, where launching many small kernels on the GPU takes longer than the solve,
            and None otherwise.

    Raises:
        ValueError: an argument outside its range.

    Example:

    >>> import proxnet_tf
    >>> solver = proxnet_tf.solvers.Newton(tolerance=1e-6, jit_compile=False)
    >>> solver
    Newton(tolerance=1e-06, max_iterations=400, jit_compile=False, device='auto')
    >>> proxnet_tf.ProxCCA(10, lam=0.5, solver=solver).solver == solver
    True

    Reference: Steihaug, The conjugate gradient method and trust regions (1983).
    """

    method: ClassVar[str] = "newton"


@keras.saving.register_keras_serializable(package="proxnet_tf")
@dataclass(frozen=True)
class LBFGS(MultiviewSolver):
    """TensorFlow Probability's L-BFGS, the method of the published code.

    Where it does not reach the tolerance, `Newton` starts afresh with the same arguments. The
    linear system of the gradient is solved as with `Newton`.

    Args:
        tolerance: as for `Newton`.
        max_iterations: bound >= 1 on the iterations, and on the evaluations of Newton after it.
        jit_compile: as for `Newton`.
        device: as for `Newton`.

    Raises:
        ValueError: an argument outside its range.

    Example:

    >>> import proxnet_tf
    >>> proxnet_tf.ProxCCA(10, solver="lbfgs").solver == proxnet_tf.solvers.LBFGS()
    True

    Reference: Liu, Nocedal, On the limited memory BFGS method (1989).
    """

    method: ClassVar[str] = "lbfgs"


_BY_NAME: dict[str, type[MultiviewSolver]] = {"newton": Newton, "lbfgs": LBFGS}


def get(identifier: Any) -> MultiviewSolver:
    """A solver from a solver, its name ("newton", "lbfgs") or its saved configuration.

    Args:
        identifier: any of these.

    Raises:
        ValueError: anything else.

    Example:

    >>> import proxnet_tf
    >>> proxnet_tf.solvers.get("newton")
    Newton(tolerance=1e-08, max_iterations=400, jit_compile='auto', device='auto')
    """
    if isinstance(identifier, str) and identifier in _BY_NAME:
        return _BY_NAME[identifier]()
    found = identifier
    if isinstance(identifier, Mapping) and "class_name" in identifier:
        found = keras.saving.deserialize_keras_object(dict(identifier))
    if isinstance(found, MultiviewSolver):
        return found
    raise ValueError(
        "`solver` must be 'newton', 'lbfgs' or one of proxnet_tf.solvers, such as "
        f"Newton(tolerance=1e-6). Received: solver={identifier!r}"
    )
