"""The report's files: what metrics.jsonl and TensorBoard hold, and what happens when they cannot be written."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers_report import METRICS, make, plan_in, records
from rsl_rl.utils.log_writer import LogWriter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from appo_common.errors import AppoError, ConfigError
from appo_learner.report.jsonl import JsonLines

# Files


def test_metrics_lines_hold_every_scalar_and_null_for_nan(tmp_path: Path) -> None:
    strange = replace(METRICS, return_mean=None, fps=float("inf"), losses={"value": float("nan"), "kl": 0.01})
    with make(plan_in(tmp_path)) as report:
        report.update(METRICS)
        # Read while the run is on: nothing waits in a buffer.
        first = records(tmp_path / "metrics.jsonl")
        report.update(strange)
    second = records(tmp_path / "metrics.jsonl")[1]
    expected = {**vars(METRICS)}
    del expected["fleet"]
    assert first == [expected]
    assert second["losses"] == {"value": None, "kl": 0.01}
    assert second["fps"] is None
    assert second["return_mean"] is None


def test_a_resume_drops_what_it_repeats_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"iteration":{i}}}\n' for i in range(1, 6)) + '{"iteration":3,"fp')
    with make(plan_in(tmp_path, start_iteration=3)) as report:
        report.update(replace(METRICS, iteration=4))
    assert [record["iteration"] for record in records(path)] == [1, 2, 3, 4]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_fresh_run_keeps_the_metrics_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"iteration":1}\n')
    with make(plan_in(tmp_path)):
        pass
    assert (tmp_path / "metrics.jsonl.old").read_text() == '{"iteration":1}\n'
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_a_full_disk_is_told_once_counted_and_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with make(plan_in(tmp_path)) as report:
        for i in range(1, 4):
            report.update(replace(METRICS, iteration=i))
        assert report.stats()["errors"] == {"metrics.jsonl": 3}
    errors = [record.getMessage() for record in caplog.records]
    assert len(errors) == 1
    assert str(tmp_path / "metrics.jsonl") in errors[0]
    assert "errno 28 (No space left on device)" in errors[0]
    assert len(scalars(tmp_path)["Perf/total_fps"]) == 3, "TensorBoard goes on"


def test_a_disk_that_fills_up_within_a_line_leaves_whole_lines(tmp_path: Path) -> None:
    code = """
    import resource, sys
    from pathlib import Path
    from helpers_report import METRICS
    from appo_learner.report.jsonl import JsonLines
    lines = JsonLines(Path(sys.argv[1]), 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
    failed = 0
    for i in range(5):
        try:
            lines.write(METRICS)
        except OSError:
            failed += 1
    print(failed)
    """
    path = tmp_path / "metrics.jsonl"
    where = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    command = [sys.executable, "-c", where + textwrap.dedent(code), str(path)]
    failed = int(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert failed > 0
    assert len(records(path)) == 5 - failed > 0


def test_an_unwritable_run_directory_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AppoError, match=r"cannot write metrics to .*gone/metrics.jsonl: errno 2 "):
        make(plan_in(tmp_path / "gone"))


def test_closed_lines_can_be_closed_again(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl", 0)
    lines.close()
    lines.close()


# TensorBoard and other writers


def scalars(directory: Path) -> dict[str, list[Any]]:
    events = EventAccumulator(str(directory))
    events.Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


class RecordingWriter(LogWriter):
    """A third-party writer as rsl_rl defines them."""

    def __init__(self, log_dir: str, project: str) -> None:
        self.calls: list[tuple[Any, ...]] = [("init", log_dir, project)]

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.calls.append((tag, scalar_value, global_step))

    def store_config(self, env_cfg: Any, train_cfg: dict) -> None:
        self.calls.append(("config", env_cfg.to_dict(), train_cfg))

    def save_model(self, model_path: str, it: int) -> None:
        self.calls.append(("model", model_path, it))

    def stop(self) -> None:
        self.calls.append(("stop",))


def test_tensorboard_has_the_tags_of_rsl_rl(tmp_path: Path) -> None:
    with make(plan_in(tmp_path)) as report:
        report.update(replace(METRICS, reward_terms={"track": 12.5, "Curriculum/level": 3.0}))
    read = scalars(tmp_path)
    by_rsl_rl = {
        *("Loss/value", "Loss/surrogate", "Loss/learning_rate", "Policy/mean_std", "Perf/total_fps"),
        *("Perf/collection_time", "Perf/learning_time", "Train/mean_reward", "Train/mean_episode_length"),
        *("Train/mean_reward/time", "Train/mean_episode_length/time", "Episode/track", "Curriculum/level"),
    }
    ours = {
        *("Perf/collected_fps", "Train/timeout_rate", "Lag/mean", "Lag/max", "Fleet/collectors"),
        *("Rollouts/trained", "Rollouts/discarded"),
        *(f"Timers/{name}_s" for name in ("wait", "stage", "update", "publish")),
        *(f"Timers/{name}_ms" for name in ("infer", "env_step", "send", "credit_wait")),
    }
    assert set(read) == by_rsl_rl | ours
    assert [(point.step, point.value) for point in read["Episode/track"]] == [(120, 12.5)]
    assert read["Perf/collection_time"][0].value == pytest.approx(0.018 + 0.006)
    assert read["Perf/learning_time"][0].value == pytest.approx(0.120 + 0.006)
    assert read["Train/mean_reward/time"][0].step == 18


def test_a_resumed_run_replaces_the_points_it_repeats(tmp_path: Path) -> None:
    with make(plan_in(tmp_path)) as report:
        for i in (1, 2, 3):
            report.update(replace(METRICS, iteration=i, fps=float(i)))
    with make(plan_in(tmp_path, start_iteration=1)) as report:
        report.update(replace(METRICS, iteration=2, fps=20.0))
    assert [(p.step, p.value) for p in scalars(tmp_path)["Perf/total_fps"]] == [(1, 1.0), (2, 20.0)]


def test_a_named_writer_is_built_as_rsl_rl_builds_it(tmp_path: Path) -> None:
    train_cfg = {"logger": {"class_name": f"{__name__}:RecordingWriter", "project": "walk"}, "seed": 1}
    with make(plan_in(tmp_path), train_cfg=train_cfg, env_cfg={"name": "mujoco:x"}) as report:
        writer = report._tensorboard.extra
        report.update(METRICS)
        report.checkpoint_saved("model_120.pt", 120)
    assert writer.calls[:2] == [("init", str(tmp_path), "walk"), ("config", {"name": "mujoco:x"}, train_cfg)]
    assert ("Train/mean_reward", 312.44, 120) in writer.calls
    assert writer.calls[-2:] == [("model", "model_120.pt", 120), ("stop",)]
    assert "Train/mean_reward" in scalars(tmp_path), "TensorBoard is written too"
    assert train_cfg["logger"]["class_name"], "rsl_rl has not emptied the caller's dictionary"


@pytest.mark.parametrize(
    ("logger", "message"),
    [
        (
            {"class_name": "WandbLogWriter", "project_name": "x"},
            "train.logger: WandbLogWriter .*`pip install wandb`",
        ),
        ("wandb", "train.logger: WandbLogWriter .*`pip install wandb`"),
        ({"class_name": "no_such_package:Writer"}, "no_such_package"),
        ({"class_name": f"{__name__}:RecordingWriter", "projekt": "x"}, "train.logger: .*projekt"),
        ({"project": "x"}, "train.logger: .* has no class_name"),
    ],
)
def test_a_writer_that_cannot_be_built_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logger: Any, message: str
) -> None:
    monkeypatch.setattr("rsl_rl.utils.wandb_log_writer.wandb", None)
    with pytest.raises(ConfigError, match=message):
        make(plan_in(tmp_path), train_cfg={"logger": logger})
