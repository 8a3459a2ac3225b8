"""The models on two devices against one."""

import json
from pathlib import Path

import pytest

from tests.helpers.mirrored_models import MODELS
from tests.test_distribution import result_of, start


@pytest.fixture(scope="module")
def mirrored(request):
    """What the process with two devices found, for the models that were asked for."""
    tests = [i for i in request.session.items if i.path == Path(__file__)]
    asked = json.dumps([i.callspec.params["name"] for i in tests])
    return result_of(start("tests.helpers.mirrored_models", ASKED=asked))


@pytest.mark.parametrize("name", MODELS)
def test_fit_under_a_strategy_equals_one_device(mirrored, name):
    found = mirrored[name]
    assert found["moved"] > 1e-3
    assert found["loss"] < 1e-5
    assert found["weights"] < 1e-5
