"""L-BFGS on rows: the far part of the way to the proximal map of a function."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

Evaluation = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]
_PAIRS = 8  # of steps and changes of slope, which it remembers


def lbfgs(
    evaluate: Evaluation, origin: tf.Tensor, scale: tf.Tensor, tolerance: float, max_iterations: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where L-BFGS with backtracking ends, in the variable z / scale, and how many steps it took.

    Every row has its own steps. The objective of `smooth_prox` has curvature 1 at least where R is
    convex, so that a step that lowers it also keeps the pairs of steps and changes of slope
    positive. A row ends at `tolerance`, or when no step length helps it.

    Args:
        evaluate: z -> value (batch,), slope times scale (batch, n), residual (batch,).
        origin: where to start, (batch, n).
        scale: size of a row, (batch, 1).
        tolerance: bound on the residual.
        max_iterations: bound on the steps.
    """
    rounding = 10 * np.finfo(origin.dtype.as_numpy_dtype).eps

    def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(a * b, axis=-1, keepdims=True)

    def direction(slope: tf.Tensor, steps: tf.Tensor, changes: tf.Tensor) -> tf.Tensor:
        """Minus the inverse Hessian of the last pairs (newest first) times the slope."""
        pairs = list(zip(tf.unstack(steps), tf.unstack(changes), strict=True))
        inverse = [tf.math.reciprocal_no_nan(dot(s, y)) for s, y in pairs]
        along = []
        for (s, y), rho in zip(pairs, inverse, strict=True):
            along.append(rho * dot(s, slope))
            slope -= along[-1] * y
        newest, change = pairs[0]
        size = dot(newest, change) * tf.math.reciprocal_no_nan(dot(change, change))
        slope *= tf.where(size > 0, size, tf.ones_like(size))
        for (s, y), rho, a in reversed(list(zip(pairs, inverse, along, strict=True))):
            slope += s * (a - rho * dot(y, slope))
        return -slope

    def step(
        iteration: tf.Tensor,
        z: tf.Tensor,
        value: tf.Tensor,
        slope: tf.Tensor,
        residual: tf.Tensor,
        steps: tf.Tensor,
        changes: tf.Tensor,
        active: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        move = direction(slope, steps, changes)
        fall = tf.squeeze(dot(slope, move), -1)
        usable = fall < 0
        move = tf.where(usable[:, tf.newaxis], move, -slope)
        fall = tf.where(usable, fall, -tf.squeeze(dot(slope, slope), -1))

        def attempt(length: tf.Tensor) -> tuple[tf.Tensor, ...]:
            candidate = z + length[:, tf.newaxis] * move * scale
            reached, turned, moved = evaluate(candidate)
            lowered = reached - value
            lower = (lowered <= 1e-4 * length * fall) & (lowered < -rounding * (1 + tf.abs(value)))
            better = tf.math.is_finite(moved) & (lower | (moved < 0.9 * residual))
            return length, candidate, reached, turned, moved, better

        length, candidate, reached, turned, moved, better = tf.while_loop(
            lambda *state: tf.reduce_any(active & ~state[-1]),
            lambda length, *state: attempt(tf.where(state[-1], length, length / 2)),
            attempt(tf.ones_like(value)),
            maximum_iterations=20,
        )
        better &= active
        taken = length[:, tf.newaxis] * move
        change = turned - slope
        positive = better & (tf.squeeze(dot(taken, change), -1) > 0)
        # Where no length helped, the next step is along the slope; if it was that, or values only
        # round any more, the row ends.
        plain = tf.reduce_all(steps[0] == 0, axis=-1) | (residual < rounding**0.5)
        lost = active & ~better

        def pushed(history: tf.Tensor, newest: tf.Tensor) -> tf.Tensor:
            longer = tf.concat([newest[tf.newaxis], history[:-1]], 0)
            kept = tf.where(positive[:, tf.newaxis], longer, history)
            return tf.where(lost[:, tf.newaxis], tf.zeros_like(kept), kept)

        residual = tf.where(better, moved, residual)
        return (
            iteration + 1,
            tf.where(better[:, tf.newaxis], candidate, z),
            tf.where(better, reached, value),
            tf.where(better[:, tf.newaxis], turned, slope),
            residual,
            pushed(steps, taken),
            pushed(changes, change),
            active & (better | ~plain) & (residual > tolerance),
        )

    value, slope, residual = evaluate(origin)
    none = tf.zeros(tf.concat([[_PAIRS], tf.shape(origin)], 0), origin.dtype)
    usable = tf.reduce_all(tf.math.is_finite(slope), axis=-1) & tf.math.is_finite(value)
    iterations, z, _, _, reached, *_ = tf.while_loop(
        lambda *state: tf.reduce_any(state[-1]),
        step,
        (
            tf.zeros([], tf.int32),
            origin,
            value,
            slope,
            residual,
            none,
            none,
            usable & (residual > tolerance),
        ),
        maximum_iterations=max_iterations,
    )
    # A barrier can leave it stuck far off: where it started is then the better place.
    return tf.where((reached <= residual)[:, tf.newaxis], z, origin), iterations
