"""Training in several processes: the same updates as in one, resume, signals, processes that end."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore

import regard
from regard import distributed, model_folder, training
from regard.batching import Example, epoch
from regard.cli.main import main
from regard.config import Config
from regard.errors import ConfigError, Interrupted
from test_checkpoints import assert_same_result
from test_training import DEV, PAIRS, TRANSFORMER, _config, at_update, latest

pytestmark = pytest.mark.usefixtures("unchecked")
TOLERANCE = 1e-5

_SECONDS_UNTIL_KILLED = 300
"""A job whose processes wait for each other fails its test, instead of waiting without end."""


def in_job(processes: int, function: Callable[[int], object], log: Path) -> list[int]:
    """Run `function(rank)` in forked processes of one job; return their wait statuses.

    Process r writes what it prints, and its error, to `log`/r.
    """
    log.mkdir(exist_ok=True)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(server.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is that of this process
    }
    sys.stdout.flush()
    sys.stderr.flush()
    children: list[int] = []
    for rank in range(processes):
        children.append(os.fork())
        if children[-1] == 0:
            signal.alarm(_SECONDS_UNTIL_KILLED)
            torch.set_num_threads(
                1
            )  # OpenMP's threads, which another test may have used, are not forked
            os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
            code = 1
            with (log / str(rank)).open("w", encoding="utf-8") as sys.stderr:
                try:
                    function(rank)
                    code = 0
                except BaseException as error:
                    sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(code)
    return [os.waitpid(child, 0)[1] for child in children]


def train_in_job(processes: int, config: Config, **options: Any) -> list[str]:
    """Train in several processes and return what each has printed."""
    assert config.out is not None
    log = Path(f"{config.out}-{processes}-log")

    def run(_: int) -> None:
        regard.train(config, PAIRS, DEV, **options)

    statuses = in_job(processes, run, log)
    texts = [(log / str(rank)).read_text() for rank in range(processes)]
    assert statuses == [0] * processes, texts
    return texts


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def assert_close(out: Path, reference: Path) -> None:
    """Compare the losses and metric values of two runs, and their weights."""
    entries, expected = metrics(out), metrics(reference)
    assert [entry["update"] for entry in entries] == [entry["update"] for entry in expected]
    for entry, other in zip(entries, expected, strict=True):
        for name in ("train_loss", "dev_loss", "exact_match"):
            assert entry[name] == pytest.approx(other[name], abs=TOLERANCE)
    weights, others = (load_file(latest(folder)) for folder in (out, reference))
    # the gradient of a bias of keys is 0, because softmax ignores it: Adam follows its rounding error
    compared = [
        name for name in others if name.startswith("model.") and "key_proj.bias" not in name
    ]
    for name in compared:
        torch.testing.assert_close(weights[name], others[name], rtol=0, atol=TOLERANCE)


def without_dropout(
    out: Path, model: dict[str, object] | None = None, **settings: object
) -> Config:
    return _config(out, {"dropout": 0.0, **(model or {})}, **settings)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run without dropout in one process."""
    out = tmp_path_factory.mktemp("alone") / "model"
    regard.train(without_dropout(out), PAIRS, DEV)
    return out


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_several_processes_make_the_updates_of_one(
    processes: int, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    texts = train_in_job(processes, without_dropout(out))
    assert_close(out, alone)
    assert f"{processes} processes share each batch" in texts[0]
    assert texts[1:] == [""] * (processes - 1)  # the main process writes


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_all_processes_end_with_the_same_bits(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[regard.Seq2Seq] = []
    build = training.build

    def recording(*arguments: Any) -> regard.Seq2Seq:
        models.append(build(*arguments))
        return models[-1]

    monkeypatch.setattr(training, "build", recording)

    def train(rank: int) -> None:
        regard.train(_config(tmp_path / "model", optimizer=optimizer), PAIRS, DEV)
        weights = model_folder.checksum(models[0].state_dict())
        (tmp_path / f"weights-{rank}").write_text(weights)

    assert in_job(3, train, tmp_path / "log") == [0] * 3
    assert len({(tmp_path / f"weights-{rank}").read_text() for rank in range(3)}) == 1


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ({"coverage": True}, {"coverage_loss": 1.0}),
        ({"copy": True}, {}),
        ({**TRANSFORMER, "tie_embeddings": True}, {}),
        ({"attention": "none"}, {"gradient_accumulation_steps": 2}),
        ({}, {"optimizer": "muon"}),
    ],
    ids=str,
)
def test_every_kind_of_loss_is_weighted_by_tokens(
    model: dict[str, object], settings: dict[str, object], tmp_path: Path
) -> None:
    settings = {"max_updates": 10, **settings}
    regard.train(without_dropout(tmp_path / "one", model, **settings), PAIRS, DEV)
    train_in_job(2, without_dropout(tmp_path / "two", model, **settings))
    assert_close(tmp_path / "two", tmp_path / "one")


