import correlation_gradient


def test_only_rrm_asks_the_encoders_for_correlation():
    found = correlation_gradient.main(
        ["--seeds", "0", "--epochs", "1", "--batch-size", "600", "--labels-per-class", "10"]
    )
    assert list(found) == ["Vanilla", "RRM", *(f"ProxNet, lam {lam}" for lam in ("0.1", "1", "10"))]
    for name, values in found.items():
        for cosine, unlabelled in values:
            assert abs(cosine) > 0.2 if name == "RRM" else abs(cosine) < 0.2
            assert (unlabelled == 0.0) == (name == "Vanilla")
