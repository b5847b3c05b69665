"""The translator: order, attention, alignments, forced targets, unknown tokens, devices."""

import copy
import dataclasses
import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import regard
from regard import model_folder
from regard.config import Config, ModelConfig, TextConfig
from regard.decoders import PosteriorDecoder
from regard.errors import ConfigError
from regard.hypotheses import length_normalization
from regard.inference import _Snapshot
from regard.models import Seq2Seq, build
from regard.request import prepare
from regard.scores import Score
from regard.text import BOS, EOS, Encoding, Tokenizer
from regard.translation import Translation

pytestmark = pytest.mark.usefixtures("unchecked")

SOURCES = ["a b c", "c", "b a", "", "a a a b", "  ", "c b"]


def _translator(
    source: str = "whitespace", target: str = "whitespace", **model: object
) -> regard.Translator:
    torch.manual_seed(1)
    sides = [TextConfig(unit=unit) for unit in (source, target)]  # type: ignore[arg-type]
    widths = {"embedding_dim": 8, "encoder_dim": 8, "decoder_dim": 8, "attention_dim": 8}
    config = Config(
        source=sides[0],
        target=sides[1],
        model=ModelConfig(**{**widths, "feed_forward_dim": 8, "dropout": 0.0, **model}),
    )
    tokenizers = [Tokenizer.train(["a b c", "c b a", "abc cab bac"], side) for side in sides]
    built = build(config.model, *map(len, tokenizers)).eval()
    for parameter in built.parameters():
        parameter.data.mul_(3)
    trained = model_folder.TrainedModel(config, built, *tokenizers, {"max_target_length": 5})
    return regard.Translator(trained, torch.device("cpu"))


def test_outputs_come_in_the_order_of_the_texts() -> None:
    translator = _translator()
    outputs = translator.translate(SOURCES)
    assert [output.source for output in outputs] == SOURCES
    for text, output in zip(SOURCES, outputs, strict=True):
        (single,) = translator.translate([text])
        assert output.text == single.text
        assert output.score == pytest.approx(single.score, abs=1e-5)
    assert translator.translate([]) == []


KINDS = [
    {}, {"kind": "transformer"}, {"copy": True}, {"coverage": True, "window": "local-p"},
    {"encoder": "transformer", "decoder": "bahdanau"}, {"normalizer": "entmax15"},
]  # fmt: skip


@pytest.mark.parametrize("model", KINDS, ids=str)
def test_outputs_do_not_depend_on_the_batch_size(model: dict[str, object]) -> None:
    translator = _translator(**model)
    translator.trained.model.double()  # matrix products of other sizes round differently
    small = translator.translate(SOURCES, batch_tokens=1)
    large = translator.translate(SOURCES, batch_tokens=10_000)
    assert [output.text for output in small] == [output.text for output in large]
    for small_output, large_output in zip(small, large, strict=True):
        np.testing.assert_allclose(small_output.attention, large_output.attention, atol=1e-7)


def test_a_step_computes_a_bounded_number_of_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    translator, sources = _translator(), ["a b c", "c", "b", "a b", "c c"]
    expected = translator.translate(sources, 3)
    most = 2 * 3 * len(translator.target)
    monkeypatch.setattr("regard.translator._MOST_PROBABILITIES", most)
    sizes: list[int] = []
    outputs = translator.translate(sources, 3, on_progress=sizes.append)
    assert sizes == [2, 2, 1]
    assert [output.text for output in outputs] == [output.text for output in expected]
    sizes.clear()
    translator.align(sources, ["a"] * 5, on_progress=sizes.append)
    assert sizes == [3, 2]  # each target has 2 tokens, and a batch at most 6