def test_accumulated_batches_make_the_update_of_their_union(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regard.train(
        without_dropout(tmp_path / "accumulated", gradient_accumulation_steps=2), PAIRS, DEV
    )

    def unions(*arguments: Any) -> Any:
        batches = [*epoch(*arguments)]
        assert len(batches) % 2 == 1  # the last update of an epoch has one batch
        for index in range(0, len(batches), 2):
            yield [example for batch in batches[index : index + 2] for example in batch]

    monkeypatch.setattr("regard.trainer.epoch", unions)
    regard.train(without_dropout(tmp_path / "united"), PAIRS, DEV)
    assert_close(tmp_path / "accumulated", tmp_path / "united")


def test_an_accumulating_run_resumes_exactly(tmp_path: Path) -> None:
    def config(name: str) -> Config:
        return _config(tmp_path / name, gradient_accumulation_steps=2)

    regard.train(config("complete"), PAIRS, DEV)
    with at_update(7, lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(Interrupted):
        regard.train(config("interrupted"), PAIRS, DEV)
    regard.train(config("interrupted"), PAIRS, DEV, resume=True)
    assert_same_result(tmp_path / "interrupted", tmp_path / "complete")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Config, int], Path]:
    """Return a function that trains in processes of which one receives SIGTERM at update 7."""

    def run(config: Config, processes: int) -> Path:
        assert config.out is not None
        out = Path(config.out)

        def train(rank: int) -> None:
            signalled = processes - 1
            with at_update(7, lambda: rank == signalled and signal.raise_signal(signal.SIGTERM)):
                regard.train(config, PAIRS, DEV)

        log = out.with_name(f"{out.name}-log")
        statuses = in_job(processes, train, log)
        texts = [(log / str(rank)).read_text() for rank in range(processes)]
        assert [os.WEXITSTATUS(status) for status in statuses] == [1] * processes, texts
        assert all(text.endswith("Interrupted: \n") for text in texts)
        assert "stopped at update 7" in texts[0]
        assert latest(out).stem == "7"
        return out

    return run


def test_a_run_resumes_with_another_number_of_processes(
    interrupted: Callable[[Config, int], Path], alone: Path, tmp_path: Path
) -> None:
    out = interrupted(without_dropout(tmp_path / "model"), 2)
    stopped = without_dropout(out, max_updates=12)
    texts = train_in_job(3, stopped, resume=True)
    assert "3 processes continue a run of 2: its dropout masks differ from now on" in texts[0]
    regard.train(without_dropout(out, max_updates=20), PAIRS, DEV, resume=True)
    assert [entry["update"] for entry in metrics(out)] == [5, 10, 12, 15, 20]
    assert metrics(out)[1]["dev_loss"] == pytest.approx(metrics(alone)[1]["dev_loss"], abs=1e-5)


def test_the_same_number_of_processes_resumes_exactly_with_dropout(
    interrupted: Callable[[Config, int], Path], tmp_path: Path
) -> None:
    complete = tmp_path / "complete"
    train_in_job(2, _config(complete))
    out = interrupted(_config(tmp_path / "model"), 2)
    texts = train_in_job(2, _config(out), resume=True)
    assert "dropout" not in texts[0]
    assert_same_result(out, complete)
    tensors = load_file(latest(out))
    assert not torch.equal(tensors["random.cpu"], tensors["random.1.cpu"])


@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_a_killed_process_ends_the_others(killed: int, tmp_path: Path) -> None:
    out = tmp_path / "model"

    def train(rank: int) -> None:
        with at_update(7, lambda: rank == killed and os.kill(os.getpid(), signal.SIGKILL)):
            regard.train(_config(out), PAIRS, DEV)

    statuses = in_job(2, train, tmp_path / "log")
    assert [os.WIFSIGNALED(status) for status in statuses] == [rank == killed for rank in (0, 1)]
    assert (
        "JobError: another process of the job ended"
        in (tmp_path / "log" / str(1 - killed)).read_text()
    )
    assert latest(out).stem == "5"
    train_in_job(2, _config(out), resume=True)
    assert metrics(out)[-1]["update"] == 20


