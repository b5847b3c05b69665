"""Exported folders: ONNX graphs, the Python runner, and the comparison with PyTorch."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.attention import Intervention
from regard.cli.main import main
from regard.config import TextConfig
from regard.errors import ConfigError, ExtraError
from regard.export import conversion, parity
from regard.export.conversion import convert
from regard.export.folder import export
from regard.quantization import round_weights
from regard.text import Tokenizer

pytestmark = pytest.mark.usefixtures("unchecked")

TEXTS = [
    "Te quiero.",
    "¿Qué es «esto»?",
    "uno, dos y tres",
    "don't stop‿here",
    "▁a ▁▁ b",
    "नमस्ते दुनिया",
]
UNITS = ["char", "grapheme", "word", "whitespace", "bpe", "unigram"]

FAST = [
    {"decoder": "bahdanau", "cell": "gru", "attention": "concat", "coverage": True, "copy": True},
    {"kind": "transformer", "encoder_layers": 1, "decoder_layers": 1},
]
SLOW = [
    {"kind": "transformer", "copy": True, "attention": "bilinear"},
    *({"attention": name} for name in ("none", "dot", "scaled_dot", "cosine", "bilinear")),
    {"attention": "inner_product", "window": "local-m", "normalizer": "sparsemax"},
    {"attention": "additive", "window": "local-p", "normalizer": "entmax15", "decoder_layers": 2},
    {"attention": "additive", "input_feeding": True, "tie_embeddings": True, "cell": "gru"},
    {"attention": "dot", "normalizer": "none", "bidirectional": False},
    {"kind": "transformer", "attention": "additive", "positions": "learned", "activation": "gelu"},
    {"kind": "transformer", "positions": "rotary", "activation": "swiglu", "pre_norm": False},
    {"kind": "transformer", "encoder": "rnn", "attention": "cosine", "normalizer": "sparsemax"},
    {"encoder": "transformer", "attention": "additive"},
]


def _name(settings: dict[str, Any]) -> str:
    return "-".join(str(value) for value in settings.values())


@pytest.mark.parametrize(
    "settings",
    [*FAST, *(pytest.param(settings, marks=pytest.mark.soak) for settings in SLOW)],
    ids=_name,
)
def test_graphs_compute_what_the_model_computes(
    make_translator: Callable[..., regard.Translator], settings: dict[str, Any]
) -> None:
    model = make_translator(**settings).trained.model
    encoder, decoder = (
        onnxruntime.InferenceSession(graph.SerializeToString()) for graph in convert(model)
    )
    lengths, beams = torch.tensor([11, 1, 4]), 3
    source = torch.randint(4, 8, (3, 11)).masked_fill(torch.arange(11) >= lengths[:, None], 0)
    copies = torch.randint(4, 10, (3, 11)) if settings.get("copy") else None
    shape = model.decoder.attention_layers, model.decoder.attention_heads
    with torch.no_grad():
        memory = model.encode(source, lengths, copies)
        items = torch.arange(3).repeat_interleave(beams)
        state = model.decoder.start(memory).select(items)
        rows = _run(encoder, {"source": source.numpy(), "lengths": lengths.numpy()})
        rows = {name: value.repeat(beams, 0) for name, value in rows.items()}
        for step in range(4):
            token = torch.randint(4, 8, (9,))
            pinned, ablated = torch.full((3, 11), torch.nan), torch.zeros(shape).bool()
            if step == 2:
                pinned[0, 3], pinned[2, 0] = 0.5, 1.0
            if step == 3 and shape[0]:
                ablated[0, 0] = True
            expected = model.decoder.step(token, state, Intervention(pinned, ablated))
            state = expected.state
            feeds = {"token": token, "pinned": pinned[items], "ablated": ablated}
            feeds |= {} if copies is None else {"copies": copies[items]}
            feeds = {name: value.numpy() for name, value in feeds.items()}
            output = _run(decoder, {**rows, **feeds, "step": np.array(step)})
            rows |= {name.replace("next", "state"): value for name, value in output.items()}
            size = expected.log_probs.shape[1]
            np.testing.assert_allclose(
                output["log_probs"][:, :size], expected.log_probs, rtol=1e-5, atol=1e-5
            )
            assert np.isneginf(output["log_probs"][:, size:]).all()
            if expected.weights is None:
                assert "weights" not in output
            else:
                np.testing.assert_allclose(output["weights"], expected.weights, atol=1e-5)


def _run(session: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    inputs = {node.name: feeds[node.name] for node in session.get_inputs()}
    names = [node.name for node in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.fixture(scope="module")
def exported(
    folders: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[regard.Translator, Path]:
    """A recurrent model, rounded to int8, and the folder it was exported to."""
    jaxtyping.config.update("jaxtyping_disable", True)
    translator = regard.Translator.load(folders[0], "cpu")
    round_weights(translator.trained.model, "int8")
    out = tmp_path_factory.mktemp("exports") / "reverse"
    export(translator, out, "int8")
    jaxtyping.config.update("jaxtyping_disable", False)
    return translator, out


def test_the_runner_needs_nothing_of_this_package(
    exported: tuple[regard.Translator, Path],
) -> None:
    translator, folder = exported
    lines = ["a b c", "", "d c b a", "a unknown b", " "]
    check = "import sys; sys.modules.update(dict.fromkeys(['regard', 'torch']))"
    code = f"{check}; sys.argv[1:] = ['--confidence']; import runpy; runpy.run_path({str(folder / 'translate.py')!r}, run_name='__main__')"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"]
    run = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=True
    )
    expected = translator.translate(lines, 5, 2)
    printed = [line.split("\t") for line in run.stdout.splitlines()]
    assert [line[0] for line in printed] == [outputs[0].text for outputs in expected]
    for line, outputs in zip(printed, expected, strict=True):
        assert float(line[1]) == pytest.approx(outputs[0].probability, abs=1e-4)
        assert float(line[2]) == pytest.approx(outputs[0].margin, abs=2e-4) or not outputs[0].text


def test_int8_weights_take_a_quarter(exported: tuple[regard.Translator, Path]) -> None:
    translator, folder = exported
    graphs = convert(translator.trained.model)
    stored = [(folder / f"{name}.onnx").read_bytes() for name in graphs._fields]
    largest = max(graphs.decoder.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    assert largest.raw_data not in stored[1]
    assert sum(map(len, stored)) < sum(len(graph.SerializeToString()) for graph in graphs)


def test_a_dictionary_is_looked_up_first(
    exported: tuple[regard.Translator, Path], tmp_path: Path
) -> None:
    translator, _ = exported
    export(translator, tmp_path / "out", "int8", {"a b": ["x y", "z"]})
    with parity._python_runner() as runner:
        model = runner.Model(tmp_path / "out")
        assert [output["text"] for output in model.translate("a b", n_best=2)] == ["x y", "z"]
        assert model.translate("b a")[0]["text"] == translator.translate("b a").text


@pytest.mark.parametrize("unit", UNITS)
def test_the_runner_tokenizes_like_the_package(unit: str) -> None:
    lower = unit in ("word", "unigram")
    tokenizer = Tokenizer.train(
        TEXTS * 3, TextConfig(unit=unit, vocabulary_size=60, lowercase=lower)
    )

    @given(
        st.one_of(st.sampled_from(TEXTS), st.text(st.sampled_from("aeiou tsQé¿?.,'-‿▁\u0301न ्त")))
    )
    def check(text: str) -> None:
        expected = tokenizer.encode(text)
        with parity._python_runner():
            from tokens import Tokenizer as Exported

            exported = Exported(json.loads(tokenizer.to_json()))
            assert exported.encode(text) == (expected.tokens, expected.ids)
            assert exported.decode(expected.tokens) == tokenizer.detokenize(expected.tokens)

    check()


def test_features_follow_a_tab() -> None:
    tokenizer = Tokenizer.train(["ab", "ba"], TextConfig(unit="char"), ["V;PST", "N"])
    expected = tokenizer.encode("ba", "N;V|x")
    with parity._python_runner():
        from tokens import Tokenizer as Exported

        exported = Exported(json.loads(tokenizer.to_json()))
        assert exported.encode("ba\tN;V|x") == (expected.tokens, expected.ids)


def test_a_difference_stops_the_export(
    make_translator: Callable[..., regard.Translator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    translator = make_translator(attention="dot")
    other = make_translator(attention="dot").trained.model
    with torch.no_grad():
        other.decoder.output.bias += torch.linspace(0, 0.1, len(translator.target))
    monkeypatch.setattr("regard.export.folder.convert", lambda model: convert(other))
    with pytest.raises(ConfigError, match="differs from PyTorch for the source"):
        export(translator, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_an_ensemble_is_refused(folders: list[Path], tmp_path: Path) -> None:
    assert main(["ensemble", *map(str, folders), "--out", str(tmp_path / "both")]) == 0
    translator = regard.Translator.load(tmp_path / "both")
    with pytest.raises(ConfigError, match="an ensemble cannot be exported; distil it"):
        export(translator, tmp_path / "out")


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtraError, match=r"needs the package onnx: pip install 'regard\[onnx\]'"):
        conversion.require_packages()


def test_command(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("a b\tb a\nc d\td c\n")
    arguments = ["export", str(folders[0]), "-o", str(tmp_path / "out"), "--dev", str(pairs)]
    assert main([*arguments, "--weights", "float16"]) == 0
    printed = capsys.readouterr().out
    assert "exact match" in printed
    assert "MB, weights in float16" in printed
    assert "same outputs as PyTorch" in printed
    assert main(arguments) == 1
    assert "exists and is not empty" in capsys.readouterr().err
