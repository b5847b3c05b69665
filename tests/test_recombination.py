"""Synthetic pairs: alignments by edit operations, cut points, and what is made of them."""

import dataclasses
import itertools
import random
import signal
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.batching import Example, TokenLink
from regard.config import Config, DataConfig, ModelConfig, TextConfig, TrainingConfig
from regard.corpus import Corpus, make_corpus
from regard.edit_alignment import expectations, in_same_order
from regard.errors import ConfigError, Interrupted
from regard.recombination import cut_points, recombine
from regard.text import EOS, UNK
from regard.training import _require_agreement
from test_checkpoints import assert_same_result
from test_training import _config, at_update

_IDS = st.lists(st.integers(1, 3), min_size=1, max_size=4)


def _alignments(n: int, m: int) -> list[list[tuple[int, int]]]:
    """Return the places of every alignment of n source with m target tokens."""
    if n == m == 0:
        return [[(0, 0)]]
    before = [(n - i, m - j) for i, j in ((1, 0), (0, 1), (1, 1)) if i <= n and j <= m]
    return [[*path, (n, m)] for place in before for path in _alignments(*place)]


@given(_IDS, _IDS, st.integers(0, 1000))
def test_expectations_are_those_of_all_alignments(
    source: list[int], target: list[int], seed: int
) -> None:
    probabilities = np.random.default_rng(seed).random((4, 4)) + 0.01
    probabilities[0, 0] = 0
    shape, total = (len(source) + 1, len(target) + 1), 0.0
    passing, counts = np.zeros(shape), np.zeros((4, 4))
    for path in _alignments(len(source), len(target)):
        operations = [
            (source[i] if i < k else 0, target[j] if j < m else 0)
            for (i, j), (k, m) in itertools.pairwise(path)
        ]
        weight = float(np.prod([probabilities[pair] for pair in operations]))
        total += weight
        for place in path:
            passing[place] += weight
        for pair in operations:
            counts[pair] += weight
    # padded beside a longer pair
    sources = np.array([[*source, *[0] * (5 - len(source))], [1, 2, 3, 1, 2]])
    targets = np.array([[*target, *[0] * (5 - len(target))], [3, 2, 1, 3, 2]])
    before, after = (np.pad(ids, [(0, 0), (1, 0)]) for ids in (sources, targets))
    numbers = before[:, :, None] * 4 + after[:, None]
    found, both, logs = expectations(sources, targets, numbers, probabilities.reshape(-1))
    other = expectations(sources[1:], targets[1:], numbers[1:], probabilities.reshape(-1))[1]
    assert np.isclose(logs[0], np.log(total))
    assert np.allclose(found[0, : shape[0], : shape[1]], passing / total)
    assert np.allclose(both - other, counts.reshape(-1) / total)


def _examples(*pairs: tuple[str, str]) -> list[Example]:
    return [Example([*map(ord, source), EOS], [*map(ord, target)]) for source, target in pairs]


def _texts(examples: list[Example]) -> set[tuple[str, str]]:
    assert all(example.source[-1] == EOS for example in examples)
    return {
        ("".join(map(chr, example.source[:-1])), "".join(map(chr, example.target)))
        for example in examples
    }


_VOCABULARY = 10**6
"""Above all ids of the examples: nothing in them is copied."""
_WORDS = _examples(
    ("abba", "ABBA"), ("acha", "AXA"), ("bach", "BAX"), ("chab", "XAB"), ("ba", "BA")
)


def test_pairs_are_cut_between_their_counterparts() -> None:
    by_example: dict[int, set[tuple[int, int]]] = {}
    for index, i, j, _ in cut_points(_WORDS):
        by_example.setdefault(index, set()).add((i, j))
    assert by_example[0] == {(1, 1), (2, 2), (3, 3)}
    assert by_example[1] >= {(1, 1), (3, 2)}  # "ch" is X
    assert by_example[4] == {(1, 1)}


def test_synthetic_pairs_are_new_and_have_the_same_counterparts() -> None:
    made = _texts(recombine(_WORDS, 40, seed=1, vocabulary=_VOCABULARY))
    assert not made & _texts(_WORDS)
    for source, target in made:
        assert source.replace("ch", "x").upper() == target
    assert len(made) == len(recombine(_WORDS, 40, seed=1, vocabulary=_VOCABULARY)) > 10
    assert len(recombine(_WORDS, 5, seed=1, vocabulary=_VOCABULARY)) == 5
    assert recombine(_WORDS, 40, seed=1, vocabulary=_VOCABULARY) == recombine(
        _WORDS, 40, seed=1, vocabulary=_VOCABULARY
    )
    assert recombine(_WORDS, 40, seed=1, vocabulary=_VOCABULARY) != recombine(
        _WORDS, 40, seed=2, vocabulary=_VOCABULARY
    )


