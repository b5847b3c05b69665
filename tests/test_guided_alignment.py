"""Guided alignment: links of words as links of tokens, the loss, and training with links."""

import dataclasses
import math
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.alignment import Alignment, GoldAlignment, from_weights
from regard.batching import Example, TokenLink, collate
from regard.config import Config, DataConfig, ModelConfig, TextConfig, TrainingConfig
from regard.copy_mechanism import hide_tokens
from regard.corpus import make_corpus
from regard.errors import ConfigError, DataError, FolderError, Interrupted
from regard.guided_alignment import Guide, guided_alignment_losses, guided_layer
from regard.models import build
from regard.pairs import Pair
from regard.text import EOS, Tokenizer
from test_checkpoints import assert_same_result
from test_training import DEV, PAIRS, TRANSFORMER, _config, at_update

pytestmark = pytest.mark.usefixtures("unchecked")

WORDS = ["ana", "banana", "nab", "a", "ban", "anna"]
LINKS = [[(i, i) for i in range(len(source.split()))] for source, _ in PAIRS]
"""Links from each source word to the target word at the same position, although targets are reversed."""


@pytest.mark.parametrize("unit", ["word", "whitespace", "bpe", "unigram"])
@given(data=st.data())
def test_alignments_read_what_the_links_of_tokens_say(unit: Any, data: st.DataObject) -> None:
    side = Tokenizer.train([" ".join(WORDS)] * 9, TextConfig(unit=unit, vocabulary_size=24))
    texts = [data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5)) for _ in range(2)]
    words = [side.words_of(side.encode(" ".join(text))) for text in texts]
    cells = [(source, target) for source in range(len(texts[0])) for target in range(len(texts[1]))]
    links = data.draw(st.frozensets(st.sampled_from(cells)))
    guide = Guide("file", [GoldAlignment(links)])
    found = guide.token_links(1, Pair(*map(" ".join, texts)), *words)
    example = Example([4] * len(words[0]) + [EOS], [4] * len(words[1]), links=found)
    shares = collate([example]).links
    assert shares is not None
    linked = [float(any(target == word for _, target in links)) for word in words[1]]
    torch.testing.assert_close(shares.sum(2), torch.tensor([[*linked, 0.0]]))
    read = from_weights(shares[0, :-1].numpy(), [*words[0], None], words[1], several=True)
    assert read == Alignment(links)
    assert guide.several == (len(links) > sum({word: 1 for _, word in links}.values()))


def test_several_links_of_a_token_share_its_attention() -> None:
    linked = [TokenLink(0, 1, 0.25), TokenLink(1, 1, 0.75)]
    examples = [Example([4, 5, EOS], [6, 7], links=linked), Example([4, EOS], [6], links=[])]
    expected = torch.zeros(2, 3, 3)
    expected[0, 1, :2] = torch.tensor([0.25, 0.75])
    assert torch.equal(collate(examples).links, expected)
    assert collate([Example([4, EOS], [6])]).links is None


def test_a_word_with_more_tokens_has_no_larger_share() -> None:
    found = Guide("file", [GoldAlignment(frozenset({(0, 0), (1, 0)}))]).token_links(
        1, Pair("ana b", "c"), [0, 0, 0, 1], [0]
    )
    assert found == [*(TokenLink(i, 0, 1 / 6) for i in range(3)), TokenLink(3, 0, 1 / 2)]


def test_the_loss_is_the_cross_entropy_of_links_and_average_weights_of_the_guided_layer() -> None:
    torch.manual_seed(3)
    weights = torch.softmax(torch.randn(1, 4, 3, 2, 3), -1)
    links = collate(
        [
            Example(
                [4, 5, EOS],
                [6, 7, 8],
                links=[TokenLink(0, 1, 0.5), TokenLink(1, 1, 0.5), TokenLink(1, 2, 1)],
            )
        ]
    ).links
    losses = guided_alignment_losses(weights, links)
    average = weights[0, :, 1].mean(1)
    expected = [0, -(average[1, 0].log() + average[1, 1].log()) / 2, -average[2, 1].log(), 0]
    assert losses[0].tolist() == pytest.approx([float(value) for value in expected])
    assert [guided_layer(layers) for layers in (1, 2, 3, 6)] == [0, 0, 1, 4]
    # in float64, the loss is that of float64
    exact = guided_alignment_losses(weights.double(), links)
    expected = -math.log(weights.double()[0, 2, 1].mean(0)[1].item())
    assert exact[0, 2].item() == pytest.approx(expected, rel=1e-12)


