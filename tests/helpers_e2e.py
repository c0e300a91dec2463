"""Starts the real programs, waits for what they do, and makes sure that nothing of them is left."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml

BIN = Path(sys.executable).parent
TESTS = Path(__file__).resolve().parent
MARK = "E2E_MARK"
"""Variable in the environment of every process started here, and of their children: orphans show themselves."""
START_S = 50.0
"""For a process to import everything on a busy machine and to say its first words."""

Result = TypeVar("Result")


def poll(condition: Callable[[], Result], deadline_s: float, what: str = "") -> Result:
    """Return the first true value of ``condition``; fail, saying ``what`` was waited for, after ``deadline_s``."""
    pause, end = threading.Event(), time.monotonic() + deadline_s
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what or condition}")
        pause.wait(0.03)
    return result


class Program:
    """A process whose standard output and error go to files."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.name, self.command = name, list(command)
        self.out_path, self.err_path = folder / f"{name}.out", folder / f"{name}.err"
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=folder
            )
        self.pid = self.process.pid

    @property
    def text(self) -> str:
        """All that it has said, on both streams."""
        return self.out_path.read_text() + self.err_path.read_text()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def says(self, words: str, deadline_s: float = START_S) -> str:
        """Wait until it has said something that matches the pattern ``words``; return the line."""

        def found() -> str | None:
            match = re.search(f".*(?:{words}).*", self.text)
            if match is None:
                assert self.running or re.search(words, self.text), f"{self.name} ended: {self.text[-3000:]}"
            return match[0] if match else None

        try:
            return str(poll(found, deadline_s))
        except AssertionError as error:
            raise AssertionError(
                f"{self.name} has not said {words!r} ({error}); it said:\n{self.text[-3000:]}"
            ) from None

    def exit_code(self, deadline_s: float = START_S) -> int:
        """Wait for its end."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} still runs after {deadline_s:g} s; it said:\n{self.text[-3000:]}"
            ) from None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


class Learner(Program):
    """``appo-learner`` with a run directory of its own."""

    run_dir: Path

    @property
    def address(self) -> str:
        """Where collectors connect to."""
        return str(self.endpoint()["control"])

    def endpoint(self) -> dict[str, Any]:
        path = self.run_dir / "endpoint.json"

        def content() -> dict[str, Any] | None:
            assert self.running or path.exists(), f"the learner ended: {self.text[-3000:]}"
            with suppress(FileNotFoundError, json.JSONDecodeError):
                return dict(json.loads(path.read_text()))
            return None

        found = poll(content, START_S, "endpoint.json")
        assert found is not None
        return found

    def metrics(self) -> list[dict[str, Any]]:
        """The whole lines of ``metrics.jsonl``."""
        path = self.run_dir / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def reaches(self, iteration: int, deadline_s: float = START_S) -> dict[str, Any]:
        """Wait until ``iteration`` updates are done; return the last line of the metrics."""

        def there() -> dict[str, Any] | None:
            lines = self.metrics()
            if lines and lines[-1]["iteration"] >= iteration:
                return lines[-1]
            assert self.running, f"the learner ended before iteration {iteration}: {self.text[-3000:]}"
            return None

        try:
            found = poll(there, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"iteration {iteration}: {error}; the learner said:\n{self.text[-3000:]}") from None
        assert found is not None
        return found

    def advances(self, updates: int = 3, deadline_s: float = 20.0) -> None:
        """Wait for so many further updates: training goes on."""
        lines = self.metrics()
        self.reaches((lines[-1]["iteration"] if lines else 0) + updates, deadline_s)

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir / "summary.json").read_text()))

    def checkpoint(self, iteration: int) -> Path:
        return self.run_dir / "checkpoints" / f"model_{iteration}.pt"


class Launcher:
    """Starts programs; :meth:`close` ends them and checks what they leave behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.programs: list[Program] = []

    def environment(self, **more: str) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("APPO_")}
        return clean | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", MARK: self.mark} | more

    def learner(
        self,
        config: dict[str, Any] | str | None,
        *options: str,
        bind: str = "tcp://127.0.0.1:0",
        run_dir: Path | None = None,
        program: Sequence[str] = (str(BIN / "appo-learner"),),
        prefix: Sequence[str] = (),
    ) -> Learner:
        """Start a learner with a configuration, a preset's name or neither; by default on three free ports."""
        number = len(self.programs)
        run_dir = run_dir or self.folder / f"run-{number}"
        (run_dir / "endpoint.json").unlink(missing_ok=True)
        if isinstance(config, dict):
            path = self.folder / f"config-{number}.yaml"
            path.write_text(yaml.safe_dump(config))
            config = str(path)
        named = [config] if config else []
        command = [*prefix, *program, *named, "--bind", bind, "--run-dir", str(run_dir), "--plain", *options]
        learner = Learner(f"learner-{number}", command, self.folder, self.environment())
        learner.run_dir = run_dir
        self.programs.append(learner)
        return learner

    def collector(
        self,
        address: str,
        *options: str,
        program: Sequence[str] = (str(BIN / "appo-collector"),),
        prefix: Sequence[str] = (),
        variables: dict[str, str] | None = None,
    ) -> Program:
        """Start a collector of the learner at ``address``."""
        name = f"collector-{len(self.programs)}"
        command = [*prefix, *program, "--connect", address, "--name", name, *options]
        return self.start(name, command, **(variables or {}))

    def start(self, name: str, command: Sequence[str], **variables: str) -> Program:
        """Start any other program."""
        started = Program(name, command, self.folder, self.environment(**variables))
        self.programs.append(started)
        return started

    def alive(self) -> list[psutil.Process]:
        """Every living process that carries this launcher's mark, children of children included."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def segments(self) -> list[Path]:
        """Files in the shared-memory directory that one of the learners has made."""
        pids = {str(program.pid) for program in self.programs}
        return [path for path in Path("/dev/shm").glob("appo-*") if path.name.split("-")[1] in pids]

    def close(self) -> None:
        """End everything, and fail if something outlives the program that started it, or stays in /dev/shm."""
        for program in self.programs:
            if program.running:
                program.signal(signal.SIGKILL)
                program.signal(signal.SIGCONT)
            program.process.wait()
        try:
            poll(lambda: not self.alive(), 5.0, "the end of every child")
        finally:
            orphans = self.alive()
            for orphan in orphans:
                with suppress(psutil.Error):
                    orphan.kill()
        assert self.segments() == []
        for program in self.programs:
            if isinstance(program, Learner) and program.process.returncode == 0:
                assert_books_balance(program)


@contextmanager
def launching(folder: Path) -> Iterator[Launcher]:
    """A launcher that is closed however the test ends."""
    launcher = Launcher(folder)
    try:
        yield launcher
    finally:
        launcher.close()


def assert_books_balance(learner: Learner) -> dict[str, dict[str, int]]:
    """Check that every rollout of a run that has ended is accounted for; return the books."""
    books: dict[str, dict[str, int]] = learner.summary()["books"]
    for name, book in books.items():
        parts = book["trained"] + book["discarded"] + book["in_flight"] + book["lost"]
        assert book["sent"] == parts, f"{name}: {book}"
        assert book["in_flight"] == 0, f"{name}: {book}"
        assert min(book.values()) >= 0, f"{name}: {book}"
        reasons = sum(count for key, count in book.items() if key.startswith("discarded: "))
        assert reasons == book["discarded"], f"{name}: {book}"
    return books


def make_config(**sections: dict[str, Any]) -> dict[str, Any]:
    """A small configuration on :class:`e2e_envs.Drift`; sections are merged into it, key by key."""
    model = {"class_name": "MLPModel", "hidden_dims": [8], "activation": "elu", "obs_normalization": True}
    noise = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    base: dict[str, Any] = {
        "env": {"name": "e2e_envs:Drift", "num_envs": 4, "overrides": {}},
        "train": {
            "seed": 1,
            "num_steps_per_env": 8,
            "max_iterations": 100_000,
            "save_interval": 100_000,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "actor": {**model, "distribution_cfg": noise},
            "critic": dict(model),
            "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 1, "learning_rate": 1e-4},
        },
        "learner": {},
        "network": {},
    }
    for name, section in sections.items():
        _merge(base[name], section)
    return base


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def three_free_ports() -> int:
    """A base port that is free together with the next two, below those that the kernel hands out itself."""
    for _ in range(100):
        base = random.SystemRandom().randrange(12_000, 30_000)
        with suppress(OSError):
            for port in range(base, base + 3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return base
    raise AssertionError("no three free ports in a row")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


SYNC_UPDATES = 6


def sync_run(launch: Launcher, seed: int, *options: str, **where: Any) -> Learner:
    """Start a synchronous run that waits for two collectors. Time-outs, falls and the normaliser take part."""
    config = make_config(learner={"mode": "sync", "min_collectors": 2}, train={"seed": seed})
    return launch.learner(config, "--max-iterations", str(SYNC_UPDATES), *options, **where)