def test_examples_without_cut_points_give_none() -> None:
    assert recombine([], 5, seed=1, vocabulary=_VOCABULARY) == []
    assert recombine(_examples(("a", "b"), ("c", "d")), 5, seed=1, vocabulary=_VOCABULARY) == []
    assert recombine(_examples(("a" * 70, "b" * 70)), 5, seed=1, vocabulary=_VOCABULARY) == []
    assert recombine(_examples(("ab", "")), 5, seed=1, vocabulary=_VOCABULARY) == []


def test_copies_are_recombined_with_their_tokens() -> None:
    examples = [e._replace(copies=[*(id + 1 for id in e.source[:-1]), EOS]) for e in _WORDS]
    for example in recombine(examples, 20, seed=1, vocabulary=_VOCABULARY):
        assert example.copies == [*(id + 1 for id in example.source[:-1]), EOS]


def test_copied_tokens_keep_their_counterparts() -> None:
    # every pair has unknown tokens of its own, with the same ids
    text = TextConfig(unit="char", min_frequency=2)
    config = Config(
        source=text,
        target=text,
        model=ModelConfig(copy=True),
        data=DataConfig(recombined_pairs=300),
    )
    rng, rare, pairs = random.Random(0), map(chr, range(0x4E00, 0x5E00)), list[tuple[str, str]]()
    for number in range(60):
        letters = [*rng.choices("abcdefgh", k=5), next(rare), next(rare)]
        rng.shuffle(letters)
        word = "".join(letters)
        # in some, the counterpart of an unknown token is far from it
        pairs.append((word, word if number % 4 else word[::-1]))
    corpus = make_corpus(config, pairs, pairs)
    vocabulary, examples = len(corpus.target), [corpus.train[i] for i in range(len(corpus.train))]
    made = examples[len(pairs) :]
    assert len(made) > 100
    cut = 0
    for example in made:
        copied = [id for id in example.copies if id >= vocabulary]
        assert len({*copied}) == len(copied) == example.source.count(UNK)
        assert {id for id in example.target if id >= vocabulary} <= {*copied}
        cut += UNK in example.target
    assert 0 < cut < len(made)


_PAIRS = [("abba", "A B B A"), ("acha", "A X A"), ("bach", "B A X"), ("chab", "X A B")]


def test_a_corpus_contains_the_synthetic_pairs_that_the_settings_ask_for() -> None:
    corpora = [
        make_corpus(Config(data=DataConfig(recombined_pairs=count)), _PAIRS, _PAIRS)
        for count in (0, 6)
    ]
    assert [len(corpus.train) for corpus in corpora] == [4, 10]
    assert corpora[0].fingerprint() != corpora[1].fingerprint()
    assert corpora[0].dev == corpora[1].dev
    assert "train: 6 synthetic pairs recombined from these pairs" in corpora[1].notes


def test_features_stay_with_the_end_of_the_source() -> None:
    config = Config(data=DataConfig(recombined_pairs=6, features_column=3))
    pairs = [(source, target, "V") for source, target in _PAIRS]
    corpus = make_corpus(config, pairs, pairs)
    ends = {tuple(corpus.train[index].source[-2:]) for index in range(len(corpus.train))}
    assert len(ends) == 1


def test_pairs_are_not_cut_at_features() -> None:
    feature = 20  # its counterpart is the last token of the target
    examples = [
        Example([*word, feature, EOS], [*(letter + 1 for letter in word), 30])
        for word in ([4, 5, 6], [7, 5, 6], [5, 6, 4, 7], [4, 7, 6], [6, 5, 4])
    ]
    assert any(cut.source == 3 for cut in cut_points(examples))
    cuts = cut_points(examples, feature)
    assert cuts
    assert all(cut.source < len(examples[cut.example].source) - 2 for cut in cuts)


