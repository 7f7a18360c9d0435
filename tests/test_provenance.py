"""No number of one provenance stands beside one of another without saying so, wherever numbers are shown or kept."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_json
from lowerdeck.cli.on_device import report as device_report
from lowerdeck.comparison import exports
from lowerdeck.comparison.comparison import Comparison, compare
from lowerdeck.comparison.formatting import title
from lowerdeck.comparison.terminal import print_comparison
from lowerdeck.config.schema import GatesConfig
from lowerdeck.contracts.devices import DeviceMetric, Provenance
from lowerdeck.evaluation.gates import failed_gates
from lowerdeck.pages import report
from lowerdeck.report.build import read_build
from lowerdeck.report.terminal import print_table
from lowerdeck.steps.measurement import Measurement
from tests.comparison.builds_by_hand import build
from tests.handmade_build import write_build

SAYS = {
    "111,111": "estimated",
    "222,222": "measured on the board",
    "333,333": "emulated on the board (instructions real, time not)",
    "444,444": "simulated on the board",
    "555,555": "estimated by lowerdeck",
}
"""Number -> what has to stand beside it."""
ESTIMATES = {"estimated_total_cycles": 111_111, "estimated_memory_shortfall_bytes": 555_555}


def device_metrics(provenance: Provenance, value: int) -> dict[str, Any]:
    return {
        "device": "the board",
        "device_provenance": provenance.by("the board"),
        "device_program_sha256": "a" * 64,
        "device_runtime": "r",
        "device_runtime_sha256": "b" * 64,
        "device_exact_share": 0.5,
        "device_max_error": 0.25,
        "num_device_samples": 3,
        f"{provenance}_total_cycles": value,
    }


OF_DEVICES = {
    Provenance.MEASURED: device_metrics(Provenance.MEASURED, 222_222),
    Provenance.EMULATED: device_metrics(Provenance.EMULATED, 333_333),
    Provenance.SIMULATED: device_metrics(Provenance.SIMULATED, 444_444),
}


def check(entries: list[str], *, expected: int) -> None:
    """Each entry that has one of the numbers says where it comes from; `expected` entries have one."""
    found = 0
    for entry in entries:
        plain = " ".join(entry.split())
        for number, says in SAYS.items():
            if number in plain:
                found += 1
                assert says in plain, f"{number} stands without {says!r}: {plain}"
    assert found >= expected, entries


class Rows(HTMLParser):
    """The text of every row of tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[str] = [""]
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: object) -> None:
        if tag in ("tr", "p", "h2", "li"):
            self.rows.append("")

    def handle_data(self, data: str) -> None:
        self.rows[-1] += f" {data}"


@pytest.mark.parametrize("provenance", OF_DEVICES)
def test_terminal_report_and_mlflow_note(
    provenance: Provenance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_build(metrics=ESTIMATES, flavor={"name": "vela"})
    write_json(paths.DEVICE_METRICS, OF_DEVICES[provenance])
    printed = io.StringIO()
    print_table(read_build(), Console(file=printed, width=1000))
    check(printed.getvalue().splitlines(), expected=2)
    check(Rows(report.render(read_build())).rows, expected=3)


def comparison() -> Comparison:
    builds = [
        build(
            str(provenance),
            {name: float(value) for name, value in (metrics | ESTIMATES).items() if not isinstance(value, str)},
            texts={name: value for name, value in metrics.items() if isinstance(value, str)},
            compiler="vela 5",
            device="the board (r)",
        )
        for provenance, metrics in OF_DEVICES.items()
    ]
    return compare(builds)


def test_no_column_of_a_comparison_has_two_provenances() -> None:
    found = comparison()
    for column in found.columns:
        with_value = [one for one in found.builds if column.value(one) is not None]
        if column.metric.startswith(("device_", "measured_", "emulated_", "simulated_")):
            assert len(with_value) == 1, column
            (only,) = with_value
            assert f"({only.label} on the board (r)" in title(column)
        elif column.metric in ESTIMATES:
            tool = "lowerdeck" if "memory" in column.metric else "vela 5"
            assert title(column).endswith(f"(estimated by {tool})")
    exact = [column for column in found.columns if column.metric == "device_exact_share"]
    assert len(exact) == 3, "one for each provenance"


def test_exports_of_a_comparison() -> None:
    found = comparison()
    heads, *_ = csv.reader(io.StringIO(exports.as_csv(found)))
    assert len(heads) == len(set(heads))
    for kind in ("measured on a device", "emulated (instructions real, time not)", "simulated"):
        assert f"device_exact_share [{kind}, the board (r)]" in heads
    for column in json.loads(exports.as_json(found))["metrics"]:
        assert column["source"] or column["kind"] == "counted in the program", column
    printed = io.StringIO()
    print_comparison(found, Console(file=printed, width=1000), top=None, metrics=("total_cycles",))
    for word in re.findall(r"total cycles[^│|\n]{0,20}", printed.getvalue()):
        assert re.search(r"measured|emulated|simulated|estimated", word), word


def test_gates_name_the_provenance_of_what_they_bound() -> None:
    metrics = ESTIMATES | OF_DEVICES[Provenance.EMULATED]
    bounds = {"max_estimated_total_cycles": 1.0, "max_emulated_total_cycles": 1.0, "max_measured_total_cycles": 1.0}
    failed = failed_gates(bounds, metrics)
    assert "estimated_total_cycles is 111111" in failed["max_estimated_total_cycles"]
    assert "emulated_total_cycles is 333333" in failed["max_emulated_total_cycles"]
    assert "measured_total_cycles is 'not measured'" in failed["max_measured_total_cycles"], "an emulated one is none"


def test_what_a_device_is_measured_to_do_beside_what_was_estimated() -> None:
    def metric(provenance: Provenance, value: float, source: str) -> DeviceMetric:
        return DeviceMetric(name="method_allocator_bytes", value=value, provenance=provenance, source=source)

    measured = Measurement(
        device="the board",
        title="t",
        provenance=Provenance.EMULATED,
        program_sha256="a" * 64,
        image=None,
        metrics=[metric(Provenance.EMULATED, 333_333.0, "the board")],
        estimates=[metric(Provenance.ESTIMATED, 555_555.0, "lowerdeck")],
    )
    check(device_report(measured), expected=2)


def test_configuration_has_no_gate_without_provenance() -> None:
    bounded = [field.name for field in fields(GatesConfig) if re.search("_ms$|latency|sram|shortfall", field.name)]
    assert bounded
    assert all(re.match("max_(estimated|measured|emulated|simulated)_", name) for name in bounded)
