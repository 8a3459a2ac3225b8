"""Schedules of the proximal weight lam."""

import functools
from collections.abc import Callable

import keras

from proxnet_tf.checks import check_integer, check_number


def linear_lambda(alpha0: float, k: float) -> Callable[[int], float]:
    """The paper's schedule lam_t = (1 + k t) alpha0 at epoch t = 0, 1, ...

    Args:
        alpha0: value at epoch 0, > 0.
        k: growth per epoch relative to alpha0, >= 0.

    Raises:
        ValueError: an argument outside its range.

    Example:

    >>> schedule = linear_lambda(0.1, 0.5)
    >>> schedule(0), schedule(2)
    (0.1, 0.2)

    Reference: Li, Ma, Zhang (2020), section 5.1.
    """
    alpha0 = check_number("alpha0", alpha0, above=0.0)
    return functools.partial(_linear, alpha0, check_number("k", k, at_least=0.0))


def _linear(alpha0: float, k: float, epoch: int) -> float:
    return (1.0 + k * epoch) * alpha0


class LambdaSchedule(keras.callbacks.Callback):
    """Sets `lam` of every proximal layer of the model at the start of each epoch.

    A layer's weight `lam` can also be set by hand, `layer.lam = 0.1`.

    The callback sets all layers and cells of the model, nested models included, that have a
    variable `lam`, and writes the value to the epoch's logs as `lam`. It holds no variable: a deep
    copy (KerasTuner makes one) sets the model that it is fitted with. Epochs are absolute, so a
    run resumed with `initial_epoch` continues the schedule.

    Args:
        schedule: callable from the epoch (0 is the first) to lam > 0, such as
            `linear_lambda(0.1, 0.5)`.
        verbose: 1 prints the value at every epoch; 0 (the default) does not.

    Raises:
        ValueError: a schedule that is not callable or returns a value that is not a finite
            number > 0; a model without a layer that has `lam`.

    Example:

    >>> layer = ProxCCA(lam=0.1, split=(2, 2))
    >>> model = keras.Sequential([keras.layers.Dense(4), layer, keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> x, y = keras.random.normal((8, 3)), keras.random.normal((8, 1))
    >>> schedule = LambdaSchedule(linear_lambda(0.5, 1.0))
    >>> model.fit(x, y, epochs=2, callbacks=[schedule], verbose=0).history["lam"]
    [0.5, 1.0]

    Reference: Li, Ma, Zhang (2020), section 5.1: lam grows so that the layer fades out and can be
    left out at test time.
    """

    def __init__(self, schedule: Callable[[int], float], verbose: int = 0):
        super().__init__()
        if not callable(schedule):
            raise ValueError(
                "`schedule` must be a callable from the epoch to lam, such as "
                f"linear_lambda(0.1, 0.5). Received: schedule={schedule!r}"
            )
        self.schedule = schedule
        self.verbose = check_integer("verbose", verbose, at_least=0)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        value = self.schedule(epoch)
        try:
            number = check_number("lam", value, above=0.0)
        except ValueError:
            raise ValueError(
                f"The schedule must return a finite number > 0. Received {value!r} for epoch "
                f"{epoch}."
            ) from None
        variables = lam_variables(self.model)
        if not variables:
            raise ValueError(
                f"LambdaSchedule found no layer with a variable `lam` in the model "
                f"{self.model.name!r}; leave the callback out or add a proximal layer."
            )
        for variable in variables:
            variable.assign(number)
        self._value = number
        if self.verbose:
            print(f"\nEpoch {epoch + 1}: LambdaSchedule sets lam to {number:g}.")

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if logs is not None:
            logs["lam"] = self._value


def lam_variables(model: keras.layers.Layer) -> list[keras.Variable]:
    """The non-trainable variables named `lam` of all layers and cells inside `model`."""
    return [v for v in model.non_trainable_variables if v.name == "lam"]
