"""Signals that arrive while others are collected or handled afterwards."""

import signal
from collections.abc import Iterator

import pytest

from regard import signals
from regard.errors import Interrupted

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def received() -> Iterator[list[int]]:
    """Set handlers that note the signals, and restore those from before."""
    noted: list[int] = []
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGTERM, lambda number, _: noted.append(number))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield noted
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_are_handled_afterwards(received: list[int]) -> None:
    with signals.handled_afterwards():
        signal.raise_signal(signal.SIGTERM)
        assert received == []
    assert received == [signal.SIGTERM]


def test_an_exception_from_one_handler_does_not_lose_other_signals(received: list[int]) -> None:
    context = signals.handled_afterwards()
    context.__enter__()
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        context.__exit__(None, None, None)
    assert received == [signal.SIGTERM]


def test_only_a_further_ctrl_c_interrupts_at_once(received: list[int]) -> None:
    with signals.collected(repeat_raises=True) as collected:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(number)
        assert collected == [signal.SIGTERM, signal.SIGHUP, signal.SIGHUP, signal.SIGTERM]
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("collecting", [False, True])
def test_all_handlers_return_if_a_signal_arrives_meanwhile(
    collecting: bool, received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    set_handler, interrupted = signal.signal, []

    def interrupt(number: int, handler: object) -> object:
        previous = set_handler(number, handler)  # pyright: ignore[reportArgumentType]
        if handler is signal.default_int_handler and not interrupted:
            interrupted.append(number)
            signal.raise_signal(signal.SIGINT)
        return previous

    context = signals.collected(False) if collecting else signals.handled_afterwards()
    with pytest.raises(KeyboardInterrupt), context:
        monkeypatch.setattr(signal, "signal", interrupt)
    monkeypatch.undo()
    assert interrupted
    assert {number: signal.getsignal(number) for number in NUMBERS} == before
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]
