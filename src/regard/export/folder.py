"""Export of a model: a folder that translates in ONNX Runtime, without this package.

encoder.onnx decoder.onnx         the graphs
model.json                        sizes, search settings and the tables of both tokenizers
checksums.json                    SHA-256 of the three files above, which the runners compare
dictionary.json                   listed targets by source; empty without a dictionary
translate.py tokens.py words.py   the runner in Python
translate.mjs onnx/               the runner in JavaScript, and its modules, which are those of the page
README.md NOTICE                  how to use the folder; the licence of its data, if the model has one
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.decoders.output import CopyingOutput, OutputDecoder
from regard.errors import ConfigError, quantity
from regard.export.compression import compress_weights
from regard.export.conversion import convert, require_packages
from regard.export.parity import RUNNERS, Parity, check_parity
from regard.files import atomic_folder, write_json, write_text
from regard.quantization import WeightType
from regard.translator import Translator
from regard.version import __version__

PAGE = Path(__file__).parents[1] / "serving" / "page"
"""The web page, whose modules in onnx/ translate with an exported folder."""

FORMAT = 1
"""Format of an exported folder."""


class Exported(NamedTuple):
    """The result of an export."""

    folder: Path
    size: int
    """Size of the folder in bytes."""
    parity: Parity
    """How far the runner's outputs are from those of PyTorch."""


def export(
    translator: Translator,
    out: str | Path,
    weights: WeightType = "float32",
    dictionary: Mapping[str, Sequence[str]] | None = None,
    notice: Path | None = None,
    figures: Sequence[str] = (),
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Exported:
    """Write a folder with which a model translates in ONNX Runtime, without this package.

    The folder appears only after its runner has given the same outputs as PyTorch.

    Args:
        translator: the model; for weights other than float32, `quantization.round_weights` has rounded them.
        out: the folder to write; must not exist, or be empty.
        weights: how the weights are stored: float32, float16 or int8 (one scale per row).
        dictionary: targets by source, which the runners return instead of the model's output.
        notice: file with the licence of the data that the model and the dictionary contain.
        figures: lines of the README about the quality of the model.
        on_stage: called with a description of each stage before it starts.

    Raises:
        ConfigError: `out` is not empty, the model is an ensemble, its weights have not been rounded, or the
            outputs differ.
        ExtraError: a package of the extra `onnx` is not installed.
    """
    require_packages()
    check_decoder(translator)
    with atomic_folder(out) as folder:
        on_stage("converting the model to ONNX …")
        graphs = convert(translator.trained.model)._asdict()
        converted = [compress_weights(graph, weights) for graph in graphs.values()]
        if weights != "float32" and not any(converted):
            raise ConfigError(
                f"no weight of the model can be stored in {weights} without a loss: round them first "
                "(regard.quantization.round_weights)"
            )
        for name, graph in graphs.items():
            (folder / f"{name}.onnx").write_bytes(graph.SerializeToString())
        write_json(folder / "model.json", describe(translator, folder.name))
        write_json(folder / "checksums.json", _checksums(folder))
        write_json(folder / "dictionary.json", {})
        copy_runners(folder)
        write_text(folder / ".gitattributes", "* -text\n")  # Git would convert line endings
        on_stage("comparing the outputs of the folder with those of PyTorch …")
        parity = check_parity(translator, folder)
        write_json(folder / "dictionary.json", dict(dictionary or {}))
        if notice is not None and notice.is_file():
            shutil.copyfile(notice, folder / "NOTICE")
        write_text(folder / "README.md", _card(folder.name, translator, weights, parity, figures))
    return Exported(Path(out), size(Path(out)), parity)


def _checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def copy_runners(folder: Path) -> None:
    """Copy the runners and the modules of the page that the runner in JavaScript imports."""
    for path in (path for path in RUNNERS.iterdir() if path.is_file()):
        shutil.copyfile(path, folder / path.name)
    in_browser = shutil.ignore_patterns("worker.js", "files.js")
    shutil.copytree(PAGE / "onnx", folder / "onnx", ignore=in_browser)


def size(folder: Path) -> int:
    """Return the size of the files in a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def describe(translator: Translator, name: str) -> dict[str, Any]:
    """Return the content of model.json: everything that a runner needs besides the graphs."""
    trained, decoder = translator.trained, translator.trained.model.decoder
    output = decoder.output if isinstance(decoder, OutputDecoder) else None
    return {
        "format": FORMAT,
        "regard": __version__,
        "name": name,
        "layers": decoder.attention_layers,
        "heads": decoder.attention_heads,
        "attention_layer": translator.attention_layer,
        "attention_delay": decoder.attention_delay,
        "copying": isinstance(output, CopyingOutput),
        "length_penalty": 1.0,
        "longest_target": trained.metadata.get("max_target_length", 100),
        "examples": trained.metadata.get("examples", []),
        "attribution": trained.metadata.get("attribution"),
        "source": json.loads(trained.source.to_json()),
        "target": json.loads(trained.target.to_json()),
    }


def check_decoder(translator: Translator) -> None:
    """Raise a ConfigError if the model cannot be exported."""
    if translator.trained.members:
        raise ConfigError(
            "an ensemble cannot be exported; distil it into one model with regard distill"
        )
    if translator.trained.config.model.right_to_left:
        raise ConfigError(
            "a right-to-left model cannot be exported; export a model trained without model.right_to_left"
        )


def _card(
    name: str,
    translator: Translator,
    weights: WeightType,
    parity: Parity,
    figures: Sequence[str],
) -> str:
    metadata = translator.trained.metadata
    units = translator.source.unit, translator.target.unit
    packages = (
        "numpy onnxruntime"
        if {*units} <= {"char", "whitespace"}
        else "numpy onnxruntime tokenizers"
    )
    lines = [
        f"# {name}",
        "",
        f"{metadata.get('description', 'A sequence-to-sequence model.')} Exported with regard "
        f"{__version__}; weights in {weights}.",
        "",
        f"Translate lines in Python, with `pip install {packages}`:",
        "",
        "    python translate.py < lines > outputs",
        "",
        "or with Node.js and `npm install --ignore-scripts onnxruntime-node`:",
        "",
        "    node translate.mjs < lines > outputs",
        "",
        "`--confidence` appends the probability of the output and its margin over the second-best",
        "output, separated by TABs. `model.json` describes the tokens; `encoder.onnx` runs once per",
        "source, and `decoder.onnx` once per output token.",
        "",
        "`dictionary.json` lists outputs by source. The commands print the first one. In Python,",
        "`translate.Model(folder).translate(line, n_best=N)` returns up to N of them.",
        "",
        f"Checked at export on {quantity(parity.sources, 'source')} (the examples of the model and "
        "random ones), greedily and",
        "with 5 beams: the graphs, and the tokenizer and the search of the Python runner, without the",
        "dictionary. They give the source tokens of regard and its outputs in PyTorch, or equally",
        f"probable outputs; attention weights differ by at most {parity.weights:.1g}, "
        f"log-probabilities by {parity.log_probs:.1g}.",
        "The JavaScript runner is not run at export; the tests of regard compare it with PyTorch.",
        "",
    ]
    if figures:
        lines += [*figures, ""]
    if "attribution" in metadata:
        lines += ["Data: " + metadata["attribution"], ""]
    return "\n".join(lines)
