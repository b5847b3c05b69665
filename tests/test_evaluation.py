"""Agreement of the attention of each layer with prediction differences."""

import pytest
import torch

import regard
from regard import attribution, evaluation, model_folder
from regard.batching import Example
from regard.config import Config, ModelConfig, TextConfig
from regard.errors import ConfigError
from regard.evaluation import layer_agreements
from regard.models import build
from regard.text import BOS, EOS, UNK, Tokenizer


def _translator(**model: object) -> regard.Translator:
    torch.manual_seed(2)
    config = Config(model=ModelConfig(encoder_dim=8, decoder_dim=8, embedding_dim=8, **model))
    tokenizer = Tokenizer.train(["a b c d"], TextConfig(unit="whitespace"))
    built = build(config.model, len(tokenizer), len(tokenizer)).eval()
    for parameter in built.parameters():
        parameter.data.mul_(3)
    trained = model_folder.TrainedModel(
        config, built, tokenizer, tokenizer, {"max_target_length": 5}
    )
    return regard.Translator(trained, torch.device("cpu"))


def _most_important_positions(translator: regard.Translator, example: Example) -> list[int]:
    """Return for each target token the source position whose erasure lowers its log-probability most.

    The source positions are erased in separate runs.
    """
    model = translator.trained.model

    def log_probs(source: list[int]) -> torch.Tensor:
        memory = model.encode(torch.tensor([source]), torch.tensor([len(source)]))
        inputs = torch.tensor([[BOS, *example.target]])
        states = model.decoder.unroll(memory, inputs).states
        token_log_probs = torch.log_softmax(model.decoder.predict(states), -1)[0]
        return token_log_probs[range(len(example.target)), example.target]

    full, differences = log_probs(example.source), []
    for position in range(len(example.source) - 1):
        erased = [*example.source[:position], UNK, *example.source[position + 1 :]]
        differences.append(full - log_probs(erased))
    return torch.stack(differences).argmax(0).tolist()


@pytest.mark.parametrize(
    "settings", [{"kind": "transformer", "heads": 2}, {"kind": "rnn"}], ids=["transformer", "rnn"]
)
@torch.no_grad()
def test_layer_agreements_equal_separate_erasures(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "_BATCH_TOKENS", 20)  # in several batches
    translator = _translator(**settings)
    examples = [
        Example([4, 5, 6, 7, EOS], [5, 6, 4]), Example([6, 4, EOS], [4, 7]),
        Example([7, 6, 5, EOS], [4]),
    ]  # fmt: skip
    model, agreements = translator.trained.model, []
    for example in examples:
        source = torch.tensor([example.source])
        memory = model.encode(source, torch.tensor([source.shape[1]]))
        inputs = torch.tensor([[BOS, *example.target]])
        weights = model.decoder.unroll(memory, inputs, need_weights=True).weights[0]
        for step, important in enumerate(_most_important_positions(translator, example)):
            positions = weights[step, :, :, :-1].mean(1).argmax(-1)
            agreements.append((positions == important).float())
    expected = torch.stack(agreements).mean(0).tolist()
    assert layer_agreements(translator, examples) == pytest.approx(expected)
    assert len(expected) == (3 if settings["kind"] == "transformer" else 1)


def test_a_blank_source_has_length_0() -> None:
    report = evaluation.evaluate(_translator(), [("", "a"), ("a b", "c")])
    assert [each.n for each in report.metrics.by_length] == [1, 1]


def test_sources_are_evaluated_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    translator, pairs = _translator(), [("a b", "c"), ("b", "a"), ("c c a", "a b"), ("d", "d")]
    expected = evaluation.evaluate(translator, pairs)
    links, _ = evaluation.align(translator, pairs)
    monkeypatch.setattr(evaluation, "_CHUNK", 3)
    report = evaluation.evaluate(translator, pairs, attention=False)
    assert str(report) == str(expected)
    assert [each.text for each in report.translations] == [
        each.text for each in expected.translations
    ]
    assert all(each.attention is not None for each in expected.translations)
    for output in report.translations:
        assert output.attention is output.attention_heads is None
    assert evaluation.align(translator, pairs)[0] == links
    with pytest.raises(ConfigError, match="evaluate with attention=True"):
        evaluation.measure_faithfulness(translator, report.translations)


def test_a_report_displays_its_metrics() -> None:
    report = evaluation.evaluate(_translator(), [("a b", "c"), ("a b", "d"), ("b", "a")])
    assert repr(report).startswith("Report(2 sources, bleu=")
    assert len(repr(report).splitlines()) == 1
    text = str(report)
    assert text.startswith("2 distinct sources, percent\n")
    rows = [line for line in text.splitlines() if line.startswith("exact match")]
    value = report.to_dict()["exact_match"]
    assert rows[0].split()[2:] == [
        f"{value['value']:.2f}", f"{value['low']:.2f}", "–", f"{value['high']:.2f}"
    ]  # fmt: skip
    assert "BLEU: nrefs:" in text
    assert text in report._repr_html_()
    assert "source length  sources" in text
