"""Settings that follow from the pairs and the time budget."""

import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.adaptation import Statistics, adapt, describe
from regard.cli.main import main
from regard.cli.parser import find_recipe
from regard.config import GROUPS, Config, TrainingConfig, Unit, from_dict

pytestmark = pytest.mark.usefixtures("unchecked")

UNITS = [unit for unit in get_args(Unit) if unit != "auto"]
SPELLINGS = Statistics(8000, "char", "whitespace", 16.0, characters=34, decomposed=28)
SENTENCES = Statistics(28_000, "bpe", "bpe", 16.0, characters=83, decomposed=77)


def adapted(statistics: Statistics, **settings: dict[str, Any]) -> Config:
    return adapt(from_dict(settings), statistics)[0]


statistics = st.builds(
    Statistics,
    st.integers(1, 10**9),
    st.sampled_from(UNITS),
    st.sampled_from(UNITS),
    st.floats(2, 1000),
    st.integers(1, 5000),
    st.integers(1, 5000),
)
own_settings = st.fixed_dictionaries(
    {},
    optional={
        "source": st.fixed_dictionaries({}, optional={"normal_form": st.just("NFKC")}),
        "model": st.fixed_dictionaries(
            {},
            optional={
                "kind": st.sampled_from(["rnn", "transformer"]),
                "encoder_dim": st.just(24),
                "dropout": st.just(0.0),
            },
        ),
        "training": st.fixed_dictionaries(
            {},
            optional={
                "max_minutes": st.sampled_from([None, 0.1, 2.0, 600.0]),
                "max_updates": st.sampled_from([1, 10**6]),
                "batch_tokens": st.just(77),
            },
        ),
    },
)


@given(statistics, own_settings)
def test_given_settings_are_kept_and_all_others_that_differ_have_a_reason(
    statistics: Statistics, settings: dict[str, Any]
) -> None:
    before = from_dict(settings)
    after, notes = adapt(before, statistics)
    assert (after, notes) == adapt(before, statistics)
    named = {item.split()[0] for note in notes for item in note.split(": ")[0].split(", ")}
    for group in GROUPS:
        old, new = getattr(before, group), getattr(after, group)
        for field in dataclasses.fields(old):
            name = f"{group}.{field.name}"
            if field.name in settings.get(group, {}):
                assert name not in named
            if name not in named:
                assert getattr(new, field.name) == getattr(old, field.name)
    assert after.training.validate_every <= 500


def test_a_second_adaptation_changes_nothing() -> None:
    config, _ = adapt(Config(), SPELLINGS)
    given = {name: dataclasses.asdict(getattr(config, name)) for name in GROUPS}
    assert adapt(from_dict(given), SENTENCES) == (config, [])


def test_fewer_pairs_get_more_dropout_and_smaller_batches() -> None:
    configs = [
        adapted(SPELLINGS._replace(pairs=pairs), data={"recombined_pairs": 0})
        for pairs in (100, 500, 5000, 10**5, 10**7)
    ]
    dropouts = [config.model.dropout for config in configs]
    assert dropouts == sorted(dropouts, reverse=True)
    assert len(set(dropouts)) > 3
    for name in ("batch_tokens", "max_updates", "validate_every"):
        values = [getattr(config.training, name) for config in configs]
        assert values == sorted(values)
        assert values[0] < values[-1]


def test_a_short_budget_gets_a_small_model() -> None:
    short, long = (adapted(SPELLINGS, training={"max_minutes": minutes}) for minutes in (1.0, 60.0))
    assert short.model.encoder_dim < long.model.encoder_dim
    assert short.training.validate_every < long.training.validate_every


def test_a_number_of_updates_is_a_budget() -> None:
    assert adapted(SPELLINGS, training={"max_updates": 99}).training.max_minutes is None
    assert adapted(SPELLINGS).training.max_minutes == 30