def test_a_step_of_a_posterior_decoder_computes_a_bounded_number_of_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    translator, sources = _translator(decoder="posterior"), ["a b c", "c", "b", "a b", "c c"]
    decoder = translator.trained.model.decoder
    assert isinstance(decoder, PosteriorDecoder)
    expected = translator.translate(sources, 3)
    # two sources of two tokens, EOS included
    most = 2 * 3 * (len(translator.target) + 2 * decoder.values_per_position)
    monkeypatch.setattr("regard.translator._MOST_PROBABILITIES", most)
    sizes: list[int] = []
    outputs = translator.translate(sources, 3, on_progress=sizes.append)
    assert sizes == [2, 1, 1, 1]
    assert [output.text for output in outputs] == [output.text for output in expected]
    sizes.clear()
    translator.align(sources, ["a b"] * 5, on_progress=sizes.append)
    assert sizes == [2, 1, 1, 1]


def test_attention_has_a_row_per_token_that_sums_to_1() -> None:
    for beam_size in (1, 5):
        for output in _translator().translate(["a b c", "c"], beam_size):
            assert output.source_tokens[-1] == "</s>"
            assert output.attention.shape == (len(output.tokens), len(output.source_tokens))
            np.testing.assert_allclose(output.attention.sum(1), 1, atol=1e-5)
            assert output.text == " ".join(output.tokens)


def test_blank_texts_give_no_tokens() -> None:
    blank = _translator().translate([" "])[0]
    assert (blank.tokens, blank.text, blank.source_tokens) == ([], "", [])
    assert blank.attention.shape == (0, 0)
    assert str(blank.alignment()) == ""
    for output in _translator().translate([" ", "a"], top_logprobs=2, return_tree=True):
        assert len(output.top_logprobs) == (len(output.tokens) + 1 if output.source_tokens else 0)
        assert bool(output.tree) == bool(output.source_tokens)
    assert (blank.top_logprobs, blank.tree) == (None, None)


def test_one_string_gives_one_translation() -> None:
    translator = _translator()
    single, (listed,) = translator.translate("a b c"), translator.translate(["a b c"])
    assert isinstance(single, regard.Translation)
    assert (single.text, single.tokens, single.score) == (listed.text, listed.tokens, listed.score)
    best = translator.translate("a b c", n_best=3)
    assert [output.text for output in best] == [
        output.text for output in translator.translate(["a b c"], n_best=3)[0]
    ]
    alternatives = [output.text for output in best[1].alternatives]
    assert alternatives == [best[0].text, best[2].text]
    assert single.alternatives == []
    forced = translator.align("a b c", "b a")
    assert forced.tokens == ["b", "a"]
    assert forced.score == translator.align(["a b c"], ["b a"])[0].score


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_endings_are_no_part_of_the_texts(tmp_path: Path, newline: str) -> None:
    translator, path = _translator("char", "char"), tmp_path / "texts"
    texts = ["a b", "", "cab", "b"]
    path.write_bytes(newline.join(texts).encode())
    outputs = translator.translate(texts)
    with path.open(newline="") as file:
        assert translator.translate(file) == outputs
    assert translator.translate(f"cab{newline}") == translator.translate("cab")
    forced = translator.align(texts, [output.text for output in outputs])
    with path.open(newline="") as file:
        assert translator.align(file, [f"{output.text}{newline}" for output in outputs]) == forced
    assert translator.attribute(f"cab{newline}") == translator.attribute("cab")


def test_any_iterable_of_texts_is_translated_in_order() -> None:
    translator = _translator()
    expected = [output.text for output in translator.translate(SOURCES)]
    column = pandas.DataFrame({"source": SOURCES}, index=range(10, 10 + len(SOURCES)))["source"]
    for texts in (column, iter(SOURCES), tuple(SOURCES), np.array(SOURCES)):
        assert [output.text for output in translator.translate(texts)] == expected


