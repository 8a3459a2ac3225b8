import numpy as np
import pytest
import report

from tests.helpers.markdown import table_rows


def test_a_table_is_markdown_and_aligned():
    text = report.markdown(("method", "error"), [("A", 1.5), ("longer name", "")])
    assert text.splitlines() == [
        "| method      | error |",
        "| ----------- | ----- |",
        "| A           | 1.5   |",
        "| longer name |       |",
    ]
    assert table_rows(text)[1:] == [["A", "1.5"], ["longer name", ""]]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "table.md"
    report.write(path, "first")
    with pytest.raises(TypeError):
        report.write(path, None)
    assert path.read_text() == "first"
    report.write(path, "second")
    assert path.read_text() == "second"


def test_learning_curves_are_means_over_seeds(tmp_path, monkeypatch):
    figures = []
    draw = report.figure

    def kept(path, function, *grid, **options):
        draw(path, lambda f, axes: (figures.append(f), function(f, axes)), *grid, **options)

    monkeypatch.setattr(report, "figure", kept)
    prox = {"loss": [3.0, 1.0], "correlation_before": [4.0, 5.0], "correlation": [9.0, 8.0]}
    other = {"loss": [5.0, 2.0], "correlation_before": [2.0, 5.0], "correlation": [9.0, 9.0]}
    histories = {
        "easy": {"Vanilla": [{"loss": [2.0, 1.0, 0.5]}]},
        "hard": {"ProxNet": [prox, other], "Vanilla": [{"loss": [1.0, 0.5]}]},
    }
    report.learning_curves(histories, tmp_path / "curves.png")
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


def test_a_figure_that_fails_costs_a_line(tmp_path, capsys):
    def draw(_, axes):
        axes.plot([1, 2], [1, 2, 3])

    report.figure(tmp_path / "a.png", draw)
    printed = capsys.readouterr().err
    assert printed.startswith(f"{tmp_path / 'a.png'} was not drawn: ValueError: ")
    assert printed.count("\n") == 1
    (tmp_path / "file").touch()
    report.figure(tmp_path / "file" / "a.png", lambda _, axes: axes.plot([1, 2]))
    assert "was not drawn: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_log_keeps_what_is_finished(tmp_path):
    path = tmp_path / "runs.jsonl"
    asked = []

    def compute():
        asked.append(1)
        return len(asked)

    log = report.Log(path)
    assert [log.once(compute, seed=seed) for seed in (0, 1, 0)] == [1, 2, 1]
    whole = path.read_text()
    first = whole.splitlines(keepends=True)[0]
    for cut, kept in ((whole[:-5], 1), (first + '{"run": {"se', 1), (whole[:-1], 2)):
        path.write_text(cut)  # stops in mid-line, the last one just before its end
        again = report.Log(path)
        assert len(again.runs) == kept
        assert again.once(compute, seed=0) == 1
        again.once(compute, seed=2)
        assert len(report.Log(path).runs) == kept + 1
