"""The server: responses equal those of Python under concurrency, and errors are one sentence."""

import asyncio
import contextlib
import dataclasses
import gc
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import uvicorn
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient
from pydantic import ValidationError
from uvicorn.supervisors import Multiprocess

import regard
from regard import ensemble, model_folder
from regard.cli.main import main
from regard.explanation.self_attention import count_layer_weights, layer_weights
from regard.request import PreparedRequest, prepare
from regard.serving.app import Settings, create_app
from regard.serving.batching import Batcher, QueueFull
from regard.serving.limits import BodyLimit, Limits
from regard.serving.metrics import Metrics
from regard.serving.schemas import TranslateRequest
from regard.serving.workers import SingleServer, Workers
from serving_models import make_folder

pytestmark = pytest.mark.usefixtures("unchecked")

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(folders: list[Path]) -> Path:
    return folders[0]


@pytest.fixture(scope="module")
def transformer(folders: list[Path]) -> Path:
    return folders[1]


@pytest.fixture(scope="module")
def client(folder: Path, transformer: Path) -> Iterator[TestClient]:
    settings = Settings(folder=str(folder), compare_with=str(transformer), example=HOSTILE)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        yield client


def _translate(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    response = client.post("/api/translate", json=body)
    assert response.status_code == 200, response.text
    return response.json()["translations"]


def _close(weights: Any, expected: np.ndarray) -> bool:
    # an output without tokens is an empty list in JSON, of any other dimensions
    return np.allclose(np.reshape(weights, expected.shape), expected, atol=1e-5)


def test_responses_equal_those_of_the_translator(client: TestClient, folder: Path) -> None:
    translator = regard.Translator.load(folder, "cpu")
    texts = ["a b c", "", "d q", "b"]
    outputs = _translate(client, texts=texts, n_best=3, beam_size=4)
    for answer, expected in zip(outputs, translator.translate(texts, 4, 3), strict=True):
        assert answer["text"] == expected[0].text
        assert answer["source_tokens"] == expected[0].source_tokens
        for name in ("unknown", "left_out", "warning"):
            assert answer[name] == getattr(expected[0], name)
        assert [output["tokens"] for output in answer["n_best"]] == [
            output.tokens for output in expected
        ]
        for output, other in zip(answer["n_best"], expected, strict=True):
            assert output["score"] == pytest.approx(other.score, abs=1e-5)
            assert _close(output["attention"], other.attention)
    assert _translate(client, texts=["a b c\n", "d q\r\n"], n_best=3, beam_size=4) == [
        outputs[0],
        outputs[2],
    ]
    single = _translate(client, text="a b c", attention=False)
    assert single[0]["text"] == translator.translate(["a b c"])[0].text
    assert "attention" not in single[0]
    assert "n_best" not in single[0]


def test_log_prob_is_that_of_the_full_output(client: TestClient) -> None:
    best = _translate(client, text="a b", n_best=8, beam_size=8, length_penalty=0)[0]["n_best"]
    for output in best:
        assert output["log_prob"] == pytest.approx(output["score"], abs=1e-6)
    other = _translate(client, text="a b", n_best=8, beam_size=8)[0]["n_best"]
    known = {tuple(output["tokens"]): output["log_prob"] for output in best}
    shared = [output for output in other if tuple(output["tokens"]) in known]
    assert shared
    for output in shared:
        assert output["log_prob"] == pytest.approx(known[tuple(output["tokens"])], abs=1e-4)


@pytest.mark.parametrize("model", [0, 1])
def test_interventions_equal_those_of_the_translator(
    client: TestClient, folder: Path, transformer: Path, model: int
) -> None:
    translator = regard.Translator.load([folder, transformer][model], "cpu")
    interventions: dict[str, Any] = {"pin": {1: {0: 0.9}, 0: {2: 0.5}}}
    ablated = [(0, 1)] if model else []
    expected = translator.translate(["a b c"], prefix="b", ablate_heads=ablated, **interventions)[0]
    for prefix in ({"prefix": "b"}, {"prefix_tokens": ["b"]}):
        outputs = _translate(
            client,
            text="a b c",
            model=model,
            heads=True,
            ablate_heads=ablated,
            **prefix,
            **interventions,
        )
        assert outputs[0]["tokens"] == expected.tokens
        assert _close(outputs[0]["attention_heads"], expected.attention_heads)


def test_interventions_apply_to_each_text_separately(client: TestClient) -> None:
    pins = [{0: {0: 1.0}}, {}, {0: {1: 1.0}}]
    outputs = _translate(client, texts=["a b"] * 3, prefix=["c", "", "d"], pin=pins)
    assert outputs[0]["attention"][0] == pytest.approx([1, 0, 0], abs=1e-6)
    assert outputs[2]["attention"][0] == pytest.approx([0, 1, 0], abs=1e-6)
    assert (outputs[0]["tokens"][0], outputs[2]["tokens"][0]) == ("c", "d")
    assert outputs[1]["tokens"] == _translate(client, text="a b")[0]["tokens"]


def test_the_search_tree_holds_every_output(client: TestClient) -> None:
    best = _translate(client, text="a b c", tree=True, n_best=3)[0]
    tree = best["tree"]
    assert all(branch["parent"] < place for place, branch in enumerate(tree))
    for branch in tree:
        before = 0.0 if branch["parent"] < 0 else tree[branch["parent"]]["log_prob"]
        assert branch["log_prob"] <= before + 1e-5
    ended: dict[tuple[str, ...], float] = {}
    for branch in tree:
        if branch["token"] is None:
            tokens, parent = [], branch["parent"]
            while parent >= 0:
                tokens.append(tree[parent]["token"])
                parent = tree[parent]["parent"]
            ended[tuple(tokens[::-1])] = branch["log_prob"]
    for output in best["n_best"]:
        assert ended[tuple(output["tokens"])] == pytest.approx(output["log_prob"], abs=1e-4)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "text or texts"),
        ({"text": "a", "texts": ["b"]}, "either text or texts"),
        ({"text": "a", "beam": 3}, "did you mean beam_size?"),
        ({"text": "a", "beam_size": 0}, "beam_size"),
        ({"text": "a", "beam_size": 21}, "at most 20"),
        ({"text": "a", "n_best": 1000}, "at most 20"),
        ({"text": 3}, "text"),
        ({"text": "a " * 600}, "at most 500 tokens"),
        ({"texts": ["a"] * 257}, "at most 256 texts"),
        ({"texts": ["a " * 40] * 200}, "fewer or shorter texts"),
        ({"texts": []}, "at least 1"),
        ({"texts": ["a"] * 100_000}, "at most 1000"),
        ({"text": " " * 200_000}, "characters"),
        ({"text": "a", "prefix": "a " * 200_000}, "characters"),
        ({"texts": ["a"] * 256, "prefix": "a " * 9000}, "got 4,608,256"),
        ({"texts": ["a"] * 256, "features": "a " * 9000}, "got 4,608,256"),
        ({"texts": ["a"] * 256, "prefix_tokens": ["a"] * 900}, "got 230,656"),
        ({"texts": ["a"] * 9, "prefix": "a " * 499, "beam_size": 20}, "smaller beam"),
        (
            {
                "model": 1,
                "texts": ["a " * 499, "a " * 150],
                "beam_size": 20,
                "prefix_tokens": ["a"] * 499,
            },
            "values at source positions",
        ),
        ({"texts": ["a"] * 200, "n_best": 20, "top_logprobs": 20}, "next tokens"),
        ({"text": "a" + "\u0301\u0323" * 5000}, "accents"),
        ({"text": "\U0001f1e9" * 20_000}, "flag emoji in a row"),
        ({"text": "a", "pin": {"0": {"7": 1.0}}}, "source tokens from 0 to 1"),
        ({"text": "a", "pin": {"300000000": {"0": 1.0}}}, "steps from 0 to"),
        ({"text": "a", "pin": {"1" + "0" * 30: {"0": 1.0}}}, "steps from 0 to"),
        ({"text": "a", "pin": {"0": {"0": 0.8, "1": 0.8}}}, "sum to at most 1"),
        ({"text": "a", "pin": {"x": {}}}, "pin"),
        (
            {"texts": ["a"] * 200, "pin": {str(step): {"0": 0} for step in range(6000)}},
            "pins cover 1",
        ),
        ({"text": "a", "prefix": ["b", "c"]}, "one value of prefix"),
        ({"text": "a", "prefix": "b", "prefix_tokens": ["b"]}, "not both"),
        ({"text": "a", "ablate_heads": [[3, 0]]}, "no head 0 in layer 3"),
        ({"text": "a", "model": 2}, "no model 2"),
        ([1, 2], ""),
        (None, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_name_the_cause(client: TestClient, body: Any, reason: str) -> None:
    response = client.post("/api/translate", json=body)
    assert response.status_code == 422
    assert reason in response.json()["error"]
    assert "\n" not in response.json()["error"]
    assert client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("path", "field", "hint"),
    [
        ("/api/translate", "targets", "did you mean texts?"),
        ("/api/translate", "prefixs", "did you mean prefix?"),
        ("/api/explain", "prefixs", "there is no field prefixs"),
        ("/api/explain", "laier", "did you mean layer?"),
        ("/api/self-attention", "laier", "there is no field laier"),
        ("/api/self-attention", "ablate_head", "did you mean ablate_heads?"),
    ],
)
def test_unknown_fields_are_compared_with_those_of_the_request(
    client: TestClient, path: str, field: str, hint: str
) -> None:
    body = {"text": "a", field: 1, **({} if "translate" in path else {"target": "a"})}
    body |= {"step": 0} if "explain" in path else {}
    response = client.post(path, json=body)
    assert response.status_code == 422
    assert response.json()["error"].endswith(hint)


