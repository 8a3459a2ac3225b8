import numpy as np
import pytest
import writing

from tests.helpers.markdown import table_rows


def test_a_table_is_markdown_and_aligned():
    text = writing.markdown(("method", "error"), [("A", 1.5), ("longer name", "")])
    assert text.splitlines() == [
        "| method      | error |",
        "| ----------- | ----- |",
        "| A           | 1.5   |",
        "| longer name |       |",
    ]
    assert table_rows(text)[1:] == [["A", "1.5"], ["longer name", ""]]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "table.md"
    writing.write(path, "first")
    with pytest.raises(TypeError):
        writing.write(path, None)
    assert path.read_text() == "first"
    writing.write(path, "second")
    assert path.read_text() == "second"


def test_learning_curves_are_means_over_seeds(tmp_path, monkeypatch):
    figures = []
    save = writing.save_figure
    monkeypatch.setattr(writing, "save_figure", lambda f, p: (figures.append(f), save(f, p)))
    prox = {"loss": [3.0, 1.0], "correlation_before": [4.0, 5.0], "correlation": [9.0, 8.0]}
    other = {"loss": [5.0, 2.0], "correlation_before": [2.0, 5.0], "correlation": [9.0, 9.0]}
    histories = {
        "easy": {"Vanilla": [{"loss": [2.0, 1.0, 0.5]}]},
        "hard": {"ProxNet": [prox, other], "Vanilla": [{"loss": [1.0, 0.5]}]},
    }
    writing.learning_curves(histories, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    easy, none, loss, correlation = figures[0].axes
    assert not none.axison and loss.get_title() == "hard: loss"
    (line,) = easy.lines
    np.testing.assert_array_equal(line.get_xydata(), [[1, 2.0], [2, 1.0], [3, 0.5]])
    drawn = {line.get_label(): line.get_ydata().tolist() for line in loss.lines}
    assert drawn == {"ProxNet": [4.0, 1.5], "Vanilla": [1.0, 0.5]}
    drawn = {line.get_label(): line.get_ydata().tolist() for line in correlation.lines}
    assert drawn == {"ProxNet": [3.0, 5.0], "ProxNet, after the layer": [9.0, 8.5]}
    colours = [axis.lines[-1].get_color() for axis in (easy, loss)]
    assert colours[0] == colours[1]  # Vanilla's
