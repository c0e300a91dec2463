"""``appo-collector check``: does an environment keep the contract, and how fast is it?

::

    command.py    the command line
    watch.py      runs the check in a process of its own, and says how that process died or where it hangs
    child.py      that process
    checker.py    the phases of a check, in order
    probe.py      calls the environment, and reports what it returns or raises
    episodes.py, arrays.py, trajectory.py   what is looked at while it is stepped
    report.py     the lines of the result
"""
