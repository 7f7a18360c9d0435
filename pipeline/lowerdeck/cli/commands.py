"""Names of the commands of `lowerdeck`, with what `lowerdeck --help` says of each without importing its module."""

from __future__ import annotations

from collections.abc import Mapping

HELP: Mapping[str, str] = {
    "init": "make a workspace in this folder or in DIR",
    "upgrade": "bring a workspace up to date with the installed package",
    "repro": "`dvc repro` with stages side by side, after restoring what a killed DVC left damaged",
    "add": "add a model, dataset, metric, task, target or device of your own",
    "conf": "explain the configuration: all groups, one group, or one key",
    "doctor": "check what a target needs and has; exit with 1 if something is missing",
    "clean": "remove old builds, sweeps, results, runs and cached files that nobody keeps",
    "report": "print the metrics of the build in build/ and write build/report.html",
    "explain": "explain why nodes are not delegated, and what would make them delegable",
    "quantization": "scales, ranges, clipped shares and SQNR of every quantized tensor, worst first",
    "sensitivity": "rank layers by the accuracy that quantizing each costs, and find those to leave float",
    "flavors": "list the converters of conf/flavor and which of them can be used",
    "compare": "show builds side by side: a sweep, runs, git revisions",
    "sweep": "build many points of the configuration, running shared stages once",
    "promote": "make params.yaml build what a run recorded, and check that it does",
    "ledger": "write the metrics of builds to docs/ledger, and show regressions",
    "operators": "lower and execute every operator that documentation lists, and compare with docs/operators",
    "devices": "list the devices of conf/device and what is missing to use them, or check one",
    "measure": "execute and time a .pte on a device, and compare it with this host",
    "check-runtime": "check whether a runtime has all that a .pte needs",
    "run": "execute a .pte on this host or a device and write its outputs",
    "ui": "open MLflow on the recorded builds",
    "plots-template": "make `dvc plots show` work without a network in this clone",
    "completion": "print the completion of this command for a shell",
}
"""In the order of `lowerdeck --help`."""
EXECUTE_MODELS = frozenset({"measure", "operators", "run", "sensitivity"})
"""Commands that execute models in their own process, by the same kernels as stages do."""
_SHARED = {"init": "workspace", "upgrade": "workspace", "plots-template": "ui"}


def module_of(command: str) -> str:
    """Import path of the module whose `add` adds `command`."""
    return f"lowerdeck.cli.{_SHARED.get(command, command.replace('-', '_'))}"