def test_arguments_of_another_type_are_named() -> None:
    # in a process of its own, where annotations are not checked at run time
    script = """
import regard
from regard.request import to_list
for item in (3, None, float("nan"), ["a", "b"], b"a"):
    try:
        to_list(["a", item])
    except regard.DataError as error:
        print(error)
class Frame:
    columns = ["source"]
    def __iter__(self):
        return iter(self.columns)

for texts in (5, None, Frame(), {"source": "a"}):
    try:
        to_list(texts)
    except regard.DataError as error:
        print(error)
for pairs in (["ab", "cd"], [("a",)], {"es": "en"}):
    try:
        regard.fit(pairs)
    except regard.DataError as error:
        print(error)
try:
    regard.train([("a", "b")])
except regard.ConfigError as error:
    print(error)
"""
    lines = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for line, item in zip(lines, ["3", "None", "nan", "['a', 'b']", "b'a'"], strict=False):
        assert line.startswith("expected a string or a pair (source, features) as text 1 (counted ")
        assert line.endswith(f"got {item}")
    assert lines[5:7] == [
        f"expected a string or an iterable of strings, got {x}" for x in ("5", "None")
    ]
    for line, name in zip(lines[7:9], ["Frame", "dict"], strict=True):
        assert line.endswith(f"got a {name}; give one of its columns, such as frame['source']")
    for line, item in zip(lines[9:12], ["'ab'", "('a',)", "'es'"], strict=True):
        assert line.startswith(
            "expected (source, target) or (source, target, features) as pair 1, "
        )
        assert f"got {item}; for a DataFrame, pass" in line
    assert lines[12] == (
        "the first argument of train must be a Config, got a list; to train without a Config, "
        "call regard.fit(pairs)"
    )


def test_a_prefix_outside_the_vocabulary_is_refused() -> None:
    translator = _translator()
    with pytest.raises(
        regard.ConfigError, match=r"the prefix contains tokens .* vocabulary: zzz; leave them"
    ):
        translator.translate("a b", prefix="a zzz")
    assert translator.align("a b", "a zzz").tokens == ["a", "zzz"]


def test_a_copying_model_continues_a_prefix_that_is_copied() -> None:
    translator = _translator(copy=True)
    output = translator.translate("a zzz", prefix="zzz")
    assert output.tokens[0] == "zzz"
    assert output.tokens == translator.translate("a zzz", prefix=[["zzz"]]).tokens
    with pytest.raises(regard.ConfigError, match=r"vocabulary: yyy; leave"):
        translator.translate("a zzz", prefix="zzz yyy")


def test_tokens_of_a_target_come_from_any_ordered_iterable() -> None:
    translator, tokens = _translator(), ["b", "a"]
    (expected,) = translator.align(["a b"], [tokens])
    for given in (tuple(tokens), iter(tokens), np.array(tokens), pandas.Series(tokens)):
        (output,) = translator.align(["a b"], [given])
        assert (output.tokens, output.score) == (tokens, expected.score)
    for given in ({"b", "a"}, {"b": 1, "a": 2}, 3, ["b", 1]):
        with pytest.raises(regard.DataError, match="expected a text or a list of tokens as target"):
            translator.align(["a b"], [given])  # type: ignore[list-item]


def test_settings_of_a_call_are_numbers() -> None:
    translator = _translator()
    expected = translator.translate("a b", length_penalty=0.5)
    assert translator.translate("a b", length_penalty=np.float32(0.5)).score == expected.score
    for count in (0, -5, 2.5, "x", True):
        with pytest.raises(ConfigError, match=f"batch_tokens .*, got {count!r}"):
            translator.translate("a b", batch_tokens=count)
        with pytest.raises(ConfigError, match=f"batch_tokens .*, got {count!r}"):
            translator.align("a b", "a", batch_tokens=count)
    for threshold in ("x", None, True, 2):
        with pytest.raises(ConfigError, match=f"must be from 0 to 1, got {threshold!r}"):
            expected.alignment(threshold)  # type: ignore[arg-type]


def test_repr_of_a_translator_is_one_line() -> None:
    assert repr(_translator()) == (
        "Translator(rnn, attention=additive, source=10 tokens, target=10 tokens, device=cpu)"
    )


def test_n_best_gives_lists_best_first() -> None:
    outputs = _translator().translate(["a b", "c"], beam_size=2, n_best=4)
    assert [len(best) for best in outputs] == [4, 4]
    for best in outputs:
        scores = [output.score for output in best]
        assert scores == sorted(scores, reverse=True)
        assert all(output.attention.shape[0] == len(output.tokens) for output in best)
    with pytest.raises(regard.ConfigError, match="at least 1"):
        _translator().translate(["a"], n_best=0)


