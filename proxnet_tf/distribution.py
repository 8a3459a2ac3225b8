"""Training on several machines with `fit`."""

from typing import Any

import tensorflow as tf


class MultiWorkerStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """`tf.distribute.MultiWorkerMirroredStrategy` under which a Keras model can `fit`.

    A worker is a process, on a machine of its own or not. Every worker runs the same program, which
    builds and compiles the model in `strategy.scope()` and calls `fit`, `evaluate` and `predict`
    with the same data. The environment variable `TF_CONFIG` tells a worker its place:

        {"cluster": {"worker": ["host0:2222", "host1:2222"]},
         "task": {"type": "worker", "index": 0}}

    Without `TF_CONFIG` there is one worker. A batch is that of all workers together, and each gets
    a part of its rows. So `batch_size` should be a multiple of the number of replicas. Every worker
    returns the same history. Each process shuffles with its own generator: give all processes the
    same seed with `keras.utils.set_random_seed`, or pass `shuffle=False`.

    Keras asks its strategy for two reductions that TensorFlow's own class refuses for workers. One
    is the mean of a whole batch, of which Keras uses only the shapes and dtypes. The other is
    the mean of scalar logs over an axis that a scalar does not have. Nothing else differs.

    A worker that dies stops the others with an error. Start all again, with
    `keras.callbacks.BackupAndRestore` to continue: the guide on devices shows how.

    Args:
        cluster_resolver: as for `tf.distribute.MultiWorkerMirroredStrategy`; by default it reads
            `TF_CONFIG`.
        communication_options: as for `tf.distribute.MultiWorkerMirroredStrategy`.

    Raises:
        RuntimeError: with several workers, when TensorFlow has run an operation before.

    Example:

    >>> import keras
    >>> strategy = MultiWorkerStrategy()
    >>> strategy.num_replicas_in_sync, strategy.is_chief
    (1, True)
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    """

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the one that writes files: the first, if none is named chief."""
        resolver = self.cluster_resolver
        jobs = resolver.cluster_spec().as_dict()
        return (
            not jobs
            or resolver.task_type == "chief"
            or ("chief" not in jobs and resolver.task_type == "worker" and resolver.task_id == 0)
        )

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """As `tf.distribute.Strategy.reduce`, and the two reductions that Keras asks for.

        Args:
            reduce_op: "SUM", "MEAN" or a `tf.distribute.ReduceOp`.
            value: a value for each replica. For a structure of such values the result has each leaf
                as it is on the first replica of this worker.
            axis: the axis to reduce beside the replicas, or None. Scalars have none: they are
                reduced over the replicas alone.
        """
        if isinstance(value, tuple | list | dict):
            return tf.nest.map_structure(self._first, value)
        if axis == 0 and self._first(value).shape.rank == 0:
            axis = None
        return super().reduce(reduce_op, value, axis)

    def _first(self, value: Any) -> Any:
        return self.experimental_local_results(value)[0]
