"""`lowerdeck explain`: why nodes are not delegated, how they could be, and what changed compared with another plan."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from rich.console import Console

    from lowerdeck.cli.plans import NamedPlan
    from lowerdeck.config.schema import Config
    from lowerdeck.contracts.plan import DelegationPlan
    from lowerdeck.explain.causes import Cause, Trial
    from lowerdeck.explain.graph import PlanGraph
    from lowerdeck.explain.groups import Group


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help=HELP["explain"],
        description="Shows which changes would free what stays on the CPU, then the reasons, most MACs first; writes "
        "build/explain.html with the whole graph. A PLAN is a plan.json, a git revision or an MLflow run.",
    )
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="the plan (default: that of the build in build/)")
    parser.add_argument(
        "--node", metavar="NAME", help="details of one node, or of those that match a glob such as '*conv*'"
    )
    parser.add_argument("--reason", metavar="CODE", help="only nodes with this reason code, e.g. no_converter")
    parser.add_argument("--against", metavar="PLAN", help="what changed against another plan")
    parser.add_argument(
        "--try",
        action="store_true",
        dest="tries",
        help="make each change that the tool can make, and partition the build in build/ again to measure the gain",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; docs/plan.md describes it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the requested explanation; the build's own plan also gets its page."""
    from lowerdeck.artifacts.plans import newest_plan
    from lowerdeck.cli.plans import named_plan
    from lowerdeck.compat.terminal import terminal_console
    from lowerdeck.explain.graph import PlanGraph
    from lowerdeck.explain.groups import groups, reason_code

    if sum(value is not None for value in (options.node, options.reason, options.against)) > 1:
        raise LowerdeckError("--node, --reason and --against exclude one another: use one of them")
    if options.tries and options.plan is not None:
        raise LowerdeckError(
            "--try partitions the build in build/ again; leave out PLAN, or `lowerdeck promote` it first"
        )
    code = None if options.reason is None else reason_code(options.reason)
    named = None if options.plan is None else named_plan(options.plan)
    plan = newest_plan() if named is None else named.plan
    console, graph = terminal_console(), PlanGraph(plan)
    if options.against is not None:
        _against(console, plan, options)
    elif options.node is not None:
        _nodes(console, graph, options)
    else:
        _groups(console, graph, groups(graph, code), named, options)


def _groups(
    console: Console, graph: PlanGraph, found: Sequence[Group], named: NamedPlan | None, options: argparse.Namespace
) -> None:
    from lowerdeck.artifacts import paths
    from lowerdeck.delegation.coverage import coverage
    from lowerdeck.explain import groups, portable, terminal
    from lowerdeck.explain.causes import causes

    metrics = coverage(graph.plan)
    concluded = causes(graph) if options.reason is None else []
    tried = _tried(console, concluded, graph.plan) if options.tries else []
    if options.json:
        listed = groups.as_json(found, int(metrics["total_macs"]))
        said = {"backend": graph.plan.backend, "fallback": graph.plan.fallback, "coverage": metrics}
        found_out = {"causes": terminal.causes_json(concluded, tried), "groups": listed}
        remaining = {"portable": portable.as_json(portable.remainders(graph))}
        _print_json({**said, "mismatches": list(graph.plan.mismatches), **found_out, **remaining})
        return
    if named is not None:
        console.print(f"plan of {named.origin}", markup=False, highlight=False, soft_wrap=True)
    elif paths.CONFIG.is_file() and _config_of(graph.plan) is None:
        console.print(
            f"{paths.CONFIG} is of another model or target than this plan; `dvc repro partition` makes its plan",
            style="yellow",
            soft_wrap=True,
        )
    terminal.print_summary(console, graph)
    terminal.print_causes(console, graph, concluded, tried)
    terminal.print_groups(console, graph, found)
    if options.reason is None:
        terminal.print_remainders(console, portable.remainders(graph))
    if options.reason is not None and not found:
        there = ", ".join(sorted(name.removeprefix("reasons.") for name in metrics if name.startswith("reasons.")))
        console.print(f"no node stays on the CPU for {options.reason}; for others: {there or 'none'}", soft_wrap=True)
    _write_pages(console, graph.plan, named, tried if options.tries else None)