@pytest.mark.parametrize("part", ["train", "dev"])
def test_processes_with_other_pairs_are_refused(part: str, tmp_path: Path) -> None:
    def train(rank: int) -> None:
        pairs, dev = (PAIRS[rank:], DEV) if part == "train" else (PAIRS, PAIRS[rank : rank + 2])
        regard.train(_config(tmp_path / "model"), pairs, dev)

    assert in_job(3, train, tmp_path / "log") == [256] * 3
    message = "ConfigError: the pairs, settings or checkpoints of process 1, 2 differ from those of process 0"
    assert message in (tmp_path / "log" / "2").read_text()
    assert not (tmp_path / "model").exists()


def test_bfloat16_trains_in_several_processes(tmp_path: Path) -> None:
    config = without_dropout(tmp_path / "model", precision="bfloat16", max_updates=5)
    train_in_job(2, config)
    regard.train(dataclasses.replace(config, out=str(tmp_path / "alone")), PAIRS, DEV)
    losses = [metrics(tmp_path / name)[0]["train_loss"] for name in ("model", "alone")]
    assert losses[0] == pytest.approx(losses[1], abs=0.01)  # rounded to 8 bits


def test_devices_that_several_processes_cannot_use_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    assert distributed.join(torch.device("cpu")) == distributed.Job()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="process 2 on this machine has no GPU of its own"):
        distributed.join(torch.device("cuda"))
    with pytest.raises(ConfigError, match="several processes cannot train on mps; set"):
        distributed.join(torch.device("mps"))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(ConfigError, match=r"call init_process_group\('gloo'\), or let regard"):
        distributed.join(torch.device("cpu"))


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"])
def test_other_launchers_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "2")
    with pytest.raises(ConfigError, match=f"{name}=2 means .* use one of these, or unset {name}"):
        distributed.join(torch.device("cpu"))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LOCAL_RANK": "0"}, r"LOCAL_RANK=0 means .* or unset LOCAL_RANK"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, r"LOCAL_RANK=0 means .* LOCAL_RANK"),
        ({"RANK": "0", "WORLD_SIZE": "x"}, "WORLD_SIZE=x is not what a launcher sets"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK= of WORLD_SIZE=2 is not what a launcher sets"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 of WORLD_SIZE=2 is not what a launcher sets"),
        (
            {"ACCELERATE_USE_DEEPSPEED": "true"},
            "ACCELERATE_USE_DEEPSPEED=true requests a training method",
        ),
        (
            {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"},
            "ACCELERATE_USE_PARALLELISM_CONFIG=true requests a training method",
        ),
    ],
    ids=str,
)
def test_environments_that_no_launcher_makes_are_refused(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        regard.train(_config(tmp_path / "model"), PAIRS, DEV)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("address", [{}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}], ids=str)
def test_an_address_that_cannot_be_reached_is_reported(
    address: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tb\n")
    for name, value in ({"RANK": "1", "WORLD_SIZE": "2"} | address).items():
        monkeypatch.setenv(name, value)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["train", f"--data.train={pairs}", "--device=cpu", f"--out={tmp_path}/m"]) == 1
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert "regard train: the processes of the job cannot meet at" in capsys.readouterr().err


