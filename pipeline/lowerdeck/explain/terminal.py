"""The output of `lowerdeck explain`: wrapped and styled in a terminal, else plain lines of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, PlannedTensor, Reason
from lowerdeck.delegation.coverage import coverage
from lowerdeck.evaluation.gates import percent
from lowerdeck.explain.causes import Cause, Change, Trial
from lowerdeck.explain.difference import Pair, PlanDifference
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.groups import MEANINGS, Group, GroupRow, share
from lowerdeck.explain.hints import hint
from lowerdeck.explain.layers import LayerChange, layer_changes, totals
from lowerdeck.explain.portable import Remainder
from lowerdeck.graph.nodes import DEQUANTIZE, QUANTIZE

MISMATCH = "do not ship: the program computes something else than the quantized model"
_MAX_MODULES = 8
"""Most modules that a row names; --json lists all."""
_MAX_LAYERS = 20
"""Most operators listed that were compiled otherwise."""
_SHARES = (
    "accelerated_share",
    "accelerated_macs_share",
    "delegated_share",
    "delegated_macs_share",
    "delegated_parameter_share",
)
_METRICS = {
    "accelerated_share": "compute nodes off portable kernels",
    "accelerated_macs_share": "MACs off portable kernels",
    "delegated_compute_nodes": "delegated compute nodes",
    "compute_nodes": "compute nodes",
    "delegated_share": "share of compute nodes",
    "delegated_macs_share": "share of MACs",
    "delegated_parameter_share": "share of parameters",
    "partitions": "partitions",
    "crossings": "boundary crossings",
    "crossing_bytes": "bytes that cross",
    "transposes_at_boundary": "transposes at a boundary",
}
"""Metrics of `coverage` and their names in the table."""


def print_summary(console: Console, graph: PlanGraph) -> None:
    """Print what the plan delegates, and what it computes wrongly."""
    plan, metrics = graph.plan, coverage(graph.plan)
    together = " altogether" if plan.libraries else ""
    shares = f", {percent(metrics['accelerated_macs_share'])} of the MACs{together}" if metrics["total_macs"] else ""
    _line(console, Text(f"{plan.backend}: {plan.summary}{shares}"))
    for mismatch in plan.mismatches:
        _line(console, Text(f"{MISMATCH}: {mismatch}", style="yellow"))


def print_causes(console: Console, graph: PlanGraph, found: Sequence[Cause], tried: Sequence[Trial]) -> None:
    """Print the changes that would free nodes, with the measured gain of those that were tried."""
    if not found:
        return
    total_macs, gains = sum(node.macs for node in graph.plan.nodes), {trial.change: trial.gain for trial in tried}
    undelegated = sum(node.compute and node.is_portable for node in graph.plan.nodes)
    _heading(console, "what would change it", len(found))
    for cause in found:
        macs = f", {cause.macs:,} MACs, {100 * share(cause.macs, total_macs):.1f} %" if cause.macs else ""
        concerns = f"concerns {cause.num_compute:,} of {undelegated:,} compute nodes on the CPU{macs}"
        _line(console, Text.assemble((cause.change.text, "bold"), f": {concerns}"), 2)
        _line(console, Text(f"in {join_names(cause.modules) or 'an unknown module'}: {join_names(cause.operators)}"), 6)
        _line(console, Text(trial_text(cause, gains)), 6)


def trial_text(cause: Cause, gains: Mapping[Change, str]) -> str:
    """Whether the change was tried, with its measured gain."""
    if cause.change in gains:
        return f"tried: {gains[cause.change]}"
    return "not tried: `lowerdeck explain --try` does" if cause.change.can_be_tried else "tried: no, it is made by hand"


def causes_json(found: Sequence[Cause], tried: Sequence[Trial]) -> list[dict[str, Any]]:
    """Causes as plain containers; docs/plan.md describes them."""
    trials = {trial.change: trial for trial in tried}
    return [
        {
            "change": cause.change.text,
            "can_be_tried": cause.change.can_be_tried,
            "nodes": [node.name for node in cause.nodes],
            "compute_nodes": cause.num_compute,
            "macs": cause.macs,
            "modules": cause.modules,
            "trial": None
            if (trial := trials.get(cause.change)) is None
            else {"before": dict(trial.before), "after": dict(trial.after), "failure": trial.failure},
        }
        for cause in found
    ]


def print_groups(console: Console, graph: PlanGraph, found: Sequence[Group]) -> None:
    """Print the nodes on the CPU by reason code."""
    total_macs = sum(node.macs for node in graph.plan.nodes)
    for group in found:
        counts = _counts(group.num_nodes, group.macs, total_macs)
        console.print()
        _line(console, Text.assemble((group.code.value, "bold"), f": {MEANINGS[group.code]} ({counts})"))
        _print_rows(console, group, total_macs)


def print_remainders(console: Console, found: Sequence[Remainder]) -> None:
    """Print what it would take to leave nothing to portable kernels."""
    if not found:
        console.print()
        _line(console, Text("Nothing is computed by portable kernels."))
        return
    _heading(console, "to leave nothing to portable kernels", len(found))
    for remainder in found:
        modules = join_names(list(dict.fromkeys(node.module or node.name for node in remainder.nodes)))
        _line(console, Text(f"{len(remainder.nodes):,} x {remainder.operator} in {modules}"), 2)
        for way in remainder.ways or ("no way is known",):
            _line(console, Text(way), 6)


def _print_rows(console: Console, group: Group, total_macs: int) -> None:
    shown, converting = folded(group)
    operators = max((len(row.operator) for row in shown), default=0)
    counts = max((len(f"{len(row.nodes):,}") for row in shown), default=0)
    macs = max((len(f"{row.macs:,}") for row in shown), default=0)
    for row in shown:
        numbers = f"{len(row.nodes):>{counts},} x {row.operator}"
        if group.macs:
            of_all = 100 * share(row.macs, total_macs)
            numbers = f"{numbers:<{counts + 3 + operators}}  {row.macs:>{macs},} MACs  {of_all:5.1f} %"
        _line(console, Text(numbers), 2)
        _line(console, Text(f"in {join_names(row.modules)}"), 6)
        _line(console, Text(format_reason(row.reason)), 6)
        if row.delegate_reason is not None:
            _line(console, Text(f"not on the NPU: {format_reason(row.delegate_reason)}"), 6)
        if row.hint:
            _line(console, Text.assemble(("hint: ", "bold"), row.hint), 6)
    if converting:
        _line(console, Text(converting), 2)


def folded(group: Group) -> tuple[list[GroupRow], str]:
    """The rows of a group without those of quantize and dequantize nodes, and a line about these."""
    converts = (*QUANTIZE, *DEQUANTIZE)
    shown = [row for row in group.rows if not row.operator.startswith(converts)]
    rest = [row for row in group.rows if row.operator.startswith(converts)]
    if not rest:
        return shown, ""
    count = sum(len(row.nodes) for row in rest)
    hints = [row.hint for row in rest if "target.options" in row.hint]
    advice = f"; {'; '.join(dict.fromkeys(hints))}" if hints else ""
    what = "1 quantize or dequantize node" if count == 1 else f"{count:,} quantize and dequantize nodes"
    return shown, f"{what}{advice}"


def print_nodes(console: Console, graph: PlanGraph, nodes: Iterable[PlannedNode]) -> None:
    """Print everything in the plan about `nodes` and their neighbours."""
    for index, node in enumerate(nodes):
        if index:
            console.print()
        _line(console, Text(node.name, style="bold"))
        for what, value in _fields(graph, node):
            _line(console, Text(f"{what:<11}{value}"), 2)


def _fields(graph: PlanGraph, node: PlannedNode) -> Iterable[tuple[str, str]]:
    yield "operator", node.operator + ("" if node.compute else " (computes nothing)")
    yield "module", node.module or "unknown"
    yield "source", node.source or "unknown"
    yield "runs in", "the CPU" if node.is_portable else node.place
    yield "quantized", "yes" if node.is_quantized else "no"
    yield "MACs", f"{node.macs:,}"
    for tensor in node.inputs:
        yield "input", format_tensor(tensor) + _place(graph.nodes.get(tensor.source))
    for tensor in node.outputs:
        yield "output", format_tensor(tensor, named=False)
    for user in graph.users(node):
        yield "used by", user.name + _place(user)
    if node.reason is not None:
        yield "reason", f"{node.reason.code.value}: {MEANINGS[node.reason.code]}"
        yield "", format_reason(node.reason)
        if node.reason.node:
            yield "decided by", node.reason.node
        if text := hint(node, graph):
            yield "hint", text
    if node.delegate_reason is not None:
        yield "not on NPU", f"{node.delegate_reason.code.value}: {format_reason(node.delegate_reason)}"
        if text := hint(node, graph, node.delegate_reason):
            yield "hint", text


def format_tensor(tensor: PlannedTensor, *, named: bool = True) -> str:
    """E.g. `weight float32 [8 x 3 x 3 x 3], 864 bytes, constant`."""
    sizes = " x ".join(map(str, tensor.shape))
    extra = (", constant" if tensor.is_constant else "") + (", size varies" if tensor.is_dynamic else "")
    name = f"{tensor.source} " if named else ""
    return f"{name}{tensor.dtype} [{sizes}], {tensor.size_bytes:,} bytes{extra}"


def _place(node: PlannedNode | None) -> str:
    return "" if node is None else f" ({node.place})"


def print_difference(console: Console, found: PlanDifference, against: str) -> None:
    """Print what changed from the plan before, named `against`, to the plan after."""
    before = {pair.after.name: pair.before for pair in found.pairs}

    def previous_reason(node: PlannedNode) -> str:
        return f"was {_reason(before[node.name])}"

    def current_reason(node: PlannedNode) -> str:
        return f"is {_reason(node)}" if node.reason else f"in {node.place}"

    def both_reasons(node: PlannedNode) -> str:
        return f"{previous_reason(node)}; {current_reason(node)}"

    _line(console, Text(f"before: {against} ({found.before.backend}), {found.before.summary}"))
    _line(console, Text(f"now:    {found.after.backend}, {found.after.summary}"))
    if found.is_empty:
        _line(console, Text("Both delegate the same nodes in the same partitions."))
    _print_metrics(console, found)
    _print_listed(console, "gained: delegated now, and not before", _by_macs(found.gained), previous_reason)
    _print_listed(console, "lost: delegated before, and not now", _by_macs(found.lost), current_reason)
    _print_listed(console, "on the CPU in both, for another reason", _by_macs(found.other_reason), both_reasons)
    _print_listed(console, "only in the program before", found.only_before, current_reason)
    _print_listed(console, "only in the program now", found.only_after, current_reason)
    if found.partitions:
        _heading(console, "partitions", len(found.partitions))
    for change in found.partitions:
        tags = f"{', '.join(change.before) or 'none'} -> {', '.join(change.after) or 'none'}"
        _line(console, Text(f"{change.kind}: {tags} (compute nodes: {change.num_before} -> {change.num_after})"), 2)
    _print_layers(console, found)


def _print_layers(console: Console, found: PlanDifference) -> None:
    """Print what the compilers made of the same operators, where both state it."""
    if not (found.before.layers and found.after.layers):
        return
    changes = layer_changes(found.before, found.after)
    names = [_converter(plan) for plan in (found.before, found.after)]
    _heading(console, f"compiled otherwise: {names[0]} -> {names[1]}", len(changes))
    old, new = totals(found.before), totals(found.after)
    _line(console, Text(f"cycles of all operators: {old['cycles']:,} -> {new['cycles']:,}"), 2)
    for change in changes[:_MAX_LAYERS]:
        layer = change.layer
        name = f"{layer.name} ({layer.operator})" if layer.name else f"an added {layer.operator}"
        _line(console, Text(f"{name} in partition {layer.partition}"), 2)
        _line(console, Text(_layer_change(change)), 6)
    if len(changes) > _MAX_LAYERS:
        _line(console, Text(f"and {len(changes) - _MAX_LAYERS} more; --json lists all"), 2)


def _layer_change(change: LayerChange) -> str:
    if change.before is None or change.after is None:
        return f"only {'before' if change.after is None else 'now'}: {change.layer.cycles:,} cycles"
    pairs = {
        "cycles": (f"{change.before.cycles:,}", f"{change.after.cycles:,}"),
        "bytes of SRAM": (f"{change.before.sram_bytes:,}", f"{change.after.sram_bytes:,}"),
        "block": (change.before.block, change.after.block),
    }
    return ", ".join(f"{what} {old or '?'} -> {new or '?'}" for what, (old, new) in pairs.items() if old != new)


def _converter(plan: DelegationPlan) -> str:
    return "another converter" if plan.converter is None else f"{plan.converter.name} {plan.converter.version}"


def _print_metrics(console: Console, found: PlanDifference) -> None:
    before, after = coverage(found.before), coverage(found.after)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for heading in ("before", "now", "change"):
        table.add_column(heading, justify="right")
    for key, name in _METRICS.items():
        old, new = before[key], after[key]
        if key in _SHARES:
            old_text, new_text, change = f"{100 * old:.1f} %", f"{100 * new:.1f} %", f"{100 * (new - old):+.1f}"
        else:
            old_text, new_text, change = f"{old:,}", f"{new:,}", f"{new - old:+,}"
        table.add_row(name, old_text, new_text, "" if old_text == new_text else change)
    console.print()
    console.print(table)


def _by_macs(pairs: Sequence[Pair]) -> list[PlannedNode]:
    return sorted((pair.after for pair in pairs), key=lambda node: -node.macs)


def _print_listed(
    console: Console, title: str, nodes: Sequence[PlannedNode], describe: Callable[[PlannedNode], str]
) -> None:
    if not nodes:
        return
    computing = [node for node in nodes if node.compute]
    _heading(console, title, len(nodes))
    for node in computing:
        macs = f", {node.macs:,} MACs" if node.macs else ""
        _line(console, Text(f"{node.name} ({node.operator}) in {node.module or 'an unknown module'}{macs}"), 2)
        _line(console, Text(describe(node)), 6)
    if number := len(nodes) - len(computing):
        what = "1 that only converts or unpacks" if number == 1 else f"{number} that only convert or unpack"
        _line(console, Text(f"and {what}"), 2)


def _reason(node: PlannedNode) -> str:
    assert node.reason is not None
    return f"{node.reason.code.value}: {format_reason(node.reason)}"


def _heading(console: Console, title: str, number: int) -> None:
    console.print()
    _line(console, Text(f"{title} ({number})", style="bold"))


def format_reason(reason: Reason) -> str:
    """The backend's message, the check that it comes from, and the values that the message leaves out."""
    left_out = [
        f"{name}={value}"
        for name, value in reason.values.items()
        if name != "option" and value not in ([], "", None) and not _mentions(reason.message, name, value)
    ]
    message = reason.message + (f" with {', '.join(left_out)}" if left_out else "")
    return f"{message} [{reason.check}]" if reason.check else message


def _mentions(message: str, name: str, value: object) -> bool:
    """Whether `message` contains the name, or every text of the value."""
    texts = value if isinstance(value, list) else [value]
    return name in message or all(isinstance(text, str) and text in message for text in texts)


def _counts(nodes: int, macs: int, total_macs: int) -> str:
    text = "1 node" if nodes == 1 else f"{nodes:,} nodes"
    return f"{text}, {macs:,} MACs, {100 * share(macs, total_macs):.1f} %" if macs else text


def join_names(names: Sequence[str]) -> str:
    """The first of `names`, and the number of the others."""
    more = f" and {len(names) - _MAX_MODULES} more" if len(names) > _MAX_MODULES else ""
    return ", ".join(names[:_MAX_MODULES]) + more


def _line(console: Console, text: Text, indent: int = 0) -> None:
    """Print `text`, in a terminal wrapped with its indent."""
    if console.is_terminal:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent) + text, soft_wrap=True)
