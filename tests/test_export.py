"""Exported folders: ONNX graphs, the Python runner, and the comparison with PyTorch."""

import copy
import dataclasses
import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard import ensemble
from regard.attention import Intervention
from regard.cli.export import _quality  # pyright: ignore[reportPrivateUsage]
from regard.cli.main import main
from regard.config import TextConfig
from regard.decoders.output import CopyingOutput
from regard.errors import ConfigError, ExtraError
from regard.export import conversion, parity
from regard.export.compression import compress_weights
from regard.export.conversion import convert
from regard.export.folder import describe, export
from regard.models import Seq2Seq
from regard.quantization import WeightType, round_weights
from regard.text import EOS, Tokenizer
from selection import RECURRENT_OR_TRANSFORMER
from tokenizer_texts import TEXTS as TEXTS_IN_MANY_SCRIPTS
from tokenizer_texts import random_texts

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

SETTINGS = [
    {"decoder": "bahdanau", "cell": "gru", "attention": "concat", "coverage": True, "copy": True},
    {"kind": "transformer", "encoder_layers": 1, "decoder_layers": 1},
    {"decoder": "posterior", "monotonic": True},
    {"decoder": "posterior", "attention": "dot", "input_feeding": True, "cell": "gru"},
    {"attention": "additive", "encoder_layers": 2},
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


@pytest.mark.soak
@pytest.mark.parametrize("settings", SETTINGS, ids=_name)
def test_graphs_of_any_settings_compute_what_the_model_computes(
    make_translator: Callable[..., regard.Translator], settings: dict[str, Any]
) -> None:
    model = make_translator(**settings).trained.model
    _check_graphs(model, convert(model))


@pytest.mark.parametrize("number", RECURRENT_OR_TRANSFORMER)
def test_graphs_compute_what_the_model_computes(
    export_once: Callable[[int], tuple[regard.Translator, Path]], number: int
) -> None:
    translator, folder = export_once(number)
    _check_graphs(translator.trained.model, _graphs(folder))


def _check_graphs(model: Seq2Seq, graphs: conversion.OnnxGraphs) -> None:
    """Assert that graphs give the outputs of their model in float32, interventions included."""
    encoder, decoder = (onnxruntime.InferenceSession(graph.SerializeToString()) for graph in graphs)
    lengths, beams = torch.tensor([11, 1, 4]), 3
    source = torch.randint(4, 8, (3, 11)).masked_fill(torch.arange(11) >= lengths[:, None], 0)
    copies = (
        torch.randint(4, 10, (3, 11)) if isinstance(model.decoder.output, CopyingOutput) else None
    )
    shape = model.decoder.attention_layers, model.decoder.attention_heads
    models = [model, copy.deepcopy(model).double()]  # float64: how exact float32 can be
    with torch.no_grad():
        memories = [each.encode(source, lengths, copies) for each in models]
        items = torch.arange(3).repeat_interleave(beams)
        states = [
            each.decoder.start(memory).select(items)
            for each, memory in zip(models, memories, strict=True)
        ]
        rows = _run(encoder, {"source": source.numpy(), "lengths": lengths.numpy()})
        rows = {name: value.repeat(beams, 0) for name, value in rows.items()}
        for step in range(4):
            token = torch.randint(4, 8, (9,))
            pinned, ablated = torch.full((3, 11), torch.nan), torch.zeros(shape).bool()
            if step == 2:
                pinned[0, 3], pinned[2, 0] = 0.5, 1.0
            if step == 3 and shape[0]:
                ablated[0, 0] = True
            intervention = Intervention(pinned, ablated)
            expected, exact = (
                each.decoder.step(token, state, intervention)
                for each, state in zip(models, states, strict=True)
            )
            states = [expected.state, exact.state]
            feeds = {"token": token, "pinned": pinned[items], "ablated": ablated}
            feeds |= {} if copies is None else {"copies": copies[items]}
            feeds = {name: value.numpy() for name, value in feeds.items()}
            output = _run(decoder, {**rows, **feeds, "step": np.array(step)})
            rows |= {name.replace("next", "state"): value for name, value in output.items()}
            size = expected.log_probs.shape[1]
            _assert_exact(output["log_probs"][:, :size], expected.log_probs, exact.log_probs)
            assert np.isneginf(output["log_probs"][:, size:]).all()
            if expected.weights is None:
                assert "weights" not in output
            else:
                _assert_exact(output["weights"], expected.weights, exact.weights)


def _assert_exact(found: np.ndarray, rounded: torch.Tensor, exact: torch.Tensor) -> None:
    """Assert that the error is at most ten times that of PyTorch in float32."""
    finite = exact.isfinite()
    assert (np.isfinite(found) == finite.numpy()).all()
    bound = 10 * max(float((rounded - exact)[finite].abs().max()), 1e-6)
    assert np.abs(found[finite.numpy()] - exact[finite].numpy()).max() <= bound


@pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter
@pytest.mark.parametrize("score", ["additive", "concat", "bilinear"])
def test_layers_are_exported_with_the_decompositions(score: str) -> None:
    torch.manual_seed(1)
    layer = regard.Attention(score, query_dim=4, key_dim=6).eval()
    rows = {"query": torch.randn(2, 3, 4), "key": torch.randn(2, 5, 6)}
    program = torch.export.export(layer, (), rows).run_decompositions(conversion.DECOMPOSITIONS)
    exported = torch.onnx.export(program, dynamo=True, verbose=False)
    assert exported is not None
    session = onnxruntime.InferenceSession(exported.model_proto.SerializeToString())
    [context, *_] = session.run(None, {name: tensor.numpy() for name, tensor in rows.items()})
    np.testing.assert_allclose(context, layer(**rows).context.detach(), atol=1e-6)


def _run(session: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    inputs = {node.name: feeds[node.name] for node in session.get_inputs()}
    names = [node.name for node in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.parametrize("number", RECURRENT_OR_TRANSFORMER)
def test_the_runner_needs_nothing_of_this_package(
    export_once: Callable[[int], tuple[regard.Translator, Path]], number: int
) -> None:
    translator, folder = export_once(number)
    lines = ["\ufeffa b c", "", "d c b a\r", "a\rd", "a unknown b", " "]
    blocked = "import sys; sys.modules.update(dict.fromkeys(['regard', 'torch']))"
    paths = f"sys.path.insert(0, {str(folder)!r}); sys.argv = ['translate.py', '--confidence']"
    script = f"{blocked}; {paths}; import runpy; runpy.run_path({str(folder / 'translate.py')!r}, run_name='__main__')"
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, check=True)
    expected = translator.translate([line.strip("\ufeff\r") for line in lines], 5, 2)
    printed = [line.split("\t") for line in run.stdout.decode().splitlines()]
    assert [line[0] for line in printed] == [outputs[0].text for outputs in expected]
    for line, outputs in zip(printed, expected, strict=True):
        assert float(line[1]) == pytest.approx(outputs[0].probability, abs=1e-4)
        assert float(line[2]) == pytest.approx(outputs[0].margin, abs=1e-4)


def test_the_runner_names_a_missing_package(
    export_once: Callable[[int], tuple[regard.Translator, Path]],
) -> None:
    folder = export_once(0)[1]
    script = f"import runpy, sys; sys.modules['numpy'] = None; runpy.run_path({str(folder / 'translate.py')!r}, run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (1, b"")
    assert run.stderr == b"translate.py needs numpy: pip install numpy onnxruntime tokenizers\n"


def test_the_runner_searches_with_as_many_beams_as_outputs(
    export_once: Callable[[int], tuple[regard.Translator, Path]],
) -> None:
    translator, folder = export_once(0)
    expected = translator.translate(["a b c d"], 2, n_best=6)[0]
    with parity._python_runner() as runner:
        found = runner.Model(folder).translate("a b c d", 2, n_best=6)
    assert [each["text"] for each in found] == [each.text for each in expected]
    scores = [each.log_prob for each in expected]
    assert [each["log_prob"] for each in found] == pytest.approx(scores, abs=1e-4)


def test_the_runner_prints_one_line_for_an_output_with_line_breaks(
    export_once: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> None:
    folder = shutil.copytree(export_once(0)[1], tmp_path / "out")
    (folder / "dictionary.json").write_text('{"a": ["x\\ny\\tz\\r!"]}')
    command = [sys.executable, folder / "translate.py"]
    run = subprocess.run(command, input=b"a\n", capture_output=True, check=True)
    assert run.stdout == b"x y z !\n"


@pytest.mark.skipif(shutil.which("git") is None, reason="Git is not installed")
def test_git_converts_no_file_of_an_export(
    export_once: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> None:
    without_packages = shutil.ignore_patterns("node_modules")
    folder = shutil.copytree(export_once(0)[1], tmp_path / "out", ignore=without_packages)
    content = (folder / "model.json").read_bytes()
    for arguments in (["init", "-q"], ["config", "core.autocrlf", "true"], ["add", "."]):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
    (folder / "model.json").unlink()
    subprocess.run(["git", "checkout", "-q", "--", "model.json"], cwd=folder, check=True)
    assert b"\n" in content
    assert (folder / "model.json").read_bytes() == content


def test_the_runner_ends_quietly_when_the_reader_of_its_output_has_gone(
    export_once: Callable[[int], tuple[regard.Translator, Path]],
) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, export_once(0)[1] / "translate.py"]
    run = subprocess.run(command, input=b"a\n", stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (run.returncode, run.stderr) == (0, b"")


def test_the_runner_reports_bad_input_in_one_sentence(
    export_once: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> None:
    folder = shutil.copytree(export_once(0)[1], tmp_path / "out")
    command = [sys.executable, folder / "translate.py"]

    def sentence(lines: bytes) -> str:
        run = subprocess.run(command, input=lines, capture_output=True, check=False)
        assert run.returncode == 1
        assert run.stdout.count(b"\n") == max(0, lines.count(b"\n") - 1)  # all but the last
        assert run.stderr.count(b"\n") == 1
        return run.stderr.decode()

    assert "line 2: not UTF-8; convert" in sentence(b"a\n\xff\n")
    assert "line 1: it contains NUL; convert" in sentence("a\n".encode("utf-16-le"))
    assert "line 2: a text has 20000 tokens, above 10000; split" in sentence(
        b"b\n" + b"a " * 20_000 + b"\n"
    )
    marks = f"a{chr(0x301) * 1001}\n".encode()
    assert "line 1: more than 1,000 combining characters in a row" in sentence(marks)
    for name in ("model.json", "encoder.onnx", "decoder.onnx"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        assert f"{name} is damaged; export the model again" in sentence(b"a b\n")
        (folder / name).write_bytes(content)
    (folder / "checksums.json").write_text("{}")
    description = json.loads((folder / "model.json").read_bytes())
    description["target"]["vocabulary"].pop()
    (folder / "model.json").write_text(json.dumps(description))
    assert "model.json does not fit decoder.onnx; export" in sentence(b"a b\n")
    shutil.copyfile(export_once(0)[1] / "model.json", folder / "model.json")
    graph = onnx.load(folder / "decoder.onnx")
    for tensor in graph.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor) * np.float32("nan")
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(graph, folder / "decoder.onnx")
    assert "are infinite or NaN; export the model again" in sentence(b"a b\n")
    (folder / "decoder.onnx").write_bytes(b"?")
    assert "decoder.onnx" in sentence(b"a b\n")


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_compressed_weights_are_those_that_were_rounded(dtype: WeightType) -> None:
    layer = nn.Linear(40, 30)
    round_weights(layer, dtype)
    tensors = {"w": layer.weight.detach().numpy(), "t": layer.weight.detach().numpy().T.copy()}
    values = [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "t"], ["y"]),
        onnx.helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 40])
        for name in ("x", "z")
    ]
    graph = onnx.helper.make_graph(nodes, "products", ends[:1], ends[1:], values)
    opset = onnx.helper.make_opsetid("", conversion.OPSET)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)
    x = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    before = _run(onnxruntime.InferenceSession(model.SerializeToString()), {"x": x})
    size = len(model.SerializeToString())
    compress_weights(model, dtype)
    after = _run(onnxruntime.InferenceSession(model.SerializeToString()), {"x": x})
    np.testing.assert_array_equal(before["z"], after["z"])
    assert len(model.SerializeToString()) < (0.35 if dtype == "int8" else 0.6) * size


