"""ProxCCA and ProxGCCA as Keras layers: configuration, files, models of every form."""

import keras
import numpy as np
import pytest

from proxnet_tf import ProxGCCA
from tests.layers.multiview.cases import CCA, CCA_FIRST


@CCA_FIRST
def test_keras_does_not_compile_the_whole_model(kind):
    model = kind.regression(kind.layer())
    assert kind.layer().supports_jit is False and model.jit_compile is False
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)


def test_in_a_shared_position():
    # The same layer twice, with statistics of both batches, one after the other.
    layer = CCA.layer(lam=2.0, inference="moving", momentum=0.5, split=CCA.sizes)
    a, b = keras.Input((7,)), keras.Input((7,))
    model = keras.Model([a, b], [layer(a), layer(b)])
    x, y = CCA.joined(24, 1), CCA.joined(24, 2)
    for moved, rows in zip(model([x, y], training=True), (x, y), strict=True):
        np.testing.assert_allclose(moved, CCA.expected(rows, 2.0), atol=2e-5)
    np.testing.assert_allclose(layer.moving_mean, 0.5 * (x.mean(0) + y.mean(0)), atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(num_components=0), "`num_components` must be an integer >= 1.*num_components=0"),
        (dict(num_components=2.5), "`num_components` must be an integer.*num_components=2.5"),
        (dict(lam=0.0), "`lam` must be a finite number > 0.*lam=0.0"),
        (dict(lam=-1), "`lam` must be a finite number > 0.*lam=-1"),
        (dict(lam=float("nan")), "`lam` must be a finite number > 0.*lam=nan"),
        (dict(lam="big"), "`lam` must be a finite number > 0.*lam='big'"),
        (dict(epsilon=-1e-9), "`epsilon` must be a finite number >= 0.*epsilon=-1e-09"),
        (dict(solver="sgd"), "`solver` must be 'newton', 'lbfgs' or one of.*solver='sgd'"),
        (dict(gradient="auto"), "`gradient` must be one of 'implicit', 'finite.*gradient='auto'"),
        (dict(inference="none"), "must be one of 'identity', 'batch', 'moving'.*inference='none'"),
        (dict(momentum=1.0), r"`momentum` must be in \[0, 1\).*momentum=1.0"),
        (dict(momentum=-0.1), "`momentum` must be a finite number >= 0.*momentum=-0.1"),
        (dict(monitor=""), "`monitor` must be True, False, 'all' or a string.*monitor=''"),
        (dict(nan_is_missing="no"), "`nan_is_missing` must be True or False.*='no'"),
        (dict(synchronized=1), "`synchronized` must be True or False.*=1"),
        (
            dict(synchronized=True, gradient="finite_difference"),
            "`synchronized=True` needs gradient='implicit'.*'finite_difference'",
        ),
        (dict(weight=-1.0), "`weight` must be a finite number >= 0.*weight=-1.0"),
        (dict(split=7), "`split` must be a tuple with the widths.*split=7"),
        (dict(split=(3,)), r"`split` must be a tuple with the widths.*split=\(3,\)"),
        (dict(split=(0, 3)), "`split` must be an integer >= 1.*split=0"),
    ],
)
@CCA_FIRST
def test_bad_arguments(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        kind.cls(**{"num_components": 2} | arguments)


def test_the_core_needs_a_width():
    with pytest.raises(ValueError, match=r"`num_components` must be an integer >= 1.*=None"):
        ProxGCCA()
