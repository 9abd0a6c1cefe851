"""InterruptsDeferred: a block that Ctrl-C does not cut in two."""

from __future__ import annotations

import signal
import threading

import pytest

from fathom.client.interrupts import InterruptsDeferred


def test_an_interrupt_comes_after_the_block_that_it_fell_into() -> None:
    done = []

    def block() -> None:
        with InterruptsDeferred():
            signal.raise_signal(signal.SIGINT)
            done.append("the block went on")
        done.append("and what follows did not")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["the block went on"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_callers_own_handler_is_called_and_kept() -> None:
    calls: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with InterruptsDeferred():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert calls == []
        assert calls == [signal.SIGINT]
        signal.raise_signal(signal.SIGINT)
        assert len(calls) == 2
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_the_systems_handlers_are_put_back(handler: signal.Handlers) -> None:
    previous = signal.signal(signal.SIGINT, handler)
    try:
        with InterruptsDeferred():
            pass
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, previous)


def test_other_threads_which_are_never_interrupted_may_use_it() -> None:
    done = []

    def work() -> None:
        with InterruptsDeferred():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
