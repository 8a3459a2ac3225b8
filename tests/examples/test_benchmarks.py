import pytest

pytestmark = pytest.mark.slow


def test_scaling(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend("examples/benchmarks")
    import scaling

    rows = scaling.main(["--quick", "--output", str(tmp_path)])
    assert [kind for kind, _ in rows] == ["rows"] * 2 + ["width"] * 2 + ["replicas"] * 2
    for _, row in rows:
        assert 0 < row["seconds"] < 5 and row["peak"] > 0
        assert row["residual"] <= row["tolerance"] and row["iterations"] > 1
    single, double = rows[4][1], rows[5][1]
    assert double["iterations"] == single["iterations"]
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