def test_remedies_are_those_of_the_request(transformer: Path) -> None:
    settings = Settings(folder=str(transformer), limits=Limits(weights=3))
    body = {"text": "a b c", "target": "c b a"}
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        error = client.post("/api/self-attention", json=body).json()["error"]
        assert error.endswith("; send a shorter text or target")
        error = client.post("/api/translate", json={"text": "a b c"}).json()["error"]
        assert "or omit heads or attention" in error
        error = client.post("/api/explain", json={**body, "text": " ", "step": 0}).json()["error"]
        assert error == "the text is blank, so there is no step to explain"


def test_browsers_ask_whether_the_page_has_changed(client: TestClient) -> None:
    response = client.get("/page/main.js")
    assert response.headers["Cache-Control"] == "no-cache"
    again = client.get("/page/main.js", headers={"If-None-Match": response.headers["ETag"]})
    assert again.status_code == 304
    assert again.headers["Cache-Control"] == "no-cache"


def test_names_differ_if_the_folders_do(folder: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name / "additive" / "seed-1" for name in ("ladder", "beyond")]
    for copy in folders:
        shutil.copytree(folder, copy)
    settings = Settings(folder=str(folders[0]), compare_with=str(folders[1]))
    names = [model["name"] for model in create_app(settings).state.models]
    assert names == ["ladder/additive/seed-1", "beyond/additive/seed-1"]
    settings = Settings(folder=str(folders[0]), compare_with=str(folders[0]))
    names = [model["name"] for model in create_app(settings).state.models]
    assert names == ["additive/seed-1"] * 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"text": ', 400),
        (b'{"text": "\xff\xfe"}', 400),
        (b"[" * 200_000, 400),
        (b'{"text": "\\ud800"}', 422),
        (b'{"text": "a", "prefix_tokens": ["\\ud800"]}', 422),
        (b'{"text": "a", "length_penalty": NaN}', 422),
        (b"x" * 1_000_001, 413),
        (b"x" * 10_000_000, 413),
        (b"", 422),
    ],
    ids=[
        "cut",
        "utf8",
        "deep",
        "surrogate",
        "surrogate in a token",
        "nan",
        "large",
        "huge",
        "empty",
    ],
)
def test_invalid_bodies_are_rejected(client: TestClient, body: bytes, status: int) -> None:
    response = client.post(
        "/api/translate", content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == status
    assert response.json()["error"]
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {f"field{number}": 1 for number in range(10_000)},
        {"pin": {f"step{number}": {} for number in range(10_000)}},
        {"pin": {number: 1 for number in range(10_000)}},
        {"pin": {0: {number: 2 for number in range(10_000)}}},
        {"pin": [{0: {number: 2 for number in range(10_000)}}]},
    ],
    ids=["fields", "steps", "values", "weights", "pins of a text"],
)
def test_many_errors_are_not_all_listed(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        TranslateRequest.model_validate({"text": "a", **fields})
    assert raised.value.error_count() <= 3


def test_a_reason_quotes_little_of_the_request(client: TestClient) -> None:
    response = client.post("/api/translate", json={"text": "a", "b" * 100_000: 1})
    assert response.status_code == 422
    assert len(response.json()["error"]) <= 301


def test_unknown_paths_and_hosts_are_rejected(client: TestClient) -> None:
    assert client.get("/api/nothing").status_code == 404
    assert client.get("/api/translate").json() == {"error": "Method Not Allowed"}
    assert client.get("/page/../app.py").status_code == 404
    assert client.get("/", headers={"Host": "elsewhere.example"}).status_code == 400


def test_explain_returns_the_values_of_a_step(client: TestClient, folder: Path) -> None:
    body = {"text": "a b c", "target": "b a", "step": 1}
    explanation = client.post("/api/explain", json=body).json()
    forced = regard.Translator.load(folder, "cpu").align(["a b c"], ["b a"])[0]
    assert np.allclose(explanation["weights"], forced.attention[1], atol=1e-4)
    assert explanation["partition"] == pytest.approx(sum(explanation["exponentials"]))
    assert explanation["formula"].startswith("v")
    response = client.post("/api/explain", json={**body, "step": 99})
    assert response.status_code == 422
    assert "step must be from 0" in response.json()["error"]


def test_top_logprobs_are_those_of_the_translator(client: TestClient, folder: Path) -> None:
    translator = regard.Translator.load(folder, "cpu")
    (expected,) = translator.translate(["a b c"], top_logprobs=4)
    (output,) = _translate(client, text="a b c", top_logprobs=4)
    assert expected.top_logprobs is not None
    assert len(output["top_logprobs"]) == len(output["tokens"]) + 1
    for step, entries in zip(output["top_logprobs"], expected.top_logprobs, strict=True):
        assert [entry["token"] for entry in step] == [entry.token for entry in entries]
        log_probs = [entry.log_prob for entry in entries]
        assert [entry["log_prob"] for entry in step] == pytest.approx(log_probs, abs=1e-5)
        assert log_probs == sorted(log_probs, reverse=True)
    assert "top_logprobs" not in _translate(client, text="a b c")[0]
    # what the model would have said: its distribution does not depend on the forced prefix
    (forced,) = _translate(client, text="a b c", prefix_tokens=["d"], top_logprobs=4)
    (free,) = _translate(client, text="a b c", top_logprobs=4)
    assert [entry["token"] for entry in forced["top_logprobs"][0]] == [
        entry["token"] for entry in free["top_logprobs"][0]
    ]


def test_self_attention_is_that_of_every_layer(client: TestClient, transformer: Path) -> None:
    target = ["b", "a", "d"]
    body = {"model": 1, "text": "a b c", "target": target}
    result = client.post("/api/self-attention", json=body).json()
    assert result["source_tokens"][-1] == "</s>"
    assert result["decoder_inputs"] == ["<s>", *target]
    translator = regard.Translator.load(transformer, "cpu")
    (forced,) = translator.align(["a b c"], [target])
    assert forced.attention_heads is not None
    cross = np.array(result["cross"]).transpose(2, 0, 1, 3)
    np.testing.assert_allclose(cross[: len(target)], forced.attention_heads, atol=2e-6)
    encoder, decoder = np.array(result["encoder"]), np.array(result["decoder"])
    width, length = len(result["source_tokens"]), len(target) + 1
    assert encoder.shape[2:] == (width, width)
    assert decoder.shape[2:] == (length, length)
    for weights in (encoder, decoder):
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert not np.triu(decoder, 1).any()
    # what follows a token changes no weight before it
    shorter = client.post("/api/self-attention", json={**body, "target": target[:2]}).json()
    np.testing.assert_allclose(np.array(shorter["decoder"]), decoder[..., :3, :3], atol=2e-6)


def test_an_ablated_head_changes_the_later_layers_only(client: TestClient) -> None:
    body = {"model": 1, "text": "a b c", "target": ["b", "a"]}
    before = client.post("/api/self-attention", json=body).json()
    after = client.post("/api/self-attention", json={**body, "ablate_heads": [[0, 1]]}).json()
    assert not np.array(after["cross"])[0, 1].any()
    assert after["encoder"] == before["encoder"]
    assert after["decoder"][0] == before["decoder"][0]
    assert after["decoder"][1] != before["decoder"][1]
    response = client.post("/api/self-attention", json={**body, "ablate_heads": [[9, 0]]})
    assert response.status_code == 422


def test_pinned_weights_change_the_later_layers_only(client: TestClient) -> None:
    body = {"model": 1, "text": "a b c", "target": ["b", "a"]}
    before = client.post("/api/self-attention", json=body).json()
    pin = {"0": {"1": 1.0}, "1": {"0": 0.25}}
    after = client.post("/api/self-attention", json={**body, "pin": pin}).json()
    cross = np.array(after["cross"])
    np.testing.assert_allclose(cross[..., 0, :], np.eye(4)[1] * np.ones_like(cross[..., 0, :]))
    np.testing.assert_allclose(cross[..., 1, 0], 0.25)
    np.testing.assert_allclose(cross.sum(-1), 1, atol=1e-6)
    assert after["decoder"][0] == before["decoder"][0]
    assert after["decoder"][1] != before["decoder"][1]
    # the weights that a search with these pins returns
    options = {"prefix_tokens": body["target"], "pin": pin, "heads": True}
    (output,) = _translate(client, model=1, text="a b c", **options)
    heads = np.array(output["attention_heads"])[:2].transpose(1, 2, 0, 3)
    np.testing.assert_allclose(cross[:, :, :2], heads, atol=2e-6)
    response = client.post("/api/self-attention", json={**body, "pin": {"0": {"9": 1.0}}})
    assert response.status_code == 422


def test_pins_have_no_effect_on_a_blank_text(client: TestClient) -> None:
    body = {"model": 1, "text": " ", "target": ["a"]}
    expected = client.post("/api/self-attention", json=body).json()
    for pin in ({"0": {"5": 0.5}}, {"5000000000": {"0": 0.5}}):
        response = client.post("/api/self-attention", json={**body, "pin": pin})
        assert (response.status_code, response.json()) == (200, expected)


def test_a_recurrent_model_has_no_self_attention(client: TestClient) -> None:
    body = {"text": "a b c", "target": ["b"]}
    result = client.post("/api/self-attention", json=body).json()
    assert result["encoder"] is result["decoder"] is result["cross"] is None


def test_explain_limits_the_tokens_of_a_text(client: TestClient) -> None:
    for body in (
        {"text": "a " * 600, "target": "a"},
        {"text": "a", "target": "a " * 600},
        {"text": "a", "target": ["a"] * 600},
    ):
        response = client.post("/api/explain", json={**body, "step": 1})
        assert response.status_code == 422
        assert "at most 500 tokens" in response.json()["error"]


def test_a_prefix_has_at_most_as_many_tokens_as_a_text(client: TestClient) -> None:
    for prefix in ({"prefix": "a " * 500}, {"prefix_tokens": ["a"] * 500}):
        response = client.post("/api/translate", json={"text": "a", "beam_size": 1, **prefix})
        assert response.status_code == 422
        assert "prefix or target may have at most 500 tokens, got 501" in response.json()["error"]


def test_weights_of_layers_are_counted_before_they_are_computed(
    folder: Path, transformer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (folder, transformer):
        translator = regard.Translator.load(path, "cpu")
        weights = layer_weights(translator, "a b c", "b a")
        arrays = [getattr(weights, name) for name in ("encoder", "decoder", "cross")]
        size = sum(array.size for array in arrays if array is not None)
        assert count_layer_weights(translator, 4, 3) == size
    monkeypatch.setattr("regard.serving.app.layer_weights", lambda *_: pytest.fail("computed"))
    app = create_app(Settings(folder=str(transformer), limits=Limits(weights=size - 1)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        response = client.post("/api/self-attention", json={"text": "a b c", "target": "b a"})
    assert response.status_code == 422
    assert f"would contain {size} weights (at most {size - 1})" in response.json()["error"]


@pytest.mark.parametrize("value", ["bytes=5-1", "lines=1-2", "bytes=999999-", "bytes=0-1"])
def test_a_range_is_ignored(client: TestClient, value: str) -> None:
    expected = client.get("/page/main.js")
    response = client.get("/page/main.js", headers={"Range": value})
    assert (response.status_code, response.content) == (200, expected.content)


def test_another_method_is_answered_with_those_allowed(client: TestClient) -> None:
    response = client.put("/api/translate", json={})
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_long_values_are_cut_in_refusals(client: TestClient) -> None:
    for fields in (
        {"prefix": "zz " * 400},
        {"features": "x" * 5000},
        {"beam_size": 10**4000},
        {"pin": {"0": {str(number): 0 for number in range(1000)}}},
        {"x" * 5000: 1},
    ):
        response = client.post("/api/translate", json={"text": "a", **fields})
        assert response.status_code == 422
        assert "…" in response.json()["error"]
        assert len(response.json()["error"]) < 200


def test_the_output_to_explain_may_not_be_empty(client: TestClient) -> None:
    for target in ("", " ", []):
        body = {"text": "a b", "target": target, "step": 0}
        response = client.post("/api/explain", json=body)
        assert response.status_code == 422
        assert "is empty" in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"pin": {"0": {"1": 2}}}, "pin.0.1: Input should be less than or equal to 1"),
        ({"pin": [{"0": {"1": 2}}]}, "pin.0.0.1: Input should be less than or equal to 1"),
        ({"pin": {"a": {}}}, "pin.a: Input should be a valid integer, unable to parse string"),
        ({"features": 5}, "features: Input should be a valid string"),
    ],
    ids=str,
)
def test_the_field_of_an_error_is_named_as_in_the_request(
    client: TestClient, body: dict[str, Any], error: str
) -> None:
    response = client.post("/api/translate", json={"text": "a b", **body})
    assert response.json()["error"].startswith(error)