def test_texts_are_tokenised_once_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = _translator()
    batches: list[list[str]] = []
    encode = Tokenizer.encode_batch

    def count(self: Tokenizer, texts: list[str], **options: bool) -> list[Encoding]:
        batches.append(list(texts))
        return encode(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "encode_batch", count)
    once = [["b"] * len(SOURCES), SOURCES]
    outputs = translator.translate(SOURCES, prefix="b", pin={0: {0: 0.5}})
    assert batches == once
    batches.clear()
    request = prepare(translator.trained, SOURCES, prefix="b", pin={0: {0: 0.5}})
    prepared = translator.search(request)
    assert batches == once
    assert [best[0].tokens for best in prepared] == [output.tokens for output in outputs]
    batches.clear()
    targets = ["b" if source.strip() else "" for source in SOURCES]
    translator.align(SOURCES, targets)
    assert batches == [targets, SOURCES]
    with pytest.raises(regard.DataError, match="text 2 is blank, but its target is not"):
        translator.align(["a", " "], ["b", "b"])


def test_align_equals_search() -> None:
    translator = _translator()
    outputs = translator.translate(["a b c", "c", "a a b"], 4)
    forced = translator.align(
        [output.source for output in outputs], [output.text for output in outputs]
    )
    for output, forced_output in zip(outputs, forced, strict=True):
        if not output.complete:
            continue
        assert output.tokens == forced_output.tokens
        assert output.score == pytest.approx(forced_output.score, abs=1e-5)
        np.testing.assert_allclose(output.attention, forced_output.attention, atol=1e-5)
        assert output.alignment() == forced_output.alignment()
    with pytest.raises(regard.DataError, match="as many targets as texts, got 2 and 1"):
        translator.align(["a"], ["b", "c"])


def test_a_kept_output_does_not_hold_the_weights_of_its_batch() -> None:
    short, long = _translator().align(["a", "a b c a b c"], ["a", "a b c a b c"])
    for output in (short, long):
        heads = output.attention_heads
        assert heads is not None
        held = heads if heads.base is None else heads.base
        assert held.size == len(output.tokens) * len(output.source_tokens)


def test_the_tokens_of_given_targets_count_in_batches(make_translator: Any) -> None:
    translator = make_translator()
    sources, targets = ["a"] * 6 + ["b a"], ["b " * 8, *["a"] * 6]
    request = prepare(translator.trained, sources, targets, forced=True)
    batches = [batch for _, batch in request.batches(22, forced=True)]
    for batch in batches:
        widths = [(source.length, len(source.prefix.ids) + 1) for source in batch.sources]
        assert len(widths) == 1 or len(widths) * sum(map(max, zip(*widths, strict=True))) <= 22
    assert sum(len(batch.sources) for batch in batches) == len(sources)
    assert len(batches) > len([*request.batches(22)])
    parts = translator.align(sources, targets, batch_tokens=22)
    for output, other in zip(parts, translator.align(sources, targets), strict=True):
        assert output.score == pytest.approx(other.score, abs=1e-5)


def test_a_space_at_the_end_of_a_prefix_belongs_to_the_next_subword() -> None:
    words = _translator(source="bpe", target="bpe")
    for translator, prefix in ((words, "cab "), (_translator(source="char", target="char"), "a")):
        expected, output = (translator.translate("abc", prefix=p) for p in (prefix.strip(), prefix))
        assert output.tokens == expected.tokens
    characters = Tokenizer.train(["a b"], TextConfig(unit="char"))
    trained = dataclasses.replace(words.trained, target=characters)
    (source,) = prepare(trained, ["abc"], "a ").sources
    assert source.prefix.tokens == ["a", " "]
    (source,) = prepare(trained, ["abc"], ["a "], forced=True).sources
    assert source.prefix.tokens == ["a"]


def test_align_returns_unknown_target_tokens_as_text() -> None:
    output = _translator().align(["a b"], ["c x a"])[0]
    assert output.tokens == ["c", "x", "a"]
    assert output.text == "c x a"
    assert output.attention.shape == (3, 3)


