"""``python -m appo_learner`` is ``appo-learner``."""

from appo_learner.cli import main

main(prog_name="appo-learner")
