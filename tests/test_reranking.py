"""Right-to-left models, alone and as members of an ensemble that rescore the outputs of the others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import ensemble, model_folder
from regard import translator as translator_module
from regard.cli.main import main
from regard.config import TextConfig, from_dict
from regard.corpus import make_corpus
from regard.distillation import write_outputs
from regard.errors import ConfigError, FolderError
from regard.hypotheses import length_normalization
from regard.models import build
from regard.pairs import Pair, read_pairs
from regard.request import prepare
from regard.search import forced_decode
from regard.text import Tokenizer

pytestmark = pytest.mark.usefixtures("unchecked")

TEXTS = ["a b c", "d", "", "a a b d c", "c b"]
Make = Callable[..., regard.Translator]

KINDS: dict[str, dict[str, Any]] = {
    "luong": {},
    "posterior": {"decoder": "posterior"},
    "fixed": {"attention": "none"},
    "transformer": {"kind": "transformer", "encoder_layers": 1, "decoder_layers": 2},
}


def combine(*translators: regard.Translator) -> regard.Translator:
    named = [(str(index), each.trained) for index, each in enumerate(translators)]
    return regard.Translator(ensemble.combine(named), torch.device("cpu"))


def n_best(translator: regard.Translator, texts: list[str], **options: Any) -> Any:
    return translator.translate(texts, n_best=5, **options)


def score(output: regard.Translation) -> float:
    return output.score


@pytest.fixture(scope="module")
def forward(make_translator: Make) -> regard.Translator:
    return make_translator()


@pytest.fixture(scope="module")
def other(make_translator: Make) -> regard.Translator:
    return make_translator(decoder="bahdanau", cell="gru")


@pytest.fixture(scope="module")
def reverse(make_translator: Make) -> regard.Translator:
    return make_translator(kind="transformer", right_to_left=True)


@settings(max_examples=30)
@given(
    st.sampled_from(["char", "grapheme", "word", "whitespace", "bpe", "unigram"]),
    st.text("ab ,é", min_size=1, max_size=12).filter(str.strip),
)
def test_the_tokenizer_reverses_tokens_and_not_their_text(unit: Any, text: str) -> None:
    config = TextConfig(unit=unit, vocabulary_size=40)
    plain = Tokenizer.train(["a b, é", "ab ba é a", "b a a, b", text], config)
    tokenizer = plain.in_order(right_to_left=True)
    encoding, expected = tokenizer.encode(text), plain.encode(text)
    assert encoding.ids == expected.ids[::-1]
    assert encoding.tokens == expected.tokens[::-1]
    assert tokenizer.detokenize(encoding.tokens) == plain.detokenize(expected.tokens)
    assert tokenizer.words_of(encoding) == plain.words_of(expected)[::-1]
    assert tokenizer == plain
    assert tokenizer.to_json() == plain.to_json()
    assert tokenizer.in_order(right_to_left=True) is tokenizer
    with pytest.raises(FolderError, match="fields are inconsistent"):
        Tokenizer.from_json(plain.to_json()[:-1] + ', "right_to_left": true}')


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
def test_a_model_predicts_the_last_token_first(
    make_translator: Make, model: dict[str, Any]
) -> None:
    plain, reverse = make_translator(**model), make_translator(**model, right_to_left=True)
    for expected, output in zip(plain.translate(TEXTS), reverse.translate(TEXTS), strict=True):
        assert output.tokens == expected.tokens  # the weights are those of the other model
        assert output.text == " ".join(expected.tokens[::-1])
        assert output.target_words == [*range(len(output.tokens))][::-1]
    aligned = reverse.align("a b", "c d a")
    assert aligned.tokens == ["a", "d", "c"]
    assert aligned.text == "c d a"
    assert aligned.log_prob == pytest.approx(plain.align("a b", "a d c").log_prob, abs=1e-6)


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_scores_are_averages_over_members(
    forward: regard.Translator,
    other: regard.Translator,
    reverse: regard.Translator,
    others: int,
    penalty: float,
) -> None:
    searching = combine(*[forward, other][:others])
    mixed = combine(reverse, *[forward, other][:others])
    texts = [text for text in TEXTS if text]
    lists = n_best(mixed, texts, length_penalty=penalty)
    for text, outputs in zip(texts, lists, strict=True):
        assert len(outputs) > 1
        for output in outputs:
            there = searching.align(text, output.text).log_prob
            back = reverse.align(text, output.text).log_prob
            assert output.log_prob == pytest.approx(
                (others * there + back) / (others + 1), abs=1e-4
            )
            divisor = length_normalization(len(output.tokens) + 1, penalty)
            assert output.score == pytest.approx(output.log_prob / divisor, abs=1e-5)
            forced = mixed.align(text, output.text, length_penalty=penalty)
            assert forced.score == pytest.approx(output.score, rel=1e-5)
            np.testing.assert_allclose(forced.attention, output.attention, atol=1e-5)
        assert outputs == sorted(outputs, key=score, reverse=True)


def test_the_best_of_the_beam_is_returned(
    forward: regard.Translator, reverse: regard.Translator
) -> None:
    mixed, differs = combine(forward, reverse, reverse), 0
    texts = [text for text in TEXTS if text]
    found = n_best(forward, texts, length_penalty=2)
    outputs = mixed.translate(texts, length_penalty=2)
    for text, best, output in zip(texts, found, outputs, strict=True):
        rescored = [mixed.align(text, each.text, length_penalty=2) for each in best]
        assert output.text == max(rescored, key=score).text
        differs += output.text != best[0].text
    assert differs  # otherwise, the test could not fail


def test_right_to_left_members_alone_search(reverse: regard.Translator) -> None:
    both = combine(reverse, reverse)
    assert both.trained.reranker is None
    for one, two in zip(reverse.translate(TEXTS), both.translate(TEXTS), strict=True):
        assert two.text == one.text
        assert two.score == pytest.approx(one.score, abs=1e-5)


def test_greedy_search_has_the_scores_of_all_members(
    forward: regard.Translator, reverse: regard.Translator
) -> None:
    mixed = combine(forward, reverse)
    for text, output in zip(TEXTS, mixed.translate(TEXTS, beam_size=1), strict=True):
        expected = forward.translate(text, beam_size=1)
        assert output.tokens == expected.tokens
        if text:
            assert output.score == pytest.approx(mixed.align(text, output.text).score, abs=1e-5)


def test_interventions_apply_to_the_members_that_search(
    forward: regard.Translator, reverse: regard.Translator
) -> None:
    mixed = combine(forward, reverse)
    output = mixed.translate("a b c", prefix="d d", pin={0: {1: 1.0}}, return_tree=True)
    assert output.tokens[:2] == ["d", "d"]
    assert output.attention is not None
    np.testing.assert_allclose(output.attention[0], [0, 1, 0, 0], atol=1e-6)
    assert output.tree


def test_alignments_are_those_of_the_members_that_search(make_translator: Make) -> None:
    searching = make_translator(kind="transformer", encoder_layers=1, decoder_layers=4)
    reverse = make_translator(right_to_left=True)
    searching.trained.metadata.update(attention_layer=0, several_links=True, parameters=5)
    reverse.trained.metadata.update(attention_layer=0, several_links=False, parameters=3)
    mixed = combine(reverse, searching)
    assert mixed.trained.metadata["parameters"] == 8
    for text in TEXTS:
        output = mixed.translate(text)
        expected = searching.align(text, output.text)
        assert output.alignment() == expected.alignment()
        assert output.attention_layer == expected.attention_layer


def test_members_of_an_ensemble_take_part_one_by_one(
    forward: regard.Translator, other: regard.Translator, reverse: regard.Translator
) -> None:
    nested, flat = combine(combine(forward, reverse), other), combine(forward, reverse, other)
    assert nested.trained.members == flat.trained.members
    assert nested.translate("a b c").score == pytest.approx(flat.translate("a b c").score, abs=1e-6)


def test_words_are_spelled_from_left_to_right(make_translator: Make) -> None:
    config = TextConfig(unit="bpe", vocabulary_size=24)
    tokenizer = Tokenizer.train(["the cats sat", "the cat"], config)
    built = {order: make_translator(right_to_left=order).trained for order in (False, True)}
    for trained in built.values():
        model = build(trained.config.model, len(tokenizer), len(tokenizer)).eval()
        replaced = model_folder.TrainedModel(trained.config, model, tokenizer, tokenizer)
        aligned = regard.Translator(replaced, torch.device("cpu")).align("the cat", "the cats")
        words = ["the", "cats"]
        right_to_left = trained.config.model.right_to_left
        assert len(aligned.tokens) > len(words)
        assert aligned.words().tokens == (words[::-1] if right_to_left else words)


def test_outputs_that_a_member_excludes_come_last(make_translator: Make) -> None:
    options = {"copy": True, "normalizer": "sparsemax"}
    forward, reverse = (make_translator(**options, right_to_left=order) for order in (False, True))
    for parameter in reverse.trained.model.parameters():
        parameter.data.mul_(4)  # sparse weights exclude tokens
    mixed, excluded = combine(forward, reverse), 0
    for text in ("x b y", "x y z", "y a x", "z q z"):
        outputs = n_best(mixed, [text])[0]
        back = [reverse.align(text, output.text).log_prob for output in outputs]
        assert all(np.isfinite(output.score) for output in outputs)
        possible = [np.isfinite(log_prob) for log_prob in back]
        assert possible == sorted(possible, reverse=True)
        excluded += possible.count(False)
    assert excluded  # otherwise, the test could not fail


def test_a_search_can_be_ended_while_outputs_are_rescored(
    forward: regard.Translator, reverse: regard.Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(Exception):
        pass

    calls: list[bool] = []

    def on_step() -> None:
        calls.append(rescoring)
        if rescoring:
            raise Ended

    rescoring, mixed = False, combine(forward, reverse)
    search = translator_module.beam_search

    def searching(*arguments: Any) -> Any:
        nonlocal rescoring
        found = search(*arguments)
        rescoring = True
        return found

    monkeypatch.setattr(translator_module, "beam_search", searching)
    with pytest.raises(Ended):
        mixed.search(prepare(mixed.trained, ["a b"]), on_step=on_step)
    assert calls[0] is False


@pytest.mark.parametrize("limit", [1, 40, 10**9])
def test_the_size_of_the_parts_does_not_matter(
    forward: regard.Translator,
    reverse: regard.Translator,
    limit: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [text for text in TEXTS if text]
    expected = n_best(combine(forward, reverse), texts)
    monkeypatch.setattr("regard.reranking._MOST_VALUES", limit)
    for outputs, others in zip(n_best(combine(forward, reverse), texts), expected, strict=True):
        assert [each.text for each in outputs] == [each.text for each in others]
        assert [*map(score, outputs)] == pytest.approx([*map(score, others)], abs=1e-5)


def test_a_posterior_member_scores_smaller_parts(
    forward: regard.Translator, make_translator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counting(decoder: Any, memory: Any, *args: Any, **options: Any) -> Any:
        counts.append(len(memory.states))
        return forced_decode(decoder, memory, *args, **options)

    monkeypatch.setattr("regard.reranking.forced_decode", counting)
    monkeypatch.setattr("regard.reranking._MOST_VALUES", 400)
    texts = ["a b c d a b"] * 4
    largest: dict[str, int] = {}
    for decoder in ("luong", "posterior"):
        counts.clear()
        member = make_translator(right_to_left=True, decoder=decoder)
        n_best(combine(forward, member), texts)
        assert sum(counts) == 20
        largest[decoder] = max(counts)
    assert largest["posterior"] < largest["luong"] == 4


def test_dropout_has_no_effect(make_translator: Make) -> None:
    models = [make_translator(right_to_left=order, dropout=0.5) for order in (False, True)]
    mixed = combine(*models)
    expected = score(mixed.align("a b c", "c b"))
    for each in models:
        each.trained.model.train()
    assert score(mixed.align("a b c", "c b")) == pytest.approx(expected, abs=1e-6)


def test_another_right_to_left_member_is_another_teacher(
    forward: regard.Translator, reverse: regard.Translator, make_translator: Make, tmp_path: Path
) -> None:
    sources = [("a b", None), ("c", None)]
    teachers = [combine(forward, reverse), combine(forward, make_translator(right_to_left=True))]
    write_outputs(teachers[0], sources, tmp_path / "outputs.tsv")
    write_outputs(teachers[0], sources, tmp_path / "outputs.tsv")
    for teacher in (teachers[1], forward):
        with pytest.raises(FolderError, match="outputs of another model"):
            write_outputs(teacher, sources, tmp_path / "outputs.tsv")


@pytest.mark.parametrize("first", [False, True])
def test_tables_are_read_in_both_orders(first: bool, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    table = tmp_path / "pairs.csv"
    table.write_text("source,target\n" + "".join(f"{a}b,{a}xyz\n" for a in "abcdefgh"))
    for right_to_left in (first, not first):  # tokenised examples are cached
        values = {
            "model": {"right_to_left": right_to_left},
            "data": {"train": str(table), "dev": str(table)},
            "target": {"unit": "char"},
        }
        corpus = make_corpus(from_dict(values), None, None)
        expected = [example.target for example in corpus.dev]
        assert [corpus.train[index].target for index in range(len(corpus.train))] == expected
        last = corpus.target.ids_to_tokens(expected[0])[-1]
        assert (last == "z") is not right_to_left


def test_order_conflicts_with_monotonic_attention() -> None:
    for model in ({"decoder": "posterior", "monotonic": True}, {"window": "local-m"}):
        with pytest.raises(ConfigError, match="right_to_left predicts the last token first"):
            from_dict({"model": {**model, "right_to_left": True}})


def test_synthetic_pairs_are_those_of_the_other_order() -> None:
    pairs = [Pair(text, text.upper()) for text in ("abcd", "abde", "cbda", "dabc", "ebac", "bcde")]

    def corpus(right_to_left: bool) -> Any:
        values = {"model": {"right_to_left": right_to_left}, "data": {"recombined_pairs": 20}}
        return make_corpus(from_dict(values), pairs, pairs)

    plain, reverse = corpus(False), corpus(True)
    assert len(plain.train) > len(pairs)
    assert [e.source for e in reverse.train] == [e.source for e in plain.train]
    assert [e.target[::-1] for e in reverse.train] == [e.target for e in plain.train]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = [f"{a} {b}\t{b} {a}" for a in "abcd" for b in "abcd"]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(rows) + "\n")
    return path


SMALL = [
    *("--source.unit=whitespace", "--target.unit=whitespace", "--training.max_updates=4"),
    *("--training.validate_every=2", "--model.embedding_dim=8", "--model.encoder_dim=8"),
    *("--model.decoder_dim=8", "--model.attention_dim=8", "--training.schedule=constant"),
]


@pytest.mark.usefixtures("members_in_this_process")
def test_members_are_trained_in_both_orders(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    members = ["--member", "model.right_to_left=true", "--member", "model.cell=gru"]
    arguments = ["train", f"--data.train={pairs}", f"--data.dev={pairs}", f"--out={out}"]
    assert main([*arguments, *SMALL, *members]) == 0
    tokenizers = [(out / "members" / str(index) / "target.json").read_text() for index in (0, 1)]
    assert tokenizers[0] == tokenizers[1]
    translator = regard.Translator.load(out)
    reverse, forward = translator.trained.members
    assert reverse.target.right_to_left
    assert not forward.target.right_to_left
    assert translator.trained.reranker is reverse
    capsys.readouterr()
    assert main([*arguments, *SMALL, *members, "--resume", "--training.max_updates=6"]) == 0
    assert main(["export", str(out), "--out", str(tmp_path / "exported")]) == 1
    assert "an ensemble cannot be exported" in capsys.readouterr().err
    single = str(out / "members" / "0")
    assert main(["export", single, "--out", str(tmp_path / "exported")]) == 1
    assert "a right-to-left model cannot be exported" in capsys.readouterr().err
    model_folder.load(single)


def test_a_trained_model_reads_targets_in_its_order(pairs: Path) -> None:
    rows = read_pairs(str(pairs)).pairs
    translator = regard.fit(
        rows,
        dev=rows,
        source={"unit": "whitespace"},
        target={"unit": "whitespace"},
        model={"right_to_left": True, "encoder_dim": 32, "decoder_dim": 32, "embedding_dim": 16},
        training={"max_updates": 300, "learning_rate": 0.01, "validate_every": 50},
    )
    outputs = translator.translate([pair.source for pair in rows])
    assert [output.text for output in outputs] == [pair.target for pair in rows]
    assert outputs[1].tokens == outputs[1].text.split()[::-1]
