"""The linear system of a proximal state, and derivatives of every order.

With s the new state, G = ds/dx its Jacobian in the input (units x features) and
rho = delta^2/lam, the proximal state is

    c = argmin_c lam ||c - s||^2 + delta^2 ||c^T G||^2 = (I + rho G G^T)^-1 s.                  (6)

Everything in `ops.recurrent` works with J = sqrt(rho) G, so that (6) reads c = (I + J J^T)^-1 s.
By the push-through identity c is the residual of a regularized least squares problem in the space
of the input. The gradient, too, needs its solution u:

    (I + J^T J) u = J^T s,    c = s - J u,    u = J^T c.                              (7)

For a cotangent dc of c, with a and w the c and u of (7) for dc in the place of s (paper, eq. ell_s
and ell_G),

    ds = a,    dJ = -(a u^T + c w^T).                                                 (8)
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.cg import conjugate_gradient
from proxnet_tf.ops.linear.norms import norm
from proxnet_tf.ops.linear.once import check_tapes
from proxnet_tf.ops.linear.report import Observer, Report, observed

Tensors = Sequence[tf.Tensor]
Product = Callable[[tf.Tensor], tf.Tensor]


class Solver(NamedTuple):
    """How exactly the linear system of (7) is solved.

    Attributes:
        tolerance: bound on the error of c relative to the norm of s; `None`: 1e-12 in float64,
            1e-5 in float32, 1e-3 and 1e-2 where J comes in float16 and bfloat16.
        max_iterations: bound on the CG steps; `None`: 2 min(units, features) + 10.
    """

    tolerance: float | None = None
    max_iterations: int | None = None

    def tolerance_for(self, dtype: str | tf.DType) -> float:
        """The tolerance in `dtype`."""
        defaults = {"float64": 1e-12, "float16": 1e-3, "bfloat16": 1e-2}
        return self.tolerance or defaults.get(tf.as_dtype(dtype).name, 1e-5)

    def bound_for(self, units: int, features: int) -> int:
        """The bound on the steps for a Jacobian of units x features."""
        return self.max_iterations or 2 * min(units, features) + 10


class Solved(NamedTuple):
    """The solution of (7).

    Attributes:
        c: s - J u, (batch, units).
        u: the solution, (batch, features).
        products: the linear part of J u, see `solve_by_products`.
        report: how well it is solved; `residual`, (batch,), bounds the error of c over ||s||.
    """

    c: tf.Tensor
    u: tf.Tensor
    products: tf.Tensor
    report: Report


def solve_by_products(
    s: tf.Tensor,
    product: Product,
    total: Product,
    transpose: Product,
    solver: Solver,
    width: int,
    jacobian_dtype: str | tf.DType | None = None,
    preconditioner: Product | None = None,
) -> Solved:
    """Solves (7) by conjugate gradients for J v = total(product(v)).

    The error e of u is (I + J^T J)^-1 r with r = J^T c - u the residual. No singular value of
    J (I + J^T J)^-1 is above 1/2, so the error J e of c is at most ||r|| / 2.

    Args:
        s: right-hand side, (batch, units).
        product: the first factor of J, from (batch, features) to (batch, `width`).
        total: the second factor, from (batch, `width`) to (batch, units).
        transpose: t -> J^T t, from (batch, units) to (batch, features).
        solver: tolerance and bound.
        width: of the values of `product`.
        jacobian_dtype: the precision that J comes in, `s.dtype` by default.
        preconditioner: r -> M^-1 r for an M near I + J^T J, none by default.
    """

    def operator(v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        along = product(v)
        return v + transpose(total(along)), along

    s = tf.stop_gradient(s)
    rhs = transpose(s)
    size, rhs_size = norm(s)[:, None], norm(rhs)[:, None]
    tolerance = solver.tolerance_for(jacobian_dtype or s.dtype)
    solved = conjugate_gradient(
        operator,
        rhs,
        preconditioner=preconditioner,
        tolerance=2.0 * tolerance * tf.math.divide_no_nan(size, rhs_size),
        max_iterations=solver.bound_for(s.shape[-1], rhs.shape[-1]),
        image=tf.zeros([tf.shape(s)[0], width], s.dtype),
    )
    error = (solved.residual * tf.math.divide_no_nan(rhs_size, 2.0 * size))[:, 0]
    # NaN stays NaN; conjugate gradients would return their start instead.
    broken = tf.math.is_nan(error)[:, None]
    u, products = (
        tf.where(broken, tf.cast(float("nan"), s.dtype), x) for x in (solved.solution, solved.image)
    )
    report = Report(error, solved.iterations, error <= tf.cast(tolerance, error.dtype))
    return Solved(s - total(products), u, products, report)


# --- derivatives ----------------------------------------------------------------------------------


class Explained(NamedTuple):
    """The result of a function that `with_gradient` makes differentiable.

    Attributes:
        values: tensors, the output of the function.
        residuals: tensors that its gradient needs.
        report: how well the problems inside were solved.
    """

    values: Tensors
    residuals: Tensors
    report: Report


def isolated(function: Callable[..., Any]) -> Callable[..., Any]:
    """In a graph, `function` as a graph of its own.

    A loop body may hold a custom gradient. To differentiate that gradient twice, or after a
    SavedModel is reloaded, TensorFlow needs it in a graph of its own.
    """
    return function if tf.executing_eagerly() else tf.function(function, autograph=False)


@functools.lru_cache(maxsize=256)
def _compiled(function: Callable[..., Any], options: Any, shapes: Any) -> Callable[..., Any]:
    """`function`, compiled by XLA. Equal arguments share one compiled program."""
    return tf.function(lambda *given: function(*given, options), autograph=False, jit_compile=True)


def run(
    function: Callable[..., Any], tensors: Tensors, constants: Any, options: Any, jit_compile: bool
) -> Any:
    """`function(tensors, constants, options)`, off the tape, and compiled by XLA if asked for.

    Args:
        function: to be compiled, a function of a module: all its callers share the program.
        tensors: the tensors that get gradients.
        constants: a structure of tensors and `None`.
        options: hashable, fixed in the compiled program.
        jit_compile: whether XLA compiles.
    """
    given = off_the_tape([list(tensors), constants])
    if not jit_compile:
        return off_the_tape(function(*given, options))
    shapes = (None if t is None else (t.dtype, *t.shape) for t in tf.nest.flatten(given))
    # The results too: TensorFlow must not look for derivatives inside of the function.
    return off_the_tape(_compiled(function, options, tuple(shapes))(*given))


def off_the_tape(tensors: Any) -> Any:
    """A structure of tensors, and of `None`, without gradients."""
    return tf.nest.map_structure(lambda t: None if t is None else tf.stop_gradient(t), tensors)


def with_gradient(
    forward: Callable[..., Explained],
    backward: Callable[..., Explained],
    differentiable: Callable[..., Tensors],
    arguments: Tensors,
    constants: Any,
    options: Any = None,
    observer: Observer | None = None,
    jit_compile: bool = False,
) -> tuple[Tensors, Report]:
    """`forward(arguments, constants, options)` with its first derivative written out.

    Args:
        forward: from the arguments to the values.
        backward: from the arguments, the cotangents of the values and the residuals of `forward`,
            in one list, to the cotangents of the arguments.
        differentiable: from the arguments, the cotangents, constants and options to the cotangents
            of the arguments, by differentiable operations: for derivatives of higher order.
        arguments: tensors.
        constants: a structure of tensors and `None`, which get no gradients.
        options: hashable, fixed in a graph.
        observer: sees the report of `backward`.
        jit_compile: compile `forward` and `backward` by XLA.

    Returns:
        The values and the report of `forward`.
    """
    number = len(arguments)
    # Tensors have to be arguments of an `isolated` function: in the body of a loop, TensorFlow may
    # take a derivative where tensors of the graph around it are out of reach.
    flat = tf.nest.flatten(constants)
    given = [tf.stop_gradient(x) for x in flat if x is not None]

    def rebuild(tensors: Tensors) -> Any:
        left = iter(tensors)
        filled = [None if x is None else next(left) for x in flat]
        return tf.nest.pack_sequence_as(constants, filled)

    @tf.autograph.experimental.do_not_convert
    @tf.custom_gradient
    def value(*tensors: tf.Tensor) -> Any:
        arguments, given = tensors[:number], tensors[number:]
        found = run(forward, arguments, rebuild(given), options, jit_compile)

        def gradient(*cotangents: tf.Tensor) -> Any:
            cotangents = cotangents[: len(found.values)]
            slopes = isolated(derivative)(cotangents, found.residuals, given, *arguments)
            return *slopes, *[None] * len(given)

        return (*found.values, *found.report), gradient

    def derivative(
        cotangents: Tensors, residuals: Tensors, given: Tensors, *arguments: tf.Tensor
    ) -> Any:
        count = number + len(cotangents)

        @tf.autograph.experimental.do_not_convert
        @tf.custom_gradient
        def first(*tensors: tf.Tensor) -> Any:
            tensors, constants = tensors[:count], rebuild(tensors[count:])
            found = run(backward, [*tensors, *residuals], constants, options, jit_compile)

            def gradient(*upstream: tf.Tensor) -> Any:
                check_tapes()
                with tf.GradientTape() as tape:
                    tape.watch(tensors)
                    slopes = differentiable(tensors[:number], tensors[number:], constants, options)
                second = tape.gradient(slopes, tensors, upstream, unconnected_gradients="zero")
                return *second, *[None] * len(given)

            return observed(observer, found.report, tuple(found.values)), gradient

        return first(*arguments, *cotangents, *given)

    *values, residual, iterations, converged = isolated(value)(*arguments, *given)
    return values, Report(residual, iterations, converged)


def by_tape(function: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """`differentiable` of `with_gradient`, from the values as a differentiable function."""

    def differentiable(
        arguments: Tensors, cotangents: Tensors, constants: Any, options: Any
    ) -> Tensors:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            values = function(arguments, constants, options)
        return tape.gradient(values, arguments, cotangents, unconnected_gradients="zero")

    return differentiable


def implicit_state(
    inputs: Tensors,
    s: tf.Tensor,
    constants: Any,
    solve: Callable[..., Solved],
    transpose: Callable[..., tf.Tensor],
    contract: Callable[..., Tensors],
    observer: Observer | None = None,
) -> tuple[tf.Tensor, Report]:
    """c of (7), by (8) differentiable to every order in s and in the tensors that J depends on.

    Args:
        inputs: the tensors that J depends on and that get gradients.
        s: the new state.
        constants: a structure of the other tensors (and `None`) that J depends on.
        solve: from `inputs`, `constants` and s to the solution of (7).
        transpose: from `inputs`, `constants` and c to J^T c.
        contract: from `inputs`, `constants` and a, w, c, u of (8) to the cotangents of `inputs`.
            This function and `transpose` have to be differentiable.
        observer: sees the report of every solve for a cotangent: one for a first derivative, more
            for those of higher order.

    Returns:
        c and the report of its solve.
    """

    def forward(arguments: Tensors, constants: Any, _: None) -> Explained:
        *inputs, s = arguments
        solved = solve(inputs, constants, s)
        return Explained([solved.c], [solved.c, solved.u], solved.report)

    def backward(tensors: Tensors, constants: Any, _: None) -> Explained:
        *inputs, _, dc, c, u = tensors
        solved = solve(inputs, constants, dc)
        slopes = contract(inputs, constants, solved.c, solved.u, c, u)
        return Explained([*slopes, solved.c], [], solved.report)

    def differentiable(arguments: Tensors, cotangents: Tensors, constants: Any, _: None) -> Tensors:
        *inputs, s = arguments
        c, a = (state(inputs, rhs, constants)[0][0] for rhs in (s, cotangents[0]))
        u, w = transpose(inputs, constants, c), transpose(inputs, constants, a)
        return [*contract(inputs, constants, a, w, c, u), a]

    def state(inputs: Tensors, s: tf.Tensor, constants: Any) -> tuple[Tensors, Report]:
        functions = forward, backward, differentiable
        return with_gradient(*functions, [*inputs, s], constants, observer=observer)

    (c,), report = state(inputs, s, constants)
    return c, report
