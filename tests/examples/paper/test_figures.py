"""The figures of the paper that the proximal toolbox makes, with their numbers."""

import dropout_simulation
import pytest
import two_moons

from tests.helpers.markdown import table_rows

PNG = b"\x89PNG"


@pytest.mark.slow
def test_two_moons(tmp_path):
    path = tmp_path / "moons.png"
    before, after, comparison = two_moons.main(["--output", str(path)])
    assert before < 0.7
    assert after > 0.98
    for _, p1, p2, same, correlation in comparison:
        assert abs(p1 - p2) <= 0.03
        assert same > 0.95
        assert correlation > 0.95
    assert path.read_bytes()[:4] == PNG
    rows = table_rows((tmp_path / "moons.md").read_text())
    assert rows[1] == ["none", f"{before:.3f}"] and ["0.1", f"{after:.3f}"] in rows
    assert rows[-1][:2] == ["10", f"{comparison[-1][1]:.3f}"]
    assert {f.name for f in tmp_path.iterdir()} == {"moons.png", "moons.md"}


@pytest.mark.slow
def test_dropout_simulation(tmp_path):
    path = tmp_path / "dropout.png"
    first, second = dropout_simulation.main(["--output", str(path)])
    assert first > 0.97
    assert second > 0.999
    rows = table_rows((tmp_path / "dropout.md").read_text())
    assert [row[3] for row in rows[1:]] == [f"{first:.4f}", f"{second:.4f}"]
    assert path.read_bytes()[:4] == PNG
