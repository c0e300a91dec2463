"""Tells what hangs: a call of the environment that does not return, for how long, and where in the code."""

from __future__ import annotations

import faulthandler
import functools
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple

logger = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""A call that takes longer is reported; again after twice, four times, ... as long."""
LEAVE_AFTER_S = 1.0
"""For a call to return once the process was asked to stop; after that it leaves without it."""
CLOSE_WITHIN_S = 10.0
"""For the environment to close when nothing hurries; after that the process leaves without it."""
_LOOK_EVERY_S = 0.5
_FRAMES = 5
_END = b"\0"
"""Ends the thread, in the pipe that otherwise brings the numbers of signals; no signal has this one."""
_ENVS = os.path.dirname(os.path.abspath(__file__))
_CALLERS = {
    os.path.join(os.path.dirname(_ENVS), "program.py"),
    *(os.path.join(_ENVS, f"{name}.py") for name in ("guard", "registry", "adopt", "action_scaling")),
}
"""Files through which an environment is called: the frames within the last of them are its own."""
_wakeups: set[int] = set()
"""Pipes into which signals are written, of the watchdogs at work."""


class _Call(NamedTuple):
    """A call that has begun."""

    name: str
    what: str
    since: float
    within_s: float | None
    """Seconds after which the process leaves without it; None: it waits for ever."""

    def words(self) -> str:
        return f"{self.name}: {self.what} has not returned for {time.monotonic() - self.since:.0f} s"


class Watchdog:
    """A thread beside the one that makes it. Used as a context manager; before and after, nothing is watched.

    The watched thread writes one attribute as a call begins and one as it ends. A call that holds the
    interpreter's lock keeps this thread from running, too: then ``faulthandler``, which needs no lock, writes the
    stack to standard error.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        """``patience_s``: seconds before a call is reported for the first time."""
        self._patience_s = patience_s
        self._call: _Call | None = None
        self._watched = threading.get_ident()
        self._pipe: tuple[int, int] | None = None
        self._previous_fd = -1

    def begin(self, name: str, what: str, within_s: float | None = None) -> None:
        """Note that the environment ``name`` is about to be called: ``what``, e.g. ``"step()"``.

        ``within_s``: seconds after which this process leaves, with exit code 1, if the call has not returned.
        """
        self._call = _Call(name, what, time.monotonic(), within_s)

    def end(self) -> None:
        """Note that it has returned."""
        self._call = None

    @contextmanager
    def watching(self, name: str, what: str, within_s: float | None = None) -> Iterator[None]:
        """Watch the body of the ``with``; see :meth:`begin`."""
        self.begin(name, what, within_s)
        try:
            yield
        finally:
            self.end()

    def __enter__(self) -> Watchdog:
        """Start the thread. In the main thread, signals wake it, even while the interpreter is stuck in a call."""
        self._watched = threading.get_ident()
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        if threading.current_thread() is threading.main_thread():
            self._previous_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            _wakeups.add(self._pipe[1])
            _register_fork()
        self._thread = threading.Thread(target=self._watch, args=(self._pipe[0],), name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread."""
        assert self._pipe is not None
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._previous_fd)
            _wakeups.discard(self._pipe[1])
        os.write(self._pipe[1], _END)  # not its end of file: forked processes hold it open, too
        self._thread.join()
        for end in self._pipe:
            os.close(end)
        faulthandler.cancel_dump_traceback_later()

    def _watch(self, pipe: int) -> None:
        told: _Call | None = None
        asked_at: float | None = None  # when the process was asked to stop
        tell_after_s = self._patience_s
        look_every_s = min(_LOOK_EVERY_S, self._patience_s / 4)
        while True:
            # Armed again and again, so that it goes off only when this thread cannot run.
            faulthandler.dump_traceback_later(self._patience_s + 2 * look_every_s, file=2, exit=False)
            if select.select([pipe], [], [], look_every_s)[0]:
                numbers = os.read(pipe, 64)
                if _END[0] in numbers:
                    return
                if asked_at is None and {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} & set(numbers):
                    asked_at = time.monotonic()
            call, now = self._call, time.monotonic()
            if call is None:
                continue
            if asked_at is not None and now - max(asked_at, call.since) >= LEAVE_AFTER_S:
                self._leave(call, "and this process is asked to stop: it")
            if call.within_s is not None and now - call.since >= call.within_s:
                self._leave(call, "and this process has nothing else to do: it")
            if call is not told:
                told, tell_after_s = call, self._patience_s
            if now - call.since >= tell_after_s:
                logger.warning("%s; it is at\n%s", call.words(), self._stack())
                tell_after_s *= 2

    def _leave(self, call: _Call, why: str) -> None:
        logger.error("%s, %s leaves without waiting for it; it was at\n%s", call.words(), why, self._stack())
        try:
            for worker in multiprocessing.active_children():
                worker.kill()  # nobody would end those that hang
        finally:
            os._exit(1)  # the other thread may never run again

    def _stack(self) -> str:
        """Return the innermost frames of the watched thread, the innermost last, from where the environment begins."""
        frame = sys._current_frames().get(self._watched)
        frames = traceback.extract_stack(frame) if frame is not None else []
        outer = max((place for place, entry in enumerate(frames) if entry.filename in _CALLERS), default=-1)
        return "".join(traceback.format_list((frames[outer + 1 :] or frames)[-_FRAMES:])).rstrip()


@functools.cache
def _register_fork() -> None:
    os.register_at_fork(after_in_child=_part_from_parent)


def _part_from_parent() -> None:
    """In a forked process, a worker of the environment: leave the parent's signals alone, and be ended by SIGTERM.

    It would write its signals into the parent's pipe, and its handlers would only note that a stop is requested.
    Ctrl-C and the end of a terminal reach the whole group: the parent ends its workers once it no longer needs them.
    """
    if _wakeups:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
