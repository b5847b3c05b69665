"""A static web page with an exported model inside, which any web server can serve.

    index.html, page/    the page of `regard serve`, with the engine that computes in the browser
    model/               the exported model
    runtime/             ONNX Runtime

All addresses are relative, and no other host is contacted.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from regard.charts.base import script_json
from regard.export.folder import PAGE, Exported, export, size
from regard.files import atomic_folder
from regard.model_info import describe_model
from regard.translator import Translator

MODEL_FILES = ("model.json", "encoder.onnx", "decoder.onnx")
_MAX_BEAM_SIZE = 20
_HEAD = """\
<meta http-equiv="Content-Security-Policy" content="default-src 'self'; script-src 'self' \
'wasm-unsafe-eval'; img-src 'self' data:; base-uri 'none'">
<script src="page/from_file.js" defer></script>
"""


def export_site(
    translator: Translator, out: str | Path, runtime: dict[str, bytes], name: str, **options: Any
) -> Exported:
    """Export a model and write a static page with it; the folder appears only when it is complete.

    Args:
        translator: the model, as for `export`.
        out: the folder to write; must not exist, or be empty.
        runtime: the files of ONNX Runtime, from `runtime_files`.
        name: name of the model on the page.
        **options: as for `export`.

    Raises:
        ConfigError: as `export` does.
        ExtraError: as `export` does.
    """
    with atomic_folder(out) as site, tempfile.TemporaryDirectory(dir=site) as temporary:
        exported = export(translator, Path(temporary) / "model", **options)
        write_site(exported.folder, describe_model(name, translator), runtime, site)
    return exported._replace(folder=Path(out), size=size(Path(out)))


def write_site(
    model: Path, description: dict[str, Any], runtime: dict[str, bytes], out: Path
) -> None:
    """Write the static page of an exported model to an empty or new folder.

    Args:
        model: the folder of the exported model, of which `MODEL_FILES` are copied.
        description: the model as the page describes it, from `describe_model`.
        runtime: the files of ONNX Runtime, from `runtime_files`.
        out: the folder of the page.
    """
    ignored = shutil.ignore_patterns("index.html", "engine_http.js")
    shutil.copytree(PAGE, out / "page", ignore=ignored)
    for folder in ("model", "runtime"):
        (out / folder).mkdir()
    for name in MODEL_FILES:
        shutil.copyfile(model / name, out / "model" / name)
    if (model / "NOTICE").is_file():
        shutil.copyfile(model / "NOTICE", out / "NOTICE")
    for name, content in runtime.items():
        (out / "runtime" / name).write_bytes(content)
    loaded = [*(out / "model").iterdir(), out / "runtime" / "ort.wasm.gz"]
    content = {
        "engine": "engine_onnx.js",
        "models": [description],
        "folders": ["model/"],
        "runtime": "runtime/ort.js",
        "wasm": "runtime/ort.wasm.gz",
        "bytes": sum(path.stat().st_size for path in loaded),
        "max_beam_size": _MAX_BEAM_SIZE,
    }
    template = (PAGE / "index.html").read_text(encoding="utf-8")
    index = template.replace("</head>", f"{_HEAD}</head>").replace(
        "{{content}}", script_json(content)
    )
    (out / "index.html").write_text(index, encoding="utf-8")
