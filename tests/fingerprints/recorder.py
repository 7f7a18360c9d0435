"""Records which files of a project each stage executes, its child processes and forks of preload servers included."""

from __future__ import annotations

from pathlib import Path

from tests.project import Project

# Python imports this at the start of every process. Child processes have the environment of the stage that starts them,
# and so has a preload server's fork; the server itself is older than the stage.
_SITECUSTOMIZE = """
import os, sys

if "-m" in sys.orig_argv:
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    if module.startswith("stages."):
        os.environ["RECORDED_STAGE"] = module.removeprefix("stages.")

def record(event, arguments, root=os.environ["RECORDED_ROOT"] + os.sep, logs=os.environ["RECORDED_LOGS"]):
    if event not in ("exec", "cpython.run_file"):
        return
    name = getattr(arguments[0], "co_filename", arguments[0])
    if isinstance(name, str) and name.startswith(root) and "RECORDED_STAGE" in os.environ:
        log = os.path.join(logs, os.environ["RECORDED_STAGE"])
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(descriptor, (name + "\\n").encode())
        os.close(descriptor)

sys.addaudithook(record)
"""


def environment(folder: Path, project: Project) -> dict[str, str]:
    """Variables under which stages of `project` are recorded in `folder`, which must exist."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    return {"PYTHONPATH": str(site), "RECORDED_ROOT": str(project.root), "RECORDED_LOGS": str(folder)}


def files_run(folder: Path, project: Project, stage: str) -> set[Path]:
    """Files that `stage` executed so far, relative to the project."""
    return {Path(line).relative_to(project.root) for line in (folder / stage).read_text().splitlines()}


def assert_closures_have_all_that_ran(folder: Path, project: Project, closures: dict[str, dict[str, Path]]) -> None:
    """Fail if a stage executed a file that its closure lacks, or was not recorded."""
    for stage, closure in closures.items():
        ran = files_run(folder, project, stage)
        assert Path("stages") / f"{stage}.py" in ran
        assert Path("pipeline/lowerdeck/artifacts/paths.py") in ran, stage
        assert ran - {file.relative_to(project.root) for file in closure.values()} == set(), stage
