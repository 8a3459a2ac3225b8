"""What every solve answers with, and how an observer sees it: eagerly, in graphs, inside loops."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.linear.report import Report, exact, observed


def report_of(residual):
    return Report(residual, tf.constant(4), residual <= 0.1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_closed_form_has_nothing_to_solve(dtype):
    found = exact(tf.ones([3, 2], dtype))
    assert found.residual.dtype == dtype and found.iterations.dtype == tf.int32
    assert float(found.residual) == 0.0 and int(found.iterations) == 0 and bool(found.converged)


def test_an_observer_sees_the_report_without_gradients():
    """The tensors keep their structure, values and gradients."""
    seen = []

    def observer(report):
        seen.append(report)
        return []

    x = tf.constant([0.25, 0.05])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        a, (b,) = observed(observer, report_of(2.0 * x), (3.0 * x, [x**2]))
        again = tf.reduce_sum(seen[0].residual)
    np.testing.assert_array_equal(a, [0.75, np.float32(3 * np.float32(0.05))])
    np.testing.assert_array_equal(tape.gradient(a, x), [3.0, 3.0])
    np.testing.assert_array_equal(tape.gradient(b, x), 2 * x)
    assert tape.gradient(again, x) is None
    (report,) = seen
    assert isinstance(report, Report)
    np.testing.assert_array_equal(report.residual, 2 * x)
    np.testing.assert_array_equal(report.converged, [False, True])
    assert report.iterations == 4


def test_in_a_graph_the_tensors_wait_for_the_observer():
    """A graph by itself runs only what is asked for: the tensors must depend on the operations."""
    with tf.Graph().as_default():
        x, seen = tf.constant([0.25, 0.05]), tf.no_op()
        waiting = observed(lambda report: [seen], report_of(x), [x, 2.0 * x])
        for tensor in waiting:
            assert seen in tensor.op.control_inputs


def test_in_the_gradient_of_a_loop_every_step_is_seen():
    total = tf.Variable(0.0)

    def observer(report):
        # In a loop's gradient only raw operations on a handle that the loop captured are within
        # reach, as for the metrics of a layer.
        value = tf.reduce_sum(report.residual)
        return [tf.raw_ops.AssignAddVariableOp(resource=captured[0], value=value)]

    captured = []

    @tf.custom_gradient
    def half(x):
        def gradient(dy):
            return observed(observer, report_of(tf.abs(dy)), dy / 2)

        return x / 2, gradient

    @tf.function(autograph=False)
    def run(x):
        captured[:] = [tf.compat.v1.get_default_graph().capture(total.handle)]
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda k, x: k < 3,
                lambda k, x: (k + 1, half(x)),
                (tf.constant(0), x),
                maximum_iterations=3,
            )
        return tape.gradient(y, x)

    np.testing.assert_array_equal(run(tf.constant([1.0])), [0.125])
    assert total == 1.75  # 1 + 1/2 + 1/4
