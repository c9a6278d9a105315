"""Ctrl-C that waits for the end of what must be whole."""

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from rlmodule.distributed.interrupts import interruptible, uninterrupted


@pytest.fixture(autouse=True)
def handler_stays() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def until_interrupted(steps: Callable[[list[str]], None]) -> list[str]:
    """What was done of ``steps`` before they were interrupted."""
    done = list[str]()
    with pytest.raises(KeyboardInterrupt):
        steps(done)
    return done


def test_it_waits_for_the_end_of_the_outermost_block() -> None:
    def steps(done: list[str]) -> None:
        with uninterrupted():
            with uninterrupted():
                press()
                done.append("inner")
            done.append("outer")
        done.append("after")

    assert until_interrupted(steps) == ["inner", "outer"]


def test_it_interrupts_what_only_waits() -> None:
    def steps(done: list[str]) -> None:
        with uninterrupted():
            done.append("whole")
            with interruptible():
                press()
                done.append("waited")

    assert until_interrupted(steps) == ["whole"]


def test_what_was_pressed_before_ends_a_wait_before_it_begins() -> None:
    def steps(done: list[str]) -> None:
        with uninterrupted():
            press()
            done.append("whole")
            with interruptible():
                done.append("waited")

    assert until_interrupted(steps) == ["whole"]


def test_after_a_wait_it_is_held_back_again() -> None:
    def steps(done: list[str]) -> None:
        with uninterrupted():
            with interruptible():
                done.append("waited")
            press()
            done.append("whole")

    assert until_interrupted(steps) == ["waited", "whole"]


def test_an_error_comes_with_it() -> None:
    def steps() -> None:
        with uninterrupted():
            press()
            raise ValueError("first")

    with pytest.raises(KeyboardInterrupt) as caught:
        steps()
    assert isinstance(caught.value.__context__, ValueError)


def test_a_handler_of_ones_own_is_called_at_the_end() -> None:
    heard = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    with uninterrupted():
        press()
        assert heard == []
    assert heard == [signal.SIGINT]
    signal.signal(signal.SIGINT, before)


def test_who_ignores_it_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uninterrupted(), interruptible():
        press()
    assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN


def test_other_threads_never_hear_it() -> None:
    held = []

    def remote() -> None:
        with uninterrupted(), interruptible():
            held.append(signal.getsignal(signal.SIGINT))

    with uninterrupted():
        mine = signal.getsignal(signal.SIGINT)
        thread = threading.Thread(target=remote)
        thread.start()
        thread.join()
    assert held == [mine]
