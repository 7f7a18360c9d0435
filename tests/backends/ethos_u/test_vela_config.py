"""vela.ini: what Vela would reject late is refused early, for every combination of accelerator, system and mode."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from lowerdeck.backends.ethos_u import options as ethos_u
from lowerdeck.backends.ethos_u import vela_config
from lowerdeck.backends.ethos_u.backend import EthosU
from lowerdeck.contracts.errors import ConfigurationError
from tests.conftest import Lowered

BOARD = """
[System_Config.Board]
inherit=System_Config.Base
core_clock=250e6

[System_Config.Base]
core_clock=1e6
axi0_port=Sram
axi1_port=OffChipFlash
Sram_clock_scale=1.0
OffChipFlash_clock_scale=0.125

[System_Config.Fast_Memory]
core_clock=1e9
axi0_port=Sram
axi1_port=Dram
Sram_clock_scale=1.0
Dram_clock_scale=0.75

[Memory_Mode.Small]
const_mem_area=Axi1
arena_mem_area=Axi0
cache_mem_area=Axi0
arena_cache_size=4096

[Memory_Mode.Outside]
const_mem_area=Axi1
arena_mem_area=Axi1
cache_mem_area=Axi0
"""


def read(tmp_path: Path, text: str) -> vela_config.VelaConfig:
    path = tmp_path / "board.ini"
    path.write_text(text)
    return vela_config.read(str(path))


def problem(config: vela_config.VelaConfig, system: str, mode: str, family: str = "U55") -> str:
    return " ".join(": ".join(found) for found in vela_config.problems(config, system, mode, family))


# A child has what the other one needs imported already, and takes Vela's state and crashes away with it.
ASK_VELA = """
import json, os, sys
from ethosu.vela import vela

def answer(arguments):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            vela.main(arguments)
        except BaseException as error:
            os.write(writer, repr(error).encode()[:200])
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read().decode()

print(json.dumps([answer(arguments) for arguments in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def verdicts(lowered: Callable[[str], Lowered], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], str]:
    """(accelerator, system, mode) -> empty where Vela compiles the small network for it, else what it says."""
    folder = tmp_path_factory.mktemp("vela")
    for family, target in (("u55", "ethos_u55_128"), ("u65", "ethos_u55_128"), ("u85", "ethos_u85_256")):
        (folder / f"{family}.tosa").write_bytes(lowered(target).converted.partitions[0].twin or b"")
    stock = vela_config.read(None)
    commands = {}
    for accelerator in get_args(ethos_u.Accelerator):
        family = accelerator.split("-")[1]
        systems = [system for system in stock.systems if system.startswith(f"Ethos_{family.upper()}_")]
        for system, mode in itertools.product(systems, stock.memory_modes):
            flags = [f"--accelerator-config={accelerator}", f"--system-config={system}", f"--memory-mode={mode}"]
            commands[accelerator, system, mode] = [
                *flags,
                "--config=Arm/vela.ini",
                "--output-format=raw",
                f"{family}.tosa",
            ]
    asked = json.dumps(list(commands.values()))
    answered = subprocess.run(
        [sys.executable, "-c", ASK_VELA], input=asked, capture_output=True, text=True, check=True, cwd=folder
    )
    return dict(zip(commands, json.loads(answered.stdout), strict=True))


def test_what_is_let_through_is_what_vela_compiles(verdicts: dict[tuple[str, ...], str]) -> None:
    for (accelerator, system, mode), answer in verdicts.items():
        device = ethos_u.Device(accelerator=accelerator)  # type: ignore[arg-type]  # a text of the Literal
        options = ethos_u.Options(system_config=system, memory_mode=mode)
        refused = list(EthosU(device=device, options=options).check())
        assert bool(refused) == bool(answer), (accelerator, system, mode, refused, answer)


@pytest.mark.parametrize("accelerator", get_args(ethos_u.Accelerator))
def test_a_system_of_another_npu_is_refused_which_vela_would_take(accelerator: Any) -> None:
    family = accelerator.split("-")[1].upper()
    stock = vela_config.read(None)
    for system in stock.systems:
        refused = problem(stock, system, "Sram_Only", family)
        assert bool(refused) == (not system.startswith(f"Ethos_{family}_"))
        assert not refused or f"an Ethos-{family}; choose one of Ethos_{family}_" in refused


def test_sections_inherit_and_their_own_values_go_first(tmp_path: Path) -> None:
    config = read(tmp_path, BOARD)
    assert config.systems == ("Board", "Base", "Fast_Memory")
    assert config.memory_modes == ("Small", "Outside")
    assert config.core_clock_hz("Board") == 250e6
    assert problem(config, "Board", "Small") == ""


def test_a_u55_cannot_write_through_its_second_port(tmp_path: Path) -> None:
    config = read(tmp_path, BOARD)
    assert "only reads through its second port" in problem(config, "Fast_Memory", "Outside", "U55")
    assert "choose one of Small" in problem(config, "Fast_Memory", "Outside", "U55")
    assert problem(config, "Fast_Memory", "Outside", "U65") == ""


INVALID = {
    "system that is not there": ("", "", "Bord", "Small", "system_config: "),
    "mode that is not there": ("", "", "Board", "Smal", "memory_mode: "),
    "no clock": ("core_clock=1e9\n", "", "Fast_Memory", "Small", "a number of Hz above 0, e.g. core_clock=500e6"),
    "clock of zero": ("1e9", "0", "Fast_Memory", "Small", "a number of Hz above 0"),
    "clock that is no number": ("1e9", "fast", "Fast_Memory", "Small", "a number of Hz above 0"),
    "no second port": ("axi1_port=Dram\n", "", "Fast_Memory", "Small", "must set axi1_port to Sram, Dram"),
    "unknown memory": ("axi1_port=Dram", "axi1_port=Ddr", "Fast_Memory", "Small", "must set axi1_port to Sram, Dram"),
    "memory without speed": ("Dram_clock_scale=0.75\n", "", "Fast_Memory", "Small", "must set Dram_clock_scale"),
    "mode without an area": ("cache_mem_area=Axi0\narena_c", "arena_c", "Board", "Small", "cache_mem_area to Axi0 or"),
    "heir of nobody": ("System_Config.Base\n", "System_Config.Bass\n", "Board", "Small", "which is not there"),
    "heir of itself": ("System_Config.Base\n", "System_Config.Board\n", "Board", "Small", "inherits from itself"),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    old, new, system, mode, expected = INVALID[name]
    assert old in BOARD
    assert expected in problem(read(tmp_path, BOARD.replace(old, new, 1) if old else BOARD), system, mode)


@pytest.mark.parametrize("content", [b"[unclosed", b"\xff\xfe", b"value without a section", b"[a]\nclock=100%"])
def test_what_is_no_ini_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "board.ini").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"target\.options\.vela_config: .*board\.ini is not an ini file"):
        vela_config.read(str(tmp_path / "board.ini"))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match=r"target\.options\.vela_config: nowhere\.ini cannot be read: No such"):
        vela_config.read("nowhere.ini")


def test_reading_it_imports_neither_torch_nor_vela() -> None:
    program = (
        "import sys\nfrom lowerdeck.backends.ethos_u.backend import Device, EthosU, Options\n"
        "device = Device(accelerator='ethos-u55-128')\n"
        "options = Options(system_config='Ethos_U55_Deep_Embedded', memory_mode='Sram_Only')\n"
        "assert not list(EthosU(device=device, options=options).check())\n"
        "print([name for name in ('torch', 'ethosu.vela', 'numpy') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
