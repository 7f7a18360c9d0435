"""`lowerdeck run`: a small program that is really lowered, as a process and as a function."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import nn

from lowerdeck.artifacts import paths
from lowerdeck.cli.run_program import describe, run_program
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import DelegateCall, KernelCall, Value
from lowerdeck.runtime.loading import open_program
from tests.marks import quick_first
from tests.project import SOURCES
from tests.runtime.lowering import Lowered, lower
from tests.runtime.test_batched_method import Doubling, program
from tests.runtime.test_interpreter_by_hand import spec


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(torch.relu(self.conv(x)).flatten(1))
        return scores


class TwoInputs(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 2 * y, x - y


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Lowered]:
    """(target) -> the build of `Images`, made at the first call."""
    made: dict[str, Lowered] = {}

    def get(target: str) -> Lowered:
        if target not in made:
            torch.manual_seed(0)
            samples = [(torch.rand(1, 3, 8, 8),) for _ in range(3)]
            made[target] = lower(Images(), samples, target, tmp_path_factory.mktemp(target) / "build_folder")
        return made[target]

    return get


@pytest.fixture(scope="module")
def two_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A portable program with two inputs and two outputs, without a manifest."""
    from executorch.exir import to_edge

    exported = torch.export.export(TwoInputs(), (torch.ones(1, 3), torch.ones(1, 3)))
    path = tmp_path_factory.mktemp("two") / "two.pte"
    path.write_bytes(to_edge(exported).to_executorch().buffer)
    return path


@pytest.fixture
def x(tmp_path: Path) -> npt.NDArray[np.float32]:
    array = np.random.default_rng(0).random((1, 3, 8, 8), dtype=np.float32)
    np.save(tmp_path / "x.npy", array)
    array.tofile(tmp_path / "x.bin")
    np.savez(tmp_path / "x.npz", x=array)
    return array