def test_weights_of_zero_have_a_finite_loss() -> None:
    weights = torch.tensor([[[[[1.0, 0.0]]]]], requires_grad=True)
    loss = guided_alignment_losses(weights, torch.tensor([[[0.0, 1.0]]])).sum()
    loss.backward()
    assert 80 < loss.item() < math.inf
    assert weights.grad is not None
    assert bool(weights.grad.isfinite().all())


@pytest.mark.parametrize("model", [{}, {"decoder": "bahdanau"}, {"kind": "transformer"}], ids=str)
def test_the_loss_of_a_batch_is_the_mean_over_its_target_tokens(model: dict[str, Any]) -> None:
    torch.manual_seed(1)
    network = build(ModelConfig(encoder_dim=8, decoder_dim=8, dropout=0.0, **model), 9, 9).eval()
    examples = [
        Example([4, 5, 6, EOS], [7, 8], links=[TokenLink(0, 0, 1), TokenLink(2, 1, 1)]),
        Example([5, EOS], [6, 4, 4], links=[TokenLink(0, 2, 1)]),
        Example([8, EOS], [5], links=[]),
    ]
    weighted = [
        network(collate([example]), guided_alignment=0.5) * example.size[1] for example in examples
    ]
    tokens = sum(example.size[1] for example in examples)
    batch = collate(examples)
    loss = network(batch, guided_alignment=0.5)
    torch.testing.assert_close(loss, torch.stack(weighted).sum() / tokens)
    assert loss > network(batch) + 0.1
    torch.testing.assert_close(
        network(batch._replace(links=None), guided_alignment=0.5), network(batch)
    )


def test_links_follow_their_pairs(tmp_path: Path) -> None:
    lines = ["", *(f"{source}\t{target}" for source, target in PAIRS), "a b c d a b c d\ta", "\t"]
    links = [[], *LINKS, [(7, 0)], []]
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "links").write_text("".join(f"{Alignment(pair)}\n" for pair in links))
    data = DataConfig(train=str(tmp_path / "pairs.tsv"), train_links=str(tmp_path / "links"),
                      bad_lines="skip", max_length=5)  # fmt: skip
    text = TextConfig(unit="whitespace")
    corpus = make_corpus(Config(data=data, source=text, target=text), None, None)
    assert len(corpus.train) + len(corpus.dev) == len(PAIRS)
    assert all(example.links is None for example in corpus.dev)
    for example in corpus.train:
        assert example.links == [TokenLink(i, i, 1) for i in range(len(example.source) - 1)]
    in_memory = make_corpus(Config(source=text, target=text), PAIRS, DEV, links=LINKS)
    assert f"links: {sum(map(len, LINKS))} links to guide the attention" in in_memory.notes
    without = make_corpus(Config(source=text, target=text), PAIRS, DEV)
    assert without.several_links is None
    assert in_memory.fingerprint() != without.fingerprint()


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("right_to_left", [False, True])
def test_without_given_links_those_of_hidden_markov_models_guide(
    features: bool, right_to_left: bool
) -> None:
    vocabulary = [f"w{number}" for number in range(9)]
    draw, pairs = random.Random(3), list[Any]()
    for _ in range(60):
        words = draw.choices(vocabulary, k=draw.randint(1, 5))
        target = " ".join(word.upper() for word in words)
        pairs.append((" ".join(words), target, *(["N;PL"] if features else [])))
    pairs.insert(7, ("w1 " * 8, "W1", *pairs[0][2:]))  # too long
    text = TextConfig(unit="whitespace")
    config = Config(
        data=DataConfig(max_length=7, features_column=3 if features else None, bad_lines="skip"),
        model=ModelConfig(right_to_left=right_to_left),
        training=TrainingConfig(guided_alignment=0.1),
        source=text,
        target=text,
    )
    corpus = make_corpus(config, pairs, pairs[:7])
    (note,) = (note for note in corpus.notes if "links of hidden Markov models: " in note)
    assert note.endswith(" links to guide the attention")
    assert len(corpus.train) == 60
    for example in corpus.train:
        assert example.links
        sources = corpus.source.ids_to_tokens(example.source)
        targets = corpus.target.ids_to_tokens(example.target)
        words = [link for link in example.links if sources[link.source] in vocabulary]
        assert {link.target for link in words} == {*range(len(example.target))}
        for link in words:
            assert sources[link.source].upper() == targets[link.target]
    unguided = make_corpus(dataclasses.replace(config, training=TrainingConfig()), pairs, pairs[:7])
    assert corpus.fingerprint() == unguided.fingerprint()