def _tried(console: Console, concluded: Sequence[Cause], plan: DelegationPlan) -> list[Trial]:
    """Each change that the tool can make, made; `plan` is that of the program."""
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.plans import read_plan
    from lowerdeck.compat.terminal import progress_bar
    from lowerdeck.execution.trials import try_change
    from lowerdeck.explain.causes import Trial

    if paths.CONFIG.is_file() and _config_of(plan) is None:
        raise LowerdeckError(
            f"{paths.CONFIG} is of another model or target than the plan, so that gains cannot be told; "
            "`dvc repro partition` makes its plan"
        )
    # Changes are planned only, and must not be compared with what convert left of a plan.
    before = read_plan(paths.PLANNED) if paths.PLANNED.is_file() else plan
    tried = []
    possible = [cause.change for cause in concluded if cause.change.can_be_tried]
    for change in progress_bar(possible, desc="trying", unit="change", disable=None):
        try:
            with redirect_stdout(sys.stderr):  # libraries print warnings, which are no JSON
                tried.append(Trial.of(change, before, try_change(change)))
        except LowerdeckError as error:
            tried.append(Trial(change=change, failure=" ".join(str(error).split())))
    return tried


def _config_of(plan: DelegationPlan) -> Config | None:
    """The configuration in build/; None without one, or where it is of another build than its `plan`."""
    from lowerdeck.artifacts import paths
    from lowerdeck.config import load
    from lowerdeck.report.build import is_of_plan

    config = load.read_config(paths.CONFIG) if paths.CONFIG.is_file() else None
    return config if config is not None and is_of_plan(config, plan) else None


def _write_pages(
    console: Console, plan: DelegationPlan, named: NamedPlan | None, tried: Sequence[Trial] | None
) -> None:
    """Write the page of the build in build/, where what was tried before stays, or that of the plan that was named."""
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import write_text
    from lowerdeck.artifacts.measurements import read_profile
    from lowerdeck.pages.explanation import export, page
    from lowerdeck.report.build import current_lineage, current_run_page, report_is_current

    if named is not None:
        place = paths.BUILD / f"explain_{re.sub(r'[^A-Za-z0-9]+', '_', named.origin).strip('_')[:60]}.html"
        write_text(place, page.render(plan, f"{plan.backend}: {named.origin}", run_page=named.run_page))
        console.print(f"\nthe whole graph: {place}", highlight=False, soft_wrap=True)
        return
    config = _config_of(plan)
    rendered = export.render(
        plan,
        config,
        export.tried_before(plan, config) if tried is None else tried,
        read_profile(),
        current_run_page(),
        has_report=report_is_current(),
        has_bundle=paths.FIRMWARE_ZIP.is_file() and current_lineage() is not None,
    )
    for name, text in rendered.items():
        write_text(paths.BUILD / name, text)
    pages = f"the whole graph: {paths.EXPLANATION}; for Model Explorer: {paths.MODEL_EXPLORER}"
    console.print(f"\n{pages}", soft_wrap=True)


def _nodes(console: Console, graph: PlanGraph, options: argparse.Namespace) -> None:
    from lowerdeck.explain import terminal
    from lowerdeck.explain.hints import hint

    nodes = graph.named(options.node)
    if not options.json:
        terminal.print_nodes(console, graph, nodes)
        return
    users = {node.name: [user.name for user in graph.users(node)] for node in nodes}
    listed = [
        asdict(node)
        | {"users": users[node.name], "hint": hint(node, graph)}
        | ({} if node.delegate_reason is None else {"delegate_hint": hint(node, graph, node.delegate_reason)})
        for node in nodes
    ]
    _print_json({"backend": graph.plan.backend, "nodes": listed})


def _against(console: Console, plan: DelegationPlan, options: argparse.Namespace) -> None:
    from lowerdeck.cli.plans import named_plan
    from lowerdeck.explain import difference, terminal

    other = named_plan(options.against)
    found = difference.difference(other.plan, plan)
    if options.json:
        _print_json(difference.as_json(found, other.origin))
    else:
        terminal.print_difference(console, found, other.origin)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))
