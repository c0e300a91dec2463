"""``python -m appo_collector`` is ``appo-collector``."""

from appo_collector.cli import main

main(prog_name="appo-collector")