def test_pairs_with_different_features_are_not_joined() -> None:
    config = Config(data=DataConfig(recombined_pairs=6, features_column=3))
    # two languages, in which no word has a letter and a sound in common but a
    pairs = [
        ("abba", "A B B A", "x"),
        ("bab", "B A B", "x"),
        ("acca", "A K K A", "y"),
        ("cac", "K A K", "y"),
    ]
    corpus = make_corpus(config, pairs, pairs)
    sounds = {"b": "B", "c": "K"}
    for index in range(len(corpus.train)):
        example = corpus.train[index]
        *letters, tag, _ = corpus.source.ids_to_tokens(example.source)
        expected = [sounds.get(letter, "A") for letter in letters]
        assert corpus.target.ids_to_tokens(example.target) == expected
        assert ("c" if tag == "x" else "b") not in letters
    assert len(corpus.train) > len(pairs)


def test_synthetic_pairs_longer_than_the_limit_are_left_out() -> None:
    config = Config(data=DataConfig(recombined_pairs=30, max_length=4))
    corpus = make_corpus(config, _PAIRS, _PAIRS)
    assert corpus.max_source_length <= 4


def test_a_table_has_the_synthetic_pairs_of_the_same_pairs_in_a_tsv_file(tmp_path: Path) -> None:
    table, tsv = tmp_path / "pairs.csv", tmp_path / "pairs.tsv"
    table.write_text("source,target\n" + "".join(f"{s},{t}\n" for s, t in _PAIRS))
    tsv.write_text("".join(f"{s}\t{t}\n" for s, t in _PAIRS))
    made = [
        make_corpus(
            Config(data=DataConfig(recombined_pairs=6, train=str(path), dev=str(tsv))), None, None
        )
        for path in (table, tsv)
    ]
    assert made[0].train == made[1].train
    assert made[0].fingerprint() == made[1].fingerprint()
    assert len(made[0].train) == 10


_LINKS = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8)


def _linked(size: int, steps: int, links: set[tuple[int, int]]) -> Example:
    """Return an example with other ids at every place, and those of the links that are inside."""
    found = [TokenLink(*link, 1.0) for link in sorted(links) if link[0] < size and link[1] < steps]
    return Example([*range(10, 10 + size), EOS], [*range(20, 20 + steps)], links=found)


@given(st.integers(1, 6), st.integers(1, 6), _LINKS)
def test_pairs_are_cut_after_linked_tokens_where_no_link_crosses(
    size: int, steps: int, links: set[tuple[int, int]]
) -> None:
    example = _linked(size, steps, links)
    assert example.links is not None
    pairs = {(link.source, link.target) for link in example.links}
    expected = {
        (i, j)
        for i, j in itertools.product(range(1, size), range(1, steps))
        if (i - 1, j - 1) in pairs and all((s < i) == (t < j) for s, t in pairs)
    }
    found = cut_points([example], by_links=True)
    assert {(cut.source, cut.target) for cut in found} == expected
    assert len(found) == len(expected)
    for cut in found:
        sources = tuple(10 + s for s, t in sorted(pairs) if t == cut.target - 1)
        targets = tuple(20 + t for s, t in sorted(pairs) if s == cut.source - 1)
        assert cut.common == (sources, targets)


_SENTENCES = [
    ("the old dog sees a cat .", "der alte hund sieht eine katze ."),
    ("the young dog hears a man .", "der junge hund hört einen mann ."),
    ("a cat sees the young man today .", "eine katze sieht heute den jungen mann ."),
    ("today the man hears a bird .", "heute hört der mann einen vogel ."),
]
_WORD_LINKS = [
    [(i, i) for i in range(7)],
    [(i, i) for i in range(7)],
    [(0, 0), (1, 1), (2, 2), (3, 4), (4, 5), (5, 6), (6, 3), (7, 7)],
    [(0, 0), (1, 2), (2, 3), (3, 1), (4, 4), (5, 5), (6, 6)],
]
_WORD = TextConfig(unit="word")


def _corpus(count: int, weight: float | None = None, **options: Any) -> Corpus:
    config = Config(
        source=_WORD,
        target=_WORD,
        data=DataConfig(recombined_pairs=count),
        training=TrainingConfig(guided_alignment=weight),
        model=ModelConfig(**options.pop("model", {})),
    )
    return make_corpus(config, _SENTENCES, _SENTENCES[:1], **options)


def _sentences(corpus: Corpus) -> list[tuple[str, str]]:
    examples = [corpus.train[index] for index in range(len(corpus.train))]
    return [
        (
            corpus.source.detokenize(corpus.source.ids_to_tokens(example.source[:-1])),
            corpus.target.detokenize(corpus.target.ids_to_tokens(example.target)),
        )
        for example in examples
    ]


