"""Translations merged into words, displayed, and as data of other packages."""

import dataclasses
import html
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ConfigError, DataError
from regard.translation import TokenLogProb, Translation, empty_translation

WEIGHTS = np.array(
    [[0.5, 0.3, 0.1, 0.1], [0.1, 0.5, 0.2, 0.2], [0.0, 0.1, 0.8, 0.1]], dtype=np.float32
)


def make_translation(attention, source_words, target_words, source=None, tokens=None, heads=None):
    return Translation(
        source="",
        source_tokens=source or [f"s{i}" for i in range(len(source_words))],
        tokens=tokens or [f"t{i}" for i in range(len(target_words))],
        text="",
        score=-1.0,
        attention=attention,
        attention_heads=heads,
        source_words=source_words,
        target_words=target_words,
    )


def test_parts_of_source_words_are_added_and_of_target_words_averaged():
    tokens = ["▁que", "ro", "▁te", "</s>"]
    translation = make_translation(
        WEIGHTS, [0, 0, 1, None], [0, 0, 1], tokens, ["▁lo", "ve", "▁you"]
    )
    words = translation.words()
    assert words.source_tokens == ["quero", "te", "</s>"]
    assert words.tokens == ["love", "you"]
    np.testing.assert_allclose(words.attention, [[0.7, 0.15, 0.15], [0.1, 0.8, 0.1]], atol=1e-6)
    assert words.attention.dtype == np.float32
    assert (words.source_words, words.target_words) == ([0, 1, None], [0, 1])
    assert (words.text, words.score) == (translation.text, translation.score)
    assert words.chart().to_json().count("quero") == 1
    assert translation.source_tokens == tokens


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        (["▁", "▁com", "pra"], "compra"),
        (["Hello", "‿,"], "Hello,"),
        (["(‿", "a", "‿)"], "(a)"),
        (["▁a", "▁▁"], "a▁"),
        (["▁", "▁"], "▁▁"),
        (["‿", "‿"], "‿‿"),
    ],
)
def test_merged_words_are_written_as_in_the_text(parts, word):
    translation = make_translation(
        np.ones((1, len(parts)), np.float32), [0] * len(parts), [0], parts
    )
    assert translation.words().source_tokens == [word]


def test_a_word_with_an_unknown_part_is_unknown():
    translation = dataclasses.replace(
        make_translation(WEIGHTS, [0, 0, 1, None], [0, 1, 2], ["▁a", "ñ", "▁b", "</s>"]),
        unknown=["ñ"],
    )
    assert translation.words().unknown == ["añ"]


def test_tokens_that_are_words_are_unchanged():
    translation = make_translation(WEIGHTS, [0, 1, 2, None], [0, 1, 2], ["▁", "‿x", "▁y", "</s>"])
    assert translation.words() is translation
    assert empty_translation(" ", attends=True).words().tokens == []


def test_words_of_an_empty_output():
    words = make_translation(np.zeros((0, 3)), [0, 0, None], [], ["▁a", "b", "</s>"]).words()
    assert words.source_tokens == ["ab", "</s>"]
    assert words.tokens == []
    assert words.attention.shape == (0, 2)


def test_translations_are_equal_if_all_fields_are():
    first, second = (make_translation(WEIGHTS.copy(), [0, 1, 2, None], [0, 1, 2]) for _ in range(2))
    assert first == second
    assert first in [second]
    assert first != dataclasses.replace(second, attention=1 - WEIGHTS)
    assert first != dataclasses.replace(second, attention=None)
    assert dataclasses.replace(second, attention=None) != first
    assert first != dataclasses.replace(second, score=-2.0)
    assert first != first.text


def test_each_side_can_be_merged_separately():
    words = make_translation(WEIGHTS, [0, 1, 2, None], [0, 0, 0], ["▁", "‿x", "▁y", "</s>"]).words()
    assert words.source_tokens == ["▁", "‿x", "▁y", "</s>"]
    np.testing.assert_allclose(words.attention, WEIGHTS.mean(0, keepdims=True), atol=1e-6)


