"""Which contract tests run on request only: layers whose kind another layer shows."""

import pytest

from tests.helpers.registry import FIRST, LAYERS

# The modules whose tests take long for every layer.
MODULES = {
    "test_calls",
    "test_config",
    "test_files",
    "test_keras_layer_test",
    "test_masks",
    "test_recurrent",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        arguments = getattr(item, "callspec", None)
        name = arguments.params.get("name") if arguments else None
        if item.path.stem in MODULES and name in LAYERS and name not in FIRST:
            item.add_marker(pytest.mark.slow)
