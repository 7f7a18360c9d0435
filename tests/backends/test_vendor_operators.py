"""Arm's and NXP's operator tests, as they are in the executorch wheel, through this project's steps.

A sample runs here: the first cases of every file. LOWERDECK_TEST_VENDOR_FILES narrows the files (a glob),
LOWERDECK_TEST_VENDOR_CASES says how many cases of each run, 0 for all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import executorch
import pytest

from tests.project import REPOSITORY

_BACKENDS = Path(next(iter(executorch.__path__))) / "backends"
_ARM, _NXP = _BACKENDS / "arm/test/ops", _BACKENDS / "nxp/tests/ir/converter/node_converter"
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) \S*?(test_\w+\.py::\S+)", re.MULTILINE)
KNOWN = (
    "test_cond.py::test_cond_u85_INT[",
    "test_while.py::test_while_loop_u85_INT[",
    *(f"test_{name}.py::test_{name}_u85_INT_a16w8[rank_1_dim_0]" for name in ("amax", "amin")),
    *(f"test_{name}.py::test_{name}_u85_INT_a16w8[rank_4_all_dim]" for name in ("amax", "amin")),
    "test_amin.py::test_amin_u85_INT_a16w8[rank_4_no_dim]",
    *(
        f"test_{name.format(target)}"
        for target in ("u55", "u85")
        for name in (
            *("amax.py::test_amax_{}_INT[rank_1_dim_0]", "amax.py::test_amax_{}_INT[rank_4_all_dim]"),
            *("amin.py::test_amin_{}_INT[rank_1_dim_0]", "amin.py::test_amin_{}_INT[rank_4_all_dim]"),
            *("amin.py::test_amin_{}_INT[rank_4_no_dim]", "erfinv.py::test_erfinv_{}_INT["),
            *(
                f"mean_dim.py::test_mean_dim_{{}}_INT[{case}]"
                for case in ("rank_1", "rank_2", "rank_3", "rand_0123", "rank5_01234")
            ),
            *("exp.py::test_exp_a16w8_{}_INT[", "gelu.py::test_gelu_a16w8_{}_INT[ramp_"),
            *("layer_norm.py::test_native_layer_norm_16a8w_{}_INT[", "mean_dim.py::test_mean_dim_a16w8_{}_INT["),
            *("neg.py::test_neg_{}_INT_a16w8[", "reciprocal.py::test_reciprocal_a16w8_{}_INT["),
            *("rsqrt.py::test_rsqrt_16a8w_{}_INT[", "softmax.py::test_mha_softmax_a16w8_{}_INT["),
        )
    ),
    *(f"test_tanh.py::test_tanh_16a8w_{target}[ramp]" for target in ("u55_INT16", "u85_INT")),
)
"""How tests of operators in docs/known_faults.md begin: refused with their place, or kept on the CPU as wrong."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("target", "folder", "cases"),
    [("neutron_imxrt700", _NXP, 2), ("ethos_u55_128", _ARM, 1), ("ethos_u85_256", _ARM, 1)],
    ids=["neutron_imxrt700", "ethos_u55_128", "ethos_u85_256"],
)
def test_what_the_vendors_lower_agrees_with_the_quantized_model(
    target: str, folder: Path, cases: int, tmp_path: Path
) -> None:
    files = sorted(folder.glob(os.environ.get("LOWERDECK_TEST_VENDOR_FILES", "test_*.py")))
    per_file = os.environ.get("LOWERDECK_TEST_VENDOR_CASES", str(cases))
    plugin = ["--noconftest", "-p", "tests.backends.vendor_plugin", "--vendor", target, "--per-file", per_file]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *plugin,
        "-q",
        "-rpfE",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
    ]
    folders = os.pathsep.join([str(REPOSITORY / "pipeline"), str(REPOSITORY)])
    done = subprocess.run(
        [*command, "--show-capture=no", *map(str, files)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": folders, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes = {name: outcome for outcome, name in _OUTCOME.findall(done.stdout)}
    assert "PASSED" in outcomes.values(), done.stdout + done.stderr
    failed = {name for name, outcome in outcomes.items() if outcome != "PASSED"}
    assert {name for name in failed if not name.startswith(KNOWN)} == set(), done.stdout
