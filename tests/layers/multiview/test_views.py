"""What comes over the border, for every owner of one."""

import collections
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import (
    CanonicalCorrelation,
    CCALoss,
    CCARegularizer,
    GCCALoss,
    GCCARegularizer,
    ProxCCA,
    ProxGCCA,
    cca_loss,
    gcca_loss,
)
from proxnet_tf.layers.multiview.views import Border
from proxnet_tf.ops.multiview.correlation import CCA as TwoViews
from tests.layers.multiview.cases import CCA, CCA_FIRST, GCCA, PLAIN

Pair = collections.namedtuple("Pair", "sound picture")
Three = collections.namedtuple("Three", "a b c")

STRUCTURES = {
    "list": list,
    "tuple": tuple,
    "named tuple": lambda views: {2: Pair, 3: Three}[len(views)](*views),
    "dict": lambda views: dict(zip("zyx", reversed(views), strict=False)),
    "ordered dict": lambda views: collections.OrderedDict(zip("abc", views, strict=False)),
    "nested": lambda views: [[views[0]], tuple(views[1:])],
}


@pytest.mark.parametrize("structure", STRUCTURES)
@CCA_FIRST
def test_output_has_the_structure_of_the_input(kind, structure):
    make = STRUCTURES[structure]
    inputs = make([tf.constant(v) for v in kind.views(24)])
    layer = kind.layer(inference="batch", lam=2.0)
    outputs = layer(inputs, training=True)
    keras.tree.assert_same_structure(inputs, outputs)
    assert type(outputs) is type(inputs)
    if isinstance(outputs, dict):
        assert list(outputs) == list(inputs)
    expected = layer(keras.tree.flatten(inputs), training=True)
    for a, b in zip(keras.tree.flatten(outputs), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    for x, moved in zip(keras.tree.flatten(inputs), keras.tree.flatten(outputs), strict=True):
        assert x.shape == moved.shape and np.abs(moved - x).max() > 1e-3
    symbolic = make([keras.Input((d,)) for d in kind.sizes])
    moved = layer(symbolic)
    keras.tree.assert_same_structure(symbolic, moved)
    model = keras.Model(keras.tree.flatten(symbolic), keras.tree.flatten(moved))
    for a, b in zip(model(keras.tree.flatten(inputs)), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@CCA_FIRST
def test_none_in_place_of_a_view_is_refused(kind):
    views = kind.views(24)
    views[1] = None
    with pytest.raises(ValueError, match=r"a tensor for each view. Received None"):
        kind.layer()(views, training=True)


def test_masks_in_the_structure_of_the_views(kind):
    x, valid = kind.sequences()
    names = "abc"[: len(kind.sizes)]
    views = dict(zip(names, kind.parts(x), strict=True))
    masks = dict.fromkeys(names) | {"a": valid}
    outputs = kind.layer(lam=2.0)(views, training=True, mask=masks)
    joined = np.concatenate([outputs[n] for n in names], 2)
    np.testing.assert_allclose(joined, kind.expected_of_steps(x, valid, 2.0), atol=2e-5)


def owners(views):
    """Every public way to hand views over, for two views or for three."""
    two = len(views) == 2
    layers = (
        (ProxCCA(2, solver=PLAIN), CCARegularizer(num_components=2))
        if two
        else (ProxGCCA(2, solver=PLAIN), GCCARegularizer(num_components=2))
    )
    loss = CCALoss(2) if two else GCCALoss(2)
    yield from layers
    yield lambda x: loss(None, x)
    yield lambda x: cca_loss(*x, 2) if two else gcca_loss(x, 2)
    if two:
        yield lambda x: CanonicalCorrelation(2).update_state(None, x)


def refused_by_all(views, message):
    for owner in owners(views):
        with pytest.raises(ValueError, match=message):
            owner(views)


@pytest.mark.parametrize("kind", [CCA, GCCA], ids=["cca", "gcca"])
def test_every_owner_refuses_what_cannot_be_views(kind):
    views = kind.views(8)
    refused_by_all([v.astype("int32") for v in views], "floating-point dtype; cast them first")
    refused_by_all([views[0][:7], *views[1:]], "same batch size")
    refused_by_all([views[0][:, None], *views[1:]], "all of the rank 2 or all of 3")
    refused_by_all([v[:, None, None] for v in views], "all of the rank 2 or all of 3")
    refused_by_all([views[0][:, :0], *views[1:]], "known widths >= 1")
    steps = [tf.RaggedTensor.from_row_lengths(tf.ones((3, 4)), [1, 2]) for _ in views]
    refused_by_all(steps, "needs dense views; .* Received a ragged tensor")
    sparse = [tf.sparse.from_dense(v) for v in views]
    refused_by_all(sparse, "needs dense views; .* Received a sparse tensor")


def test_views_as_several_arguments(kind):
    views = kind.views(8)
    symbolic = [keras.Input((d,)) for d in kind.sizes]
    for layer in (kind.layer(), CCARegularizer(), GCCARegularizer(num_components=2)):
        for inputs in (views, [tf.constant(v) for v in views], symbolic):
            with pytest.raises(ValueError, match=r"one argument: pass layer\(\[x, y\]\), not"):
                layer(*inputs)


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize(
    "arguments, shapes, message",
    [
        ({}, [(8, 4)], r"takes two views.*Received 1 of the shapes \[\(.*4\)\]"),
        ({}, [(8, 4)] * 3, "takes two views.*Received 3 of the shapes"),
        ({}, [(8, 4), (9, 5)], r"same batch size.*\(8, 4\), \(9, 5\)"),
        ({}, [(8, 3, 4), (8, 2, 5)], r"same number of time steps.*\(8, 3, 4\), \(8, 2, 5\)"),
        ({}, [(8, 3, 4), (8, 5)], r"all of the rank 2 or all of 3.*\(8, 3, 4\), \(8, 5\)"),
        ({}, [(8,), (8,)], r"all of the rank 2 or all of 3.*\(8,\)"),
        ({}, (8, 7), r"one tensor of the width 7, which has no halves: give `split"),
        (dict(split=(2, 4)), (8, 7), r"add up to the width 7.*split=\(2, 4\)"),
        (dict(split=(2, 4, 1)), (8, 7), r"widths of two views.*split=\(2, 4, 1\)"),
        (dict(split=(2, 4)), [(8, 4), (8, 4)], r"`split`=\(2, 4\) does not match .* \(4, 4\)"),
        (dict(num_components=5), [(8, 4), (8, 6)], r"min\(d1, d2\) = 4.*\(4, 6\).*components=5"),
    ],
)
def test_bad_views(arguments, shapes, message, symbolic):
    rng = np.random.default_rng(0)
    shapes_of = shapes if isinstance(shapes, list) else [shapes]
    if symbolic:
        tensors = [keras.Input(batch_shape=s) for s in shapes_of]
    else:
        tensors = [tf.constant(rng.normal(size=s), tf.float32) for s in shapes_of]
    inputs = tensors if isinstance(shapes, list) else tensors[0]
    for cls in (ProxCCA, CCARegularizer):
        with pytest.raises(ValueError, match=message):
            cls(**arguments)(inputs)


@pytest.mark.parametrize("symbolic", [True, False])
def test_bad_views_of_a_core(symbolic):
    views = [keras.Input((d,)) if symbolic else tf.ones((8, d)) for d in GCCA.sizes]
    for cls in (ProxGCCA, GCCARegularizer):
        with pytest.raises(ValueError, match=r"at most d_1 .*= 9.*num_components=10"):
            cls(num_components=10)(views)
        with pytest.raises(ValueError, match="two or more views"):
            cls(num_components=2)(views[:1])


@pytest.mark.parametrize("symbolic", [True, False])
def test_other_widths_than_built_for(kind, symbolic):
    layer = kind.layer()
    layer(kind.views(8))
    others = [keras.Input((d + 1,)) if symbolic else tf.ones((8, d + 1)) for d in kind.sizes]
    with pytest.raises(ValueError, match=r"built for .* widths \(3, 4.*\). Received: \(4, 5"):
        layer(others)


def test_symbolic_sparse_views():
    with pytest.raises(ValueError, match=r"needs dense views; .* Received a sparse tensor"):
        ProxCCA()(keras.Input((4,), sparse=True))


def test_in_and_out_again():
    border = Border("test", TwoViews, None, epsilon=0.0)
    x = np.arange(2 * 3 * 5, dtype="float32").reshape(2, 3, 5)
    views = border.enter(Pair(x[..., :2], x[..., 2:].astype("float16")), dtype="float64")
    assert views.correlation == TwoViews((2, 3), 2) and views.valid is None
    np.testing.assert_array_equal(views.rows, x.reshape(6, 5))
    assert views.rows.dtype == tf.float64
    out = views.leave(views.rows + 1, "float32")
    assert isinstance(out, Pair) and out.sound.dtype == tf.float32
    np.testing.assert_array_equal(np.concatenate(out, 2), x + 1)
    assert border.enter([x[..., :2], x[..., 2:]]).rows.dtype == tf.float32
    assert border.enter([x[..., :2].astype("float16")] * 2).rows.dtype == tf.float32


def test_masks_that_keras_attached_are_found():
    border = Border("test", TwoViews, None, epsilon=0.0, nan_is_missing=True)
    x = np.ones((2, 3, 2), "float32")
    x[0, 0, 1] = np.nan
    views = [keras.ops.convert_to_tensor(x), keras.layers.Masking()(np.zeros((2, 3, 2)))]
    assert not np.any(border.enter(views).valid)
    valid = border.enter(views, mask=[None, np.ones((2, 3))]).valid
    np.testing.assert_array_equal(valid[:, 0], [False, True, True, True, True, True])


def test_a_batch_in_which_any_views_correlate_warns_once():
    """d1 + d2 = 7: from 8 rows on (n - 1 >= d1 + d2) nothing is said."""
    message = "of 7 columns together in a batch of 7 rows.*independent views"
    makers = [
        (lambda: CCA.layer(), dict(training=True)),
        (lambda: CCARegularizer(num_components=2), {}),
        (lambda: CCARegularizer(num_components=2, envelope=1.0, solver=PLAIN), {}),
    ]
    for make, call in makers:
        layer = make()
        with pytest.warns(UserWarning, match=message):
            layer(CCA.views(7), **call)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer(CCA.views(7), **call)  # said once
            make()(CCA.views(8), **call)
            make()(CCA.views(1), **call)  # no correlation at all
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CCA.layer()(CCA.views(7))  # nothing is correlated
    loss = CCALoss(2)
    with pytest.warns(UserWarning, match=message):
        loss(None, CCA.views(7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(None, CCA.views(7))