def test_a_body_that_is_no_json_object_is_named(client: TestClient) -> None:
    for content, kind in (
        (b"", "application/json"),
        (b'{"text": "a"}', "text/plain"),
        (b"[]", "application/json"),
    ):
        response = client.post("/api/translate", content=content, headers={"Content-Type": kind})
        assert response.status_code == 422
        assert response.json() == {
            "error": "the body must be a JSON object, sent with Content-Type: application/json"
        }


def test_texts_are_tokenised_outside_the_event_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_loop: list[bool] = []

    def tokenise(*args: Any, **options: Any) -> PreparedRequest:
        with contextlib.suppress(RuntimeError):
            in_loop.append(bool(asyncio.get_running_loop()))
        return prepare(*args, **options)

    app = create_app(Settings(folder=str(folder)))
    monkeypatch.setattr("regard.serving.app.prepare", tokenise)
    with TestClient(app, base_url="http://localhost") as client:
        for path, fields in (
            ("translate", {}),
            ("explain", {"target": "a", "step": 0}),
            ("self-attention", {"target": "a"}),
        ):
            response = client.post(f"/api/{path}", json={"text": "a", **fields})
            assert response.status_code == 200
    assert not in_loop


def test_the_weights_of_a_response_are_limited(folder: Path) -> None:
    limits = Limits(weights=50)
    app = create_app(Settings(folder=str(folder), limits=limits))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        body = {"texts": ["a b c d"] * 4}
        response = client.post("/api/translate", json=body)
        assert response.status_code == 422
        assert "fewer outputs" in response.json()["error"]
        assert client.post("/api/translate", json={**body, "attention": False}).status_code == 200


