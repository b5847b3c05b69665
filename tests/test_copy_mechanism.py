"""Copying: extended vocabulary, mixture of distributions, copies of unknown tokens."""

import random
from pathlib import Path

import pytest
import torch

import regard
from regard.batching import Batch, Example, collate
from regard.config import Config, ModelConfig, TextConfig, TrainingConfig
from regard.copy_mechanism import copies_of, extended_ids, hide_tokens, make_example
from regard.errors import ConfigError
from regard.models import Seq2Seq, build
from regard.text import EOS, PAD, UNK, Tokenizer

V = 11
KINDS = [
    {"decoder": "luong", "attention": "additive"},
    {"decoder": "bahdanau", "attention": "dot"},
    {"kind": "transformer", "encoder_dim": 8, "decoder_dim": 8, "decoder_layers": 2},
]


def _model(settings: dict[str, object]) -> Seq2Seq:
    torch.manual_seed(4)
    widths = {
        "embedding_dim": 5,
        "encoder_dim": 6,
        "decoder_dim": 7,
        "attention_dim": 4,
        "heads": 2,
    }
    return build(ModelConfig(**{**widths, **settings, "copy": True}), V, V).eval()


def _batch() -> tuple[torch.Tensor, ...]:
    source = torch.tensor([[4, 1, 6, 1, 3], [7, 1, 3, 0, 0]])
    copies = torch.tensor([[4, 11, 6, 12, 3], [7, 11, 3, 0, 0]])
    return source, torch.tensor([5, 3]), copies


def test_source_tokens_have_target_ids_and_unknown_ones_extend_the_vocabulary() -> None:
    source = Tokenizer.train(["a b c"], TextConfig(unit="whitespace"))
    target = Tokenizer.train(["b c d"], TextConfig(unit="whitespace"))
    copies = copies_of(source.encode("b x a x"), target)
    b, size = target.encode("b").ids[0], len(target)
    assert copies.ids == [b, size, size + 1, size, EOS]
    assert copies.extra_tokens == ["x", "a"]
    assert extended_ids(target.encode("a b y x"), copies, size) == [size + 1, b, UNK, size]


def test_features_are_not_copied() -> None:
    source = Tokenizer.train(["ab"], TextConfig(unit="char"), ["N", "PL"])
    target = Tokenizer.train(["abN"], TextConfig(unit="char"))
    encoding = source.encode("ba", "N;PL;X")
    copies = copies_of(encoding, target)
    a, b = target.tokens_to_ids(["a", "b"])
    assert copies.ids == [b, a, PAD, PAD, PAD, EOS]
    assert copies.extra_tokens == []
    example = make_example(encoding, target.encode("baN"), target, copy=True)
    hidden = {
        hide_tokens(example, len(target), random.Random(seed)).source[2] for seed in range(99)
    }
    assert hidden == {example.source[2]}


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_probabilities_are_a_mixture_of_generating_and_copying(settings: dict[str, object]) -> None:
    model = _model(settings)
    source, lengths, copies = _batch()
    memory = model.encode(source, lengths, copies)
    tokens = torch.tensor([[2, 4, 11], [2, 11, 5]])
    unrolled = model.decoder.unroll(memory, tokens, need_weights=True)
    probabilities = model.decoder.predict(unrolled.states, unrolled.weights, copies).exp()
    assert probabilities.shape == (2, 3, V + 2)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 3))
    output = model.decoder.output
    gate = torch.sigmoid(output.gate(unrolled.states))
    generated = torch.softmax(unrolled.states @ output.weight.T + output.bias, -1)
    attention = unrolled.weights[:, :, -1].mean(2)
    for row in range(2):
        for t in range(3):
            for token in range(V + 2):
                expected = attention[row, t, copies[row] == token].sum() * (1 - gate[row, t, 0])
                if token < V:
                    expected = expected + gate[row, t, 0] * generated[row, t, token]
                torch.testing.assert_close(
                    probabilities[row, t, token], expected, atol=1e-6, rtol=1e-5
                )
    assert (probabilities[1, :, 12] == 0).all()  # the second source has only one unknown token


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_step_equals_unroll(settings: dict[str, object]) -> None:
    model = _model(settings)
    source, lengths, copies = _batch()
    memory = model.encode(source, lengths, copies)
    tokens = torch.tensor([[2, 4, 11], [2, 11, 5]])
    unrolled = model.decoder.unroll(memory, tokens, need_weights=True)
    expected = model.decoder.predict(unrolled.states, unrolled.weights, copies)
    rows = torch.arange(2).repeat_interleave(2)
    state = model.decoder.start(memory).select(rows)
    for t in range(3):
        step = model.decoder.step(tokens[rows, t], state)
        state = step.state
        torch.testing.assert_close(step.log_probs, expected[rows, t], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        *KINDS,
        *({**KINDS[0], "normalizer": name} for name in ("sparsemax", "entmax15")),
        {**KINDS[0], "window": "local-m", "window_radius": 1},
        {**KINDS[1], "window": "local-p", "window_radius": 1},
    ],
    ids=str,
)
def test_every_parameter_has_a_finite_gradient_with_label_smoothing(
    settings: dict[str, object],
) -> None:
    model = _model(settings).train()
    source, lengths, copies = _batch()
    targets = torch.tensor([[4, 11, 3], [11, 5, 3]])
    inputs = torch.tensor([[2, 4, 11], [2, 11, 5]])
    loss = model(Batch(source, lengths, inputs, targets, copies), label_smoothing=0.1)
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_hidden_tokens_are_unknown_on_both_sides_and_copied() -> None:
    example = Example([4, 5, 4, 3], [5, 4, 4, 8], [4, 5, 4, 3])
    variants = set()
    for seed in range(3000):
        changed = hide_tokens(example, V, random.Random(seed))
        assert [UNK if copy >= V else copy for copy in changed.copies] == changed.source
        pairs = dict(zip(example.copies, changed.copies, strict=True))
        assert changed.target == [pairs.get(id, id) for id in example.target]
        variants.add(tuple(changed.copies))
    assert variants == {(4, 5, 4, 3), (11, 5, 11, 3), (4, 11, 4, 3), (11, 12, 11, 3)}