def lowerdeck_run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lowerdeck.cli", "run", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class TestProcess:
    @pytest.mark.parametrize(
        ("target", "delegate", "executor"),
        quick_first(
            [
                ("neutron", "NeutronBackend (1 partition)", "LiteRT reference kernels"),
                ("ethos_u", "EthosUBackend (1 partition)", "TOSA reference model"),
                ("xnnpack", "XnnpackBackend (1 partition)", "ExecuTorch runtime"),
            ]
        ),
    )
    def test_what_it_prints_and_writes(
        self,
        lowered: Callable[[str], Lowered],
        x: npt.NDArray[np.float32],
        tmp_path: Path,
        target: str,
        delegate: str,
        executor: str,
    ) -> None:
        build = lowered(target)
        done = lowerdeck_run(build.program, "--inputs", tmp_path / "x.npy", "--output", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        for message in (
            "method forward",
            "input 0: float32 [1, 3, 8, 8]",
            "output 0: float32 [1, 5]",
            delegate,
            executor,
        ):
            assert message in done.stdout, message
        assert "1 run: median" in done.stdout
        assert "loaded in" in done.stdout
        assert "WARNING" not in done.stdout + done.stderr
        (expected,) = build.open()(torch.from_numpy(x))
        found = np.load(tmp_path / "out" / "output_0.npy")
        assert found.dtype == np.float32
        assert found.tobytes() == expected.numpy().tobytes() == (tmp_path / "out" / "output_0.bin").read_bytes()

    @pytest.mark.slow
    def test_a_program_can_be_described_alone(self, lowered: Callable[[str], Lowered]) -> None:
        done = lowerdeck_run(lowered("neutron").program)
        assert done.returncode == 0, done.stderr
        assert "input 0" in done.stdout
        assert "median" not in done.stdout

    def test_a_cut_program_is_an_error_and_no_crash(self, lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
        path = tmp_path / "cut.pte"
        path.write_bytes(lowered("xnnpack").program.read_bytes()[:3000])
        done = lowerdeck_run(path)
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.startswith("lowerdeck run: ")
        assert "damaged" in done.stderr

    def test_an_altered_program_is_refused_by_its_manifest(
        self, lowered: Callable[[str], Lowered], x: npt.NDArray[np.float32], tmp_path: Path
    ) -> None:
        build = lowered("neutron")
        (tmp_path / "program.pte").write_bytes(build.program.read_bytes()[:-1] + b"?")
        (tmp_path / "manifest.json").write_bytes((build.program.parent / "manifest.json").read_bytes())
        done = lowerdeck_run(tmp_path / "program.pte", "--inputs", tmp_path / "x.npy")
        assert done.returncode == 1
        assert "SHA-256" in done.stderr


class TestInputs:
    def test_every_form_gives_the_same_bytes(
        self,
        lowered: Callable[[str], Lowered],
        x: npt.NDArray[np.float32],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        program = lowered("xnnpack").program
        monkeypatch.chdir(lowered("xnnpack").folder)  # a program of this build is not tried in a process first
        answers = set()
        for suffix in ("npy", "bin", "npz"):
            run_program(program, [tmp_path / f"x.{suffix}"], tmp_path / suffix)
            answers.add((tmp_path / suffix / "output_0.bin").read_bytes())
        assert len(answers) == 1

    @pytest.mark.slow
    def test_images_are_resized_scaled_and_normalized(self, lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
        build = lowered("xnnpack")
        (tmp_path / "images").mkdir()
        pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / "b.png")
        Image.new("L", (20, 10), 128).save(tmp_path / "images" / "a.png")
        (tmp_path / "images" / "notes.txt").write_text("no image")
        mean, std = (0.5, 0.4, 0.3), (0.2,)
        executed = run_program(build.program, [tmp_path / "images"], tmp_path / "out", mean=mean, std=std)
        assert len(executed.latencies_ms) == 2
        assert [path.parent.name for path in executed.written[::2]] == ["a.png", "b.png"]
        program = open_program(build.program)
        normalize = torch.tensor(mean).reshape(1, 3, 1, 1)
        exact = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
        grey = torch.full((1, 3, 8, 8), 128 / 255)
        for name, image in (("b.png", exact), ("a.png", grey)):
            (expected,) = program(((image - normalize) / 0.2).contiguous())
            assert np.load(tmp_path / "out" / name / "output_0.npy") == pytest.approx(expected.numpy(), abs=1e-5)

    @pytest.mark.slow
    def test_several_inputs_and_outputs(self, two_inputs: Path, tmp_path: Path) -> None:
        arrays = [np.array([[1, 2, 3]], np.float32), np.array([[10, 20, 30]], np.float32)]
        for index, array in enumerate(arrays):
            np.save(tmp_path / f"{index}.npy", array)
        np.savez(tmp_path / "both.npz", input_1=arrays[1], input_0=arrays[0])
        for given in ([tmp_path / "0.npy", tmp_path / "1.npy"], [tmp_path / "both.npz"]):
            executed = run_program(two_inputs, given, tmp_path / "out")
            assert len(executed.written) == 4
            assert np.load(tmp_path / "out" / "output_0.npy").tolist() == [[21, 42, 63]]
            assert np.load(tmp_path / "out" / "output_1.npy").tolist() == [[-9, -18, -27]]
        assert "2 files" not in "".join(describe(two_inputs, executed))


class TestRefusals:
    @pytest.fixture
    def refusal(
        self,
        lowered: Callable[[str], Lowered],
        x: npt.NDArray[np.float32],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Callable[..., str]:
        """(names of files, options) -> the message."""
        monkeypatch.chdir(lowered("xnnpack").folder)  # the build of the project is not tried in a process first
        np.save(tmp_path / "double.npy", x.astype(np.float64))
        np.save(tmp_path / "small.npy", x[..., :4])
        np.save(tmp_path / "object.npy", np.array([None]), allow_pickle=True)
        (tmp_path / "short.bin").write_bytes(b"12345")
        for name in ("broken.npy", "broken.npz", "broken.png", "some.txt"):
            (tmp_path / name).write_bytes(b"nothing")
        (tmp_path / "empty").mkdir()

        def get(*names: str, **options: Any) -> str:
            with pytest.raises(LowerdeckError) as raised:
                run_program(
                    lowered("xnnpack").program, [tmp_path / name for name in names], tmp_path / "out", **options
                )
            assert not (tmp_path / "out").exists()
            return str(raised.value)

        return get

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            ((), "takes 1 inputs"),
            (("x.npy", "x.npy"), "2 files were given"),
            (("double.npy",), "float64"),
            (("small.npy",), "[1, 3, 8, 4]"),
            (("object.npy",), "cannot be read"),
            (("short.bin",), "5 bytes; input 0 is float32 [1, 3, 8, 8], 768 bytes"),
            (("broken.npy",), "broken.npy cannot be read"),
            (("broken.npz",), "broken.npz cannot be read"),
            (("broken.png",), "broken.png cannot be decoded"),
            (("some.txt",), "not a readable kind of input"),
            (("missing.npy",), "No such file"),
            (("missing.png",), "No such file"),
            (("empty",), "contains no images"),
            (("x.npy", "x.npz"), "mixes kinds"),
        ],
        ids=str,
    )
    def test_inputs_that_do_not_fit(self, refusal: Callable[..., str], names: tuple[str, ...], message: str) -> None:
        assert message in refusal(*names)

    def test_options_that_do_not_fit(self, refusal: Callable[..., str], tmp_path: Path) -> None:
        Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
        assert "it has: forward" in refusal("x.npy", method="backward")
        assert "--mean has 2 values" in refusal("x.png", mean=(1.0, 2.0))
        assert "above 0" in refusal("x.png", std=(0.0,))
        assert "no resolver 'fast'" in refusal("x.npy", resolver="fast")
        assert "normalize images alone" in refusal("x.npy", mean=(0.5,))
        assert "normalize images alone" in refusal("x.npy", std=(0.5,))
        assert f"--twins {tmp_path / 'absent'} is not a folder" in refusal("x.npy", twins=tmp_path / "absent")

    def test_images_are_for_one_image_input(self, two_inputs: Path, tmp_path: Path) -> None:
        Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
        with pytest.raises(LowerdeckError, match="one input"):
            run_program(two_inputs, [tmp_path / "x.png"])

    def test_a_missing_twin_is_named(
        self, lowered: Callable[[str], Lowered], x: npt.NDArray[np.float32], tmp_path: Path
    ) -> None:
        build = lowered("ethos_u")
        with pytest.raises(LowerdeckError, match="twin"):
            run_program(build.program, beside=False)
        manifest = json.loads((build.folder / paths.MANIFEST).read_text())
        twin = manifest["partitions"][0]["twin"]
        with pytest.raises(LowerdeckError, match=twin):
            run_program(build.program, twins=tmp_path)


class Picky(Doubling):
    """A twin that refuses negative numbers."""

    def __call__(self, arguments: Any) -> None:
        if bool((arguments[0] < 0).any()):
            raise RuntimeError("negative")
        super().__call__(arguments)


@pytest.mark.parametrize("suffix", ["npy", "bin", "npz"])
def test_values_that_are_no_numbers_are_reported(
    suffix: str, two_inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quantized program makes plausible logits of an image of NaN."""
    bad, good = np.full((1, 3), np.nan, np.float32), np.ones((1, 3), np.float32)
    for name, values in (("bad", bad), ("good", good)):
        np.save(tmp_path / f"{name}.npy", values)
        values.tofile(tmp_path / f"{name}.bin")
    np.savez(tmp_path / "both.npz", input_0=bad, input_1=good)
    files = [tmp_path / "both.npz"] if suffix == "npz" else [tmp_path / f"{name}.{suffix}" for name in ("bad", "good")]
    run_program(two_inputs, files)
    assert f"3 of 3 values of input 0 ({files[0]}) are NaN or infinite" in capsys.readouterr().err
    run_program(two_inputs, [tmp_path / "good.npy"] * 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("given", [{"mean": [math.inf]}, {"std": [1.0, math.nan, 1.0]}])
def test_a_normalization_without_numbers_is_refused(given: dict[str, Any], two_inputs: Path, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    with pytest.raises(LowerdeckError, match=r"--(mean|std) is .*; pass finite numbers"):
        run_program(two_inputs, [tmp_path / "x.png"], **given)


def test_only_the_files_that_fail_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{index}.npz" for index in range(12)]
    for index, file in enumerate(files):
        np.savez(file, np.full(3, -1 if index in (2, 5) else 1, np.float32))

    def run(inputs: list[Path]) -> None:
        twin = Picky(missing="ERF")  # the reference computes it, in a batch
        values: list[Value] = [spec(3), spec(3), spec(3)]
        made = program(twin, values, DelegateCall(0, (0, 1)), KernelCall(0, (1, 2, 2)), operators=["aten::exp.out"])
        monkeypatch.setattr(made, "is_cross_checkable", lambda method: True)
        monkeypatch.setattr("lowerdeck.cli.run_program.open_program", lambda *_, **__: made)
        run_program(tmp_path / "model.pte", inputs, tmp_path / "out", beside=False)

    with pytest.raises(LowerdeckError) as error:
        run(files)
    assert [line.split(": ")[0] for line in str(error.value).splitlines()] == [str(files[2]), str(files[5])]
    assert "negative" in str(error.value)
    with pytest.raises(LowerdeckError) as error:
        run([files[0], files[2]])
    assert str(error.value).startswith(f"{files[2]}: ")
    run([files[0], *files[6:]])


def test_all_files_of_a_batch_are_named_where_none_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{index}.npz" for index in range(3)]
    for file in files:
        np.savez(file, np.ones(3, np.float32))
    made = program(Doubling(), [spec(3), spec(3)], DelegateCall(0, (0, 1)), outputs=[1])
    alone = made.calls

    def calls(samples: Any, **options: Any) -> Any:
        if len(samples) > 1:
            raise LowerdeckError("together")
        return alone(samples, **options)

    monkeypatch.setattr(made, "calls", calls)
    monkeypatch.setattr("lowerdeck.cli.run_program.open_program", lambda *_, **__: made)
    with pytest.raises(LowerdeckError, match=f"^{', '.join(map(str, files))}: together$"):
        run_program(tmp_path / "model.pte", files, beside=False)
