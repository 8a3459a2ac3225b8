"""The solver of (4): what it shares between problems, and what it says of them."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import hessian, newton
from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.solvers import LBFGS, Newton
from tests.helpers.data import shared_views
from tests.ops.multiview.cases import moved


@pytest.mark.parametrize("kind", [CCA((3, 3), 3), GCCA((3, 3), 3)])
@pytest.mark.parametrize("solver", [Newton, pytest.param(LBFGS, marks=pytest.mark.slow)])
def test_equal_sizes_share_one_solver_whatever_the_numbers(kind, solver):
    def traces():
        shared = [hessian.compiled(f, kind, False) for f in (newton._propose, newton._accept)]
        functions = [newton.solver(kind, solver.method, False), *shared]
        return [function.experimental_get_tracing_count() for function in functions]

    made = newton.solver.cache_info().misses
    x = tf.constant(shared_views(30, (3, 3)))
    outputs, counts = [], []
    for lam, epsilon, tolerance, bound in (
        (1.0, 1e-4, 1e-8, 200),
        (0.5, 1e-4, 1e-8, 200),
        (1.0, 1e-2, 1e-8, 200),
        (1.0, 1e-4, 1e-5, 150),
    ):
        settings = solver(tolerance, bound, jit_compile=False)
        again = type(kind)(kind.sizes, kind.num_components)  # equal, not the same
        output, found = moved(x, again, epsilon, lam, settings)
        assert found.report.converged
        outputs.append(output.numpy())
        counts.append(traces())
    assert newton.solver.cache_info().misses <= made + 1
    assert counts == counts[:1] * 4 and min(counts[0]) > 0
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-2  # lam and epsilon are not the first's
    assert np.abs(outputs[0] - outputs[2]).max() > 1e-4


@pytest.mark.slow
def test_eager_use_with_many_sizes_warns_of_no_retracing(caplog):
    tf.get_logger().propagate = True
    try:
        for d in range(2, 7):
            x = tf.constant(shared_views(20, (d, 2)))
            moved(x, CCA((d, 2), 2), 1e-3, 1.0, Newton(max_iterations=2, jit_compile=False))
    finally:
        tf.get_logger().propagate = False
    assert not [r for r in caplog.records if "retracing" in r.getMessage()]


def test_settings_resolve_the_device_and_the_compiler():
    assert Newton(device="CPU:0").device_for(10) == "CPU:0"
    assert Newton(device=None).device_for(10) is None
    assert Newton().device_for(10) is None  # no GPU is visible
    assert Newton(jit_compile=False).compiles is False
    assert Newton().compiles is tf.test.is_built_with_xla()


def test_auto_device_is_the_host_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    assert Newton().device_for(newton.HOST_WIDTH) == "CPU:0"
    assert Newton().device_for(newton.HOST_WIDTH + 1) is None
