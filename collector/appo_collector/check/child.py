"""The process in which an environment is checked: ``python -m appo_collector.check.child OPTIONS ACTIVITY STACKS``.

OPTIONS is JSON for :class:`CheckOptions`, ACTIVITY and STACKS are the numbers of open files. Nothing heavy is
imported before threads are limited.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys

from appo_collector.check.activity import Activity
from appo_common import log
from appo_common.errors import AppoError
from appo_common.process import die_with_parent, one_thread_unless_told

STACK_SIGNAL = signal.SIGUSR1
"""Makes the interpreter write where it is; works in a call that never comes back to it, too."""


def main(options: str, activity_fd: int, stacks_fd: int) -> int:
    """Check; return the exit code: 0 no violation, 1 violations, 2 wrong usage."""
    die_with_parent(os.getppid())
    given = json.loads(options)
    one_thread_unless_told()
    log.set_up("warning")
    faulthandler.enable(stacks_fd, all_threads=False)
    faulthandler.register(STACK_SIGNAL, stacks_fd, all_threads=False)
    sys.stdout.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]
    activity = Activity(activity_fd)
    from appo_collector.check.checker import Checker, CheckOptions
    from appo_collector.check.report import Report

    report, code = Report(), 1
    try:
        Checker(CheckOptions(**given), report, activity).run()
        code = report.close()
    except AppoError as error:
        print(f"Error: {error}", file=sys.stderr)
        code = error.exit_code
    finally:
        activity.finished(code)  # also where the checker itself fails, with a traceback
    gc.freeze()  # spare the last collection
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