def test_tokens_without_a_word_are_not_merged():
    words = make_translation(None, [0, 0, None, None], [0], ["▁a", "b", "▁", "</s>"]).words()
    assert words.source_tokens == ["ab", "▁", "</s>"]
    assert words.source_words == [0, None, None]
    assert words.attention is None
    assert words.attention_heads is None


NUMBERS = st.lists(st.booleans(), min_size=1, max_size=8).map(
    lambda starts: np.cumsum([0, *starts[1:]]).tolist()
)


@given(NUMBERS, NUMBERS, st.integers(1, 3), st.integers(1, 2), st.integers(0, 99))
def test_words_keep_sums_heads_and_alignment(source, target, layers, heads, seed):
    weights = np.random.default_rng(seed).dirichlet(
        np.ones(len(source) + 1), (len(target), layers, heads)
    )
    translation = make_translation(weights[:, -1].mean(1), [*source, None], target, heads=weights)
    words = translation.words()
    shape = (max(target) + 1, layers, heads, max(source) + 2)
    assert words.attention_heads.shape == shape
    np.testing.assert_allclose(words.attention_heads.sum(-1), 1)
    np.testing.assert_allclose(words.attention, words.attention_heads[:, -1].mean(1))
    assert words.alignment() == translation.alignment()
    assert words.words() is words


def test_bertviz_gets_a_tensor_per_layer():
    heads = np.random.default_rng(1).random((3, 2, 5, 4)).astype(np.float32)
    translation = make_translation(WEIGHTS, [0, 1, 2, None], [0, 1, 2], heads=heads)
    arguments = translation.to_bertviz()
    assert set(arguments) == {"cross_attention", "encoder_tokens", "decoder_tokens"}
    assert [layer.shape for layer in arguments["cross_attention"]] == [(1, 5, 3, 4)] * 2
    torch.testing.assert_close(
        arguments["cross_attention"][1][0, 3], torch.from_numpy(heads[:, 1, 3].copy())
    )
    assert arguments["encoder_tokens"] == translation.source_tokens
    assert arguments["decoder_tokens"] == translation.tokens
    arguments["cross_attention"][0].zero_()
    assert translation.attention_heads.all()


def test_bertviz_gets_the_average_without_heads():
    (layer,) = make_translation(WEIGHTS, [0, 1, 2, None], [0, 1, 2]).to_bertviz()["cross_attention"]
    torch.testing.assert_close(layer, torch.from_numpy(WEIGHTS)[None, None])
    layer.zero_()
    assert WEIGHTS.any()


def test_bertviz_needs_attention():
    with pytest.raises(ConfigError, match="no attention to show"):
        make_translation(None, [0], [0]).to_bertviz()


def test_a_chart_hides_joiners_and_marks_unknown_tokens():
    tokens = ["¿‿", "Te", "‿", "</s>"]
    translation = dataclasses.replace(
        make_translation(WEIGHTS, [0, 1, 2, None], [0, 1, 1], tokens, ["I", "do", "‿."]),
        unknown=["Te"],
    )
    chart = translation.chart()
    assert chart.source_tokens == ["¿", "Te <unk>", "‿", "</s>"]
    assert chart.target_tokens == ["I", "do", "."]
    unknown = dataclasses.replace(translation, unknown=["‿!"])
    assert "unknown=['!']" in repr(unknown)
    unknown = dataclasses.replace(unknown, unknown=["‿!", "!", "أ"])
    listed = "not in the vocabulary of the model: “\u2068!\u2069”, “\u2068أ\u2069”<"
    assert listed in unknown._repr_html_()
    left_out = dataclasses.replace(translation, unknown=[], left_out=["‿!"])
    assert "left_out=['!']" in repr(left_out)
    assert (
        "left out: “\u2068!\u2069” (punctuation that the model does not use)"
        in left_out._repr_html_()
    )


