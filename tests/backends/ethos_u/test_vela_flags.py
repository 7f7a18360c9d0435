"""Vela's flags: the tables against the installed Vela, what is refused, and what the permitted ones change."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck.backends.ethos_u import options as ethos_u
from lowerdeck.backends.ethos_u import vela, vela_config, vela_flags, vela_layers
from lowerdeck.backends.ethos_u.backend import EthosU
from tests.conftest import Lowered
from tests.marks import quick_first
from tests.networks import lowered_network


@dataclass(frozen=True)
class Subject:
    """A network and what it is compiled for."""

    target: str
    system: str
    mode: str
    network: str = "deep"

    def __str__(self) -> str:
        return f"{self.network} {self.target}"


U55 = Subject("ethos_u55_128", "Ethos_U55_High_End_Embedded", "Shared_Sram")
U85 = Subject("ethos_u85_256", "Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB")
SMALL_U55 = replace(U55, network="small")


class Stop(Exception):
    pass


def test_the_tables_hold_every_flag_of_the_installed_vela(monkeypatch: pytest.MonkeyPatch) -> None:
    from ethosu.vela import vela as installed

    parsers = []

    def stop(parser: argparse.ArgumentParser, *arguments: Any) -> None:
        parsers.append(parser)
        raise Stop

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(Stop):
        installed.main([])
    names = {flag.removeprefix("--") for flag in parsers[0]._option_string_actions if flag.startswith("--")}
    assert names == vela_flags.KNOWN


def refused(*flags: str, family: str = "U55") -> list[tuple[int, str]]:
    return list(vela_flags.problems(flags, family))


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--accelerator-config=ethos-u55-64", "is set by target.device.accelerator"),
        ("--config=mine.ini", "is set by target.options.vela_config"),
        ("--memory-mode=Sram_Only", "is set by target.options.memory_mode"),
        ("--system-config=x", "is set by target.options.system_config"),
        ("--output-dir=x", "is set by the pipeline"),
        ("--output-format=tflite", "is set by the pipeline"),
        ("--hillclimb-max-iterations=9", "accepts --hillclimb-max-iterations but ignores it"),
        ("--ignore-ops=CONV_2D", "ignores it"),
        ("--version", "would exit without compiling"),
        ("--debug-force-legacy-core", "for TFLite files only"),
        ("--optimize=Size", "Vela has no --optimize. Did you mean optimise?"),
        ("--opt=Size", "Vela has no --opt."),
        ("--optimise", "--optimise= has to be Performance or Size"),
        ("--optimise=size", "--optimise= has to be Performance or Size"),
        ("--optimise Size", "is not a flag; write --name or --name=value without spaces"),
        ("model.tosa", "is not a flag"),
        ("--arena-cache-size=0", "has to be a number of bytes"),
        ("--arena-cache-size=1e6", "has to be a number of bytes"),
        ("--cpu-tensor-alignment=24", "has to be a power of two, at least 16"),
        ("--tensor-allocator=Greedy", "has to be HillClimb or LinearAlloc"),
        ("--verbose-graph=1", "takes no value"),
        ("--disable-fwd", "has no effect on an Ethos-U55, only on Ethos-U85"),
        ("--separate-io-regions", "also needs --cop-format=COP2"),
    ],
)
def test_flags_that_would_be_ignored_or_rejected_late(flag: str, expected: str) -> None:
    assert [(index, expected in message) for index, message in refused(flag)] == [(0, True)], refused(flag)


def test_only_the_flag_that_is_wrong_is_named() -> None:
    assert refused("--optimise=Size", "--cop-format=COP2", "--separate-io-regions") == []
    (found,) = refused("--verbose-graph", "--optimise=Size", "--optimise=Performance")
    assert found[0] == 2
    assert "given twice" in found[1]


class Deep(nn.Module):
    """Enough channels for every optimisation of Vela to have something to do: float32 [1 x 16 x 16 x 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(16, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1, groups=64),
            nn.ReLU(),
            nn.Conv2d(64, 128, 1),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(128, 64, 3),
        )
        self.last = nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        x = x + self.last(x)
        return x + torch.sigmoid(x)


@pytest.fixture(scope="module")
def compiled(
    lowered: Callable[[str], Lowered], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., vela.Compiled]:
    """(subject, flags) -> what Vela makes of it."""
    graphs: dict[Subject, bytes] = {}
    folder, config = tmp_path_factory.mktemp("flags"), vela_config.read(None)
    made: dict[tuple[Subject, tuple[str, ...]], vela.Compiled] = {}

    def graph(subject: Subject) -> bytes:
        small = lowered(subject.target)
        if subject.network == "small":
            return small.converted.partitions[0].twin or b""
        torch.manual_seed(0)
        deep = lowered_network(Deep().eval(), [1, 16, 16, 16], small.backend(), folder / subject.target)
        return deep.partitions[0].twin or b""

    def get(subject: Subject, *flags: str) -> vela.Compiled:
        if subject not in graphs:
            graphs[subject] = graph(subject)
        if (subject, flags) not in made:
            own = {
                "accelerator-config": lowered(subject.target).target["device"]["accelerator"],
                "system-config": subject.system,
                "memory-mode": subject.mode,
                "config": config.flag,
                "output-format": "raw",
            }
            made[subject, flags] = vela.compile_tosa(
                graphs[subject],
                [*flags, *(f"--{name}={value}" for name, value in own.items())],
                config=config,
                system=subject.system,
                placements={},
                folder=folder / str(len(made)),
                timeout_s=60,
            )
        return made[subject, flags]

    return get