@pytest.mark.parametrize("ended", [0, 1])
def test_a_process_that_ends_before_the_job_begins_does_not_leave_the_others_waiting(
    ended: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_SECONDS_UNTIL_STARTED", 1.0)

    def train(rank: int) -> None:
        if rank == ended:
            os.kill(os.getpid(), signal.SIGKILL)
        regard.train(_config(tmp_path / "model"), PAIRS, DEV)

    assert in_job(2, train, tmp_path / "log")[1 - ended] == 256
    written = (tmp_path / "log" / str(1 - ended)).read_text()
    assert (
        "JobError: not all of the 2 processes of the job have started within 1 seconds" in written
    )


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_shares_are_disjoint_and_merge_in_order(processes: int, count: int) -> None:
    items = [Example([index], []) for index in range(count)]
    shares = [distributed.Job(rank, processes).share(items) for rank in range(processes)]
    assert distributed.Job(0, processes).merge(shares) == items


WORKER = """
import os, signal, sys
from regard.cli.main import main
from regard.progress import Progress

advance = Progress.advance

def act(self, *arguments):
    advance(self, *arguments)
    if self.done == 7 and os.environ["RANK"] == "1":
        {action}

Progress.advance = act
sys.exit(main())
"""
ACTIONS = {
    "nothing": "pass",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminate": "os.kill(os.getppid(), signal.SIGTERM)  # the launcher",
}
TORCHRUN = ("torch.distributed.run", "--nproc-per-node")
ACCELERATE = ("accelerate.commands.launch", "--multi_gpu", "--num_machines=1", "--mixed_precision=no",
              "--dynamo_backend=no", "--main_process_port=0", "--num_processes")  # fmt: skip


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., tuple[int, list[str], str]]:
    """Return a function that runs the command under a launcher.

    It returns the exit status, the command's messages, and all that was written.
    """
    config = _config(tmp_path / "model")
    settings = [
        f"--{group}.{name}={value}"
        for group in ("model", "training")
        for name, value in dataclasses.asdict(getattr(config, group)).items()
        if name in getattr(config, group).given
    ]
    for name, pairs in (("train", PAIRS), ("dev", DEV)):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (tmp_path / f"{name}.tsv").write_text(lines)

    def run(
        processes: int, *arguments: str, action: str = "nothing", launcher: Any = TORCHRUN
    ) -> tuple[int, list[str], str]:
        script = tmp_path / "worker.py"
        script.write_text(WORKER.format(action=ACTIONS[action]))
        data = [f"--data.train={tmp_path / 'train.tsv'}", f"--data.dev={tmp_path / 'dev.tsv'}"]
        out = f"--out={tmp_path / 'model'}"
        completed = subprocess.run(
            [sys.executable, "-m", *launcher, str(processes), str(script), "train",
             "--device=cpu", *data, out, *settings, *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        written = completed.stderr + completed.stdout
        messages = [line for line in written.splitlines() if line.startswith("regard train: ")]
        return completed.returncode, messages, written

    return run


@pytest.mark.slow
def test_bad_input_is_reported_once(launch: Callable[..., tuple[int, list[str], str]]) -> None:
    status, messages, written = launch(2, "--data.train=missing.tsv")
    assert status == 1
    assert messages == ["regard train: cannot read missing.tsv: No such file or directory"]
    assert "regard/" not in written  # no traceback of this package


@pytest.mark.soak
def test_a_killed_process_ends_the_command_with_one_message(
    launch: Callable[..., tuple[int, list[str], str]], tmp_path: Path
) -> None:
    status, messages, written = launch(2, action="kill")
    assert status == 1
    assert messages == [
        "regard train: another process of the job ended, so training stopped; start all of them "
        "again and give --resume (in Python, resume=True) to continue from the last checkpoint"
    ]
    assert "regard/" not in written
    texts = train_in_job(3, _config(tmp_path / "model"), resume=True)
    assert "resumed at update 5\n" in texts[0]
    assert metrics(tmp_path / "model")[-1]["update"] == 20


@pytest.mark.parametrize("failing", [(0, 1), (0,), (1,)])
def test_an_unknown_setting_is_reported_once(failing: tuple[int, ...], tmp_path: Path) -> None:
    def call(rank: int) -> None:
        if rank in failing:
            assert main(["train", "--training.max_update=3"]) == 2

    assert in_job(2, call, tmp_path / "log") == [0, 0]
    written = "".join((tmp_path / "log" / rank).read_text() for rank in "01")
    assert written == (
        "regard train: there is no option --training.max_update; did you mean "
        "--training.max_updates?; see regard train --help\n"
    )


@pytest.mark.soak
@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_a_signal_to_the_launcher_saves(
    launcher: Any, launch: Callable[..., tuple[int, list[str], str]], tmp_path: Path
) -> None:
    status, messages, written = launch(2, action="terminate", launcher=launcher)
    assert status != 0
    assert messages == ["regard train: stopped"]
    assert "is usable; to continue its training, give --resume" in written
    assert int(latest(tmp_path / "model").stem) >= 7
    status, messages, written = launch(2, "--resume", launcher=launcher)
    assert (status, messages) == (0, [])
    assert metrics(tmp_path / "model")[-1]["update"] == 20