@pytest.mark.parametrize("model", [{"attention": "none"}, {"copy": True}], ids=str)
def test_models_without_attention_or_with_copying_are_served(
    tmp_path: Path, model: dict[str, object], unchecked: None
) -> None:
    folder = make_folder(tmp_path / "model", **model)
    with TestClient(
        create_app(Settings(folder=str(folder))), base_url="http://localhost"
    ) as client:
        outputs = _translate(client, texts=["a b c", "b x y"])
        expected = regard.Translator.load(folder, "cpu").translate(["a b c", "b x y"])
        assert [output["tokens"] for output in outputs] == [output.tokens for output in expected]
        body = {"text": "a x c", "target": ["c", "x"], "step": 1}
        explanation = client.post("/api/explain", json=body)
        if "copy" in model:
            forced = regard.Translator.load(folder, "cpu").align(["a x c"], [["c", "x"]])[0]
            assert np.allclose(explanation.json()["weights"], forced.attention[1], atol=1e-4)
            begun = _translate(client, text="a x c", prefix_tokens=["x"])[0]
            assert begun["tokens"][0] == "x"
        else:
            assert outputs[0]["attention"] is None
            assert explanation.status_code == 422
            response = client.post("/api/translate", json={"text": "a", "pin": {"0": {"0": 1}}})
            assert "no attention" in response.json()["error"]