@pytest.mark.parametrize("right_to_left", [False, True])
def test_sentences_are_cut_between_words_and_their_links_are_kept(right_to_left: bool) -> None:
    model = {"right_to_left": right_to_left}
    corpus = _corpus(50, links=_WORD_LINKS, model=model)
    made = _sentences(corpus)[len(_SENTENCES) :]
    assert ("the old dog hears a man .", "der alte hund hört einen mann .") in made
    assert ("the young dog sees a cat .", "der junge hund sieht eine katze .") in made
    # "sees the young man today" is cut after "sees", but not inside what is in another order
    assert (
        "the old dog sees the young man today .",
        "der alte hund sieht heute den jungen mann .",
    ) in made
    dictionary = {
        (source.split()[s], target.split()[t])
        for (source, target), links in zip(_SENTENCES, _WORD_LINKS, strict=True)
        for s, t in links
    }
    for index in range(len(corpus.train)):
        example = corpus.train[index]
        assert example.links
        source = corpus.source.ids_to_tokens(example.source)
        target = corpus.target.ids_to_tokens(example.target)
        assert {(source[s].strip(), target[t].strip()) for s, t, _ in example.links} <= dictionary
        assert len({link.target for link in example.links}) == len(example.target)


def test_links_of_hidden_markov_models_recombine_sentences() -> None:
    guided, alone = _corpus(20, weight=0.1), _corpus(20)
    assert _sentences(guided) == _sentences(alone)
    assert len(guided.train) > len(_SENTENCES)
    assert next(note for note in guided.notes if "hidden Markov models" in note).endswith(
        " links to guide the attention and recombine the pairs"
    )
    assert all(guided.train[index].links is not None for index in range(len(guided.train)))
    assert all(alone.train[index].links is None for index in range(len(alone.train)))
    assert alone.config.training.guided_alignment is None
    assert alone.several_links is None
    # computed links may differ by rounding errors, and so may the pairs made with them
    assert guided.fingerprint() == alone.fingerprint() == _corpus(0).fingerprint()
    assert (
        _corpus(20, links=_WORD_LINKS).fingerprint() != _corpus(0, links=_WORD_LINKS).fingerprint()
    )
    assert len(_corpus(20, compute_links=False).train) == len(_SENTENCES)


