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
