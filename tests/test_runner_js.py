"""The runner in JavaScript, against Python."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from node import NODE, run_script
from regard.export.folder import export
from regard.text import EOS
from selection import RECURRENT_OR_TRANSFORMER

PACKAGES = Path(__file__).parents[1] / "build" / "node" / "node_modules"
READY = NODE is not None and (PACKAGES / "onnxruntime-node").is_dir()

pytestmark = pytest.mark.skipif(
    not READY and not os.environ.get("CI"),
    reason="Node.js or onnxruntime-node is not installed (.ci/run installs both)",
)


def _command(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(NODE), folder / "translate.mjs", *options],
        input=text, capture_output=True, encoding="utf-8", errors="surrogateescape", check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def exported(
    export_once: Callable[[int], tuple[regard.Translator, Path]],
) -> Callable[[int], tuple[regard.Translator, Path]]:
    """Return a function that returns an exported folder, which finds the packages of Node.js."""

    def folder(number: int) -> tuple[regard.Translator, Path]:
        translator, path = export_once(number)
        with contextlib.suppress(FileExistsError):  # the folders are shared with other processes
            (path / "node_modules").symlink_to(PACKAGES)
        return translator, path

    return folder


def _assert_same(
    translator: regard.Translator, folder: Path, texts: list[str], beam_size: int
) -> None:
    """Assert that the outputs of the runner, weights included, are those of Python."""
    script = """
        import { readFileSync } from "node:fs";
        const { load } = await import(`${process.cwd()}/translate.mjs`);
        const [texts, beamSize] = JSON.parse(readFileSync(0, "utf8"));
        const { translate } = await load(".");
        const results = [];
        for (const text of texts) results.push(await translate(text, { beamSize }));
        console.log(JSON.stringify(results));
    """
    found = run_script(script, [texts, beam_size], folder)
    lists = translator.translate(texts, beam_size, n_best=2 if beam_size > 1 else 1)
    for result, outputs in zip(found, lists, strict=True):
        best = outputs[0] if isinstance(outputs, list) else outputs
        assert (result["text"], result["tokens"]) == (best.text, best.tokens)
        assert result["score"] == pytest.approx(best.score, abs=1e-4)
        assert result["probability"] == pytest.approx(best.probability, abs=1e-4)
        assert result["margin"] == pytest.approx(best.margin, abs=1e-4)
        if best.tokens:
            assert np.allclose(result["attention"], best.attention, atol=1e-4)


@pytest.mark.parametrize("number", RECURRENT_OR_TRANSFORMER)
@pytest.mark.parametrize("beam_size", [1, 5])
def test_outputs_are_those_of_python(
    exported: Callable[[int], tuple[regard.Translator, Path]], number: int, beam_size: int
) -> None:
    texts = ["a b c", "d c a b", "a x b", " ", "b", "a b c d a b", "b a\n", "b a\r\n"]
    _assert_same(*exported(number), texts, beam_size)


def test_the_command_prints_what_regard_translate_prints(
    exported: Callable[[int], tuple[regard.Translator, Path]],
) -> None:
    (translator, folder), lines = exported(0), "a b c\n\nd c\n"
    expected = translator.translate(["a b c", "", "d c"], n_best=2)
    result = _command(folder, lines, "--confidence")
    assert result.returncode == 0, result.stderr
    rows = [line.split("\t") for line in result.stdout.removesuffix("\n").split("\n")]
    assert [row[0] for row in rows] == [outputs[0].text for outputs in expected]
    numbers = [[float(number) for number in row[1:]] for row in rows]
    wanted = [[outputs[0].probability, outputs[0].margin] for outputs in expected]
    assert np.allclose(numbers, wanted, atol=1e-4)
    plain = _command(folder, lines, str(folder), "--beam-size", "1")
    greedy = translator.translate(["a b c", "", "d c"], 1)
    assert plain.stdout == "".join(f"{output.text}\n" for output in greedy)
    assert [_command(folder, text).stdout for text in ("", "\n", "\n\n")] == ["", "\n", "\n\n"]


def test_the_command_ends_quietly_when_the_reader_of_its_output_has_gone(
    exported: Callable[[int], tuple[regard.Translator, Path]],
) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [str(NODE), exported(0)[1] / "translate.mjs"]
    run = subprocess.run(command, input=b"a\n", stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_dictionary_is_looked_up_first(
    exported: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> None:
    shutil.copytree(exported(0)[1], tmp_path / "out", symlinks=True)
    (tmp_path / "out" / "dictionary.json").write_text('{"a b": ["X  y", "x y"], "d": ["z"]}')
    result = _command(tmp_path / "out", "\ufeffa b \r\nb a\r\n")
    expected = exported(0)[0].translate("b a").text
    assert result.stdout == f"X  y\n{expected}\n"
    for line in ("d\x1c", "\x85d"):  # whitespace to Python, but not to String.trim
        assert _command(tmp_path / "out", f"{line}\n").stdout == "z\n"
    marked = _command(
        tmp_path / "out", "d\n\ufeffd\n"
    ).stdout.splitlines()  # no whitespace to Python
    assert marked == ["z", exported(0)[0].translate("\ufeffd").text]
    result = _command(tmp_path / "out", "a b\nd\n", "--confidence")
    assert result.stdout == "X  y\t1.000000\t0.000000\nz\t1.000000\t1.000000\n"


def test_lines_are_translated_as_they_arrive(
    exported: Callable[[int], tuple[regard.Translator, Path]],
) -> None:
    translator, folder = exported(0)
    command = [str(NODE), folder / "translate.mjs"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for text, line in (("a b", b"a b\n"), ("d c", b"d c\r\n"), ("", b"\n")):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{translator.translate(text).text}\n"
        process.stdin.write(b"b")  # without an end of line
        process.stdin.close()
        assert process.stdout.read().decode() == f"{translator.translate('b').text}\n"


def test_the_module_can_be_imported_by_a_script_that_is_no_file(
    exported: Callable[[int], tuple[regard.Translator, Path]],
) -> None:
    script = (
        "const { load } = await import(`${process.cwd()}/translate.mjs`); console.log(typeof load)"
    )
    run = subprocess.run(
        [str(NODE), "--input-type=module", "--eval", script, "no-such-file"],
        cwd=exported(0)[1], capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert run.stdout == "function\n"


def test_a_missing_package_is_named(
    exported: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> None:
    folder = shutil.copytree(exported(0)[1], tmp_path / "out", symlinks=True)
    (folder / "node_modules").unlink()
    result = _command(folder, "a\n")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("translate.mjs needs onnxruntime-node: npm install")
    assert len(result.stderr.splitlines()) == 1


def test_a_package_that_cannot_be_loaded_is_not_called_missing(
    exported: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> None:
    folder = shutil.copytree(exported(0)[1], tmp_path / "out", symlinks=True)
    (folder / "node_modules").unlink()
    package = folder / "node_modules" / "onnxruntime-node"
    package.mkdir(parents=True)
    (package / "index.js").write_text('throw new Error("libc is too old\\nRequire stack: …")')
    result = _command(folder, "a\n")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "onnxruntime-node cannot be loaded: libc is too old\n"


def test_the_length_penalty_is_that_of_the_folder(
    exported: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> None:
    translator, source = exported(0)
    folder = shutil.copytree(source, tmp_path / "out", symlinks=True)
    description = json.loads((folder / "model.json").read_bytes())
    (folder / "model.json").write_text(json.dumps({**description, "length_penalty": 0.0}))
    (folder / "checksums.json").write_text("{}")
    script = """
        const { load } = await import(`${process.cwd()}/translate.mjs`);
        console.log(JSON.stringify(await (await load(".")).translate("a b c d")));
    """
    output = run_script(script, None, folder)
    expected = translator.translate("a b c d", length_penalty=0.0)
    assert output["text"] == expected.text
    assert output["score"] == pytest.approx(expected.log_prob, abs=1e-4)


def test_bad_input_is_one_sentence(
    exported: Callable[[int], tuple[regard.Translator, Path]], tmp_path: Path
) -> None:
    damaged = shutil.copytree(exported(0)[1], tmp_path / "damaged", symlinks=True)
    text = (damaged / "model.json").read_text()
    (damaged / "model.json").write_text(
        text.replace('"length_penalty": 1.0', '"length_penalty": 9.0')
    )
    for options, message in [
        ([str(damaged)], "model.json is damaged; export the model again"),
        (["--beam-size", "0"], "expected a whole number from 1 to 100 as the beam size"),
        (["--beam-size", "101"], "expected a whole number from 1 to 100 as the beam size"),
        ([str(tmp_path)], "checksums.json"),
        (["--beam"], "--beam"),
    ]:
        result = _command(exported(0)[1], "a\n", *options)
        assert result.returncode == 1
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
    result = _command(exported(0)[1], "a\n\udcff\n")  # the byte 0xff
    assert (result.returncode, len(result.stdout.splitlines())) == (1, 1)
    assert result.stderr == "line 2: not UTF-8; convert the lines to UTF-8 first\n"
    marked = _command(exported(0)[1], "\ufeffa\n\n")
    assert marked.stdout == _command(exported(0)[1], "a\n\n").stdout
    assert _command(exported(0)[1], "a\0\n").stderr.startswith("line 1: it contains NUL; convert")
    result = _command(exported(0)[1], f"a{chr(0x301) * 1001}\n")
    assert result.stderr.startswith("line 1: ")
    assert "more than 1,000 combining characters in a row" in result.stderr
    folder = shutil.copytree(exported(0)[1], tmp_path / "out", symlinks=True)
    (folder / "checksums.json").write_text("{}")
    description = json.loads((folder / "model.json").read_bytes())
    description["target"]["vocabulary"].pop()
    (folder / "model.json").write_text(json.dumps(description))
    result = _command(folder, "a\n")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "line 1: model.json does not fit decoder.onnx: export the model again\n"


@pytest.mark.soak
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("settings", [{"copy": True}, {"attention": "none"}], ids=str)
def test_other_models(
    settings: dict[str, Any], make_translator: Callable[..., regard.Translator], tmp_path: Path
) -> None:
    translator = make_translator(**settings)
    export(translator, tmp_path / "model")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    result = _command(tmp_path / "model", "a x y x\nb\n")
    expected = translator.translate(["a x y x", "b"])
    assert result.stdout == "".join(f"{output.text}\n" for output in expected)


@pytest.mark.soak
@pytest.mark.usefixtures("unchecked")
def test_the_weights_of_a_posterior_decoder_are_those_of_python(
    make_translator: Callable[..., regard.Translator], tmp_path: Path
) -> None:
    translator = make_translator(decoder="posterior", monotonic=True)
    translator.trained.model.decoder.output.bias.data[EOS] -= 9  # otherwise outputs are empty
    export(translator, tmp_path / "model")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    texts = ["a x y x", "b"]
    assert all(output.tokens for output in translator.translate(texts))
    _assert_same(translator, tmp_path / "model", texts, beam_size=5)
