"""The server: answers are what Python gives, whoever else asks, and refusals are one clear sentence."""

import asyncio
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import regard
from regard.cli.main import main
from regard.serving.app import Settings, create_app
from regard.serving.batching import Batcher, Busy, Search
from regard.serving.limits import BodyLimit, Limits
from regard.serving.metrics import Metrics
from serving_models import make_folder

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
    answer = client.post("/api/translate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["translations"]


def _alike(found: Any, expected: np.ndarray) -> bool:
    # no tokens are an empty list in JSON, whatever the other sizes
    return np.allclose(np.reshape(found, expected.shape), expected, atol=1e-5)


def test_answers_are_those_of_the_translator(client: TestClient, folder: Path) -> None:
    translator = regard.Translator.load(folder, "cpu")
    texts = ["a b c", "", "d q", "b"]
    found = _translate(client, texts=texts, n_best=3, beam_size=4)
    for answer, expected in zip(found, translator.translate(texts, 4, 3), strict=True):
        assert answer["text"] == expected[0].text
        assert answer["source_tokens"] == expected[0].source_tokens
        assert answer["unknown"] == expected[0].unknown
        assert [one["tokens"] for one in answer["n_best"]] == [one.tokens for one in expected]
        for one, other in zip(answer["n_best"], expected, strict=True):
            assert one["score"] == pytest.approx(other.score, abs=1e-5)
            assert _alike(one["attention"], other.attention)
    alone = _translate(client, text="a b c", attention=False)
    assert alone[0]["text"] == translator.translate(["a b c"])[0].text
    assert "attention" not in alone[0]
    assert "n_best" not in alone[0]


def test_probabilities_are_those_of_the_whole_output(client: TestClient) -> None:
    best = _translate(client, text="a b", n_best=8, beam_size=8, length_penalty=0)[0]["n_best"]
    for one in best:
        assert one["log_probability"] == pytest.approx(one["score"], abs=1e-6)
    other = _translate(client, text="a b", n_best=8, beam_size=8)[0]["n_best"]
    known = {tuple(one["tokens"]): one["log_probability"] for one in best}
    shared = [one for one in other if tuple(one["tokens"]) in known]
    assert shared
    for one in shared:
        assert one["log_probability"] == pytest.approx(known[tuple(one["tokens"])], abs=1e-4)


@pytest.mark.parametrize("model", [0, 1])
def test_pushes_are_those_of_the_translator(
    client: TestClient, folder: Path, transformer: Path, model: int
) -> None:
    translator = regard.Translator.load([folder, transformer][model], "cpu")
    pushes: dict[str, Any] = {"pin": {1: {0: 0.9}, 0: {2: 0.5}}}
    dropped = [(0, 1)] if model else []
    expected = translator.translate(["a b c"], prefix="b", ablate_heads=dropped, **pushes)[0]
    for begin in ({"prefix": "b"}, {"prefix_tokens": ["b"]}):
        found = _translate(
            client, text="a b c", model=model, heads=True, ablate_heads=dropped, **begin, **pushes
        )
        assert found[0]["tokens"] == expected.tokens
        assert _alike(found[0]["attention_heads"], expected.attention_heads)


def test_each_text_has_its_own_pushes(client: TestClient) -> None:
    pins = [{0: {0: 1.0}}, {}, {0: {1: 1.0}}]
    found = _translate(client, texts=["a b"] * 3, prefix=["c", "", "d"], pin=pins)
    assert found[0]["attention"][0] == pytest.approx([1, 0, 0], abs=1e-6)
    assert found[2]["attention"][0] == pytest.approx([0, 1, 0], abs=1e-6)
    assert (found[0]["tokens"][0], found[2]["tokens"][0]) == ("c", "d")
    assert found[1]["tokens"] == _translate(client, text="a b")[0]["tokens"]


def test_the_tree_holds_every_output(client: TestClient) -> None:
    found = _translate(client, text="a b c", tree=True, n_best=3)[0]
    tree = found["tree"]
    assert all(branch["parent"] < place for place, branch in enumerate(tree))
    for branch in tree:
        before = 0.0 if branch["parent"] < 0 else tree[branch["parent"]]["log_probability"]
        assert branch["log_probability"] <= before + 1e-5
    ended: dict[tuple[str, ...], float] = {}
    for branch in tree:
        if branch["token"] is None:
            tokens, parent = [], branch["parent"]
            while parent >= 0:
                tokens.append(tree[parent]["token"])
                parent = tree[parent]["parent"]
            ended[tuple(tokens[::-1])] = branch["log_probability"]
    for one in found["n_best"]:
        assert ended[tuple(one["tokens"])] == pytest.approx(one["log_probability"], abs=1e-4)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "text or texts"),
        ({"text": "a", "texts": ["b"]}, "one of the two"),
        ({"text": "a", "beam": 3}, "did you mean beam_size?"),
        ({"text": "a", "beam_size": 0}, "beam_size"),
        ({"text": "a", "beam_size": 21}, "at most 20"),
        ({"text": "a", "n_best": 1000}, "at most 20"),
        ({"text": 3}, "text"),
        ({"text": "a " * 600}, "at most 500 symbols"),
        ({"texts": ["a"] * 257}, "at most 256 texts"),
        ({"texts": ["a " * 40] * 200}, "fewer texts"),
        ({"texts": []}, "at least 1"),
        ({"texts": ["a"] * 100_000}, "at most 1000"),
        ({"text": " " * 200_000}, "characters"),
        ({"text": "a", "prefix": "a " * 200_000}, "characters"),
        ({"text": "a", "prefix": "a " * 5000, "beam_size": 20}, "smaller beam"),
        ({"text": "a" + "\u0301\u0323" * 5000}, "accents"),
        ({"text": "a", "pin": {"0": {"7": 1.0}}}, "source tokens from 0 to 1"),
        ({"text": "a", "pin": {"300000000": {"0": 1.0}}}, "steps from 0 to"),
        ({"text": "a", "pin": {"1" + "0" * 30: {"0": 1.0}}}, "steps from 0 to"),
        ({"text": "a", "pin": {"0": {"0": 0.8, "1": 0.8}}}, "sum to at most 1"),
        ({"text": "a", "pin": {"x": {}}}, "pin"),
        ({"text": "a", "prefix": ["b", "c"]}, "one prefix"),
        ({"text": "a", "prefix": "b", "prefix_tokens": ["b"]}, "not both"),
        ({"text": "a", "ablate_heads": [[3, 0]]}, "no head 0 in layer 3"),
        ({"text": "a", "model": 2}, "no model 2"),
        ([1, 2], ""),
        (None, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals_say_what_is_wrong(client: TestClient, body: Any, reason: str) -> None:
    answer = client.post("/api/translate", json=body)
    assert answer.status_code == 422
    assert reason in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert client.get("/health").json() == {"status": "ok"}


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
def test_broken_bodies_are_refused(client: TestClient, body: bytes, status: int) -> None:
    answer = client.post(
        "/api/translate", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == status
    assert answer.json()["error"]
    assert client.get("/health").status_code == 200


def test_other_places_and_hosts_are_refused(client: TestClient) -> None:
    assert client.get("/api/nothing").status_code == 404
    assert client.get("/api/translate").json() == {"error": "Method Not Allowed"}
    assert client.get("/page/../app.py").status_code == 404
    assert client.get("/", headers={"Host": "elsewhere.example"}).status_code == 400


def test_the_walk_of_a_step(client: TestClient, folder: Path) -> None:
    asked = {"text": "a b c", "target": "b a", "step": 2}
    walk = client.post("/api/explain", json=asked).json()
    forced = regard.Translator.load(folder, "cpu").align(["a b c"], ["b a"])[0]
    assert np.allclose(walk["weights"], forced.attention[1], atol=1e-4)
    assert walk["partition"] == pytest.approx(sum(walk["exponentials"]))
    assert walk["formula"].startswith("v")
    answer = client.post("/api/explain", json={**asked, "step": 99})
    assert answer.status_code == 422
    assert "--step goes from 1" in answer.json()["error"]


def test_a_walk_has_its_limits_too(client: TestClient) -> None:
    for asked in (
        {"text": "a " * 600, "target": "a"},
        {"text": "a", "target": "a " * 600},
        {"text": "a", "target": ["a"] * 600},
    ):
        answer = client.post("/api/explain", json={**asked, "step": 1})
        assert answer.status_code == 422
        assert "at most 500 symbols" in answer.json()["error"]


def test_an_answer_has_an_end(folder: Path) -> None:
    limits = Limits(weights=50)
    app = create_app(Settings(folder=str(folder), limits=limits))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        body = {"texts": ["a b c d"] * 4}
        answer = client.post("/api/translate", json=body)
        assert answer.status_code == 422
        assert "fewer outputs" in answer.json()["error"]
        assert client.post("/api/translate", json={**body, "attention": False}).status_code == 200


@pytest.mark.parametrize("model", [{"attention": "none"}, {"copy": True}], ids=str)
def test_other_models_are_served(tmp_path: Path, model: dict[str, object]) -> None:
    folder = make_folder(tmp_path / "model", **model)
    with TestClient(
        create_app(Settings(folder=str(folder))), base_url="http://localhost"
    ) as client:
        found = _translate(client, texts=["a b c", "b x y"])
        expected = regard.Translator.load(folder, "cpu").translate(["a b c", "b x y"])
        assert [one["tokens"] for one in found] == [one.tokens for one in expected]
        asked = {"text": "a x c", "target": ["c", "x"], "step": 2}
        walk = client.post("/api/explain", json=asked)
        if "copy" in model:
            forced = regard.Translator.load(folder, "cpu").align(["a x c"], [["c", "x"]])[0]
            assert np.allclose(walk.json()["weights"], forced.attention[1], atol=1e-4)
            begun = _translate(client, text="a x c", prefix_tokens=["x"])[0]
            assert begun["tokens"][0] == "x"
        else:
            assert found[0]["attention"] is None
            assert walk.status_code == 422
            answer = client.post("/api/translate", json={"text": "a", "pin": {"0": {"0": 1}}})
            assert "no attention" in answer.json()["error"]


def test_the_page_holds_its_example_and_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.text.count("<script") == 2
    assert "<img" not in page.text
    content = re.search(r'id="content">(.*?)</script>', page.text, re.DOTALL)
    assert content is not None
    held = json.loads(content[1])
    assert [example["source"] for example in held["examples"]] == [HOSTILE] * 2
    assert [model["kind"] for model in held["models"]] == ["rnn", "transformer"]
    for path in ["/", "/docs", *re.findall(r'(?:src|href)="(/page/[^"]+)"', page.text)]:
        text = client.get(path).text
        assert not re.findall(r'(?:src|href|from|import|url)\W{1,3}https?://[^"\']+', text)


def test_what_the_model_is(client: TestClient) -> None:
    about = client.get("/api/model").json()
    assert about["name"].endswith("/recurrent")
    assert (about["attention"], about["layers"]) == ("additive", 1)
    assert client.get("/api/model?model=1").json()["heads"] == 2
    assert client.get("/api/model?model=5").status_code == 422


def test_metrics_count_by_route_alone(client: TestClient) -> None:
    client.get("/made/up")
    _translate(client, texts=["a", "b"])
    text = client.get("/metrics").text
    assert re.search(r'regard_requests_total\{path="/api/translate",status="200"\} [1-9]', text)
    assert 'path="other",status="404"' in text
    assert "made" not in text
    assert "regard_queue_texts 0.0" in text
    assert re.search(r"regard_batch_texts_count [1-9]", text)


def test_a_slow_body_is_given_up() -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    limit = BodyLimit(None, Limits(body_seconds=0.1))  # type: ignore[arg-type]
    asyncio.run(limit({"type": "http"}, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 408


@dataclasses.dataclass(frozen=True)
class _Slow(regard.Translator):
    """A translator that takes `seconds` per call and records the size of each batch."""

    seconds: float = 0.0
    sizes: list[int] = dataclasses.field(default_factory=list)

    def translate(self, texts: list[str], *rest: Any, **named: Any) -> Any:
        self.sizes.append(len(texts))
        time.sleep(self.seconds)
        return super().translate(texts, *rest, **named)


def _slow(translator: regard.Translator, seconds: float) -> _Slow:
    return _Slow(translator.trained, translator.device, seconds)


def _with_batcher(slow: _Slow, limits: Limits, work: Any) -> Any:
    async def run() -> Any:
        batcher = Batcher([slow], limits, Metrics())
        running = asyncio.create_task(batcher.run())
        try:
            return await work(batcher)
        finally:
            running.cancel()

    return asyncio.run(run())


def test_requests_are_computed_together_and_nobody_can_tell(folder: Path) -> None:
    translator = regard.Translator.load(folder, "cpu")
    rng = np.random.default_rng(1)
    asked = [
        (" ".join(rng.choice(list("abcd"), rng.integers(1, 9))), Search(beam_size=int(beam)))
        for beam in rng.choice([1, 4], 60)
    ]
    slow = _slow(translator, 0.05)

    async def work(batcher: Batcher) -> Any:
        return await asyncio.gather(
            *(batcher.translate([text], search, [""], [{}]) for text, search in asked)
        )

    found = _with_batcher(slow, Limits(), work)
    assert len(slow.sizes) < 8
    for (text, search), answer in zip(asked, found, strict=True):
        alone = translator.translate([text], search.beam_size)[0]
        assert answer[0][0].source == text
        assert answer[0][0].tokens == alone.tokens
        assert _alike(answer[0][0].attention, alone.attention)


def test_a_wrong_request_leaves_its_batch_alone(folder: Path) -> None:
    slow = _slow(regard.Translator.load(folder, "cpu"), 0.0)

    async def work(batcher: Batcher) -> Any:
        pins = [{}, {0: {50: 1.0}}, {}]
        return await asyncio.gather(
            *(batcher.translate(["a b"], Search(), [""], [each]) for each in pins),
            return_exceptions=True,
        )

    good, wrong, other = _with_batcher(slow, Limits(wait=0.05), work)
    assert isinstance(wrong, regard.errors.RegardError)
    assert good[0][0].tokens == other[0][0].tokens


def test_a_full_queue_and_a_late_answer(folder: Path) -> None:
    slow = _slow(regard.Translator.load(folder, "cpu"), 0.4)

    async def work(batcher: Batcher) -> Any:
        calls = [batcher.translate(["a"] * 3, Search(), [""] * 3, [{}] * 3) for _ in range(4)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = _with_batcher(slow, Limits(queue=7, timeout=0.1), work)
    assert [type(each) for each in found] == [TimeoutError, TimeoutError, Busy, Busy]
    assert slow.sizes == [6]


def test_a_batch_is_bounded_in_work(folder: Path) -> None:
    slow = _slow(regard.Translator.load(folder, "cpu"), 0.0)

    async def work(batcher: Batcher) -> Any:
        calls = [batcher.translate(["a"], Search(), [""], [{}], work=40) for _ in range(6)]
        return await asyncio.gather(*calls)

    assert len(_with_batcher(slow, Limits(work=100), work)) == 6
    assert slow.sizes == [2, 2, 2]


def test_walks_queue_up_to_a_bound(folder: Path) -> None:
    slow = _slow(regard.Translator.load(folder, "cpu"), 0.0)

    async def work(batcher: Batcher) -> Any:
        calls = [batcher.compute(lambda: time.sleep(0.05)) for _ in range(5)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = _with_batcher(slow, Limits(explain_queue=3), work)
    assert [type(each) for each in found] == [type(None)] * 3 + [Busy] * 2


def test_busy_and_late_are_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(
        create_app(Settings(folder=str(folder))), base_url="http://localhost"
    ) as client:
        for error, status in ((Busy(), 503), (TimeoutError(), 504)):

            async def fail(*_: Any, error: Exception = error) -> Any:
                raise error

            monkeypatch.setattr(Batcher, "translate", fail)
            answer = client.post("/api/translate", json={"text": "a"})
            assert answer.status_code == status
            assert answer.json()["error"]
            assert ("retry-after" in answer.headers) == (status == 503)


def _serve(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "regard.cli.main", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", said)
    assert found, (said, process.communicate(timeout=30))
    return process, found[0]


def _post(address: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{address}/api/translate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_the_command_serves_and_finishes_what_is_in_flight(folder: Path) -> None:
    process, address = _serve(str(folder))
    with ThreadPoolExecutor(4) as pool:
        _post(address, text="a")
        texts = ["a b c d " * 20] * 20
        answers = [pool.submit(_post, address, texts=texts, beam_size=8) for _ in range(4)]
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        found = [len(answer.result()["translations"]) for answer in answers]
    assert found == [20] * 4
    _, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode in (0, -signal.SIGTERM)


def _outputs(answers: list[Any]) -> list[list[str]]:
    return [[one["text"] for one in answer["translations"]] for answer in answers]


def test_several_workers_answer_alike(folder: Path) -> None:
    process, address = _serve(str(folder), "--workers", "2")
    try:
        for _ in range(100):
            try:
                expected = _post(address, text="a b c")
                break
            except OSError:
                time.sleep(0.3)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: _post(address, text="a b c"), range(24)))
        assert _outputs(found) == _outputs([expected] * 24)
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        assert re.search(r'requests_total\{path="/api/translate",status="200"\} 25', text)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_clients_that_vanish_or_dawdle_leave_the_server_alive(folder: Path) -> None:
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
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "70000"], "0 to 65535"),
        (["--host", "999.0.0.1"], "cannot listen on"),
        (["--workers", "0"], "at least 1"),
        (["--compare-with", "nowhere"], "nowhere"),
        (["--compare-with", "nowhere", "--workers", "2"], "nowhere"),
        (["--timeout", "1e9"], "3600"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_calls_are_one_sentence(
    folder: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(folder), *options]) == 1
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_a_taken_port_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", str(folder), "--port", str(taken.getsockname()[1])]) == 1
    assert "choose another --host or --port" in capsys.readouterr().err


def test_threads_and_environment_are_left_as_they_were() -> None:
    assert "REGARD_SERVE" not in os.environ
    assert threading.active_count() < 50
