"""Derivatives of every order for functions whose first derivative is known in closed form."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.once import check_tapes
from proxnet_tf.ops.linear.report import Observer, Report, observed
from proxnet_tf.ops.recurrent.solve import Solved

Tensors = Sequence[tf.Tensor]


class Explained(NamedTuple):
    """The result of a function that `with_gradient` makes differentiable.

    Attributes:
        values: tensors, what the function is about.
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
    """`function`, compiled by XLA. What is equal here shares one compiled program."""
    return tf.function(lambda *given: function(*given, options), autograph=False, jit_compile=True)


def run(
    function: Callable[..., Any],
    tensors: Tensors,
    constants: Sequence[tf.Tensor | None],
    options: Any,
    jit_compile: bool,
) -> Any:
    """`function(tensors, constants, options)`, off the tape, if asked for compiled by XLA.

    Args:
        function: a function of a module, so that all its callers share what is compiled.
        tensors: what gradients are wanted of.
        constants: tensors or `None`.
        options: hashable, fixed in the compiled program.
        jit_compile: whether XLA compiles.
    """
    given = off_the_tape([list(tensors), list(constants)])
    if not jit_compile:
        return off_the_tape(function(*given, options))
    shapes = tuple(None if t is None else (t.dtype, *t.shape) for ts in given for t in ts)
    # Its results too: TensorFlow must not look for derivatives inside of it.
    return off_the_tape(_compiled(function, options, shapes)(*given))


def off_the_tape(tensors: Any) -> Any:
    """A structure of tensors, and of `None`, without gradients."""
    return tf.nest.map_structure(lambda t: None if t is None else tf.stop_gradient(t), tensors)


def with_gradient(
    forward: Callable[..., Explained],
    backward: Callable[..., Explained],
    composition: Callable[..., Tensors],
    arguments: Tensors,
    constants: Sequence[tf.Tensor | None],
    options: Any,
    observer: Observer | None = None,
    jit_compile: bool = False,
) -> tuple[Tensors, Report]:
    """`forward(arguments, constants, options)` with its first derivative written out.

    Args:
        forward: from the arguments to the values; a function of a module, as `backward` is.
        backward: from the arguments, the cotangents of the values and the residuals of `forward`
            to the cotangents of the arguments.
        composition: the same values by differentiable operations, for the derivatives of second
            and higher order.
        arguments: tensors.
        constants: tensors or `None`, what is not differentiated in.
        options: hashable, what is fixed in a graph.
        observer: sees the report of `backward`.
        jit_compile: compile `forward` and `backward` by XLA.

    Returns:
        The values and the report of `forward`.
    """
    number = len(arguments)
    given, rebuild = _without_none(constants)

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
                    inputs, outer = tensors[:number], tensors[number:]
                    with tf.GradientTape() as inner:
                        inner.watch(inputs)
                        values = composition(inputs, constants, options)
                    slopes = inner.gradient(values, inputs, outer, unconnected_gradients="zero")
                second = tape.gradient(slopes, tensors, upstream, unconnected_gradients="zero")
                return *second, *[None] * len(given)

            return observed(observer, found.report, tuple(found.values)), gradient

        return first(*arguments, *cotangents, *given)

    *values, residual, iterations, converged = isolated(value)(*arguments, *given)
    return values, Report(residual, iterations, converged)


def _without_none(structure: Any) -> tuple[Tensors, Callable[[Tensors], Any]]:
    """The tensors in a structure of tensors and `None`, and what puts others in their places.

    Tensors have to be arguments of what is `isolated`: in the body of a loop, TensorFlow may take
    a derivative where those of the graph around it are out of reach.
    """
    flat = tf.nest.flatten(structure)

    def rebuild(tensors: Tensors) -> Any:
        left = iter(tensors)
        filled = [None if x is None else next(left) for x in flat]
        return tf.nest.pack_sequence_as(structure, filled)

    return [tf.stop_gradient(x) for x in flat if x is not None], rebuild


def implicit_state(
    inputs: Tensors,
    s: tf.Tensor,
    constants: Any,
    solve: Callable[..., Solved],
    transpose: Callable[..., tf.Tensor],
    contract: Callable[..., Tensors],
    observer: Observer | None = None,
) -> tuple[tf.Tensor, Report]:
    """c of (7), by (8) differentiable to every order in the tensors that J is made of and in s.

    Args:
        inputs: the tensors that J is made of and gradients are wanted of.
        s: the new state.
        constants: a structure of the other tensors (and `None`) that J is made of.
        solve: from `inputs`, `constants` and s to the solution of (7).
        transpose: from `inputs`, `constants` and c to J^T c.
        contract: from `inputs`, `constants` and a, w, c, u of (8) to the cotangents of `inputs`.
            This function and `transpose` have to be differentiable.
        observer: sees the report of every solve for a cotangent: one for a first derivative, more
            for those of higher order.

    Returns:
        c and the report of its solve.
    """
    number = len(inputs)
    given, rebuild = _without_none(constants)
    none = [None] * len(given)

    # The tensors of each function: inputs, constants, and what is named in its first line.

    def parts(tensors: Tensors) -> tuple[Tensors, Any, Tensors]:
        after = number + len(given)
        return tensors[:number], rebuild(tensors[number:after]), tensors[after:]

    def joined(inputs: Tensors, constants: Any, *more: tf.Tensor) -> Tensors:
        return *inputs, *(x for x in tf.nest.flatten(constants) if x is not None), *more

    @tf.custom_gradient
    def value(*tensors: tf.Tensor) -> Any:
        inputs, constants, (s,) = parts(tensors)
        solved = off_the_tape(solve(*off_the_tape([list(inputs), constants, s])))

        def gradient(dc: tf.Tensor, *_: tf.Tensor) -> Any:
            more = (s, dc, solved.u, solved.c)
            *slopes, ds = isolated(derivative)(*joined(inputs, constants, *more))
            return *slopes, *none, ds

        return (solved.c, *solved.report), gradient

    def derivative(*tensors: tf.Tensor) -> Any:
        u, c = tensors[-2:]

        @tf.custom_gradient
        def first(*tensors: tf.Tensor) -> Any:
            inputs, constants, (s, dc) = parts(tensors)
            fixed, constants, dc_fixed = off_the_tape([list(inputs), constants, dc])
            solved = solve(fixed, constants, dc_fixed)
            slopes = contract(fixed, constants, solved.c, solved.u, c, u)
            cotangents, report = off_the_tape(((*slopes, solved.c), solved.report))

            def gradient(*upstream: tf.Tensor) -> Any:
                check_tapes()
                watched = [*inputs, s, dc]
                with tf.GradientTape() as tape:
                    tape.watch(watched)
                    cotangents = explicit(inputs, constants, s, dc)
                *second, d_s, d_dc = tape.gradient(
                    cotangents, watched, upstream, unconnected_gradients="zero"
                )
                return *second, *none, d_s, d_dc

            return observed(observer, report, cotangents), gradient

        return first(*tensors[:-2])

    def explicit(inputs: Tensors, constants: Any, s: tf.Tensor, dc: tf.Tensor) -> Tensors:
        """`derivative` written so that a tape can differentiate it."""
        c, a = (isolated(value)(*joined(inputs, constants, rhs))[0] for rhs in (s, dc))
        u, w = transpose(inputs, constants, c), transpose(inputs, constants, a)
        return *contract(inputs, constants, a, w, c, u), a

    c, *report = isolated(value)(*inputs, *given, s)
    return c, Report(*report)