def test_hidden_tokens_keep_their_links() -> None:
    example = Example([4, 5, EOS], [5, 4], [4, 5, EOS], [TokenLink(0, 1, 1)])
    hidden = [hide_tokens(example, 9, random.Random(seed)) for seed in range(60)]
    assert any(1 in each.source for each in hidden)
    assert all(each.links == example.links for each in hidden)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [{}, {**TRANSFORMER, "decoder_layers": 3}, {"copy": True}], ids=str
)
def test_attention_learns_the_given_links(
    tmp_path: Path, model: dict[str, Any], unchecked: None
) -> None:
    config = _config(tmp_path / "model", {**model, "dropout": 0.0}, max_updates=150, learning_rate=0.01,
                     validate_every=150, guided_alignment=1.0)  # fmt: skip
    translator = regard.train(config, PAIRS, DEV, links=LINKS)
    assert translator.attention_layer == guided_layer(
        translator.trained.model.decoder.attention_layers
    )
    outputs = translator.align(*zip(*PAIRS, strict=True))
    right = sum(output.alignment() == links for output, links in zip(outputs, LINKS, strict=True))
    assert right >= 12  # of 14


def test_several_links_are_read_only_after_guidance_by_them(tmp_path: Path) -> None:
    several = [[(0, 0), (0, 1), (1, 1)], *LINKS[1:]]
    for name, links in (("several", several), ("one", LINKS)):
        config = _config(tmp_path / name, max_updates=2)
        regard.train(config, PAIRS, DEV, links=links)
        output = regard.Translator.load(tmp_path / name).align("a b", "c")
        output = dataclasses.replace(output, attention=np.array([[0.5, 0.3, 0.2]]))
        assert str(output.alignment()) == ("0-0 1-0" if name == "several" else "0-0")
        assert str(output.alignment(0.4)) == "0-0"


