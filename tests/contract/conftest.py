"""Which contract tests run on request only: layers whose kind another layer shows."""

import pytest

from tests.helpers.registry import FIRST, LAYERS

# The modules whose tests take long for every layer.
MODULES = {"test_calls", "test_config", "test_files", "test_keras_layer_test"}
# What every layer runs always, but for those that take long to trace even so.
ALWAYS = {"test_a_model_that_holds_two", "test_dtype_of_the_policy"}
DEAR = {
    "ProxKernelFeatures, solved",
    "Prox of a layer with a context",
    "Prox of a function on a set",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        arguments = getattr(item, "callspec", None)
        name = arguments.params.get("name") if arguments else None
        if item.path.stem not in MODULES or name not in LAYERS or name in FIRST:
            continue
        if name in DEAR or item.originalname not in ALWAYS:
            item.add_marker(pytest.mark.slow)
