"""Derivatives of every order for functions whose first derivative is known in closed form."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

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

    In the body of a loop TensorFlow can differentiate a custom gradient twice, or after a
    SavedModel is reloaded, only so.
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

    @tf.autograph.experimental.do_not_convert
    @tf.custom_gradient
    def value(*arguments: tf.Tensor) -> Any:
        found = run(forward, arguments, constants, options, jit_compile)

        def gradient(*cotangents: tf.Tensor) -> Any:
            cotangents = cotangents[: len(found.values)]
            return isolated(derivative)(cotangents, found.residuals, *arguments)

        return (*found.values, *found.report), gradient

    def derivative(cotangents: Tensors, residuals: Tensors, *arguments: tf.Tensor) -> Any:
        @tf.autograph.experimental.do_not_convert
        @tf.custom_gradient
        def first(*tensors: tf.Tensor) -> Any:
            found = run(backward, [*tensors, *residuals], constants, options, jit_compile)

            def gradient(*upstream: tf.Tensor) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(tensors)
                    inputs, outer = tensors[:number], tensors[number:]
                    with tf.GradientTape() as inner:
                        inner.watch(inputs)
                        values = composition(inputs, constants, options)
                    slopes = inner.gradient(values, inputs, outer, unconnected_gradients="zero")
                return tape.gradient(slopes, tensors, upstream, unconnected_gradients="zero")

            return observed(observer, found.report, tuple(found.values)), gradient

        return first(*arguments, *cotangents)

    *values, residual, iterations, converged = isolated(value)(*arguments)
    return values, Report(residual, iterations, converged)


def implicit_state(
    inputs: Tensors,
    s: tf.Tensor,
    solve: Callable[..., Solved],
    transpose: Callable[..., tf.Tensor],
    contract: Callable[..., Tensors],
    observer: Observer | None = None,
) -> tuple[tf.Tensor, Report]:
    """c of (7), by (8) differentiable to every order in the tensors that J is made of and in s.

    Args:
        inputs: the tensors that J is made of.
        s: the new state.
        solve: from `inputs` and s to the solution of (7).
        transpose: from `inputs` and c to J^T c.
        contract: from `inputs` and a, w, c, u of (8) to the cotangents of `inputs`. This function
            and `transpose` have to be differentiable.
        observer: sees the report of the solve behind the first derivative.

    Returns:
        c and the report of its solve.
    """

    @tf.custom_gradient
    def value(*arguments: tf.Tensor) -> Any:
        solved = off_the_tape(solve(*map(tf.stop_gradient, arguments)))

        def gradient(dc: tf.Tensor, *_: tf.Tensor) -> Any:
            return isolated(derivative)(*arguments, dc, solved.u, solved.c)

        return (solved.c, *solved.report), gradient

    def backward(*tensors: tf.Tensor) -> tuple[Tensors, Report]:
        *inputs, _, dc, u, c = tensors
        solved = solve(*inputs, dc)
        return (*contract(*inputs, solved.c, solved.u, c, u), solved.c), solved.report

    @tf.custom_gradient
    def derivative(*tensors: tf.Tensor) -> Any:
        cotangents, report = off_the_tape(backward(*map(tf.stop_gradient, tensors)))

        def gradient(*upstream: tf.Tensor) -> Any:
            arguments = tensors[:-2]
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                cotangents = explicit(*arguments)
            second = tape.gradient(cotangents, arguments, upstream, unconnected_gradients="zero")
            return *second, None, None

        return observed(observer, report, cotangents), gradient

    def explicit(*arguments: tf.Tensor) -> Tensors:
        """`derivative` written so that a tape can differentiate it."""
        *inputs, s, dc = arguments
        c, a = (isolated(value)(*inputs, rhs)[0] for rhs in (s, dc))
        u, w = transpose(*inputs, c), transpose(*inputs, a)
        return *contract(*inputs, a, w, c, u), a

    c, *report = isolated(value)(*inputs, s)
    return c, Report(*report)
