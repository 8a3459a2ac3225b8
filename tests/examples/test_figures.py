"""The figures of the paper that the proximal toolbox makes, with their numbers."""

from examples import dropout_simulation, two_moons

PNG = b"\x89PNG"


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
    assert [f.name for f in tmp_path.iterdir()] == ["moons.png"]


def test_dropout_simulation(tmp_path):
    path = tmp_path / "dropout.png"
    first, second = dropout_simulation.main(["--output", str(path)])
    assert first > 0.97
    assert second > 0.999
    assert path.read_bytes()[:4] == PNG