def test_accumulated_batches_are_part_of_an_update() -> None:
    budgets: list[dict[str, Any]] = [{"max_updates": 500}, {"max_minutes": 20}]
    (few, few_large), (long, long_large) = (
        [
            adapted(SPELLINGS, training={**budget, "gradient_accumulation_steps": steps})
            for steps in (1, 8)
        ]
        for budget in budgets
    )
    assert few.training.batch_tokens == few_large.training.batch_tokens
    assert few.model.dropout < few_large.model.dropout
    assert long.training.validate_every > long_large.training.validate_every


def test_only_recurrent_models_get_sizes() -> None:
    kinds: list[dict[str, Any]] = [{"kind": "transformer"}, {"encoder": "transformer"}]
    for model in kinds:
        changed = adapted(SPELLINGS, model=model).model
        assert changed == dataclasses.replace(from_dict({"model": model}).model, dropout=0.4)


def test_syllables_are_decomposed_and_accents_are_not() -> None:
    config, notes = adapt(Config(), SPELLINGS._replace(characters=834, decomposed=61))
    assert config.source.normal_form == "NFD"
    assert (
        "source.normal_form NFD: the sources have 834 different characters, 61 decomposed" in notes
    )
    assert adapted(SPELLINGS).source.normal_form == "NFC"
    korean = SPELLINGS._replace(target_unit="char", characters=834, decomposed=61)
    assert adapted(korean, model={"copy": True}).source.normal_form == "NFC"


def test_few_sentences_get_synthetic_pairs_and_a_large_model() -> None:
    few = SENTENCES._replace(pairs=3000)
    assert adapted(few).data.recombined_pairs == 10_000
    assert adapted(SENTENCES).data.recombined_pairs == 0
    assert adapted(few, data={"recombined_pairs": 0}).data.recombined_pairs == 0
    for source, target in (("word", "word"), ("char", "bpe"), ("bpe", "whitespace")):
        other = few._replace(source_unit=source, target_unit=target)
        assert adapted(other).data.recombined_pairs == 0
    large = adapted(SENTENCES)
    assert adapted(few).model.decoder_dim == large.model.decoder_dim
    assert adapted(few).training.optimizer == "muon"
    for settings in ({"model": {"kind": "transformer"}}, {"training": {"max_minutes": 4}}):
        assert adapted(few, **settings).training.schedule == "constant"
    words = few._replace(source_unit="word", target_unit="word")
    assert adapted(words).model.decoder_dim < large.model.decoder_dim


def test_few_words_and_their_phones_get_synthetic_pairs() -> None:
    few = SPELLINGS._replace(pairs=100)
    assert adapted(few).data.recombined_pairs == 3000
    assert adapted(SPELLINGS).data.recombined_pairs == 0
    assert adapted(few._replace(target_unit="char")).data.recombined_pairs == 0
    assert adapted(few._replace(same_order=False)).data.recombined_pairs == 0
    assert adapted(few, data={"recombined_pairs": 7}).data.recombined_pairs == 7
    assert adapted(few, training={"guided_alignment": 0.1}).data.recombined_pairs == 3000
    without = adapted(few, data={"recombined_pairs": 0})
    # an epoch contains the synthetic pairs
    assert without.model.dropout > adapted(few).model.dropout
    assert without.training.batch_tokens < adapted(few).training.batch_tokens


def test_subwords_get_a_vocabulary_for_the_number_of_pairs() -> None:
    sizes = [
        adapted(SENTENCES._replace(pairs=pairs)).source.vocabulary_size
        for pairs in (1000, 28_000, 10**6)
    ]
    assert sizes == [2000, 4000, 16_000]
    assert not any("vocabulary_size" in note for note in adapt(Config(), SPELLINGS)[1])


def test_recurrent_models_of_sentences_get_the_settings_of_the_recipe() -> None:
    recipe = yaml.safe_load(find_recipe("translation").read_text())
    config = adapted(SENTENCES)
    for name in ("embedding_dim", "encoder_dim", "decoder_dim", "dropout", "tie_embeddings"):
        assert getattr(config.model, name) == recipe["model"][name]
    for name in ("batch_tokens", "optimizer", "learning_rate", "cooldown"):
        assert getattr(config.training, name) == recipe["training"][name]
    assert config.target.vocabulary_size == recipe["target"]["vocabulary_size"]
    transformer = adapted(SENTENCES, model={"kind": "transformer"})
    assert (transformer.training.batch_tokens, transformer.model.tie_embeddings) == (3000, False)


