"""How a layer shows whether its proximal maps, and their gradients, were solved."""

import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.ops.linear.report import Report

Given = Callable[[], dict[str, Any]]

# The monitors used in a graph, by the name of their first metric.
_OWNERS: Any = weakref.WeakKeyDictionary()


def check_monitor(value: Any) -> bool | str:
    """Returns a `monitor` (True, False, "all" or a prefix), or raises a `ValueError`.

    Args:
        value: what to check.
    """
    if isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise ValueError(
        "`monitor` must be True, False, 'all' or a string that metric names start with, such as "
        f"'left'. Received: monitor={value!r}"
    )


class Monitor:
    """What a layer reports about its solves, forward and backward.

    With `monitor=True` the layer has the metric

    | name | over the epoch |
    | --- | --- |
    | `unsolved` | the share of problems that did not reach the tolerance, maps and gradients |

    and those in `extra`, means over the rows of the epoch's batches. `monitor="all"` adds

    | name | over the epoch |
    | --- | --- |
    | `residual` | the relative residual of the map: mean over batches of the worst in a batch |
    | `iterations` | the mean number of iterations |
    | `backward_residual` | the same for the linear systems of the gradient |

    With another string as `monitor` the names of `monitor=True` start with it, `left_unsolved` for
    "left", so that several monitored layers fit into one model. Without monitoring the layer warns
    once when it meets an unsolved problem in eager mode.

    Args:
        layer: the layer; its metrics become the layer's.
        monitor: True, False, "all" or a prefix.
        extra: names of further metrics.
        advice: a sentence for the warning, what to do about unsolved problems.

    Raises:
        ValueError: in the first step of a model, two layers with metrics of one name.
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        monitor: bool | str,
        extra: Sequence[str] = (),
        *,
        advice: str,
    ):
        self.owner, self._advice = layer.name, advice
        self._warned = False
        self._last: dict[str, float] = {}
        self.metrics: dict[str, keras.metrics.Metric] = {}
        if monitor is False:
            return
        prefix = f"{monitor}_" if isinstance(monitor, str) and monitor != "all" else ""
        names = ["unsolved", *extra]
        if monitor == "all":
            names += ["residual", "iterations", "backward_residual"]
        with keras.name_scope(layer.name):  # paths of their own, for two layers of one model
            self.metrics = {name: keras.metrics.Mean(name=prefix + name) for name in names}
        for metric in self.metrics.values():
            for variable in metric.variables:  # or mixed precision would halve what they add up
                variable._autocast = False
        # Keras tracks metrics that are attributes of a layer.
        layer._monitored = dict(self.metrics)

    def __bool__(self) -> bool:
        return bool(self.metrics)

    def forward(
        self, report: Report, valid: tf.Tensor | None = None, given: Given | None = None
    ) -> None:
        """Records the report of a map.

        Args:
            report: one value a problem.
            valid: which problems count, in the shape of `report.residual`; all by default.
            given: returns the inputs of the problems, by name. A warning names those that are not
                finite.
        """
        self._look("", report, valid, given)
        self._check_alone()
        self._update("residual", _worst(report))
        self._update("unsolved", tf.cast(~report.converged, tf.float32), valid)
        self._update("iterations", tf.cast(report.iterations, tf.float32))

    def backward(self, training: bool = True) -> Callable[..., list[Any]]:
        """Returns a function that records the report of a gradient's solves: see `observed`.

        The function has the arguments of `forward`.

        To be called in the forward pass. A gradient inside a loop can only reach the variables
        whose handles the forward loop has captured, by raw operations on those handles. An
        exported model cannot hold such handles: metrics see the gradient in training only.

        Args:
            training: of the layer's call.
        """
        # While Keras builds a model under a strategy's scope there is no replica to count for.
        if not self.metrics or not training or tf.distribute.in_cross_replica_context():
            return self._look_backward
        means: list[Any] = [self.metrics.get(k) for k in ("unsolved", "backward_residual")]
        handles = [_captured(v) for m in means if m is not None for v in (m.total, m.count)]

        def observe(report: Report, valid: tf.Tensor | None = None) -> list[Any]:
            self._look_backward(report, valid)
            unsolved = tf.cast(~report.converged, tf.float32)
            weight = tf.ones_like(unsolved) if valid is None else tf.cast(valid, tf.float32)
            sums = [tf.reduce_sum(weight * unsolved), tf.reduce_sum(weight)]
            values = [*sums, _worst(report), tf.ones([])]
            pairs = zip(handles, values, strict=False)  # two handles unless monitor="all"
            return [tf.raw_ops.AssignAddVariableOp(resource=h, value=v) for h, v in pairs]

        return observe

    def _look_backward(self, report: Report, valid: tf.Tensor | None = None) -> list[Any]:
        self._look("backward_", report, valid)
        return []

    def watch(self, name: str, value: tf.Tensor, count: tf.Tensor) -> None:
        """Records a value of one of the metrics in `extra`, a correlation of `count` rows.

        A batch of fewer than two rows has no correlation and does not count.
        """
        self._update(name, value, tf.where(count > 1, count, tf.zeros_like(count)))

    def _check_alone(self) -> None:
        """Raises a `ValueError` where another layer in this graph has metrics of these names."""
        graph = tf.compat.v1.get_default_graph()
        if not self.metrics or not graph.building_function:
            return
        while graph.outer_graph.building_function:  # that of the whole step
            graph = graph.outer_graph
        name = self.metrics["unsolved"].name
        other = _OWNERS.setdefault(graph, {}).setdefault(name, self)
        if other is not self:
            raise ValueError(
                f"The layers {other.owner!r} and {self.owner!r} report metrics of the same names, "
                f"such as {name!r}. Give them prefixes: monitor='left' for one and "
                "monitor='right' for the other."
            )

    @property
    def status(self) -> dict[str, float]:
        """Values of the metrics since their last reset; without them, of the last eager call.

        Each of several workers shows those of its own first replica. Keras reads every attribute
        of a layer that it saves, and one worker saves: it must not wait for the others.
        """
        if not self.metrics:
            return dict(self._last)
        return {name: float(_of_this_worker(metric)) for name, metric in self.metrics.items()}

    def _look(
        self, prefix: str, report: Report, valid: tf.Tensor | None, given: Given | None = None
    ) -> None:
        if self.metrics:
            return
        # In a graph, or while Keras builds a model, there is no number to look at.
        if not tf.executing_eagerly() or not hasattr(report.residual, "numpy"):
            return
        converged = report.converged if valid is None else report.converged[valid]
        if tf.size(converged) == 0:
            return
        share = float(tf.reduce_mean(tf.cast(~converged, tf.float32)))
        worst = float(tf.reduce_max(report.residual))
        self._last |= {f"{prefix}residual": worst, f"{prefix}unsolved": share}
        if not prefix:
            self._last["iterations"] = float(tf.reduce_max(report.iterations))
        if share and not self._warned:
            self._warned = True
            why = (
                f"relative residual {worst:.2g} after {int(tf.reduce_max(report.iterations))} "
                f"iterations. {self._advice} `status` of the layer tells more."
            )
            broken = _not_finite(given() if given else {})
            if prefix and not math.isfinite(worst):
                broken.append("the gradient of the outputs")
            if broken:
                why = f"{' and '.join(broken)} held NaN or infinite values."
            warnings.warn(
                f"The layer {self.owner!r} left {share:.0%} of its "
                f"{'gradient' if prefix else 'proximal'} problems unsolved: {why} "
                "(Said once a layer.)",
                stacklevel=3,
            )

    def _update(self, name: str, value: tf.Tensor, weight: tf.Tensor | None = None) -> None:
        if name in self.metrics:
            self.metrics[name].update_state(tf.stop_gradient(value), weight)


def _of_this_worker(metric: keras.metrics.Metric) -> tf.Tensor:
    """The result of a metric, without what other workers have."""
    strategy = getattr(metric.variables[0].value, "distribute_strategy", None)
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return strategy.experimental_local_results(strategy.run(metric.result))[0]
    return metric.result()


def _not_finite(given: dict[str, Any]) -> list[str]:
    """The names of the structures that hold a number which is not finite."""

    def broken(value: Any) -> bool:
        tensors = [tf.convert_to_tensor(t) for t in tf.nest.flatten(value)]
        floating = [t for t in tensors if t.dtype.is_floating]
        return not all(tf.reduce_all(tf.math.is_finite(t)) for t in floating)

    return [name for name, value in given.items() if broken(value)]


def _worst(report: Report) -> tf.Tensor:
    """The largest residual, 0 without problems."""
    return tf.maximum(tf.cast(tf.reduce_max(report.residual), tf.float32), 0.0)


def _captured(variable: keras.Variable) -> tf.Tensor:
    """The handle of a variable, inside the graph that is being built."""
    value = variable.value
    value.read_value()  # tells an export that the graph holds the variable
    if tf.executing_eagerly():
        return value.handle
    return tf.compat.v1.get_default_graph().capture(value.handle)