def _page_data(client: TestClient) -> dict[str, Any]:
    """Return what the page contains when it is loaded."""
    content = re.search(r'id="content">(.*?)</script>', client.get("/").text, re.DOTALL)
    assert content is not None
    return json.loads(content[1])


def test_the_page_contains_its_example_and_loads_nothing_from_other_hosts(
    client: TestClient,
) -> None:
    page = client.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.text.count("<script") == 2
    assert "<img" not in page.text
    page_data = _page_data(client)
    assert [example["source"] for example in page_data["examples"]] == [HOSTILE] * 2
    assert [model["kind"] for model in page_data["models"]] == ["rnn", "transformer"]
    for path in ["/", "/docs", *re.findall(r'(?:src|href)="(page/[^"]+)"', page.text)]:
        text = client.get(path).text
        assert not re.findall(r'(?:src|href|from|import|url)\W{1,3}https?://[^"\']+', text)


def test_model_info(client: TestClient) -> None:
    about = client.get("/api/model").json()
    assert about["name"].endswith("/recurrent")
    assert (about["attention"], about["layers"]) == ("additive", 1)
    assert about["self_attention"] == {"heads": 2, "encoder": 0, "decoder": 0}
    about = client.get("/api/model?model=1").json()
    assert about["heads"] == 2
    assert about["self_attention"] == {"heads": 2, "encoder": 1, "decoder": 2}
    assert client.get("/api/model?model=5").status_code == 422


def test_metrics_are_labelled_by_route(client: TestClient) -> None:
    client.get("/made/up")
    _translate(client, texts=["a", "b"])
    text = client.get("/metrics").text
    assert re.search(r'regard_requests_total\{path="/api/translate",status="200"\} [1-9]', text)
    assert 'path="other",status="404"' in text
    assert "made" not in text
    assert "regard_queue_texts 0.0" in text
    assert re.search(r"regard_batch_texts_count [1-9]", text)