def test_learning_rates_are_those_of_the_optimiser() -> None:
    few = SPELLINGS._replace(pairs=1000)
    chosen = adapted(few).training
    assert (chosen.optimizer, chosen.learning_rate) == ("adam", 0.003)
    rates = {
        name: adapted(SENTENCES, training={"optimizer": name}).training.learning_rate
        for name in ("muon", "adam", "adamw")
    }
    assert rates == {"muon": 0.004, "adam": 0.001, "adamw": 0.001}
    assert adapted(SENTENCES).training.optimizer == "muon"
    given = adapted(SENTENCES, training={"learning_rate": 0.5}).training
    assert (given.optimizer, given.learning_rate) == ("adam", 0.5)
    transformer = adapted(few, model={"kind": "transformer"}).training
    assert (transformer.optimizer, transformer.learning_rate) == (
        TrainingConfig().optimizer,
        TrainingConfig().learning_rate,
    )


def test_rate_and_schedule_are_those_of_the_size_of_the_model() -> None:
    few, many = SPELLINGS._replace(pairs=1000), SPELLINGS._replace(pairs=100_000)
    large = {"encoder_dim": 256, "decoder_dim": 384}
    assert adapted(few, model=large).training.learning_rate == 0.0015
    assert adapted(few, model=large).training.schedule == TrainingConfig().schedule
    small = {"encoder_dim": 128, "decoder_dim": 128}
    assert adapted(many, model=small).training.schedule == "constant"
    assert adapted(SENTENCES, model={"encoder_dim": 128}).training.optimizer == "muon"
    sentences = adapted(SENTENCES, model=large, training={"max_minutes": 1}).training
    assert (sentences.optimizer, sentences.learning_rate) == ("muon", 0.004)


def test_spellings_get_the_optimiser_of_the_recipe() -> None:
    recipe = yaml.safe_load(find_recipe("g2p").read_text())["training"]
    large = adapted(SPELLINGS._replace(pairs=100_000)).training
    assert (large.optimizer, large.learning_rate) == ("adam", recipe["learning_rate"])


def test_statistics_of_pairs() -> None:
    spellings, phones = ["가나", "다", "라마바"] * 2, ["k a n a", "t a", "r a m a p a"] * 2
    counted = describe(spellings, phones, Config())
    # 2 + 1 + 3 characters, 4 + 2 + 6 phones, 6 EOS
    assert counted == Statistics(6, "char", "whitespace", 24 / 3, characters=6, decomposed=7)
    backwards = [" ".join(reversed(text.split())) for text in phones]
    assert not describe(spellings, backwards, Config()).same_order
    unit = from_dict({"target": {"unit": "word"}})
    assert describe(spellings, phones, unit).target_unit == "word"


class Numbers:
    """A large number of texts, which are counted as they are read."""

    read = 0

    def __len__(self) -> int:
        return 1_000_000

    def __iter__(self) -> Iterator[str]:
        for number in range(len(self)):
            Numbers.read += 1
            yield "ab" if number % 2 else "abcd"


def test_statistics_of_many_pairs_come_from_a_sample_of_all() -> None:
    counted = describe(Numbers(), Numbers(), Config())
    assert (counted.pairs, counted.source_unit) == (1_000_000, "char")
    assert Numbers.read <= 2 * 1_000_000  # each side once


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    rng = random.Random(0)
    words = {"".join(rng.choices("abcdé", k=rng.randint(2, 6))) for _ in range(120)}
    return [(word, " ".join(word.upper())) for word in sorted(words)]


def settings_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


SHORT = ["--training.max_updates", "2", "--model.encoder_dim", "8"]


def train(folder: Path, pairs: list[tuple[str, str]], name: str, *options: str) -> dict[str, Any]:
    file = folder / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    out = folder / name
    assert main(["train", "--data.train", str(file), "--out", str(out), *SHORT, *options]) == 0
    return settings_of(out)


