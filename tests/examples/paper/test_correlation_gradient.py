import correlation_gradient

from tests.helpers.markdown import table_rows


def test_only_rrm_asks_the_encoders_for_correlation(tmp_path):
    arguments = "--seeds 0 --epochs 1 --batch-size 600 --labels-per-class 10".split()
    found = correlation_gradient.main([*arguments, "--output", str(tmp_path)])
    assert list(found) == ["Vanilla", "RRM", *(f"ProxNet, lam {lam}" for lam in ("0.1", "1", "10"))]
    for name, values in found.items():
        for cosine, unlabelled in values:
            assert abs(cosine) > 0.2 if name == "RRM" else abs(cosine) < 0.2
            assert (unlabelled == 0.0) == (name == "Vanilla")
    rows = table_rows((tmp_path / "correlation_gradient.md").read_text())
    assert [row[0] for row in rows[1:]] == list(found)
