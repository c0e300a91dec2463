"""What a program does to its own process before anything heavy is imported. Standard library only."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from types import FrameType

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""By which BLAS and OpenMP are told how many threads to use."""


def limit_threads(threads: int) -> None:
    """Hold BLAS and OpenMP to ``threads``. Has an effect only before numpy and torch are imported.

    Several processes with a thread per core each were measured to lose more than half of their rate.
    """
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)


def one_thread_unless_told() -> None:
    """Hold BLAS and OpenMP to one thread, or to what ``OMP_NUM_THREADS`` says; a variable of one library's own wins.

    Like :func:`limit_threads` it has an effect only before numpy and torch are imported.
    """
    told = os.environ.get("OMP_NUM_THREADS") or "1"
    for variable in THREAD_VARIABLES:
        os.environ[variable] = os.environ.get(variable) or told


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, in whatever way; exit if it already has."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(1)


def leave_quickly() -> None:
    """Spare the interpreter's last collection: with torch loaded it takes most of a second of the exit."""
    gc.freeze()


class StopRequest:
    """Set by SIGTERM, SIGINT and SIGHUP; asked by the loops. A second Ctrl-C ends the process at once."""

    def __init__(self) -> None:
        """Nothing is requested, and no signal taken over, yet."""
        self.reason: str | None = None

    def install(self) -> StopRequest:
        """Take over SIGTERM, SIGINT and SIGHUP (the main thread only), but what ``nohup`` ignores stays ignored."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.reason is not None and number == signal.SIGINT:
            os._exit(130)  # the second Ctrl-C: the user means it
        self.reason = f"stopped by {signal.Signals(number).name}"