CHANGE_THE_PROGRAM = [
    (U55, "--optimise=Size"),
    (U55, "--arena-cache-size=20000"),
    (U55, "--cpu-tensor-alignment=64"),
    (U55, "--tensor-allocator=LinearAlloc"),
    (U55, "--cop-format=COP2"),
    (U55, "--disable-buffering"),
    (U55, "--disable-cascading"),
    (SMALL_U55, "--disable-ifm-reuse"),
    (U85, "--disable-chaining"),
    (U85, "--disable-fwd"),
]
ADD_TO_THE_REPORTS = {
    "--enable-debug-db": ("vela_debug.xml", b"<"),
    "--show-cpu-operations": ("vela.log", b"NPU: Conv2D"),
    "--verbose-allocation": ("vela.log", b"Allocation, memory Sram"),
    "--verbose-config": ("vela.log", b"core_clock"),
    "--verbose-cycle-estimate": ("vela.log", b"NPU cycles"),
    "--verbose-graph": ("vela.log", b"Conv2D"),
    "--verbose-high-level-command-stream": ("vela.log", b"Conv2D"),
    "--verbose-performance": ("vela_per-layer.csv", b"Conv2D"),
    "--verbose-quantization": ("vela.log", b"cale"),
    "--verbose-register-command-stream": ("vela.log", b"NPU_SET"),
    "--verbose-schedule": ("vela.log", b"chedule"),
    "--verbose-weights": ("vela.log", b"NPU Encoded Weights Size"),
    "--verbose-all": ("vela.log", b"NPU_SET"),
}


def test_every_permitted_flag_is_shown_here() -> None:
    shown = {flag.partition("=")[0] for _, flag in CHANGE_THE_PROGRAM} | set(ADD_TO_THE_REPORTS)
    assert shown | {"--separate-io-regions"} == {f"--{name}" for name in vela_flags._PERMITTED}


@pytest.mark.parametrize(("subject", "flag"), quick_first(CHANGE_THE_PROGRAM), ids=str)
def test_the_flag_changes_the_program(compiled: Callable[..., vela.Compiled], subject: Subject, flag: str) -> None:
    assert refused(flag, family="U85" if subject is U85 else "U55") == []
    changed = compiled(subject, flag).result.processed_bytes != compiled(subject).result.processed_bytes
    assert changed


@pytest.mark.slow
def test_inputs_and_outputs_may_have_regions_of_their_own(compiled: Callable[..., vela.Compiled]) -> None:
    flags = ("--cop-format=COP2", "--separate-io-regions")
    changed = compiled(U85, *flags).result.processed_bytes != compiled(U85, flags[0]).result.processed_bytes
    assert changed


@pytest.mark.parametrize("flag", quick_first(ADD_TO_THE_REPORTS, 2))
def test_the_flag_adds_to_the_reports(compiled: Callable[..., vela.Compiled], flag: str) -> None:
    report, expected = ADD_TO_THE_REPORTS[flag]
    assert refused(flag) == []
    with_flag, without = compiled(U55, flag), compiled(U55)
    assert expected in with_flag.reports[report]
    assert (with_flag.reports[report] == without.reports.get(report)) is (flag in vela_layers.FLAGS)  # always set
    assert with_flag.result == without.result


def test_size_needs_less_memory_and_more_time(compiled: Callable[..., vela.Compiled]) -> None:
    small, fast = compiled(U55, "--optimise=Size").estimates, compiled(U55).estimates
    assert small["sram_bytes"] < fast["sram_bytes"]
    assert small["inference_time_ms"] > fast["inference_time_ms"]


def test_reports_depend_on_nothing_but_the_graph(compiled: Callable[..., vela.Compiled], tmp_path: Path) -> None:
    reports = compiled(U55, "--verbose-all").reports | compiled(U55, "--enable-debug-db").reports
    for name, content in reports.items():
        assert b"/tmp" not in content, name
        assert b"site-packages" not in content, name


def test_the_check_of_the_backend_names_the_position() -> None:
    device = ethos_u.Device(accelerator="ethos-u55-128")
    options = ethos_u.Options(
        system_config=U55.system, memory_mode=U55.mode, extra_flags=["--verbose-graph", "--timing"]
    )
    assert [key for key, _ in EthosU(device=device, options=options).check()] == ["options.extra_flags.1"]
