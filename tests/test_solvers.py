import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxCCA, solvers
from proxnet_tf.solvers import LBFGS, Newton
from tests.helpers.data import SIZES, shared_views

OPTIONS = dict(tolerance=1e-6, max_iterations=7, jit_compile=False, device="CPU:0")


@pytest.mark.parametrize("cls", [Newton, LBFGS])
def test_solvers_are_values(cls):
    solver = cls(**OPTIONS)
    assert solver == cls(1e-6, 7, False, "CPU:0") and hash(solver) == hash(cls(**OPTIONS))
    assert solver != cls() and cls(tolerance=np.float32(0.5)) == cls(tolerance=0.5)
    assert repr(solver) == (
        f"{cls.__name__}(tolerance=1e-06, max_iterations=7, jit_compile=False, device='CPU:0')"
    )
    with pytest.raises(AttributeError):
        solver.tolerance = 1.0
    assert solver.get_config() == OPTIONS
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(solver)))
    assert saved["registered_name"] == f"proxnet_tf>{cls.__name__}"
    assert keras.saving.deserialize_keras_object(saved) == solver == solvers.get(saved)
    assert solvers.get(solver) is solver


@pytest.mark.parametrize("identifier", ["adam", None, 3, {"tolerance": 1e-3}, Newton, "Newton"])
def test_what_is_not_a_solver(identifier):
    with pytest.raises(ValueError, match="`solver` must be 'newton', 'lbfgs' or one of"):
        solvers.get(identifier)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(tolerance=0.0), "`tolerance` must be a finite number > 0.*tolerance=0.0"),
        (dict(tolerance="small"), "`tolerance` must be a finite number > 0.*tolerance='small'"),
        (dict(max_iterations=0), "`max_iterations` must be an integer >= 1.*max_iterations=0"),
        (dict(max_iterations=1.5), "`max_iterations` must be an integer >= 1"),
        (dict(jit_compile="yes"), "`jit_compile` must be True, False or 'auto'.*='yes'"),
        (dict(jit_compile=None), "`jit_compile` must be True, False or 'auto'.*=None"),
        (dict(device="host"), "`device` must be None or .*device='host'"),
        (dict(device=0), "name of a device.*device=0"),
    ],
)
@pytest.mark.parametrize("cls", [Newton, LBFGS])
def test_bad_arguments(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(**arguments)


def test_a_bound_on_the_iterations_and_a_tolerance_act():
    x = tf.constant(shared_views(20, SIZES))
    iterations = []
    for solver in (Newton(1e-2, jit_compile=False), Newton(1e-10, jit_compile=False)):
        layer = ProxCCA(lam=0.5, split=SIZES, solver=solver, dtype="float64")
        layer(x, training=True)
        assert layer.status["residual"] <= solver.tolerance
        iterations.append(layer.status["iterations"])
    assert iterations[0] < iterations[1]
    layer = ProxCCA(lam=0.5, split=SIZES, solver=Newton(1e-10, 2, False), dtype="float64")
    with pytest.warns(UserWarning, match="after 2 iterations"):
        layer(x, training=True)
