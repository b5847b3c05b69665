"""Training curves: a metric of several runs in one chart."""

import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.curves import curves
from regard.errors import ConfigError, FolderError


def _run(folder: Path, **metrics: list[float]) -> str:
    folder.mkdir()
    lines = [
        {"update": 10 * n, "epoch": 0, "minutes": n / 2, "train_loss": 3.0, "dev_loss": 2.0 / n}
        | {name: values[n - 1] for name, values in metrics.items()}
        | {"learning_rate": 1e-3, "pairs_per_second": 5.0, "best": True}
        for n in range(1, 4)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def test_the_default_metric_is_the_one_that_selects_the_best_weights(tmp_path: Path) -> None:
    first, second = _run(tmp_path / "one", bleu=[1, 2, 3]), _run(tmp_path / "two", bleu=[4, 5, 6])
    chart = curves([first, second])
    assert [(point.series, point.x, point.y) for point in chart.points] == [
        ("one", 0.5, 1), ("one", 1, 2), ("one", 1.5, 3), ("two", 0.5, 4), ("two", 1, 5), ("two", 1.5, 6),
    ]  # fmt: skip
    assert (chart.x_title, chart.y_title) == ("minutes of training", "BLEU")
    assert chart.title == "BLEU during training"
    losses = curves([first], "dev_loss", by="update")
    assert [(point.x, point.y) for point in losses.points] == [(10, 2), (20, 1), (30, 2 / 3)]
    loss = curves([_run(tmp_path / "loss")])
    assert (loss.y_title, loss.title) == ("dev loss", "Dev loss during training")


def test_runs_have_the_shortest_names_that_tell_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
    runs = [_run(tmp_path / name, bleu=[1, 2, 3]) for name in ("a/seed-1", "a/seed-2", "b/seed-1")]
    assert curves(runs[:2]).series == ["seed-1", "seed-2"]
    assert curves(runs).series == ["a/seed-1", "a/seed-2", "b/seed-1"]
    (tmp_path / "link").symlink_to(runs[0])
    assert curves([runs[0], tmp_path / "link"]).points == curves(runs[:1]).points
    monkeypatch.chdir(tmp_path / "a" / "seed-1")
    assert curves(["."]).series == ["seed-1"]


def test_an_ensemble_stands_for_its_members(tmp_path: Path) -> None:
    (tmp_path / "all" / "members").mkdir(parents=True)
    for number in (10, 9):
        _run(tmp_path / "all" / "members" / str(number), bleu=[1, 2, number])
    (tmp_path / "all" / "members" / ".lock").touch()
    chart = curves([tmp_path / "all"])
    assert chart.series == ["9", "10"]
    assert [point.y for point in chart.points] == [1, 2, 9, 1, 2, 10]


def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    chart = curves([_run(tmp_path / "a\x01b"), _run(tmp_path / "c")])
    text = "".join(xml.etree.ElementTree.fromstring(chart.to_svg()).itertext())
    assert "a\\x01b" in text
    assert chart.to_png().startswith(b"\x89PNG")


def test_invalid_metrics_axes_and_folders_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no folders"):
        curves([])
    run = _run(tmp_path / "run", bleu=[1, 2, 3])
    with pytest.raises(ConfigError, match=r"metric takes one of train_loss, .*, got 'per'"):
        curves([run], "per")
    with pytest.raises(ConfigError, match="takes one of minutes, update, got 'epoch'"):
        curves([run], by="epoch")
    with pytest.raises(FolderError, match=r"has no metrics yet"):
        curves([tmp_path])
    with pytest.raises(FolderError, match=r"rnu is no folder; choose the folder of a training"):
        curves([tmp_path / "rnu"])
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(FolderError, match=r"has no metrics yet .* after its first validation"):
        curves([run])
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(FolderError, match="is damaged"):
        curves([run])
    for value in ("null", '"x"', "[1]", "{}", "1e308", "9" * 400):
        entry = f'{{"update": 1, "minutes": 1, "dev_loss": {value}}}\n'
        (tmp_path / "run" / "metrics.jsonl").write_text(entry)
        with pytest.raises(FolderError, match=r"is damaged \(line 1: dev_loss is not a number\)"):
            curves([run])


@pytest.mark.parametrize("suffix", ["html", "png", "svg", "pdf", "json"])
def test_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    runs = [_run(tmp_path / name, per=[9, 8, 7]) for name in ("a", "b")]
    out = tmp_path / f"curves.{suffix}"
    assert main(["curves", *runs, "-o", str(out)]) == 0
    assert "token error rate (PER of g2p papers) of 2 runs" in capsys.readouterr().out
    assert out.stat().st_size > 100


@pytest.mark.parametrize(("key", "minutes"), [("per", "NaN"), ("a\\u0000b", "1"), ("\\ud800", "1")])
def test_metrics_that_cannot_be_drawn_are_reported(tmp_path: Path, key: str, minutes: str) -> None:
    line = f'{{"update": 1, "minutes": {minutes}, "{key}": 1.0}}\n'
    (tmp_path / "metrics.jsonl").write_text(line)
    with pytest.raises(FolderError, match=r"metrics\.jsonl is damaged \(line 1: "):
        curves([tmp_path])
