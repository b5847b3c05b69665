"""Folders that earlier versions wrote: they load, give what they gave, and resume."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard

FORMATS = sorted((Path(__file__).parent / "data").glob("format-*"))
FOLDERS = [
    pytest.param(form, name, id=f"{form.name}/{name}")
    for form in FORMATS
    for name in json.loads((form / "expected.json").read_text(encoding="utf-8"))
]


def expected(form: Path, name: str) -> dict[str, Any]:
    return json.loads((form / "expected.json").read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize(("form", "name"), FOLDERS)
def test_a_folder_of_an_earlier_format_gives_what_it_gave(form: Path, name: str) -> None:
    then = expected(form, name)
    translator = regard.Translator.load(form / name)
    found = translator.align(then["sources"], then["targets"])
    assert [one.score for one in found] == pytest.approx(then["forced_scores"], abs=1e-4)
    if then["attention"] is None:
        assert found[0].attention is None
    else:
        for one, weights in zip(found, then["attention"], strict=False):
            assert one.attention is not None
            np.testing.assert_allclose(one.attention, np.array(weights), atol=2e-4)
    assert [one.text for one in translator.translate(then["sources"])] == then["texts"]


@pytest.mark.parametrize(("form", "name"), FOLDERS)
def test_a_folder_of_an_earlier_format_resumes(form: Path, name: str, tmp_path: Path) -> None:
    then = expected(form, name)
    out = tmp_path / name
    shutil.copytree(form / name, out)
    config = regard.Translator.load(out).trained.config
    budget = dataclasses.replace(config.training, max_updates=then["resumed"]["update"])
    data = dataclasses.replace(
        config.data,
        train=str(form / f"{then['data']}.train.tsv"),
        dev=str(form / f"{then['data']}.dev.tsv"),
    )
    config = dataclasses.replace(config, out=str(out), data=data, training=budget, device="cpu")
    regard.train(config, resume=True)
    last = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    for key, value in then["resumed"].items():
        assert last[key] == pytest.approx(value, rel=1e-3), key
