"""Model comparison: same pairs, budget and seeds; a table and a chart."""

import dataclasses
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.alignment import GoldAlignment, parse_links
from regard.charts import LineChart
from regard.cli.main import main
from regard.cli.pairs import read_gold_links, read_valid_pairs
from regard.compare import MINUTES, compare, model_settings
from regard.comparison import Run, _t_quantile, by_length, table
from regard.config import DataConfig
from regard.errors import ConfigError, DataError
from regard.metrics import report
from regard.pairs import Pair

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the charts, which are drawn anew after every run."""
    monkeypatch.setattr(LineChart, "save", lambda *_: None)


TINY = {
    "model": {"embedding_dim": 8, "encoder_dim": 8, "decoder_dim": 8, "attention_dim": 8, "feed_forward_dim": 8},
    "training": {"max_updates": 4, "validate_every": 2, "batch_tokens": 200},
}  # fmt: skip


def _pairs(count: int, seed: int) -> list[Pair]:
    rng = random.Random(seed)
    words = [" ".join(rng.choice("abcd") for _ in range(rng.randint(1, 8))) for _ in range(count)]
    return [Pair(word, word) for word in dict.fromkeys(words)]


def _write(path: Path, pairs: list[Pair]) -> str:
    lines = [f"{pair.source}\t{pair.target}\n" for pair in pairs]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def _settings(tmp_path: Path) -> dict[str, Any]:
    data = {"train": _write(tmp_path / "train.tsv", _pairs(60, 1))}
    data["dev"] = _write(tmp_path / "dev.tsv", _pairs(20, 2))
    return {**TINY, "data": data, "device": "cpu"}


@pytest.mark.parametrize(
    ("specification", "settings"),
    [
        ("none", {"kind": "rnn", "attention": "none"}),
        ("additive", {"kind": "rnn", "attention": "additive"}),
        ("luong:dot", {"kind": "rnn", "attention": "dot", "decoder": "luong"}),
        ("posterior:dot", {"kind": "rnn", "attention": "dot", "decoder": "posterior"}),
        ("luong:general", {"kind": "rnn", "attention": "general", "decoder": "luong"}),
        ("bahdanau:concat", {"kind": "rnn", "attention": "concat", "decoder": "bahdanau"}),
        ("transformer", {"kind": "transformer", "attention": None}),
        ("transformer:additive", {"kind": "transformer", "attention": "additive"}),
    ],
)
def test_specifications_give_model_settings(specification: str, settings: dict[str, str]) -> None:
    assert model_settings(specification) == {"encoder": None, **settings}


@pytest.mark.parametrize("specification", ["", "sum", "luong", "luong:sum", "cho:dot", "dot:luong"])
def test_unknown_models_are_refused(specification: str) -> None:
    with pytest.raises(
        ConfigError, match=f"unknown model '{specification}'; models: none, transformer, a score"
    ):
        model_settings(specification)


@pytest.mark.parametrize(
    ("specification", "nearest"),
    [("aditive", "additive"), ("luong:aditive", "luong:additive"), ("transfomer", "transformer")],
)
def test_a_misspelt_model_gets_the_nearest(specification: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"; did you mean {nearest}\?"):
        model_settings(specification)


@pytest.mark.slow
def test_every_model_is_trained_evaluated_and_plotted(tmp_path: Path) -> None:
    test = _pairs(30, 3)
    gold = [
        GoldAlignment(frozenset((i, i) for i in range(len(pair.source.split())))) for pair in test
    ]
    models = ["none", "luong:dot", "transformer"]
    messages: list[str] = []
    runs = compare(
        _settings(tmp_path),
        models,
        tmp_path / "out",
        test,
        seeds=(1, 2),
        gold=gold,
        log=messages.append,
    )
    assert [(run.name, run.seed) for run in runs] == [
        (model, s) for model in models for s in (1, 2)
    ]
    assert messages[1] == "[2 of 6] none, seed 2"
    assert [run.aer is None for run in runs] == [True, True, False, False, False, False]
    for run in runs:
        folder = tmp_path / "out" / run.name.replace(":", "-") / f"seed-{run.seed}"
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert config["training"]["seed"] == run.seed
        assert config["training"]["max_minutes"] == pytest.approx(8 / 6)
        assert run.parameters == config["metadata"]["parameters"]
        assert run.updates == 4
        assert run.scores.n == len(test)
        assert [part.low for part in run.lengths] == sorted({len(p.source.split()) for p in test})
        assert sum(part.n for part in run.lengths) == len(test)
        num_correct = sum(part.n * part.exact_match for part in run.lengths)
        assert num_correct / len(test) == pytest.approx(run.scores.exact_match.value)
    rows = json.loads((tmp_path / "out" / "table.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in rows] == [run.name for run in runs]
    assert (tmp_path / "out" / "table.md").read_text(encoding="utf-8") == table(runs)
    for suffix in ("html", "png", "svg"):
        assert (tmp_path / "out" / f"by_length.{suffix}").stat().st_size > 1000


def _run(name: str, seed: int, num_correct: int) -> Run:
    """Return a run with `num_correct` of 20 outputs correct; 10 sources have 3 tokens, 10 have 9."""
    outputs = ["a"] * num_correct + ["b"] * (20 - num_correct)
    scores = report(outputs, [["a"]] * 20, [3] * 10 + [9] * 10)
    return Run(name, seed, scores, 2.0, 100, 1234, 50.0, 9, scores.by_length, 0.25)


@pytest.mark.usefixtures("without_charts")
def test_references_of_a_lower_casing_model_are_lower_cased(tmp_path: Path) -> None:
    settings = {**_settings(tmp_path), "target": {"lowercase": True}}
    settings["training"] = {**settings["training"], "max_updates": 40, "validate_every": 40}
    upper = [Pair(pair.source, pair.target.upper()) for pair in _pairs(30, 3)]
    lower = [Pair(pair.source, pair.target) for pair in _pairs(30, 3)]
    run = compare(settings, ["dot"], tmp_path / "out", upper, beam_size=1, log=lambda _: None)[0]
    translator = regard.Translator.load(tmp_path / "out" / "dot" / "seed-1", "cpu")
    expected = regard.evaluate(translator, lower, beam_size=1, attention=False).metrics
    assert run.lowercase
    raw = regard.evaluate(translator, upper, beam_size=1, attention=False).metrics
    assert run.scores.per.value == expected.per.value < raw.per.value
    hits = sum(part.n * part.exact_match for part in run.lengths)
    assert hits == pytest.approx(expected.n * expected.exact_match.value)


def test_the_table_has_means_and_intervals_over_seeds() -> None:
    single_seed = table([_run("dot", 1, 10)])
    low, high = (
        _run("dot", 1, 10).scores.exact_match.low,
        _run("dot", 1, 10).scores.exact_match.high,
    )
    assert f"| dot | 50.0 ({low:.1f} – {high:.1f})" in single_seed
    assert "one seed (bootstrap); 20 sources." in single_seed
    lower = dataclasses.replace(_run("dot", 1, 10), lowercase=True)
    assert "; 20 sources; targets lower-cased." in table([lower])
    three_seeds = table(
        [_run("dot", seed, num_correct) for seed, num_correct in ((1, 10), (2, 12), (3, 14))]
    )
    # of 50, 60 and 70 the mean is 60, the deviation 10, and t with 2 degrees of freedom 4.303
    assert f"| dot | 60.0 ± {4.303 * 10 / math.sqrt(3):.1f} |" in three_seeds
    assert "mean over 3 seeds (Student's t)" in three_seeds
    assert "| 1,234 | 2.0 | 100 | 50 | 25.0 |" in three_seeds


def test_the_table_of_an_unfinished_comparison_names_both_intervals() -> None:
    runs = [_run("a", 1, 10), _run("a", 2, 12), _run("b", 1, 14)]
    assert (
        "of the mean over up to 2 seeds (Student's t), or over the sources for one seed"
        in table(runs)
    )


def test_the_chart_has_a_line_per_model_and_a_point_per_length() -> None:
    chart = by_length([_run("none", 1, 10), _run("none", 2, 15), _run("dot", 1, 20)])
    marks = [(point.series, point.x, point.y) for point in chart.points]
    assert marks == [("none", 3, 100), ("none", 8, 25), ("dot", 3, 100), ("dot", 8, 100)]
    assert chart.rule == (9, "longest in training")
    assert "none" in chart.to_svg()
    assert "longest in training" in chart.to_svg()
    assert chart.title == "Exact match by source length"
    for name in ("none", "dot"):
        assert f"{name} (1,234 parameters)" in chart.to_svg()


@pytest.mark.slow
@pytest.mark.usefixtures("without_charts")
def test_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _settings(tmp_path)["data"]
    flags = [
        f"--{group}.{name}={value}"
        for group, fields in TINY.items()
        for name, value in fields.items()
    ]
    out = tmp_path / "out"
    arguments = ["compare", "--data.train", data["train"], "--data.dev", data["dev"], *flags]
    call = [*arguments, "--attention", "none,additive", "--out", str(out), "--device", "cpu"]
    assert main(call) == 0
    captured = capsys.readouterr()
    card = (out / "none" / "seed-1" / "README.md").read_text()
    assert "regard compare --data.train" in card
    assert "| none | " in captured.out
    assert "| additive | " in captured.out
    assert main(call) == 1
    assert "exists and is not empty" in capsys.readouterr().err
    before = (out / "none" / "seed-1" / "model.safetensors").read_bytes()
    assert main([*call, "--resume"]) == 0
    assert (out / "none" / "seed-1" / "model.safetensors").read_bytes() == before
    metrics = out / "additive" / "seed-1" / "metrics.jsonl"
    written = metrics.read_bytes()
    metrics.write_text("{")  # a checkpoint contains it too
    assert main([*call, "--resume"]) == 0
    assert metrics.read_bytes() == written
    other_pairs = _write(tmp_path / "other.tsv", _pairs(60, 9))
    settings = (out / "settings.json").read_bytes()
    for train, message in (
        (other_pairs, "was trained on other pairs"),
        (str(tmp_path / "none.tsv"), "cannot read"),
    ):
        longer = ["--data.train", train, "--training.max_updates=6", "--resume"]
        assert main([*call, *longer]) == 1
        assert message in capsys.readouterr().err
        assert (out / "settings.json").read_bytes() == settings


@pytest.mark.slow
@pytest.mark.usefixtures("without_charts")
def test_models_that_are_added_have_the_settings_and_the_budget_of_the_others(
    tmp_path: Path,
) -> None:
    settings, out = _settings(tmp_path), tmp_path / "out"

    def run(*models: str, **training: Any) -> None:
        changed = {**settings, "training": {**settings["training"], **training}}
        compare(changed, models, out, _pairs(5, 3), resume=out.exists(), log=lambda _: None)

    run("none", "dot")
    before = (out / "none" / "seed-1" / "config.json").read_bytes()
    run("none", "dot", "additive")
    configs = [json.loads(path.read_text()) for path in out.glob("*/seed-1/config.json")]
    assert [config["training"]["max_minutes"] for config in configs] == [MINUTES / 2] * 3
    with pytest.raises(ConfigError, match=r"trained with training.learning_rate .* equal settings"):
        run("none", "dot", "additive", learning_rate=0.1)
    with pytest.raises(ConfigError, match=r"trained with training.max_minutes 4.0, .* got 1"):
        run("none", "dot", "additive", max_minutes=1)
    assert (out / "none" / "seed-1" / "config.json").read_bytes() == before
    table = (out / "table.md").read_bytes()
    with pytest.raises(
        ConfigError, match="additive/seed-1 belongs to this comparison, too: include"
    ):
        run("none", "dot", max_minutes=5)
    assert (out / "table.md").read_bytes() == table
    run("none", "dot", "additive", max_minutes=5)  # trains all for longer
    run("none", "dot", "additive", max_minutes=5, patience=20)
    with pytest.raises(ConfigError, match=r"trained with training.patience 20, .* got 10"):
        run("none", "dot", "additive", max_minutes=5, patience=10)
    _write(tmp_path / "dev.tsv", _pairs(20, 4))
    with pytest.raises(ConfigError, match=r"were selected on a dev file other than .*dev\.tsv"):
        run("none", "dot", "additive", "scaled_dot", max_minutes=5, patience=20)
    assert not (out / "scaled_dot").exists()


def test_a_folder_without_a_comparison_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("mine")
    with pytest.raises(ConfigError, match="not empty; it has no models to resume"):
        compare(_settings(tmp_path), ["dot"], tmp_path, _pairs(5, 3), resume=True)
    with pytest.raises(ConfigError, match="not empty; choose another folder"):
        compare(_settings(tmp_path), ["dot"], tmp_path, _pairs(5, 3))
    assert (tmp_path / "settings.json").read_text() == "mine"


def test_a_comparison_needs_models_seeds_and_test_pairs(tmp_path: Path) -> None:
    for models, seeds, test in (([], [1], [1]), (["dot"], [], [1]), (["dot"], [1], [])):
        pairs = _pairs(5, 3) if test else []
        with pytest.raises(ConfigError, match="to compare: give at least one"):
            compare(_settings(tmp_path), models, tmp_path / "out", pairs, seeds=seeds)
    assert not (tmp_path / "out").exists()


def test_a_comparison_that_was_killed_before_its_first_training_is_resumed(tmp_path: Path) -> None:
    settings, out = _settings(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "settings.json").write_text(json.dumps(settings))
    (run,) = compare(settings, ["dot"], out, _pairs(5, 3), resume=True)
    assert run.name == "dot"


def test_settings_that_are_left_out_count_as_their_defaults(tmp_path: Path) -> None:
    settings, out = _settings(tmp_path), tmp_path / "out"
    (out / "dot" / "seed-1").mkdir(parents=True)
    (out / "dot" / "seed-1" / "config.json").touch()
    stored = {**settings, "training": {**settings["training"], "metric": "loss"}}
    (out / "settings.json").write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match=r"trained with training.metric loss, .* got auto"):
        compare(settings, ["dot", "additive"], out, _pairs(5, 3), resume=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attention", "none,sum"], "unknown model 'sum'"),
        (["--seeds", "1,1"], "seeds have a duplicate: 1, 1"),
        (["--seeds", "1,-1"], "--seeds must lie in [0, 2^63), got 1,-1"),
        (["--attention", "dot,luong:dot"], "dot and luong:dot are the same model; leave out one"),
        (["--attention", "additive,mlp"], "additive and mlp are the same model; leave out one"),
        (
            ["--attention", "transformer,transformer:scaled_dot"],
            "transformer and transformer:scaled_dot are the same model; leave out one",
        ),
        (["--attention", "dot,none,dot"], "models have a duplicate: dot, none, dot"),
        (["--beam-size", "0"], "beam_size must be at least 1, got 0"),
        (["--beam-size", "999999999"], "beam_size must be at most 1,000, got 999,999,999"),
        (["--seeds", "1,x"], "--seeds takes comma-separated integers, got '1,x'"),
        (["--data.dev", "nowhere.tsv"], "cannot read nowhere.tsv"),
        (["--data.train", "nowhere.tsv"], "cannot read nowhere.tsv"),
        (["--training.seed", "5"], "--training.seed has no effect here; give --seeds"),
        (["--model.kind=rnn"], "--model.kind has no effect here, because --attention selects it"),
        (["--model.attention", "dot"], "--model.attention has no effect here"),
        (["--attention=luong:dot", "--model.decoder=bahdanau"], "--model.decoder has no effect"),
    ],
)
def test_invalid_calls_are_reported_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    data = _settings(tmp_path)["data"]
    arguments = ["compare", "--data.train", data["train"], "--data.dev", data["dev"]]
    assert main([*arguments, "--out", str(tmp_path / "out"), *options]) == 1
    assert message in capsys.readouterr().err
    assert not any((tmp_path / "out").glob("*"))  # the command can be corrected and repeated


def test_a_file_of_settings_may_name_the_output_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file = _settings(tmp_path)["data"], tmp_path / "c.yaml"
    file.write_text(f"out: {tmp_path / 'out'}\n")
    arguments = ["--data.train", data["train"], "--data.dev", data["dev"], "--attention=none,sum"]
    assert main(["compare", "--config", str(file), *arguments]) == 1
    assert "unknown model 'sum'" in capsys.readouterr().err


def test_bad_lines_are_skipped_as_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _settings(tmp_path)["data"]
    pairs = Path(data["dev"]).read_text()
    Path(data["dev"]).write_text(pairs + "without a target\n")
    arguments = ["compare", "--data.train", data["train"], "--data.dev", data["dev"]]
    arguments += ["--attention=dot", "--out", str(tmp_path / "out")]
    seen: list[int] = []

    def record(
        settings: Any, models: Any, out: Any, pairs: list[Pair], **options: Any
    ) -> list[Run]:
        seen.append(len(pairs))
        return []

    monkeypatch.setattr("regard.compare.compare", record)
    monkeypatch.setattr("regard.compare.table", str)
    assert main(arguments) == 1
    assert "1 of 20 lines cannot be used: line 20 " in capsys.readouterr().err
    assert main([*arguments, "--data.bad_lines=skip"]) == 0
    assert f"{data['dev']}: 1 line skipped (line 20 " in capsys.readouterr().err
    assert seen == [pairs.count("\n")]


@pytest.mark.parametrize("name", ["train", "train_links"])
def test_pairs_and_links_from_a_pipe_are_refused(tmp_path: Path, name: str) -> None:
    settings = _settings(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    settings["data"] |= {name: str(tmp_path / "pipe")}
    with pytest.raises(ConfigError, match=r"pipe is a pipe, which can be read only once"):
        compare(settings, ["dot"], tmp_path / "out", _pairs(5, 3))


def test_a_model_that_links_cannot_guide_is_refused_before_any_is_trained(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    settings["data"]["train_links"] = str(tmp_path / "links")
    with pytest.raises(ConfigError, match="links guide attention weights that are probabilities"):
        compare(settings, ["dot", "none"], tmp_path / "out", _pairs(5, 3))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("lengths", "gold"), [((10_001, 1), False), ((1, 10_001), True)])
def test_pairs_that_are_too_long_are_refused_before_any_model_is_trained(
    lengths: tuple[int, int], gold: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _settings(tmp_path)["data"]
    test, links = tmp_path / "test.tsv", tmp_path / "gold"
    source, target = ("a " * length for length in lengths)
    test.write_text(f"a b\tA B\n{source}\t{target}\n")
    links.write_text("0-0\n0-0\n")
    command = ["compare", "--data.train", data["train"], "--data.dev", data["dev"]]
    command += ["--test", str(test), "--out", str(tmp_path / "out"), "--attention", "dot"]
    assert main([*command, *(["--gold", str(links)] if gold else [])]) == 1
    assert f"{test}, line 2 has 10,001 tokens, but at most 10,000" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_gold_links_must_cover_every_pair(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 line of gold links for 5 pairs"):
        compare(
            _settings(tmp_path),
            ["dot"],
            tmp_path / "out",
            _pairs(5, 3),
            gold=[GoldAlignment(frozenset())],
        )
    with pytest.raises(ConfigError, match=r"set data.dev"):
        compare({}, ["dot"], tmp_path / "out", _pairs(5, 3))
    with pytest.raises(ConfigError, match="data takes settings by name, got DataConfig"):
        compare({"data": DataConfig()}, ["dot"], tmp_path / "out", _pairs(5, 3))
    data = {"train": Path("t.tsv"), "dev": "d.tsv"}
    with pytest.raises(ConfigError, match=r"data\.train takes a text or nothing, got PosixPath"):
        compare({"data": data}, ["dot"], tmp_path / "out", _pairs(5, 3))


def test_gold_links_without_use_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _settings(tmp_path)["data"]
    test, gold = tmp_path / "test.tsv", tmp_path / "gold"
    test.write_text("a b\tA B\nno target\nc\tC\n")
    gold.write_text("0-0\n0-0\n0-1\n")
    command = ["compare", "--data.train", data["train"], "--data.dev", data["dev"]]
    command += ["--test", str(test), "--gold", str(gold), "--out", str(tmp_path / "out")]
    command += ["--data.bad_lines", "skip"]
    assert main([*command, "--attention", "dot"]) == 1
    assert f"gold links of {test}, line 3: 0-1 is outside its texts" in capsys.readouterr().err
    assert main([*command, "--attention", "none"]) == 1
    assert "gold links need a model with attention" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_charts")
def test_settings_may_be_valid_with_those_of_the_models_only(tmp_path: Path) -> None:
    settings, out, pairs = _settings(tmp_path), tmp_path / "out", _pairs(5, 3)
    settings["model"] = {**settings["model"], "monotonic": True}
    for resume in (False, True):
        runs = compare(settings, ["posterior:dot"], out, pairs, resume=resume, log=lambda _: None)
        assert [run.name for run in runs] == ["posterior:dot"]
    for models, message in (
        (["dot", "posterior:dot"], r"model\.monotonic needs model\.decoder posterior"),
        (["posterior:additive"], r"posterior-dot/seed-1 belongs to this comparison, too"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare(settings, models, out, pairs, resume=True, log=lambda _: None)


@pytest.mark.usefixtures("without_charts")
def test_a_setting_that_the_first_model_replaces_is_compared_for_the_others(tmp_path: Path) -> None:
    settings, out, pairs = _settings(tmp_path), tmp_path / "out", _pairs(5, 3)
    compare(settings, ["luong:dot"], out, pairs, log=lambda _: None)
    settings["model"] = {**settings["model"], "decoder": "bahdanau"}
    with pytest.raises(ConfigError, match=r"model\.decoder luong, .* got bahdanau"):
        compare(settings, ["luong:dot", "additive"], out, pairs, resume=True, log=lambda _: None)


@pytest.mark.usefixtures("without_charts")
def test_a_resumed_comparison_keeps_its_table_until_all_models_are_evaluated_again(
    tmp_path: Path,
) -> None:
    settings, out, pairs = _settings(tmp_path), tmp_path / "out", _pairs(5, 3)
    compare(settings, ["dot", "none"], out, pairs, log=lambda _: None)
    table = (out / "table.json").read_bytes()
    messages = iter([None, None, KeyboardInterrupt])

    def stop(_: str) -> None:
        if error := next(messages):
            raise error

    with pytest.raises(KeyboardInterrupt):
        compare(settings, ["additive", "dot", "none"], out, pairs, resume=True, log=stop)
    assert (out / "table.json").read_bytes() == table


@pytest.mark.usefixtures("without_charts")
def test_a_recurrent_recipe_does_not_change_the_score_of_the_transformer(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    settings["model"] = {**settings["model"], "attention": "additive", "kind": "rnn"}
    compare(settings, ["transformer"], str(tmp_path / "out"), _pairs(5, 3), log=lambda _: None)
    config = json.loads((tmp_path / "out" / "transformer" / "seed-1" / "config.json").read_text())
    assert config["model"]["attention"] == "scaled_dot"
    assert config["model"]["encoder"] == "transformer"


def test_quantiles_of_students_t() -> None:
    # tables of Student's t
    for freedom, expected in (
        (1, 12.706),
        (9, 2.262),
        (10, 2.228),
        (19, 2.093),
        (29, 2.045),
        (120, 1.980),
    ):
        assert _t_quantile(freedom) == pytest.approx(expected, abs=6e-4)


def test_gold_links_are_those_of_the_lines_that_are_not_skipped(tmp_path: Path) -> None:
    test, gold = tmp_path / "test.tsv", tmp_path / "gold"
    test.write_text("a b\tA B\nno target\nc\tC\n")
    gold.write_text("0-0 1-1\n0-0\n0?0\n")
    parsed = read_valid_pairs(str(test), DataConfig(), skip=True)
    links = read_gold_links(str(gold), parsed)
    assert links == [parse_links("0-0 1-1", ""), parse_links("0?0", "")]
    gold.write_text("0-0 1-1\n0?0\n")
    with pytest.raises(DataError, match=r"gold has 2 lines for the 3 lines of .*test\.tsv"):
        read_gold_links(str(gold), parsed)