@pytest.mark.parametrize(
    ("unknown", "warning"),
    [
        ([], None),
        (["a"], None),
        (["a", "a"], "2 of 3 source tokens are not in the model's vocabulary."),
        (["a", "a", "b"], "3 of 3 source tokens are not in the model's vocabulary."),
    ],
)
def test_mostly_unknown_tokens_give_a_warning(unknown: list[str], warning: str | None):
    tokens = ["a", "a", "b", "</s>"]
    translation = dataclasses.replace(
        make_translation(WEIGHTS, [0, 1, 2, None], [0, 1, 2], tokens), unknown=unknown
    )
    expected = None if warning is None else f"The output is unreliable: {warning}"
    assert translation.warning == expected
    assert ("unreliable" in repr(translation)) == (warning is not None)
    assert (html.escape(expected or "unreliable") in translation._repr_html_()) == bool(warning)


def test_a_chart_contains_the_heads():
    heads = np.repeat(WEIGHTS[:, None, None], 2, axis=1)
    chart = make_translation(WEIGHTS, [0, 1, 2, None], [0, 1, 2], heads=heads).chart()
    np.testing.assert_array_equal(chart.heads, heads)


def _example() -> Translation:
    return dataclasses.replace(
        make_translation(WEIGHTS, [0, 1, 2, None], [0, 1, 2]), source="te quiero", text="i love you"
    )


def test_repr_is_one_short_line() -> None:
    translation = _example()
    assert repr(translation).startswith(f"Translation({translation.source!r} -> ")
    assert "attention=" in repr(translation)
    assert len(repr(translation)) < 200
    assert "\n" not in repr(translation)


def test_notebooks_display_text_heatmap_and_alternatives() -> None:
    other = dataclasses.replace(_example(), text="<b>other</b>", score=-2.5)
    steps = [[TokenLogProb("x", -0.5), TokenLogProb(None, -1.0)]]
    page = dataclasses.replace(
        _example(), alternatives=[other], top_logprobs=steps, unknown=["ü"], complete=False
    )._repr_html_()
    for part in (
        "<svg",
        "&lt;b&gt;other&lt;/b&gt; (-2.500)",
        "60.7 %",
        "&lt;/s&gt;",
        "ü",
        "truncated",
    ):
        assert part in page
    assert "<script" not in page
    ET.fromstring(page)
    plain = dataclasses.replace(_example(), attention=None)._repr_html_()
    assert "<svg" not in plain
    assert "<details" not in plain


def test_a_chart_of_an_empty_output_names_the_cause() -> None:
    empty = {"tokens": [], "text": "", "attention": np.zeros((0, 2)), "target_words": []}
    with pytest.raises(DataError, match=r"output for this text is empty; .* train it longer"):
        dataclasses.replace(_example(), **empty).chart()
    with pytest.raises(DataError, match="the text is empty"):
        dataclasses.replace(_example(), source_tokens=[], **empty).chart()


def test_to_pandas_has_a_row_per_output_token() -> None:
    translation = _example()
    table = translation.to_pandas()
    assert list(table.index) == translation.tokens
    assert list(table.columns) == translation.source_tokens
    np.testing.assert_array_equal(table.to_numpy(), translation.attention)
    with pytest.raises(ConfigError, match="no attention to show"):
        dataclasses.replace(translation, attention=None).to_pandas()


def test_weights_too_many_for_an_image_are_not_drawn():
    side = 708
    words = list(range(side))
    output = make_translation(np.full((side, side), 0.5, np.float32), words, words)
    for save in (output.chart().to_svg, output.chart().to_png):
        with pytest.raises(DataError, match="at most 500,000 weights, got 708 x 708; save"):
            save()
    assert "<svg" not in output._repr_html_()
