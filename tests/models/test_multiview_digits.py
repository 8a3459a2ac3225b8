"""The models on real data."""

import keras
import numpy as np
import pytest
from keras.layers import Dense, Dropout

from proxnet_tf import CanonicalCorrelation
from proxnet_tf.datasets import load_multiple_features
from proxnet_tf.models import DCCA, LinearCCA


def total_correlation(views):
    metric = CanonicalCorrelation()
    metric.update_state(None, list(views))
    return float(metric.result())


@pytest.mark.slow
def test_the_code_of_dcca_correlates_better_than_linear_cca():
    views, _ = load_multiple_features(["fou", "zer"])
    order = np.random.default_rng(0).permutation(2000)
    train, test = order[:1500], order[1500:]
    views = [(x - x[train].mean(0)) / x[train].std(0) for x in views.values()]
    train_views, test_views = ([x[rows] for x in views] for rows in (train, test))
    linear = LinearCCA(10).fit(*train_views)
    keras.utils.set_random_seed(0)
    encoders = [
        keras.Sequential([Dense(256, activation="relu"), Dropout(0.5), Dense(10)]) for _ in views
    ]
    model = DCCA(encoders, [Dense(10) for _ in views], epsilon=0.1)
    model.pretrain(train_views, epochs=80, batch_size=500, verbose=0)
    codes = [np.asarray(code) for code in model.encode(test_views)]
    baseline = list(map(linear.project, test_views, range(2)))
    assert total_correlation(codes) > 1.05 * total_correlation(baseline)

    # The same with projections that are fitted to the training part.
    final = LinearCCA(10).fit(*(np.asarray(code) for code in model.encode(train_views)))

    def paired(z, w):
        return sum(np.corrcoef(z[:, i], w[:, i])[0, 1] for i in range(10))

    assert paired(*map(final.project, codes, range(2))) > 1.05 * paired(*baseline)