def test_train_adapts_unless_it_has_a_file_of_settings(
    tmp_path: Path, pairs: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = train(tmp_path, pairs, "chosen", "--model.cell", "gru")
    notes = capsys.readouterr().err
    assert f"model.dropout {chosen['model']['dropout']}: about 0 epochs" in notes
    assert "train: 3,000 synthetic pairs recombined from these pairs" in notes
    assert "model.encoder_dim" not in notes
    assert (chosen["model"]["encoder_dim"], chosen["model"]["cell"]) == (8, "gru")
    assert chosen["source"]["lowercase"]
    assert chosen["training"]["batch_tokens"] < 4096

    (tmp_path / "c.yaml").write_text("model: {cell: gru}\n")
    file = ["--config", str(tmp_path / "c.yaml")]
    plain = train(tmp_path, pairs, "plain", *file)
    assert plain["model"]["dropout"] == 0.2
    assert "model.dropout" not in capsys.readouterr().err
    same = train(tmp_path, pairs, "same", *file, "--adapt")
    assert {group: same[group] for group in GROUPS} == {group: chosen[group] for group in GROUPS}


def test_a_resumed_run_keeps_the_settings_that_were_chosen(
    tmp_path: Path, pairs: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(tmp_path, pairs, "run", "--training.batch_tokens", "600")
    capsys.readouterr()
    resumed = train(tmp_path, pairs, "run", "--resume", "--training.max_updates", "4")
    notes = capsys.readouterr().err
    assert "resumed at update 2" in notes
    assert "pairs:" not in notes.replace("model: ", "")
    assert resumed["training"].pop("max_updates") == 4
    assert first["training"].pop("max_updates") == 2
    assert {group: resumed[group] for group in GROUPS} == {group: first[group] for group in GROUPS}


def test_the_model_that_training_starts_from_keeps_its_settings(
    tmp_path: Path, pairs: list[tuple[str, str]]
) -> None:
    (tmp_path / "c.yaml").write_text("model: {cell: gru, dropout: 0.15}\n")
    first = train(tmp_path, pairs, "first", "--config", str(tmp_path / "c.yaml"))
    second = train(tmp_path, pairs, "second", "--init-from", str(tmp_path / "first"))
    assert (second["model"], second["source"]) == (first["model"], first["source"])
    assert second["training"]["batch_tokens"] < first["training"]["batch_tokens"]


@pytest.mark.usefixtures("members_in_this_process")
def test_members_adapt_to_the_pairs(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    train(tmp_path, pairs, "all", "--members", "2")
    members = [settings_of(tmp_path / "all" / "members" / str(index)) for index in range(2)]
    assert all(member["source"]["lowercase"] for member in members)
    assert members[0]["model"] == members[1]["model"]


def test_fit_adapts_to_the_pairs(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    training = {"max_updates": 2}
    translator = regard.fit(pairs, out=tmp_path / "fit", training=training)
    config = translator.trained.config
    assert config.source.lowercase
    assert (config.training.max_updates, config.training.max_minutes) == (2, 5)


@pytest.mark.parametrize(
    ("words", "lowercase"),
    [
        (["ktb", "Paris", "NATO", "Saint-Jean", "O'Neill", "été"], True),
        (["SbAH", "ktAb", "qalb", "mdynp", "$ms"], False),  # Buckwalter's transliteration
        (["NaCl", "CO", "Co"], False),
        (["word"] * 30 + ["McCoy"], True),
    ],
)
def test_spellings_are_lower_cased_unless_case_distinguishes_letters(
    words: list[str], lowercase: bool
) -> None:
    phones = [" ".join(word) for word in words]
    config = from_dict({"source": {"unit": "char"}, "target": {"unit": "whitespace"}})
    adapted, notes = adapt(config, describe(words, phones, config))
    assert adapted.source.lowercase == lowercase
    assert any("source.lowercase true: " in note for note in notes) == lowercase