def test_a_guided_run_resumes_exactly_and_only_with_its_links(tmp_path: Path) -> None:
    regard.train(_config(tmp_path / "complete"), PAIRS, DEV, links=LINKS)
    config = _config(tmp_path / "interrupted")
    with at_update(7, lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(Interrupted):
        regard.train(config, PAIRS, DEV, links=LINKS)
    with pytest.raises(FolderError, match="was trained on other pairs or links"):
        regard.train(config, PAIRS, DEV, resume=True)
    with pytest.raises(FolderError, match="was trained on other pairs or links"):
        regard.train(config, PAIRS, DEV, resume=True, links=[[] for _ in PAIRS])
    translator = regard.train(config, PAIRS, DEV, resume=True, links=LINKS)
    assert translator.trained.config.training.guided_alignment == 0.05
    assert_same_result(tmp_path / "interrupted", tmp_path / "complete")


def test_a_run_guided_by_computed_links_resumes_exactly(tmp_path: Path) -> None:
    pairs = PAIRS * 3
    expected = regard.train(_config(tmp_path / "complete", guided_alignment=0.1), pairs, DEV)
    assert expected.trained.metadata["attention_layer"] == 0
    config = _config(tmp_path / "interrupted", guided_alignment=0.1)
    with at_update(12, lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(Interrupted):
        regard.train(config, pairs, DEV)
    with pytest.raises(FolderError, match="was trained on other pairs or links"):
        regard.train(config, pairs, DEV, resume=True, links=LINKS * 3)
    regard.train(config, pairs, DEV, resume=True)
    assert_same_result(tmp_path / "interrupted", tmp_path / "complete")
    unguided = regard.train(_config(tmp_path / "none", guided_alignment=0.0), pairs, DEV)
    assert "attention_layer" not in unguided.trained.metadata
    weights = [m.trained.model.encoder.embedding.weight for m in (expected, unguided)]
    assert not torch.equal(*weights)


def test_pairs_that_are_too_long_are_found_before_links_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("regard.guided_alignment.hidden_markov_links")
    text, training = TextConfig(unit="whitespace"), TrainingConfig(guided_alignment=0.1)
    config = Config(source=text, target=text, training=training, data=DataConfig(max_length=5))
    long = ("a b c d e f", "a")
    with pytest.raises(DataError, match="train: 1 of 15 pairs cannot be used"):
        make_corpus(config, [*PAIRS, long], DEV)
    with pytest.raises(DataError, match=rf"dev: 1 of {len(DEV) + 1} pairs cannot be used"):
        make_corpus(config, PAIRS, [*DEV, long])


@pytest.mark.parametrize(
    ("settings", "links", "error", "message"),
    [
        (
            {},
            LINKS[1:],
            DataError,
            "links has 13 lines for the 14 lines of train; give one line of",
        ),
        (
            {},
            [[(0, 3)], *LINKS[1:]],
            DataError,
            "links, line 1: 0-3 is outside its texts, which have 3 and 3 words",
        ),
        ({"attention": "none"}, LINKS, ConfigError, r"choose another model\.attention"),
        ({"normalizer": "none"}, LINKS, ConfigError, r"or model\.normalizer"),
    ],
)
def test_links_that_cannot_be_used_are_refused(
    tmp_path: Path, settings: dict[str, Any], links: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        regard.train(_config(tmp_path / "model", settings), PAIRS, DEV, links=links)


@pytest.mark.parametrize("recombined", [0, 4])
def test_a_weight_of_0_does_not_guide_by_given_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recombined: int
) -> None:
    (tmp_path / "pairs.tsv").write_text("a b c\td e f\na c b\td f e\nb a\te d\n")
    (tmp_path / "links").write_text("0-0 1-1 2-2 2-1\n0-0 1-1 2-2\n0-0 1-1\n")
    config = _config(tmp_path / "model", {"kind": "transformer"}, max_updates=1, guided_alignment=0)
    data = DataConfig(
        train=str(tmp_path / "pairs.tsv"),
        train_links=str(tmp_path / "links"),
        recombined_pairs=recombined,
    )
    word = TextConfig(unit="word")
    config = dataclasses.replace(config, data=data, source=word, target=word)
    translator = regard.train(config, None, [("a b", "d e")])
    printed = capsys.readouterr().err
    unused = [line for line in printed.splitlines() if line.startswith("without effect")]
    assert ("data.train_links" in unused[0]) == (not recombined)
    assert ("links to recombine the pairs" in printed) == bool(recombined)
    assert "to guide the attention" not in printed
    assert not translator.trained.metadata["several_links"]
    assert "agrees most often with the erasure" in printed  # a guided layer would be displayed
    unattentive = dataclasses.replace(config, model=ModelConfig(attention="none"))
    unattentive.check_groups()
    make_corpus(unattentive, None, None)


@pytest.mark.parametrize("links", ["links", None])
def test_the_attention_is_not_guided_for_a_table(tmp_path: Path, links: str | None) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("source,target\na b,b a\na,a\n")
    config = Config(
        data=DataConfig(train=str(path), train_links=links),
        training=TrainingConfig(guided_alignment=0.1),
    )
    with pytest.raises(
        ConfigError, match=r"attention cannot be guided for a table, got .*pairs\.csv"
    ):
        make_corpus(config, None, None)
