"""Canonical variates of codes, one view at a time: what `DCCA.project` is made of."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import at_least_float32, check_integer
from proxnet_tf.layers.multiview.views import Border
from proxnet_tf.models.base import MultiviewModel, mask_of, with_mask
from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.gram import gram_of
from proxnet_tf.ops.multiview.of_gram import canonical_vectors


class Projection(keras.layers.Layer):
    """The affine map of the codes of one view to its k canonical variates, (code - mean) U.

    Args:
        num_components: k.
        **kwargs: of `keras.layers.Layer`.
    """

    def __init__(self, num_components: int, **kwargs: Any):
        super().__init__(trainable=False, **kwargs)
        self.num_components = num_components
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        width = input_shape[-1]
        options = dict(
            initializer="zeros",
            trainable=False,
            autocast=False,
            dtype=at_least_float32(self.variable_dtype).name,
        )
        self.mean = self.add_weight(name="mean", shape=(width,), **options)
        self.vectors = self.add_weight(
            name="vectors", shape=(width, self.num_components), **options
        )
        self.fitted = self.add_weight(name="fitted", shape=(), **options)
        self.built = True

    def call(self, code: tf.Tensor) -> tf.Tensor:
        mean, vectors = (tf.convert_to_tensor(w) for w in (self.mean, self.vectors))
        moved = tf.cast(code, mean.dtype) - mean
        variates = tf.tensordot(moved, vectors, axes=1)
        unknown = tf.cast(float("nan"), variates.dtype)
        variates = tf.where(tf.convert_to_tensor(self.fitted) > 0, variates, unknown)
        return tf.cast(variates, self.compute_dtype)

    def assign(self, mean: tf.Tensor, vectors: tf.Tensor) -> None:
        """Sets the map."""
        self.mean.assign(tf.cast(mean, self.mean.dtype))
        self.vectors.assign(tf.cast(vectors, self.vectors.dtype))
        self.fitted.assign(1.0)

    def load_own_variables(self, store: Any) -> None:
        """Loads the weights; files of version 0.1 have none, and leave the map to be fitted."""
        if len(store.keys()):
            super().load_own_variables(store)


class _Codes(keras.Model):
    """A model from views to their codes as rows, and which of the rows lack no view.

    Args:
        encode: from a list of views to a list of codes, and something else.
        border: of the codes.
    """

    def __init__(self, encode: Callable[[Any], tuple[list[tf.Tensor], Any]], border: Border):
        super().__init__(name="codes")
        self.encode = encode
        self.border = border
        self.supports_jit = False  # the layers of the encoders are not known here

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        codes, _ = self.encode(inputs)
        views = self.border.enter(codes, [mask_of(code) for code in codes])
        valid = tf.ones_like(views.rows[:, :1], tf.bool) if views.valid is None else views.valid
        return views.rows, valid


class ProjectingModel(MultiviewModel):
    """A model whose codes have canonical variates, view by view.

    It needs `num_components` (k, or None for two views) and `epsilon` as attributes. For its
    arguments see `MultiviewModel`.
    """

    num_components: int | None
    epsilon: float

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        if hasattr(self, "projections"):
            return
        shapes = [(None, *shape[1:]) for shape in input_shape]
        codes = [e.compute_output_shape(s) for e, s in zip(self.encoders, shapes, strict=True)]
        widths = [code[-1] for code in codes]
        k = self.num_components or min(widths)
        self.projections = [Projection(k, dtype=self.dtype_policy) for _ in widths]
        for projection, code in zip(self.projections, codes, strict=True):
            projection.build(code)
        self._view_shapes = tuple(shapes)

    def set_weights(self, weights: list[Any]) -> None:
        """Sets the weights, also from a list of version 0.1, which has none of `project`."""
        own = (
            [w for projection in self.projections for w in projection.weights] if self.built else []
        )
        if own and len(weights) == len(self.weights) - len(own):
            weights = [*weights, *own]
        super().set_weights(weights)

    def fit_projections(self, x: Any, **predict_arguments: Any) -> tf.Tensor:
        """Fits `project` to the codes of a data set: linear CCA of the codes, in closed form.

            max over U_j  sum_{i<=k} sigma_i   subject to   U_j^T (S_jj + epsilon I) U_j = I

        with the covariances S_jj of the codes of view j, over all rows in which no view is missing.
        For more than two views the U_j are sqrt(J) times the blocks of the first k solutions v of
        S v = mu (blockdiag(S_jj) + epsilon I) v. The entry of the largest size in each column of
        U_1 is positive. Call it after `pretrain`; a model may be fitted again at any time.

        Args:
            x: list of J views, or what else `keras.Model.predict` takes. The codes of all rows are
                held in memory.
            **predict_arguments: `batch_size`, `steps`, `verbose` and so on, as in `predict`.

        Returns:
            The k correlations sigma_i of the codes, `[k]`, descending, float64; for more than two
            views the mu_i.

        Raises:
            ValueError: fewer than two rows without a missing view, or codes that are not finite.
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} has no weights yet: call `pretrain(views)` before "
                "`fit_projections`."
            )
        if isinstance(x, list | tuple) and not all(len(view) for view in x):
            raise ValueError("`fit_projections` needs at least 2 rows. Received: none")
        k = self.projections[0].num_components
        kind = CCA if len(self.encoders) == 2 else GCCA
        border = Border(type(self).__name__, kind, k, epsilon=self.epsilon)
        codes = _Codes(functools.partial(self._encode, training=False), border)
        rows, valid = codes.predict(x, **{"verbose": 0, **predict_arguments})
        sample = gram_of(tf.constant(rows), tf.constant(valid))
        sizes = tuple(projection.mean.shape[0] for projection in self.projections)
        correlations, vectors = canonical_vectors(kind(sizes, k), sample, self.epsilon)
        count = int(sample.count)
        if count < 2 or not bool(tf.reduce_all(tf.math.is_finite(vectors))):
            what = "codes that are not finite" if count >= 2 else f"{count} of {len(rows)} rows"
            raise ValueError(
                "`fit_projections` needs finite codes of at least 2 rows in which no view is "
                f"missing. Received: {what}"
            )
        mean = tf.reduce_mean(tf.cast(rows[valid[:, 0]], tf.float64), axis=0)
        parts = tf.split(mean, sizes), tf.split(vectors, sizes)
        for projection, middle, part in zip(self.projections, *parts, strict=True):
            projection.assign(middle, part)
        return correlations

    def project(self, view: Any, index: int) -> tf.Tensor:
        """The canonical variates of one view, (f_j(x_j) - mean_j) U_j, without the other views.

        Args:
            view: rows of that view, as in the list of views, `(batch, ...)`.
            index: j, which view it is, from 0.

        Returns:
            `(batch, k)`, or `(batch, time, k)` for codes with time steps, masked as the code is. In
            a graph it is NaN before `fit_projections`. With `nan_is_missing` it is NaN where the
            view is missing.

        Raises:
            ValueError: an index that is not one of a view; `project` before `fit_projections`.
        """
        index = check_integer("index", index, at_least=0)
        if index >= len(self.encoders):
            raise ValueError(
                f"`index` must be that of one of the {len(self.encoders)} views. Received: "
                f"index={index}"
            )
        if not self.built or (
            tf.executing_eagerly() and not bool(self.projections[index].fitted.value > 0)
        ):
            raise ValueError("`project` has no maps: call `fit_projections(views)` before.")
        x = tf.convert_to_tensor(view) if not hasattr(view, "dtype") else view
        code, _ = self._code(self.encoders[index], x, training=False)
        variates = self.projections[index](code)
        if self.nan_is_missing and tf.as_dtype(x.dtype).is_floating:
            axes = list(range(len(code.shape) - 1, len(x.shape)))
            missing = tf.reduce_any(tf.math.is_nan(x), axis=axes)[..., None]
            unknown = tf.cast(float("nan"), variates.dtype)
            variates = tf.where(missing, unknown, variates)
        return with_mask(variates, mask_of(code))

    def export_projections(self, filepath: Any) -> None:
        """Writes a SavedModel with an endpoint for each view, `project_0`, `project_1`, ...

        A process without this package loads it by `tf.saved_model.load(filepath)`, and
        `loaded.project_1(rows)` is then what `project(rows, 1)` is here, for any number of rows.

        Args:
            filepath: the folder to write.

        Raises:
            ValueError: before `fit_projections`.
        """
        if not self.built or not bool(self.projections[0].fitted.value > 0):
            raise ValueError("`export_projections` needs `fit_projections(views)` before.")
        archive = keras.export.ExportArchive()
        archive.track(self)
        for index, shape in enumerate(self._view_shapes):
            signature = [tf.TensorSpec(shape, self.input_dtype)]
            endpoint = functools.partial(self.project, index=index)
            archive.add_endpoint(f"project_{index}", endpoint, input_signature=signature)
        archive.write_out(filepath, verbose=False)
