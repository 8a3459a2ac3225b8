"""Which contract tests of the layers that take longest to trace run on request only."""

import pytest

from tests.helpers.registry import DEAR

# What every layer runs always: a model with two of it through files and copies, and its calls.
ALWAYS = {
    "test_a_model_that_holds_two",
    "test_layers_serialise_before_and_after_build",
    "test_symbolic_equals_eager_equals_graph",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        arguments = getattr(item, "callspec", None)
        if arguments and arguments.params.get("name") in DEAR and item.originalname not in ALWAYS:
            item.add_marker(pytest.mark.slow)
