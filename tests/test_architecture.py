"""Rules of the architecture that no unit test would notice being broken. Source is parsed, not imported."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "appo_common": ROOT / "common/appo_common",
    "appo_collector": ROOT / "collector/appo_collector",
    "appo_learner": ROOT / "learner/appo_learner",
}
MAX_LINES = 350


def sources(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


PACKAGE_FILES = sources(*PACKAGES.values())
ALL_FILES = sources(*PACKAGES.values(), ROOT / "tests", ROOT / "benchmarks")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(), filename=str(path))))


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '?')}"


def imports(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Every absolute dotted name that the file imports, ``from a import b`` as ``a.b``."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


def importers(files: list[Path], *forbidden: str) -> list[str]:
    """Where one of the ``forbidden`` modules, or something inside it, is imported."""
    return [
        f"{where(path, node)} imports {name}"
        for path in files
        for name, node in imports(path)
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    ]


def dotted(node: ast.AST) -> str:
    """``torch.load`` for the expression of that spelling; a part that is no plain name becomes ``?``."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    return ((dotted(node.func), node) for node in nodes(path) if isinstance(node, ast.Call))


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("appo_common", ["appo_collector", "appo_learner"]),
        ("appo_collector", ["appo_learner"]),
        ("appo_learner", ["appo_collector"]),
    ],
)
def test_imports_run_from_the_services_to_common(package: str, forbidden: list[str]) -> None:
    assert importers(sources(PACKAGES[package]), *forbidden) == []


def test_only_the_collector_knows_environments() -> None:
    files = sources(PACKAGES["appo_common"], PACKAGES["appo_learner"])
    assert importers(files, "mujoco", "gymnasium", "envpool") == []


def test_nothing_is_pickled() -> None:
    names = {"recv_pyobj", "send_pyobj", "allow_pickle"}
    found = importers(PACKAGE_FILES, "pickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib")
    for path in PACKAGE_FILES:
        for node in nodes(path):
            name = getattr(node, "attr", None) or getattr(node, "arg", None)
            if name in names:
                found.append(f"{where(path, node)} uses {name}")
    assert found == []


def test_checkpoints_are_loaded_as_data() -> None:
    def is_safe(call: ast.Call) -> bool:
        return any(
            keyword.arg == "weights_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            for keyword in call.keywords
        )

    unsafe = [
        where(path, call)
        for path in ALL_FILES
        for name, call in calls(path)
        if name == "torch.load" and not is_safe(call)
    ]
    assert unsafe == []
    assert importers(ALL_FILES, "torch.load") == [], "written as torch.load(...), so that this test sees it"


def test_sockets_are_created_in_one_file() -> None:
    files = [path for path in PACKAGE_FILES if path != PACKAGES["appo_common"] / "sockets.py"]
    created = [
        f"{where(path, call)} calls {name}"
        for path in files
        for name, call in calls(path)
        if name.endswith((".socket", "zmq.Context", "Context.instance", "zmq.Socket"))
    ]
    assert created == []
    assert importers(files, "zmq.Context", "zmq.Socket", "zmq.asyncio", "socket.socket") == []


def test_shared_memory_is_a_mapped_file() -> None:
    """The resource tracker of ``multiprocessing.shared_memory`` unlinks segments that others still use."""
    assert importers(PACKAGE_FILES, "multiprocessing.shared_memory") == []


def test_nobody_sleeps() -> None:
    """Neither the packages nor the tests: every wait polls with a deadline or waits on what it waits for."""
    found = importers(ALL_FILES, "time.sleep")
    found += [where(path, call) for path in ALL_FILES for name, call in calls(path) if name == "time.sleep"]
    assert found == []


def test_files_stay_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ALL_FILES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_nothing_is_left_undone() -> None:
    found = [
        where(path, node)
        for path in PACKAGE_FILES
        for node in nodes(path)
        if isinstance(node, ast.Name) and node.id == "NotImplementedError"
    ]
    for path in PACKAGE_FILES:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING) and (
                "TODO" in token.string or "FIXME" in token.string
            ):
                found.append(f"{path.relative_to(ROOT)}:{token.start[0]}")
    assert found == []


@pytest.mark.parametrize("folder", [".", "common", "collector", "learner"])
def test_outer_folders_are_not_packages(folder: str) -> None:
    """An ``__init__.py`` there would shadow a user's own package called ``common``."""
    assert not (ROOT / folder / "__init__.py").exists()
    inner = {path.parent.relative_to(ROOT / folder).parts[0] for path in (ROOT / folder).glob("*/__init__.py")}
    assert inner == ({f"appo_{folder}"} if folder != "." else set())


@pytest.mark.parametrize("module", ["appo_learner.cli", "appo_collector.cli"])
def test_a_command_line_starts_light(module: str) -> None:
    """``--help`` and a wrong option answer at once: torch and MuJoCo are imported when a run starts."""
    code = f"import sys, {module}; print(sorted({{'torch', 'mujoco', 'rsl_rl'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "[]", "")