def test_unknown_source_tokens_are_returned_and_listed() -> None:
    output = _translator().translate(["a ñ b ñ"])[0]
    assert output.source_tokens == ["a", "ñ", "b", "ñ", "</s>"]
    assert output.unknown == ["ñ", "ñ"]


def test_special_tokens_in_texts_are_plain_text() -> None:
    output = _translator().translate(["a </s> <pad>"])[0]
    assert output.source_tokens == ["a", "</s>", "<pad>", "</s>"]
    assert output.unknown == ["</s>", "<pad>"]


def test_alignments_count_whitespace_words() -> None:
    output = _translator(source="char", target="whitespace").align(["ab"], ["c a"])[0]
    assert output.source_words == [0, 1, None]
    assert {target for _, target in output.alignment()} <= {0, 1}
    subwords = _translator(source="bpe", target="bpe").align(["abc xyz"], ["cab bac"])[0]
    assert {index for index in subwords.source_words if index is not None} == {0, 1}
    assert {index for index in subwords.target_words if index is not None} == {0, 1}


def test_a_model_without_attention_translates_without_weights() -> None:
    output = _translator(attention="none").translate(["a b"])[0]
    assert output.attention is None
    for call in (output.alignment, output.chart):
        with pytest.raises(regard.ConfigError, match="no attention to show"):
            call()


def test_charts_show_the_tokens_of_both_sides() -> None:
    output = _translator().align(["a a b"], ["c c"])[0]
    assert output.chart().to_json().count('"c"') == 2
    assert dataclasses.asdict(output)["tokens"] == ["c", "c"]
    assert output.to_dict()["source_tokens"] == ["a", "a", "b", "</s>"]


def test_an_unknown_device_raises() -> None:
    from regard.translator import find_device

    assert find_device("cpu") == torch.device("cpu")
    with pytest.raises(
        regard.ConfigError, match=r"device 'tpu' is not available; choose one of auto, .*cpu"
    ):
        find_device("tpu")