def test_weights_that_have_not_been_rounded_are_refused(
    make_translator: Callable[..., regard.Translator], tmp_path: Path
) -> None:
    with pytest.raises(regard.ConfigError, match="round them first"):
        export(make_translator(), tmp_path / "out", weights="int8")
    assert not (tmp_path / "out").exists()


def test_a_dictionary_is_looked_up_first(
    export_once: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> None:
    translator, folder = export_once(0)
    shutil.copytree(folder, tmp_path / "out")
    (tmp_path / "out" / "dictionary.json").write_text('{"a b": ["x y", "z"]}')
    with parity._python_runner() as runner:
        model = runner.Model(tmp_path / "out")
        assert [output["text"] for output in model.translate("a b ", n_best=2)] == ["x y", "z"]
        assert model.translate("b a")[0]["text"] == translator.translate("b a").text
        for line in ("a b", "b a"):
            for ending in ("\n", "\r\n"):
                (ended,), (plain,) = model.translate(f"{line}{ending}"), model.translate(line)
                assert (ended["text"], ended["log_prob"]) == (plain["text"], plain["log_prob"])


@pytest.mark.parametrize("options", [[], ["--confidence"], ["--confidence", "--beam-size", "1"]])
def test_a_dictionary_is_read_as_by_regard_translate(
    folders: list[Path],
    export_once: Callable[[int], tuple[regard.Translator, Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
) -> None:
    folder = shutil.copytree(export_once(0)[1], tmp_path / "out")
    for name, text in (("words", "a b\tx  y\na b\tz\nd\tone\n"), ("lines", " a b\nd\nc\n\n")):
        (tmp_path / name).write_text(text)
    listed = regard.Dictionary.read(tmp_path / "words", export_once(0)[0]).targets
    (folder / "dictionary.json").write_text(json.dumps(listed))
    arguments = ["translate", str(folders[0]), str(tmp_path / "lines"), *options]
    assert main([*arguments, "--device", "cpu", "--dictionary", str(tmp_path / "words")]) == 0
    expected = [line.split("\t") for line in capsys.readouterr().out.split("\n")]
    with (tmp_path / "lines").open() as lines:
        command = [sys.executable, folder / "translate.py", *options]
        run = subprocess.run(command, stdin=lines, capture_output=True, check=True)
    found = [line.split("\t") for line in run.stdout.decode().split("\n")]
    assert [line[0] for line in found] == [line[0] for line in expected]
    assert found[0][0] == "x  y"  # the first of two targets
    for line, other in zip(found, expected, strict=True):
        assert list(map(float, line[1:])) == pytest.approx([*map(float, other[1:])], abs=1e-4)


def test_outputs_of_probability_0_are_left_out(
    export_once: Callable[[int], tuple[regard.Translator, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = export_once(0)
    with parity._python_runner() as runner:
        model = runner.Model(folder)
        run: Any = runner.run

        def only_token_4(session: Any, feeds: Any) -> dict[str, np.ndarray]:
            output = run(session, feeds)
            if "log_probs" in output:
                output["log_probs"][:, np.arange(output["log_probs"].shape[1]) != 4] = -np.inf
            return output

        monkeypatch.setattr(runner, "run", only_token_4)
        with pytest.raises(ValueError, match="infinite or NaN"):  # EOS is impossible at the limit
            model.translate("a b", n_best=5)


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


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("unit", UNITS)
def test_texts_in_many_scripts_are_tokenized_like_the_package(unit: str, lowercase: bool) -> None:
    drawn = random_texts(600)
    config = TextConfig(
        unit=unit, vocabulary_size=150, min_frequency=2, lowercase=lowercase, match_vocabulary=True
    )
    training = [*TEXTS_IN_MANY_SCRIPTS, "我 爱 机器 学习 。 我々 ? a 2 ❤"] * 3
    tokenizer = Tokenizer.train(training + drawn[:100], config)
    texts = [*TEXTS_IN_MANY_SCRIPTS, *drawn]
    encodings = tokenizer.encode_batch(texts)
    with parity._python_runner():
        from tokens import Tokenizer as Exported

        exported = Exported(json.loads(tokenizer.to_json()))
        for text, encoding in zip(texts, encodings, strict=True):
            assert exported.encode(text) == (encoding.tokens, encoding.ids), text
            assert exported.decode(encoding.tokens) == tokenizer.detokenize(encoding.tokens), text
    assert any(encoding.left_out for encoding in encodings) == (unit == "word")


@pytest.fixture
def matching(
    export_once: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> tuple[regard.Translator, Path]:
    """A translator that matches unknown words to its vocabulary, and its exported folder."""
    trained = export_once(0)[0].trained
    config = TextConfig(unit="word", match_vocabulary=True)
    source = Tokenizer.train(["我 爱 机器 学习"], config)
    assert len(source) == len(trained.source)
    metadata = trained.metadata | {"examples": ["我 爱 机器 学习"]}
    trained = dataclasses.replace(trained, source=source, metadata=metadata)
    translator = regard.Translator(trained, torch.device("cpu"))
    folder = shutil.copytree(export_once(0)[1], tmp_path / "matching")
    (folder / "model.json").write_text(json.dumps(describe(translator, "matching")))
    (folder / "checksums.json").write_text("{}")
    return translator, folder


def test_the_runner_matches_unknown_words_to_the_vocabulary(
    matching: tuple[regard.Translator, Path],
) -> None:
    translator, folder = matching
    lines = ["我爱机器学习", "机器  爱!", "¿我?", "我 爱 x", "学习好爱我!?", "!"]
    command = [sys.executable, folder / "translate.py", "--confidence"]
    run = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, check=True)
    printed = [line.split("\t") for line in run.stdout.decode().splitlines()]
    expected = translator.translate(lines, 5, 2)
    assert [line[0] for line in printed] == [outputs[0].text for outputs in expected]
    for line, outputs in zip(printed, expected, strict=True):
        assert float(line[1]) == pytest.approx(outputs[0].probability, abs=1e-4)


def test_the_comparison_includes_sources_with_unknown_words(
    matching: tuple[regard.Translator, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, folder = matching
    sources = parity.sample_sources(translator)
    assert "我爱机器学习" in sources
    assert any(encoding.left_out for encoding in translator.source.encode_batch(sources))
    assert parity.check_parity(translator, folder).sources == len(sources)
    runners = shutil.copytree(parity.RUNNERS, tmp_path / "runners")
    with (runners / "words.py").open("a") as file:
        file.write("def match(tokens, ids): return [(t, ids.get(t, UNK)) for t in tokens]\n")
    monkeypatch.setattr(parity, "RUNNERS", runners)
    with pytest.raises(ConfigError, match="the tokenizer of the exported runner differs"):
        parity.check_parity(translator, folder)


@pytest.mark.parametrize("features", [["V;PST", "N"], []], ids=["two", "empty column"])
def test_features_follow_a_tab(features: list[str]) -> None:
    tokenizer = Tokenizer.train(["ab", "ba"], TextConfig(unit="char"), features)
    expected = tokenizer.encode("ba", "N;V|x")
    with parity._python_runner():
        from tokens import Tokenizer as Exported

        exported = Exported(json.loads(tokenizer.to_json()))
        assert exported.encode("ba\tN;V|x") == (expected.tokens, expected.ids)


@pytest.mark.parametrize("tokens", [["▁a", "▁▁", "b▁c"], ["▁▁", "▁"], ["a▁"], []])
def test_a_mark_inside_a_token_is_kept(tokens: list[str]) -> None:
    tokenizer = Tokenizer.train(["ab ba"], TextConfig(unit="bpe"))
    with parity._python_runner():
        from tokens import Tokenizer as Exported

        exported = Exported(json.loads(tokenizer.to_json()))
        assert exported.decode(tokens) == tokenizer.detokenize(tokens)


def _graphs(folder: Path) -> conversion.OnnxGraphs:
    return conversion.OnnxGraphs(
        *(onnx.load(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    )


def test_a_difference_stops_the_export(
    export_once: Callable[[int], tuple[regard.Translator, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    translator, folder = export_once(0)
    graphs = _graphs(folder)
    for tensor in graphs.decoder.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim > 1:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1.01), tensor.name))
    monkeypatch.setattr("regard.export.folder.convert", lambda model: graphs)
    with pytest.raises(ConfigError, match="differs from PyTorch for the source"):
        export(translator, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_another_output_is_a_difference(
    export_once: Callable[[int], tuple[regard.Translator, Path]],
) -> None:
    translator, _ = export_once(0)
    expected, other = (translator.translate([text])[0] for text in ("a b c", "c d"))
    forced = translator.align(["a b c"], [other.tokens])[0]
    output = {"tokens": other.tokens, "log_prob": forced.log_prob, "score": forced.score}
    with pytest.raises(ConfigError, match="differs from PyTorch"):
        parity._difference(translator, ("a b c", None), output, expected)


@pytest.mark.parametrize("empty", [".", "link", "folder"])
def test_an_empty_folder_is_filled(
    empty: str,
    export_once: Callable[[int], tuple[regard.Translator, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    translator, folder = export_once(0)
    graphs = _graphs(folder)
    monkeypatch.setattr("regard.export.folder.convert", lambda model: graphs)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    monkeypatch.chdir(tmp_path / "folder")
    out = Path(empty) if empty == "." else tmp_path / empty
    example = translator.translate("a b")
    dictionary = {
        "a b": ["listed"],
        **{text: ["listed"] for text in parity.sample_sources(translator)},
    }
    assert example.text != "listed"
    places: list[Path | None] = []  # the parent may be write-protected
    make = tempfile.TemporaryDirectory
    monkeypatch.setattr(
        "tempfile.TemporaryDirectory",
        lambda **options: places.append(options.get("dir")) or make(**options),
    )
    export(translator, out, dictionary=dictionary)
    assert places[0] == tmp_path / "folder"
    assert (tmp_path / "folder" / "model.json").is_file()
    assert json.loads((tmp_path / "folder" / "dictionary.json").read_text()) == dictionary


def test_a_model_without_known_tokens_is_compared(
    make_translator: Callable[..., regard.Translator],
) -> None:
    translator = make_translator()
    empty = dataclasses.replace(translator.source, vocabulary=())
    trained = dataclasses.replace(translator.trained, source=empty)
    assert parity.sample_sources(dataclasses.replace(translator, trained=trained)) == []


def test_a_failure_to_write_names_the_folder(
    export_once: Callable[[int], tuple[regard.Translator, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(model: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    translator, _ = export_once(0)
    monkeypatch.setattr("regard.export.folder.convert", full)
    with pytest.raises(ConfigError, match=f"cannot write {tmp_path}/out: No space left on device"):
        export(translator, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_ensemble_is_refused(folders: list[Path], tmp_path: Path) -> None:
    assert main(["ensemble", *map(str, folders), "--out", str(tmp_path / "both")]) == 0
    translator = regard.Translator.load(tmp_path / "both")
    with pytest.raises(ConfigError, match="an ensemble cannot be exported; distil it"):
        export(translator, tmp_path / "out")


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtraError, match=r"needs the package onnx: pip install 'regard\[onnx\]'"):
        conversion.require_packages()


def test_nothing_is_printed_before_the_folder_is_written(
    folders: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def export(*_: object, **__: object) -> None:
        assert capsys.readouterr().out == ""  # otherwise, a closed pipe ends the command here
        raise ConfigError("reached")

    monkeypatch.setattr("regard.export.folder.export", export)
    (tmp_path / "dev.tsv").write_text("a b\tb a\n")
    arguments = ["export", str(folders[0]), "-o", str(tmp_path / "out")]
    assert main([*arguments, "--dev", str(tmp_path / "dev.tsv")]) == 1
    assert "reached" in capsys.readouterr().err


@pytest.mark.parametrize("weights", ["float32", pytest.param("float16", marks=pytest.mark.soak)])
def test_the_command_prints_size_and_quality(
    folders: list[Path],
    export_once: Callable[[int], tuple[regard.Translator, Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    weights: WeightType,
) -> None:
    if weights == "float32":  # these graphs exist
        graphs = _graphs(export_once(0)[1])
        monkeypatch.setattr("regard.export.folder.convert", lambda model: graphs)
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("a b\tb a\nc d\td c\n")
    arguments = ["export", str(folders[0]), "-o", str(tmp_path / "out"), "--dev", str(pairs)]
    assert main([*arguments, "--weights", weights]) == 0
    printed = capsys.readouterr().out
    assert "exact match" in printed
    assert f"MB, weights in {weights}" in printed
    assert "same outputs as PyTorch" in printed
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"- weights in {weights}, dev pairs (2 sources), beam size 5: BLEU " in card
    assert "the graphs, and the tokenizer and the search of the Python runner" in card
    assert "The JavaScript runner is not run at export" in card
    assert main(arguments) == 1
    assert "exists and is not empty" in capsys.readouterr().err
    assert (
        main(["export", str(folders[0]), "-o", str(tmp_path / "x"), "--onnxruntime-web", "y"]) == 1
    )
    assert "add --web" in capsys.readouterr().err


def test_references_of_a_lower_casing_model_are_lower_cased(
    make_translator: Callable[..., regard.Translator], tmp_path: Path
) -> None:
    translator = make_translator()
    text = TextConfig(unit="whitespace", lowercase=True)
    lower = Tokenizer.train(["a b c d"], text)
    trained = dataclasses.replace(translator.trained, target=lower)
    translator = regard.Translator(trained, translator.device)
    with torch.no_grad():
        trained.model.decoder.output.bias[EOS] = -20
    pairs = [(text, translator.translate(text).text.upper()) for text in ("a b", "c", "d d a")]
    assert any(target.isupper() for _, target in pairs)
    path = tmp_path / "dev.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs if target))
    printed, figures = _quality(translator, str(path), "int8", False)
    assert f"{path}, weights in int8, targets lower-cased:" in printed
    assert "- weights in int8, targets lower-cased, dev pairs" in figures[-1]
    assert "exact match 100.00" in figures[-1]


def test_the_dev_figures_of_the_model_card_are_kept(
    folders: list[Path],
    export_once: Callable[[int], tuple[regard.Translator, Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = _graphs(export_once(0)[1])
    monkeypatch.setattr("regard.export.folder.convert", lambda model: graphs)
    model = shutil.copytree(folders[0], tmp_path / "model")
    card = (model / "README.md").read_text()
    figures = "- weights in int8, dev pairs (1 source), beam size 5: BLEU 12.34"
    (model / "README.md").write_text(
        card.replace("\nTrained with\n", f"{figures}\n\nTrained with\n")
    )
    best = next(line for line in card.splitlines() if line.startswith("- best weights at update"))
    assert main(["export", str(model), "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    exported = (tmp_path / "out" / "README.md").read_text()
    for text in (printed.out, exported):
        assert f"{best}\n{figures}\n" in text
        assert "not measured again for this folder (weights in float32)" in text
    assert "to evaluate it, add --dev PAIRS" in printed.err
    (model / "NOTICE").write_text("terms\n")
    ensemble.save([model], tmp_path / "one")
    assert main(["export", str(tmp_path / "one"), "-o", str(tmp_path / "of-one")]) == 0
    assert figures in (tmp_path / "of-one" / "README.md").read_text()
    assert (tmp_path / "of-one" / "NOTICE").read_text() == "terms\n"
    capsys.readouterr()
    (model / "README.md").unlink()
    assert main(["export", str(model), "-o", str(tmp_path / "bare")]) == 0
    assert "Dev figures" not in capsys.readouterr().out
    assert "Dev figures" not in (tmp_path / "bare" / "README.md").read_text()