def test_a_slow_body_times_out() -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        loop.now += 1
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    with asyncio.Runner(loop_factory=_ManualClockLoop) as runner:
        loop = cast("_ManualClockLoop", runner.get_loop())
        limit = BodyLimit(None, Limits(body_seconds=10.0))  # type: ignore[arg-type]
        runner.run(limit({"type": "http", "headers": []}, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 408
    assert loop.now >= 10


class _ManualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock only advances when a test sets `now`."""

    now = 0.0

    def time(self) -> float:
        return self.now


@dataclasses.dataclass(frozen=True)
class _RecordingTranslator(regard.Translator):
    """A translator that records the size of each batch, and waits until `resume` is set."""

    sizes: list[int] = dataclasses.field(default_factory=list)
    started: threading.Event = dataclasses.field(default_factory=threading.Event)
    resume: threading.Event = dataclasses.field(default_factory=threading.Event)

    def search(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        self.sizes.append(len(request.sources))
        self.started.set()
        self.resume.wait()
        if any(source.text == "wrong" for source in request.sources):
            raise regard.ConfigError("wrong")
        return super().search(request, *args, **kwargs)


def _recording(folder: Path, *, paused: bool = False) -> _RecordingTranslator:
    translator = regard.Translator.load(folder, "cpu")
    recording = _RecordingTranslator(translator.trained, translator.device)
    if not paused:
        recording.resume.set()
    return recording


def _request(text: str, **fields: Any) -> TranslateRequest:
    return TranslateRequest(text=text, **fields)


async def _submit(batcher: Batcher, request: TranslateRequest, work: int = 0) -> Any:
    prepared = prepare(batcher.translators[0].trained, request.all_texts)
    return await batcher.translate(request, prepared, work)


def _with_batcher(translator: regard.Translator, limits: Limits, work: Any) -> Any:
    async def run() -> Any:
        batcher = Batcher([translator], limits, Metrics())
        running = asyncio.create_task(batcher.run())
        try:
            return await work(batcher)
        finally:
            running.cancel()

    with asyncio.Runner(loop_factory=_ManualClockLoop) as runner:
        return runner.run(run())


def test_batched_requests_equal_single_ones(folder: Path) -> None:
    translator = _recording(folder)
    rng = np.random.default_rng(1)
    requests = [
        _request(" ".join(rng.choice(list("abcd"), rng.integers(1, 9))), beam_size=int(beam))
        for beam in rng.choice([1, 4], 60)
    ]

    async def work(batcher: Batcher) -> Any:
        return await asyncio.gather(*(_submit(batcher, request) for request in requests))

    results = _with_batcher(translator, Limits(), work)
    assert len(translator.sizes) < 8
    for request, ((output,),) in zip(requests, results, strict=True):
        single = translator.translate([request.text], request.beam_size)[0]
        assert output.source == request.text
        assert output.tokens == single.tokens
        assert _close(output.attention, single.attention)


def test_an_invalid_request_does_not_affect_its_batch(folder: Path) -> None:
    async def work(batcher: Batcher) -> Any:
        return await asyncio.gather(
            *(_submit(batcher, _request(text)) for text in ("a b", "wrong", "a b")),
            return_exceptions=True,
        )

    first, error, last = _with_batcher(_recording(folder), Limits(), work)
    assert isinstance(error, regard.errors.RegardError)
    assert first[0][0].tokens == last[0][0].tokens


def test_a_full_queue_and_a_timeout(folder: Path) -> None:
    translator = _recording(folder, paused=True)
    limits = Limits(queue=7)

    async def work(batcher: Batcher) -> Any:
        requests = [
            asyncio.create_task(_submit(batcher, TranslateRequest(texts=["a"] * 3)))  # type: ignore[call-arg]
            for _ in range(4)
        ]
        await asyncio.to_thread(translator.started.wait)
        cast("_ManualClockLoop", asyncio.get_running_loop()).now += limits.timeout
        results = await asyncio.gather(*requests, return_exceptions=True)
        translator.resume.set()
        return results

    results = _with_batcher(translator, limits, work)
    assert [type(result) for result in results] == [
        TimeoutError,
        TimeoutError,
        QueueFull,
        QueueFull,
    ]
    assert translator.sizes == [6]


def test_cancelled_requests_and_calls_are_not_kept(folder: Path) -> None:
    translator = _recording(folder, paused=True)

    class Request:
        def run(self) -> None:
            raise AssertionError("a cancelled call was computed")

    async def work(batcher: Batcher) -> Any:
        first = asyncio.create_task(_submit(batcher, _request("a")))
        await asyncio.to_thread(translator.started.wait)
        held, kept = Request(), []
        kept.append(weakref.ref(held))
        others = [
            asyncio.create_task(_submit(batcher, _request("b"))),
            asyncio.create_task(batcher.call(held.run)),
        ]
        del held
        await asyncio.sleep(0)
        waiting = len(batcher._jobs)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        del others, task
        gc.collect()
        found = waiting, len(batcher._jobs), kept[0]()
        translator.resume.set()
        await first
        return found

    assert _with_batcher(translator, Limits(), work) == (1, 0, None)
    assert translator.sizes == [1]


def test_the_work_of_a_batch_is_limited(folder: Path) -> None:
    translator = _recording(folder)

    async def work(batcher: Batcher) -> Any:
        requests = [_submit(batcher, _request("a"), work=40) for _ in range(6)]
        return await asyncio.gather(*requests)

    assert len(_with_batcher(translator, Limits(work=100), work)) == 6
    assert translator.sizes == [2, 2, 2]


def test_every_model_of_an_ensemble_counts_as_work(folder: Path, tmp_path: Path) -> None:
    ensemble.save([folder] * 3, tmp_path / "three")
    body = {"text": "a b c d", "beam_size": 1}
    statuses: list[int] = []
    for served in (folder, tmp_path / "three"):
        app = create_app(Settings(folder=str(served), limits=Limits(work=50)))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            response = client.post("/api/translate", json=body)
            statuses.append(response.status_code)
    assert statuses == [200, 422]
    assert "output tokens) x 3 models" in response.json()["error"]


def test_predictions_at_every_source_position_count_as_work(
    make_translator: Callable[..., regard.Translator], tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("luong", "posterior", "both")]
    for folder in folders[:2]:
        trained = make_translator(decoder=folder.name).trained
        model_folder.save_description(folder, trained)
        model_folder.save_weights(folder, trained.model)
    ensemble.save([str(folder) for folder in folders[:2]], folders[2])
    settings = Settings(
        folder=str(folders[1]), compare_with=str(folders[2]), limits=Limits(work=330)
    )
    bodies = [
        {"model": model, "text": "a " * letters, "beam_size": 1}
        for model, letters in ((0, 50), (0, 100), (1, 50))
    ]
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        responses = [client.post("/api/translate", json=body) for body in bodies]
    assert [response.status_code for response in responses] == [200, 422, 422]
    # one weight, 8 readouts and 8 probabilities for each of 101 source and 206 output tokens
    assert f"{101 * 206 * 17:,} values at source positions" in responses[1].json()["error"]


@pytest.mark.parametrize("abandoned", [1, 2])
def test_a_search_ends_when_nobody_waits_for_it(folder: Path, abandoned: int) -> None:
    steps, resume = threading.Semaphore(0), threading.Event()
    ended: list[str] = []

    @dataclasses.dataclass(frozen=True)
    class Pausing(regard.Translator):
        def search(self, *args: Any, on_step: Any, **options: Any) -> Any:
            def pause() -> None:
                steps.release()
                resume.wait()
                on_step()

            try:
                outputs = super().search(*args, on_step=pause, **options)
            finally:
                ended.append(type(sys.exception()).__name__)
            return outputs

    async def work(batcher: Batcher) -> Any:
        requests = [asyncio.create_task(_submit(batcher, _request("a b"))) for _ in range(2)]
        await asyncio.to_thread(steps.acquire)
        for request in requests[:abandoned]:
            request.cancel()
        results = await asyncio.gather(*requests[:abandoned], return_exceptions=True)
        resume.set()
        # computed by the same thread, after the abandoned search
        return [*results, *await asyncio.gather(*requests[abandoned:]), await batcher.call(list)]

    loaded = regard.Translator.load(folder, "cpu")
    translator = Pausing(loaded.trained, loaded.device)
    results = _with_batcher(translator, Limits(), work)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[:abandoned])
    assert ended == (["_Abandoned"] if abandoned == 2 else ["NoneType"])
    if abandoned == 1:
        assert results[1][0][0].tokens == loaded.translate("a b").tokens


def test_a_request_is_cancelled_when_its_client_disconnects() -> None:
    messages = iter([{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}])
    events: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        events.append((await receive())["body"])
        try:
            await asyncio.Event().wait()
        finally:
            events.append("cancelled")

    asyncio.run(BodyLimit(app, Limits())({"type": "http", "headers": []}, receive, None))  # type: ignore[arg-type]
    assert events == [b"{}", "cancelled"]


def test_the_queue_of_calls_is_limited(folder: Path) -> None:
    resume = threading.Event()

    def call() -> None:
        resume.wait()

    async def work(batcher: Batcher) -> Any:
        calls = [asyncio.create_task(batcher.call(call)) for _ in range(5)]
        rejected = await asyncio.gather(*calls[3:], return_exceptions=True)
        resume.set()
        return [*await asyncio.gather(*calls[:3]), *rejected]

    results = _with_batcher(_recording(folder), Limits(explain_queue=3), work)
    assert [type(result) for result in results] == [type(None)] * 3 + [QueueFull] * 2


@pytest.mark.parametrize(
    ("limits", "status"), [(Limits(queue=0), 503), (Limits(timeout=0.0), 504)], ids=["503", "504"]
)
def test_a_full_queue_gives_503_and_a_timeout_504(
    folder: Path, limits: Limits, status: int
) -> None:
    app = create_app(Settings(folder=str(folder), limits=limits))
    with TestClient(app, base_url="http://localhost") as client:
        response = client.post("/api/translate", json={"text": "a"})
    assert response.status_code == status
    assert response.json()["error"]
    assert ("retry-after" in response.headers) == (status == 503)


def test_a_request_with_more_texts_than_the_queue_can_hold_is_invalid(folder: Path) -> None:
    app = create_app(Settings(folder=str(folder), limits=Limits(queue=3)))
    with TestClient(app, base_url="http://localhost") as client:
        response = client.post("/api/translate", json={"texts": ["a"] * 4})
        assert client.post("/api/translate", json={"texts": ["a"] * 3}).status_code == 200
    assert response.status_code == 422
    assert response.json() == {"error": "at most 3 texts per request, got 4"}


def _serve(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "regard.cli.main", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    address = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert address, (line, process.communicate())
    return process, address[0]


def _post(address: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{address}/api/translate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


@pytest.mark.slow
def test_requests_in_flight_finish_after_sigterm(folder: Path) -> None:
    process, address = _serve(str(folder))
    with ThreadPoolExecutor(4) as pool:
        _post(address, text="a")
        texts = ["a b c d " * 20] * 20
        requests = [pool.submit(_post, address, texts=texts, beam_size=8) for _ in range(4)]
        while _accepted_texts(address) < 81:
            assert not any(request.done() and request.exception() for request in requests)
        process.send_signal(signal.SIGTERM)
        counts = [len(request.result()["translations"]) for request in requests]
    assert counts == [20] * 4
    _, errors = process.communicate()
    assert errors == "regard serve: stopped\n"
    assert process.returncode == 128 + signal.SIGTERM


def _metrics(address: str) -> str:
    with urllib.request.urlopen(f"{address}/metrics") as response:
        return response.read().decode()


def _accepted_texts(address: str) -> float:
    """Return the number of texts that are queued, in computation or done."""
    counts = re.findall(r"^regard_(?:batch_texts_sum|queue_texts) (.*)$", _metrics(address), re.M)
    return sum(map(float, counts))


def _outputs(responses: list[Any]) -> list[list[str]]:
    return [[output["text"] for output in response["translations"]] for response in responses]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_requests_in_flight_finish_after_sighup() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.1)
        await PlainTextResponse("complete")(scope, receive, send)

    received: list[int] = []
    previous = signal.signal(signal.SIGHUP, lambda number, _: received.append(number))
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with ThreadPoolExecutor(1) as pool:
            response = pool.submit(lambda: urllib.request.urlopen(url).read())
            SingleServer(uvicorn.Config(app, lifespan="off")).run([listener])
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert response.result() == b"complete"
    assert received == [signal.SIGHUP]  # passed on, for the exit status


@pytest.mark.slow
def test_several_workers_respond_equally(folder: Path) -> None:
    process, address = _serve(str(folder), "--workers", "2")
    try:
        expected = _post(address, text="a b c")
        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(lambda _: _post(address, text="a b c"), range(24)))
        assert _outputs(responses) == _outputs([expected] * 24)
        pattern = r'requests_total\{path="/api/translate",status="200"\} 25'
        assert re.search(pattern, _metrics(address))
    finally:
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate()
    assert errors == "regard serve: stopped\n"
    assert process.returncode == 128 + signal.SIGHUP


def test_texts_that_waited_in_a_killed_worker_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    gauges = [tmp_path / f"gauge_livesum_{pid}.db" for pid in (1, 2, 3)]
    for gauge in gauges[:2]:
        gauge.touch()
    workers = object.__new__(Workers)
    workers.processes = [mock.Mock(pid=1), mock.Mock(pid=2)]

    def replace(base: Multiprocess) -> None:
        base.processes[1] = mock.Mock(pid=3)
        gauges[2].touch()

    monkeypatch.setattr(Multiprocess, "keep_subprocess_alive", replace)
    workers.keep_subprocess_alive()
    assert [gauge.exists() for gauge in gauges] == [True, False, True]


@pytest.mark.slow
def test_a_worker_that_ends_before_it_serves_ends_the_server(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\nif 'REGARD_SERVE' in os.environ: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    result = subprocess.run(
        [sys.executable, "-m", "regard", "serve", str(folder), "--port", "0", "--workers", "2"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert "a worker process ended with status -9 before it could serve" in result.stderr


@pytest.mark.slow
def test_the_server_survives_disconnecting_clients(folder: Path) -> None:
    process, address = _serve(str(folder))
    host, port = address.removeprefix("http://").split(":")
    try:
        head = (
            b"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        )
        for start in (
            head + b"Content-Length: 500\r\n\r\n{",
            head + b'Content-Length: 13\r\n\r\n{"text": "a"}',
            b"\xff\xff nonsense\r\n\r\n",
        ):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(start)
        assert _post(address, text="a")["translations"][0]["tokens"] is not None
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "70000"], "between 0 and 65535"),
        (["--host", "999.0.0.1"], "cannot listen on"),
        (["--workers", "0"], "at least 1"),
        (["--compare-with", "nowhere"], "nowhere"),
        (["--compare-with", "nowhere", "--workers", "2"], "nowhere"),
        (["--timeout", "1e9"], "3600"),
        (["--max-beam", "999999999"], "--max-beam must be at most 1,000, got 999,999,999"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_options_print_one_line(
    folder: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(folder), *options]) == 1
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_a_port_in_use_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", str(folder), "--port", str(taken.getsockname()[1])]) == 1
    assert "choose another --host or --port" in capsys.readouterr().err


def test_threads_and_environment_are_restored() -> None:
    assert "REGARD_SERVE" not in os.environ
    assert threading.active_count() < 50


def test_features_are_a_field_of_a_request():
    request = TranslateRequest.model_validate
    assert request({"text": "run", "features": "V"}).sources == [("run", "V")]
    for features, sources in (
        ("V", [("a", "V"), ("b", "V")]),
        (["V", None], [("a", "V"), ("b", None)]),
    ):
        assert request({"texts": ["a", "b"], "features": features}).sources == sources
    with pytest.raises(
        ValueError, match="give one value of features for all texts, or one per text"
    ):
        request({"texts": ["a", "b"], "features": ["V"]})


def test_the_default_beam_size_is_within_the_limit(folders: list[Path]) -> None:
    settings = Settings(folder=str(folders[0]), limits=Limits(beam_size=1), example="a b")
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        (example,) = _page_data(client)["examples"]
        assert example["tree"] == _translate(client, text="a b", tree=True)[0]["tree"]
        assert client.post("/api/translate", json={"text": "a b"}).status_code == 200
        refused = client.post("/api/translate", json={"text": "a b", "beam_size": 2})
    assert refused.json() == {"error": "beam_size is at most 1, got 2"}