def test_sentences_of_a_table_are_recombined_in_memory(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("source,target\n" + "".join(f"{s},{t}\n" for s, t in _SENTENCES))
    data = DataConfig(recombined_pairs=20, train=str(table))
    corpus = make_corpus(Config(source=_WORD, target=_WORD, data=data), None, _SENTENCES[:1])
    assert _sentences(corpus) == _sentences(_corpus(20))


def test_letters_are_aligned_by_edit_operations_when_the_attention_is_guided() -> None:
    data = DataConfig(recombined_pairs=6)
    links = [[(i, i) for i in range(len(target.split()))] for _, target in _PAIRS]
    guided = make_corpus(Config(data=data), _PAIRS, _PAIRS, links=links)
    alone = make_corpus(Config(data=data), _PAIRS, _PAIRS)
    examples = [guided.train[index] for index in range(len(guided.train))]
    assert [e._replace(links=None) for e in examples] == alone.train
    assert all(example.links for example in examples)
    assert all(shares == [1.0] * len(shares) for shares in map(_shares, examples))


def _shares(example: Example) -> list[float]:
    """Return the sum of the shares of every target token that has links."""
    sums = defaultdict[int, float](float)
    for link in example.links or ():
        assert link.source < len(example.source) - 1
        sums[link.target] += link.share
    assert all(target < len(example.target) for target in sums)
    return [round(total, 9) for _, total in sorted(sums.items())]


def test_links_to_tokens_that_are_cut_off_leave_whole_shares() -> None:
    # "ch" is X, but the alignment by edit operations may cut after "c"
    words = ["acha", "bach", "chab", "acab", "caca", "ba"]
    examples = list[Example]()
    for word in words:
        starts = [i for i in range(len(word)) if word[i] != "h"]
        sounds = ["X" if word[i : i + 2] == "ch" else word[i].upper() for i in starts]
        links = [
            TokenLink(i + more, t, 1 / (1 + len(more_of)))
            for t, i in enumerate(starts)
            for more_of in [[1] if sounds[t] == "X" else []]
            for more in [0, *more_of]
        ]
        examples.append(Example([*map(ord, word), EOS], [*map(ord, sounds)], links=links))
    made = recombine(examples, 40, seed=1, vocabulary=_VOCABULARY)
    assert made
    for example in made:
        shares = _shares(example)
        assert shares
        assert shares == [1.0] * len(shares)


def test_links_to_features_stay_with_both_parts() -> None:
    feature = 50
    examples = [
        Example(
            [*source, feature, feature + 1, EOS],
            [*(id + 100 for id in source), 99],
            links=[
                *(TokenLink(i, i, 0.5) for i in range(len(source))),
                *(TokenLink(len(source), i, 0.5) for i in range(len(source))),
                TokenLink(len(source) + 1, len(source), 1.0),
            ],
        )
        for source in ([10, 11, 12, 13], [14, 11, 15], [16, 17, 11, 18])
    ]
    made = recombine(
        examples, 9, seed=1, vocabulary=_VOCABULARY, first_feature=feature, by_links=True
    )
    assert len(made) == 6
    for example in made:
        size = len(example.source) - 3
        assert example.source[size:] == [feature, feature + 1, EOS]
        assert example.target == [*(id + 100 for id in example.source[:size]), 99]
        assert sorted(example.links or ()) == sorted(
            [
                *(TokenLink(i, i, 0.5) for i in range(size)),
                *(TokenLink(size, i, 0.5) for i in range(size)),
                TokenLink(size + 1, size, 1.0),
            ]
        )


def test_sentences_with_copied_words_keep_their_counterparts() -> None:
    names = ["ida", "otto", "uwe", "eva", "udo"]
    pairs = [
        (f"{a} {verb[0]} {b} {time[0]}", f"{a} {verb[1]} {b} {time[1]}")
        for a, b in itertools.combinations(names, 2)
        for verb, time in zip(
            [("sees", "sieht"), ("hears", "hört")],
            [("today", "heute"), ("now", "jetzt")],
            strict=True,
        )
    ]
    text = TextConfig(unit="word", min_frequency=9)
    data, model = DataConfig(recombined_pairs=30), ModelConfig(copy=True)
    config = Config(source=text, target=text, data=data, model=model)
    words = [(0, 0), (1, 1), (2, 2), (3, 3)]
    corpus = make_corpus(config, pairs, pairs, links=[words] * len(pairs))
    assert len(corpus.train) > len(pairs)
    for index in range(len(corpus.train)):
        example = corpus.train[index]
        ((first, _, last, _, _), target) = example.copies, example.target
        assert (target[0], target[2]) == (first, last)


def test_a_run_with_synthetic_sentences_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def config(name: str) -> Config:
        data = DataConfig(recombined_pairs=10)
        return dataclasses.replace(_config(tmp_path / name), source=_WORD, target=_WORD, data=data)

    pairs, dev = _SENTENCES * 4, _SENTENCES[:1]
    regard.train(config("complete"), pairs, dev)
    # hidden Markov models report 10 rounds and 16 pairs
    with at_update(12, lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(Interrupted):
        regard.train(config("interrupted"), pairs, dev)
    regard.train(config("interrupted"), pairs, dev, resume=True)
    assert_same_result(tmp_path / "interrupted", tmp_path / "complete")
    message = "the synthetic pairs differ from those used so far"
    assert message not in capsys.readouterr().err
    monkeypatch.setattr(Corpus, "varying_fingerprint", lambda _: "other")
    regard.train(config("interrupted"), pairs, dev, resume=True)
    assert message in capsys.readouterr().err


def test_processes_with_other_synthetic_pairs_are_refused() -> None:
    trainer: Any = SimpleNamespace(
        trained=SimpleNamespace(metadata={"training_fingerprint": ""}, config=Config()),
        dev_fingerprint="",
        schedule=SimpleNamespace(update=0),
        varying_fingerprint="one",
        job=SimpleNamespace(gather=lambda value: [value, "other" if value == "one" else value]),
    )
    with pytest.raises(ConfigError, match="the synthetic pairs of process 1 differ from those of"):
        _require_agreement(trainer)
    trainer.varying_fingerprint = "the same"
    _require_agreement(trainer)


@pytest.mark.parametrize("count", [20, 100, 500])
def test_the_order_of_spellings_and_phones_is_recognised(count: int) -> None:
    rng = random.Random(count)
    sources = ["".join(rng.choices("abcdefgh", k=rng.randint(3, 7))) for _ in range(count)]
    phones = [source.upper().replace("A", "").replace("C", "KS") or "A" for source in sources]
    assert in_same_order(sources, phones)
    assert not in_same_order(sources, [text[::-1] for text in phones])
    assert not in_same_order(sources, ["".join(sorted(text)) for text in phones])
    assert not in_same_order(sources, rng.sample(phones, count))
    assert not in_same_order([], [])
    assert not in_same_order([""], ["a"])
