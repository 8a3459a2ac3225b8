import pytest

from tests.layers.multiview.cases import KINDS


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param
