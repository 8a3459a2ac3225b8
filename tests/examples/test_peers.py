"""`examples/benchmarks/peers.py`: tiny, with the peers that are installed and without any."""

import importlib.util
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.examples.test_benchmark import FOLDER, load
from tests.helpers.markdown import table_rows

PEERS = ("cca_zoo", "cvxpylayers", "pyproximal", "sklearn")
TINY = {
    "cca_loss": {"sizes": ((40, 4, 1), (6, 4, 0)), "repeats": 7},
    "linear_cca": {"sizes": ((60, 4, 2),)},
    "operators": {"shape": (6, 8), "few": 2},
    "prox_lstm": {"sizes": ((2, 3, 2, 2),), "compiled": (False,), "repeats": 7},
    "retrieval": {"sizes": ((40, 3),), "batch": 16},
}
# Names of the peers in the table, and how often each is measured.
MEASURED = {
    "cca_loss": {"cca_zoo": 2},
    "linear_cca": {"scikit-learn": 1, "cca_zoo": 1},
    "operators": {"pyproximal": 6, "cvxpylayers": 2},
    "retrieval": {"scikit-learn": 1},
}
MODULES = {"scikit-learn": "sklearn"}


@pytest.fixture
def peers(monkeypatch):
    """The script; its functions run step by step, as tracing takes most of the time."""
    monkeypatch.syspath_prepend(str(FOLDER))
    tf.config.run_functions_eagerly(True)
    yield load("peers")
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def none_installed(monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] in PEERS]:
        monkeypatch.delitem(sys.modules, module)
    for module in PEERS:
        monkeypatch.setitem(sys.modules, module, None)


def of(rows, name):
    return [row for row in rows if row[1].startswith(name)]


def check(name, rows):
    """Every peer is measured if it is installed, and otherwise named once."""
    for peer, number in MEASURED[name].items():
        found = of(rows, f"{peer} ")
        if importlib.util.find_spec(MODULES.get(peer, peer)) is None:
            assert len(of(rows, f"{peer}: skipped")) == 1 and not found
            continue
        assert len(found) == number
        for row in found:
            assert min(map(float, row[2:5])) > 0 and float(row[6]) < 1e-6
            assert float(row[7]) < 1 or "with gradient" in row[0]  # where it is NaN


@pytest.mark.parametrize("name", ["linear_cca", "operators", "retrieval"])
@pytest.mark.filterwarnings("default::DeprecationWarning")  # of the peers
def test_peers_are_measured_where_they_are_installed(peers, name):
    rows = peers.COMPARISONS[name](**TINY[name])
    assert all(len(row) == len(peers.HEADER) for row in rows)
    check(name, rows)


@pytest.mark.usefixtures("none_installed")
@pytest.mark.parametrize("name", ["linear_cca", "operators", "retrieval"])
def test_peers_that_are_missing_are_named(peers, name):
    rows = peers.COMPARISONS[name](**TINY[name])
    assert len(rows) == len(MEASURED[name])
    for row, peer in zip(rows, MEASURED[name], strict=True):
        assert row[1].startswith(f"{MODULES.get(peer, peer)}: skipped (")
        assert set(row[2:]) == {""}


@pytest.mark.filterwarnings("default::DeprecationWarning")
@pytest.mark.usefixtures("without_xla")
def test_plain_tensorflow_and_keras_are_always_there(peers, capsys, monkeypatch):
    for name in ("cca_loss", "prox_lstm"):
        monkeypatch.setitem(peers.QUICK, name, TINY[name])
    peers.main(["cca_loss", "prox_lstm", "--quick"])
    rows = table_rows(capsys.readouterr().out)
    check("cca_loss", rows)
    plain = of(rows, "eigh, autodiff")
    case = "n = 40, d = 4, 1 constant"
    assert [row[0] for row in plain] == [f"{case}, value", f"{case}, with gradient"]
    assert all(float(row[6]) < 1e-6 and float(row[7]) < 1e-2 for row in plain)
    assert len(of(rows, "left out")) == 1  # six rows of two views of four columns
    assert len(of(rows, "Keras ")) == 2


def test_an_unknown_comparison_is_refused(peers, capsys):
    with pytest.raises(SystemExit):
        peers.main(["cca_loss", "none"])
    assert "no such comparison: none" in capsys.readouterr().err


@pytest.mark.parametrize("power", [1, 2])
def test_the_exact_gradient_is_that_of_the_exact_loss(peers, power):
    rng = np.random.default_rng(0)
    x, y, dx, dy = rng.normal(size=(4, 12, 3))

    def loss(t):
        slope = (lambda s: (s, np.ones_like(s))) if power == 1 else (lambda s: (s**2, 2 * s))
        return peers.exact_loss(x + t * dx, y + t * dy, slope)

    _, (of_x, of_y) = loss(0.0)
    central = (loss(1e-6)[0] - loss(-1e-6)[0]) / 2e-6
    assert central == pytest.approx((of_x * dx).sum() + (of_y * dy).sum(), rel=1e-7)