def test_a_batch_contains_the_target_ids_of_source_tokens() -> None:
    batch = collate([Example([4, 3], [4], [4, 3]), Example([4, 1, 3], [11], [4, 11, 3])])
    assert batch.copies is not None
    assert batch.copies.tolist() == [[4, 3, 0], [4, 11, 3]]
    assert batch.to("cpu").copies is not None
    assert collate([Example([4, 3], [4])]).copies is None


def _reversals(count: int, seed: int, letters: str) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    words = [[rng.choice(letters) for _ in range(rng.randint(3, 7))] for _ in range(count)]
    return [(" ".join(word), " ".join(reversed(word))) for word in words]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_tokens_absent_from_training_are_copied(tmp_path: Path, unchecked: None) -> None:
    model = ModelConfig(
        embedding_dim=24, encoder_dim=32, decoder_dim=32, attention_dim=32, dropout=0.0, copy=True
    )  # fmt: skip
    training = TrainingConfig(
        batch_tokens=1200, max_updates=400, learning_rate=5e-3, schedule="constant", warmup=50,
        cooldown=0.4, label_smoothing=0.0,
    )  # fmt: skip
    config = Config(out=str(tmp_path / "model"), model=model, training=training, device="cpu")
    seen = "abcdefgh"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    translator = regard.train(config, _reversals(3000, 1, seen), _reversals(50, 2, seen))
    torch.set_num_threads(before)
    output = translator.translate(["V a W W"])[0]
    assert output.tokens == ["W", "W", "a", "V"]
    assert output.unknown == ["V", "W", "W"]
    forced = translator.align(["V a W W"], ["W W a V"])[0]
    assert forced.score == pytest.approx(output.score, abs=1e-4)
    assert forced.tokens == output.tokens
    translations = translator.translate(["V a W W", "a"])
    assert translations[0].tokens == output.tokens
    unseen = _reversals(100, 3, f"{seen}VWXYZ")
    # the others contain tokens that a model without copying cannot output
    assert sum(set(source.split()) <= set(seen) for source, _ in unseen) < 30
    assert regard.evaluate(translator, unseen).metrics.exact_match.value >= 95


def test_label_smoothing_does_not_depend_on_the_rest_of_the_batch() -> None:
    model = _model(KINDS[0])
    source, lengths, copies = _batch()
    inputs, targets = torch.tensor([[2, 4], [2, 5]]), torch.tensor([[4, 3], [5, 3]])
    batch_loss = model(Batch(source, lengths, inputs, targets, copies), label_smoothing=0.1)
    parts = [
        model(
            Batch(*(t[[row]] for t in (source, lengths, inputs, targets, copies))),
            label_smoothing=0.1,
        )
        for row in range(2)
    ]
    torch.testing.assert_close(batch_loss, torch.stack(parts).mean())


def test_both_sides_need_the_same_unit(tmp_path: Path) -> None:
    config = Config(
        out=str(tmp_path / "m"), source=TextConfig(unit="char"), model=ModelConfig(copy=True)
    )
    with pytest.raises(
        ConfigError, match="the same unit of text on both sides, found char and whitespace"
    ):
        regard.train(config, [("ab", "a b"), ("ba", "b a")], [("ab", "a b")])