def test_a_transformer_returns_all_heads_and_averages_one_layer() -> None:
    translator = _translator(kind="transformer", heads=2, decoder_layers=3)
    output = translator.translate(["a b c"], beam_size=3)[0]
    assert output.attention_heads.shape == (len(output.tokens), 3, 2, 4)
    np.testing.assert_allclose(output.attention_heads.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(output.attention, output.attention_heads[:, 1].mean(1), atol=1e-6)
    translator.trained.metadata["attention_layer"] = 2
    last = translator.translate(["a b c"], beam_size=3)[0]
    np.testing.assert_allclose(last.attention, output.attention_heads[:, 2].mean(1), atol=1e-6)
    assert translator.translate([" "])[0].attention_heads.shape == (0, 1, 1, 0)


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_forced_decoding_equals_search(kind: str) -> None:
    translator = _translator(kind=kind)
    outputs = translator.translate(["a b c", "b"], beam_size=2)
    forced = translator.align(["a b c", "b"], [output.text for output in outputs])
    for output, forced_output in zip(outputs, forced, strict=True):
        assert output.tokens == forced_output.tokens
        if output.complete:
            assert output.score == pytest.approx(forced_output.score, abs=1e-4)
        np.testing.assert_allclose(output.attention_heads, forced_output.attention_heads, atol=1e-5)


def test_a_chart_of_one_layer_or_head() -> None:
    output = _translator(kind="transformer", heads=2).translate(["a b c"])[0]
    np.testing.assert_array_equal(
        output.chart(layer=0, head=1).weights, output.attention_heads[:, 0, 1]
    )
    np.testing.assert_allclose(output.chart(layer=2).weights, output.attention_heads[:, 2].mean(1))
    np.testing.assert_array_equal(output.chart().weights, output.attention)
    with pytest.raises(ConfigError, match="no layer 3: the model has 3 layers of 2"):
        output.chart(layer=3)
    np.testing.assert_array_equal(output.chart(head=1).weights, output.attention_heads[:, 1, 1])


def test_a_chart_of_a_head_is_of_the_layer_of_the_attention() -> None:
    translator = _translator(kind="transformer", heads=2)
    translator.trained.metadata["attention_layer"] = 2
    (output,) = translator.translate(["a b c"])
    for words in (output, output.words()):
        weights = words.chart(head=1).weights
        np.testing.assert_array_equal(weights, words.attention_heads[:, 2, 1])


def test_a_recurrent_model_has_one_layer_and_head() -> None:
    output = _translator().translate(["a b c"])[0]
    np.testing.assert_array_equal(output.attention_heads[:, 0, 0], output.attention)
    assert _translator(attention="none").translate(["a b c"])[0].attention_heads is None


def test_features_are_source_tokens_and_separate_words() -> None:
    config = Config(model=ModelConfig(embedding_dim=8, encoder_dim=8, decoder_dim=8))
    source = Tokenizer.train(["ab", "ba"], TextConfig(unit="char"), ["V;PST", "V;PRS"])
    target = Tokenizer.train(["ab", "ba"], TextConfig(unit="char"))
    model = build(config.model, len(source), len(target)).eval()
    trained = model_folder.TrainedModel(config, model, source, target, {"max_target_length": 2})
    translator = regard.Translator(trained, torch.device("cpu"))
    past, present = translator.translate([("ab", "V;PST"), ("ab", "V;PRS")])
    assert past.source == "ab\tV;PST"
    assert past.source_tokens == ["a", "b", "V", "PST", "</s>"]
    assert past.source_words == [0, 1, 2, 3, None]
    assert past.attention.shape == (len(past.tokens), 5)
    assert not np.allclose(past.score, present.score)


def test_a_translator_is_copied_and_pickled_after_it_has_translated() -> None:
    translator = _translator()
    expected = translator.translate("a b c")
    for copied in (copy.deepcopy(translator), pickle.loads(pickle.dumps(translator))):
        output = copied.translate("a b c")
        assert (output.text, output.score) == (expected.text, expected.score)


SMALL_TRANSFORMER = {"kind": "transformer", "encoder_layers": 1, "decoder_layers": 1}


def _replace_output(model: Seq2Seq) -> None:
    layer = copy.deepcopy(model.decoder.output)
    layer.weight.data.neg_()
    model.decoder.output = layer


def _assign_weights(model: Seq2Seq) -> None:
    scaled = {name: 1.5 * tensor for name, tensor in model.state_dict().items()}
    model.load_state_dict(scaled, assign=True)


def _hook(model: Seq2Seq) -> None:
    model.decoder.output.register_forward_hook(lambda layer, inputs, output: -output)


def _prune(model: Seq2Seq) -> None:
    prune.l1_unstructured(model.decoder.output, "weight", amount=0.5)


def _parametrize(model: Seq2Seq) -> None:
    parametrizations.spectral_norm(model.decoder.output.eval())


def _halve(model: Seq2Seq) -> None:
    model.bfloat16()


def _step_fused(model: Seq2Seq) -> None:
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()


def _set_normalizer(model: Seq2Seq) -> None:
    for module in model.modules():
        if isinstance(module, regard.Attention):
            module.normalizer = "sparsemax"


def _write_to_data(model: Seq2Seq) -> None:
    for weight in model.parameters():
        weight.data.mul_(1.5)


def _clip_embeddings(model: Seq2Seq) -> None:
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.max_norm = 0.1


def _replace_comparison(model: Seq2Seq, factor: float = -1.0) -> None:
    for module in model.modules():
        if isinstance(module, Score):
            module.compare = lambda queries, keys: factor * (queries @ keys.mT)


@pytest.mark.parametrize("model", [{}, SMALL_TRANSFORMER], ids=["rnn", "transformer"])
@pytest.mark.parametrize(
    "change",
    [
        _replace_output, _assign_weights, _hook, _prune, _parametrize, _halve, _step_fused,
        _set_normalizer, _write_to_data, _clip_embeddings, _replace_comparison,
    ],
)  # fmt: skip
def test_changes_of_the_model_have_an_effect(
    change: Callable[[Seq2Seq], None], model: dict[str, object]
) -> None:
    translator = _translator(**model)
    before = translator.translate("a b c", 1)
    change(translator.trained.model)
    after = translator.translate("a b c", 1)
    expected = pytest.approx(
        _plain_score(translator, after), rel=0.02 if change is _halve else 1e-4
    )
    assert after.score != before.score
    assert after.score == expected
    assert translator.align("a b c", after.text).score == expected


def test_untraced_changes_of_a_row_a_column_or_a_bias_are_noticed() -> None:
    layer = torch.nn.Linear(300, 400)
    places = [(number, slice(None)) for number in range(0, 400, 7)]
    places += [(slice(None), number) for number in range(0, 300, 7)]
    for place in places:
        snapshot = _Snapshot(layer)
        assert not snapshot.has_changed()
        layer.weight.data[place] += 1
        assert snapshot.has_changed()
    snapshot = _Snapshot(layer)
    layer.bias.detach().numpy()[7] = -1e9
    assert snapshot.has_changed()


def _plain_score(translator: regard.Translator, output: Translation) -> float:
    """Return the score of an output, computed by the steps of the model itself."""
    model = translator.trained.model
    ids = translator.source.tokens_to_ids(output.source_tokens[:-1])
    targets = [*translator.target.tokens_to_ids(output.tokens), EOS]
    total = 0.0
    with torch.no_grad():
        state = model.decoder.start(model.encode(torch.tensor([[*ids, EOS]]), torch.tensor([4])))
        for read, token in zip([BOS, *targets], targets, strict=False):
            step = model.decoder.step(torch.tensor([read]), state)
            state, total = step.state, total + float(step.log_probs[0, token])
    return total / length_normalization(len(targets), 1.0)


def test_a_method_can_be_replaced_twice() -> None:
    translator = _translator(attention="dot")
    scores = [translator.translate("a b c", 1).score]
    for factor in (-1.0, 3.0):
        _replace_comparison(translator.trained.model, factor)
        output = translator.translate("a b c", 1)
        assert output.score == pytest.approx(_plain_score(translator, output), rel=1e-4)
        scores.append(output.score)
    assert len(set(scores)) == 3


def test_a_removed_hook_has_no_effect() -> None:
    translator = _translator()
    before = translator.translate("a b c", 1)
    output = translator.trained.model.decoder.output
    hook = output.register_forward_hook(lambda layer, inputs, logits: -logits)
    assert translator.translate("a b c", 1).score != before.score
    hook.remove()
    assert translator.translate("a b c", 1).score == before.score


@pytest.mark.parametrize("model", [{}, SMALL_TRANSFORMER], ids=["rnn", "transformer"])
@pytest.mark.parametrize("name", ["decoder.output", "encoder.embedding"])
def test_a_replaced_forward_is_called(model: dict[str, object], name: str) -> None:
    translator = _translator(**model)
    before = translator.translate("a b c")
    layer = translator.trained.model.get_submodule(name)
    forward = layer.forward
    layer.forward = lambda *inputs: -forward(*inputs)
    after = translator.translate("a b c")
    assert after.score != before.score
    assert translator.translate("a b c", top_logprobs=1).score == pytest.approx(after.score)
    assert translator.align("a b c", after.text).score == pytest.approx(after.score)
    del layer.forward
    assert translator.translate("a b c").score == before.score


def test_a_hook_sees_the_layers_that_search_folds() -> None:
    translator, rows = _translator(), []
    readout = translator.trained.model.decoder.readout
    readout.register_forward_hook(lambda layer, inputs, output: rows.append(len(output)))
    output = translator.translate("a b c", beam_size=1)
    assert rows == [1] * (len(output.tokens) + 1)


@pytest.mark.parametrize("model", [{}, SMALL_TRANSFORMER], ids=["rnn", "transformer"])
def test_autocast_has_no_effect_on_translations(model: dict[str, object]) -> None:
    translator = _translator(**model)
    expected = translator.translate(SOURCES), translator.align(["a b"], ["c"])
    with torch.autocast("cpu", torch.bfloat16):
        outputs = translator.translate(SOURCES), translator.align(["a b"], ["c"])
    for output, other in zip(itertools.chain(*outputs), itertools.chain(*expected), strict=True):
        assert (output.text, output.score) == (other.text, other.score)
