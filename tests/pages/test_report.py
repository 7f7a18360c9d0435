"""What is said about a build: in the terminal, as a page, and in words shared with MLflow."""

import dataclasses
import html.parser
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.evaluation_results import read_confusion
from lowerdeck.artifacts.files import write_json, write_table
from lowerdeck.artifacts.plans import read_plan
from lowerdeck.artifacts.quantization_report import write_quantization_report
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.memories import Memory
from lowerdeck.contracts.plan import CMSIS_NN, PlannedNode, Reason, ReasonCode
from lowerdeck.firmware.memory_budget import Part, memory_budget
from lowerdeck.pages import report
from lowerdeck.pages.explanation import export
from lowerdeck.provenance import lineage
from lowerdeck.report import summary, terminal
from lowerdeck.report.build import current_run_page, read_build
from lowerdeck.report.markdown import as_markdown
from lowerdeck.report.quantization import clipped_text
from tests.handmade_build import LAYERS, NODES, write_build, write_config


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(**options: Any) -> str:
    text = io.StringIO()
    console = Console(file=text, **({"width": 80} | options))
    terminal.print_table(read_build(), console)
    return text.getvalue()


def rows_of(text: str) -> dict[str, str]:
    """Name -> value of the printed table."""
    pairs = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in text.splitlines())
    return dict(pair for pair in pairs if len(pair) == 2)


class Page(html.parser.HTMLParser):
    """Tags of a page, checked for being closed, and its text."""

    VOID = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def table_after(text: str, heading: str, next_heading: str) -> list[str]:
    """The cells of the table between two headings."""
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    return [line for line in text[start : text.index(f"\n{next_heading}\n", start)].splitlines() if line]


class TestTerminal:
    def test_every_figure_is_there(self) -> None:
        write_build()
        table = rows_of(printed())
        assert table["target"] == "neutron_imxrt700 (neutron)"
        assert table["flavor"] == "reference (test-converter 7.1)"
        assert table["float accuracy"] == "100.00 % of 4 samples"
        assert table["quantized accuracy"] == "75.00 % of 4 samples"
        assert table["delegated accuracy"] == "not measured"
        assert table["delegated nodes"] == "2 of 3 in 1 partition"
        assert table["delegated MACs"] == "75.0 % of 4,000"
        assert "delegated parameters" not in table  # the model has none
        assert table["crossings"] == "2 tensors, 1,536 bytes (1.5 KiB) per inference"
        assert table["transposes"] == "0 at the boundary, 2 inserted in delegates"
        assert table["left on the CPU"] == "1 neighbour, 1 no converter"
        assert table["size"] == "2,048 bytes (2.0 KiB)"
        assert table["estimated inference time"] == "1.250 ms (estimated by Reference)"
        assert "delegated against quantized" not in table

    def test_sizes_that_vary_are_shown(self) -> None:
        write_build()
        assert "inputs" not in rows_of(printed())
        build = read_build()
        tensor = {"dtype": "int8", "shape": [1, 3, 64, 64], "is_dynamic": True}
        rows = summary.rows(build.config, build.metrics, {**build.manifest, "inputs": [tensor]})
        assert ("inputs", "int8 up to [1, 3, 64, 64]") in rows

    def test_intervals_and_lsb_errors_stand_beside_their_samples(self) -> None:
        write_build(
            metrics={
                "delegated_accuracy": 0.75, "delegated_accuracy_low": 0.3006, "delegated_accuracy_high": 0.9544,
                "delegated_error_max_lsb": 1.0, "delegated_error_mean_lsb": 0.0401, "delegated_exact_share": 0.973,
                "worst_layer": "conv2d (features.0)", "worst_layer_sqnr_db": 9.25,
            }
        )  # fmt: skip
        table = rows_of(printed())
        assert table["delegated accuracy"] == "75.00 % of 4 samples (95 %: 30.1 to 95.4)"
        assert table["delegated against quantized"] == "max 1 LSB, mean 0.04, 97.3 % exact"
        assert table["worst layer"] == "conv2d (features.0): 9.2 dB SQNR"

    def test_of_the_estimates_only_the_most_asked_for(self) -> None:
        names = (
            "total_cycles",
            "npu_cycles",
            "macs",
            "sram_bytes",
            "shram_bytes",
            "off_chip_flash_bytes",
            "dram_bytes",
        )
        write_build(
            metrics={f"estimated_{name}": 0 if name == "dram_bytes" else 7 for name in names}
            | {"delegated_error_max_lsb": 1.0, "delegated_error_mean_lsb": 0.0, "delegated_exact_share": 1.0}
            | {"worst_layer": "x", "worst_layer_sqnr_db": 1.0},
            gates={"max_program_bytes": 1},
        )
        table = rows_of(printed())
        estimated = [what for what in table if what.startswith("estimated")]
        assert estimated == [
            "estimated inference time", "estimated total cycles", "estimated SRAM", "estimated off chip flash",
        ]  # fmt: skip
        # The page has all of them, each once.
        shown = Page(report.render(read_build())).text
        assert "estimated MACs" in shown
        assert shown.count("estimated total cycles") == 1

    def test_gates_that_were_chosen_are_judged(self) -> None:
        write_build(gates={"name": "strict", "min_quantized_accuracy": 0.7})
        assert rows_of(printed())["gates strict"] == "all passed"
        write_build(gates={"name": "strict", "min_quantized_accuracy": 0.8})
        text = " ".join(printed().split())
        assert "1 failed. gates.min_quantized_accuracy: quantized_accuracy is 0.75" in text

    def test_the_caveat_and_the_ways_on_are_there(self) -> None:
        write_build()
        text = printed()
        assert "reference flavor: runs on the host only, not on the NPU" in text
        for words in ("lowerdeck ui", "build/report.html", "build/firmware.zip", "dvc metrics diff"):
            assert words in text

    def test_defects_are_there(self) -> None:
        write_build(metrics={"mismatches": 1, "mismatch_errors": "partition tag0: conv is off by up to 9 LSB"})
        assert rows_of(printed(width=200))["do not ship"].endswith(
            "accepts: partition tag0: conv is off by up to 9 LSB"
        )
        assert "Do not ship: this build computes something else" in Page(report.render(read_build())).text

    def test_a_device_flavor_has_no_caveat(self) -> None:
        write_build(flavor={"name": "vela"})
        assert "host only" not in printed()
        assert "(estimated by Vela)" in printed()

    def test_random_data_is_named_in_place_of_an_accuracy(self) -> None:
        random = "meaningless: random data"
        write_build(metrics={"float_accuracy": random, "quantized_accuracy": random}, labels=None)
        table = rows_of(printed())
        assert table["float accuracy"] == table["quantized accuracy"] == random
        assert table["delegated accuracy"] == "not measured"

    def test_a_pipe_gets_the_same_words_without_colours(self) -> None:
        write_build(model={"name": "[red]model[/red]"})
        plain = printed()
        assert "\x1b" not in plain
        assert "[red]model[/red] on shapes" in plain
        assert max(map(len, plain.splitlines())) <= 80
        coloured = printed(force_terminal=True, color_system="standard")
        assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain

    def test_what_was_not_recorded_is_said(self) -> None:
        config = write_build()
        assert "not recorded yet" in printed()
        write_json(paths.LINEAGE, lineage.trace(config))
        assert "not recorded yet" not in printed()
        write_build(program=b"another")
        assert "not recorded yet" in printed()


class TestMarkdown:
    def test_it_begins_with_the_verdict_and_has_gates_and_table(self) -> None:
        write_build(gates={"name": "strict", "min_quantized_accuracy": 0.9, "min_delegated_share": 0.5})
        lines = as_markdown(read_build()).splitlines()
        assert lines[0] == r"### tiny on neutron\_imxrt700: does not ship"
        assert "- **failed**: `min_quantized_accuracy` 0.9, measured 0.75, margin -16.7 %" in lines
        assert "- passed: `min_delegated_share` 0.5, measured 0.6666666667, margin +33.3 %" in lines
        assert "| quantized accuracy | 75.00 % of 4 samples |" in lines
        assert all(line.count("|") - line.count(r"\|") == 3 for line in lines if line.startswith("|"))


def test_a_value_beside_its_bound_is_exact_everywhere() -> None:
    """`passed max_total_macs 1.25016e+07: 1.25016e+07`, although they differ by one."""
    bounds = {"max_total_macs": 12_501_633, "min_delegated_share": 0.5}
    config = write_build({"total_macs": 12_501_632}, gates={"name": "strict", "metrics": bounds})
    build = read_build()
    shown = " ".join(Page(report.render(build)).text.split())
    assert "passed max_total_macs 12501633: 12501632" in shown
    assert "- passed: `max_total_macs` 12501633, measured 12501632, margin +0.0 %" in as_markdown(build)
    bundled = dict(summary.bundle_record(config, build.metrics))
    assert bundled["gate max_total_macs"] == "12501633: passed"


def test_shares_are_never_rounded_to_all() -> None:
    """`1e+02 %` of values were clipped, and `mean 0.0004, 100.0 % exact` contradicts itself."""
    off = {"delegated_error_max_lsb": 3.0, "delegated_error_mean_lsb": 0.0004, "delegated_exact_share": 0.9997}
    assert summary.delegated_vs_quantized(off) == "max 3 LSB, mean 0.0004, 99.9 % exact"
    assert [clipped_text(share) for share in (0.0, 0.00123, 0.5, 0.994, 0.997, 0.9999, 1.0)] == [
        *("none", "0.12 %", "50 %", "99.4 %", "99.7 %", "99.9 %", "100.0 %"),
    ]


def test_names_of_classes_are_read_in_any_locale() -> None:
    """In the one of many containers, C, classes.csv and confusion.csv could not be read."""
    write_table(paths.CONFUSION, ("actual", "predicted"), [("Müll", "Katze")])
    write_table(paths.CLASSES, ("class", "num_samples"), [("Müll", 1)])
    program = (
        "from lowerdeck.artifacts import evaluation_results as read, paths\n"
        "print(ascii([*read.read_confusion(paths.CONFUSION).labels, read.read_classes(paths.CLASSES)[0].label]))"
    )
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=ascii_only, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == ascii(["Katze", "Müll", "Müll"]), done.stderr


def _pages_of_the_build() -> tuple[str, str]:
    """The report, and the page of `lowerdeck explain`."""
    explained = export.render(read_plan(), None, run_page=current_run_page())
    return report.render(read_build()), explained[paths.EXPLANATION.name]


class TestPage:
    def test_a_recorded_build_links_its_run(self) -> None:
        write_build()
        assert "MLflow run</a>" not in report.render(read_build())
        recorded = lineage.trace(write_build())
        write_json(paths.LINEAGE, recorded)
        local = "http://127.0.0.1:5000/#/experiments/1/runs/ab"
        write_json(paths.MLFLOW_RUN, {"build_key": recorded["build_key"], "address": local})
        for page in _pages_of_the_build():
            assert f'href="{local}"' in page
            assert "while <code>lowerdeck ui</code> runs" in page
        write_json(paths.MLFLOW_RUN, {"build_key": "0" * 64, "address": local})
        assert not any(local in page for page in _pages_of_the_build())

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ({"build_key": "0", "run": "ab"}, "there is no address"),
            ({"build_key": "0", "address": None}, "address is None"),
            ({"address": "http://"}, "there is no build_key"),
        ],
    )
    def test_an_address_of_a_run_that_is_none_is_refused(self, content: dict[str, Any], reason: str) -> None:
        write_json(paths.LINEAGE, lineage.trace(write_build()))
        write_json(paths.MLFLOW_RUN, content)
        message = rf"mlflow_run\.json is damaged \({reason}\); `dvc repro --force track` makes it again"
        with pytest.raises(LowerdeckError, match=message):
            read_build()
        with pytest.raises(LowerdeckError, match=message):
            current_run_page()

    def test_who_executed_the_programs_is_there(self) -> None:
        write_build(metrics={"executed_by": "LiteRT", "baseline_executed_by": "PyTorch, sample by sample"})
        shown = Page(report.render(read_build())).text
        assert "executed by\nLiteRT\n" in shown
        assert "baseline executed by\nPyTorch, sample by sample\n" in shown

    def test_ranges_are_histograms(self) -> None:
        write_build()
        page = report.render(read_build())
        assert 'aria-label="conv2d: observed -3 ... 130 of 0 ... 127.5, in 3 of 4 parts of the range"' in page
        (drawn,) = re.findall(r'<svg class="track".*?</svg>', page, re.DOTALL)
        assert re.findall(r'height="([0-9.]+)"', drawn) == ["0.183", "1.000", "0.548"]

    def test_every_part_of_a_memory_is_visible(self) -> None:
        """Boards have five parts and more; the fifth had no colour."""
        write_build()
        memory = Memory(name="sram", size_bytes=4096, holds=["planned"])
        parts = [Part(what=f"planned memory {n}", use="planned", size_bytes=10 + n, origin="x") for n in range(9)]
        page = report.render(dataclasses.replace(read_build(), memory_budget=memory_budget(parts, [memory])))
        colours = dict(re.findall(r"\.(p\d) { background: (#\w+);", page))
        used = re.findall(r'class="part (p\d+)"', page)
        assert len(used) == 9
        assert len({colours[name] for name in used[:8]}) == 8
        assert used[8] in colours

    def test_every_part_is_there(self) -> None:
        config = write_build()
        write_json(paths.LINEAGE, lineage.trace(config))
        text = report.render(read_build())
        shown = Page(text).text
        for words in (
            "75.00 %", "not measured", "2 of 3", "2.0 KiB", "runs on the host only", "31.5 dB",
            "Confusion matrix of the quantized program", "no such kernel", "aten.exp.default", "head",
            "2 of 3 compute nodes delegated in 1 partition", "tag0", "1 x aten.relu.default",
            "random, seed 3", "convert, test-converter 7.1", "version of torch", "model.options.kwargs.num_classes",
        ):  # fmt: skip
            assert words in shown, words
        traced = read_build().lineage
        assert traced is not None
        for link in traced["links"]:
            assert link["sha256"] in shown

    def test_operators_on_a_kernel_library_are_not_called_delegated(self) -> None:
        """They were, beside a tile that said `0 of 3`."""
        relu = dataclasses.replace(NODES[1], partition=None, processor=CMSIS_NN)
        write_build(nodes=(NODES[0], relu, *NODES[2:]))
        shown = Page(report.render(read_build())).text
        assert table_after(shown, "Operators", "Partitions") == [
            *("operator", "nodes", "delegated", "CMSIS-NN", "portable kernels"),
            *("aten.convolution.default", "1", "1", "0", "0"),
            *("aten.relu.default", "1", "0", "1", "0"),
            *("aten.exp.default", "1", "0", "0", "1"),
        ]
        write_build()
        shown = Page(report.render(read_build())).text
        assert table_after(shown, "Operators", "Partitions")[:4] == [
            *("operator", "nodes", "delegated", "portable kernels"),
        ]

    def test_nothing_is_loaded_and_nothing_runs(self) -> None:
        write_build()
        text = report.render(read_build())
        tags = Page(text).tags
        assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags}
        assert not [attributes for _, attributes in tags if "src" in attributes]
        links = [attributes["href"] for _, attributes in tags if "href" in attributes]
        assert set(links) == {"explain.html"}  # beside it in build/, and among a run's artifacts
        assert "url(" not in text
        assert "default-src 'none'" in text

    def test_light_and_dark_narrow_and_wide(self) -> None:
        write_build()
        text = report.render(read_build())
        assert "prefers-color-scheme: dark" in text
        assert "width=device-width" in text

    def test_all_text_is_escaped(self) -> None:
        evil = "<script>alert(1)</script>\"'&amp;"
        reason = Reason(code=ReasonCode.CONSTRAINT, message=evil)
        node = PlannedNode(name=evil, operator=evil, compute=True, partition=None, module=evil, reason=reason)
        config = write_build(
            nodes=(*NODES, node),
            metrics={"float_accuracy": evil},
            model={"name": evil, "options": {evil: evil}},
            dataset={"name": evil},
        )
        write_json(paths.LINEAGE, lineage.trace(config))
        text = report.render(read_build())
        assert "<script" not in text
        assert evil in Page(text).text

    def test_a_build_without_labels_has_no_matrix(self) -> None:
        write_build(labels=None)
        assert "Confusion matrix" not in report.render(read_build())

    def test_classes_and_layers_are_there_worst_first(self) -> None:
        write_build()
        shown = Page(report.render(read_build())).text
        assert shown.index("conv2d") < shown.index("40.0 dB")
        for words in ("Classes", "50.0 % (9 to 91)", "Layers", "9.2 dB", "features.0", "on 2 samples"):
            assert words in shown, words
        write_build(layers=(), labels=None)
        tags = Page(report.render(read_build()))
        assert "Layers" not in tags.text
        assert "Classes" not in tags.text

    def test_every_quantized_tensor_is_there_once_worst_first(self) -> None:
        write_build()
        shown = Page(report.render(read_build())).text
        section = shown[shown.index("Quantization\n") :]
        assert section.count("quantize_per_tensor") == 0  # the float program's node names it
        words = ("conv2d", "9.2 dB", "-128", "0 ... 127.5", "-3 ... 130", "2.5 %", "_frozen_param0", "44.5 dB", "none")
        places = [section.index(word) for word in words]
        assert places == sorted(places)
        assert "0.25 ... 0.5" in section
        write_quantization_report(())
        assert "zero point" not in Page(report.render(read_build())).text

    def test_many_layers_are_folded_away(self) -> None:
        layer = LAYERS[0]
        write_build(layers=(layer,) * (report.MAX_ROWS + 3))
        assert "3 more" in Page(report.render(read_build())).text

    def test_many_classes_give_a_list_of_mistakes(self) -> None:
        labels = tuple(range(report.MAX_MATRIX_CLASSES + 1))
        write_build(labels=labels, answers=(*labels[:-1], 0))
        text = report.render(read_build())
        assert 'class="matrix"' not in text
        assert "41 classes; the most frequent mistakes, of 1 in all." in Page(text).text

    def test_the_same_build_gives_the_same_page(self) -> None:
        write_build()
        assert report.render(read_build()) == report.render(read_build())


class TestReadBuild:
    def test_a_missing_artifact_names_its_stage(self) -> None:
        write_build()
        paths.METRICS.unlink()
        with pytest.raises(LowerdeckError, match="dvc repro evaluate"):
            read_build()

    def test_parts_of_different_builds_are_refused(self) -> None:
        write_build()
        write_config(flavor={"name": "vela"})
        with pytest.raises(LowerdeckError, match="parts of different builds"):
            read_build()


class TestMetrics:
    @pytest.mark.parametrize("measured", [{"float_accuracy": "not measured"}, {}])
    def test_what_is_not_measured_is_never_a_number(self, measured: dict[str, object]) -> None:
        assert summary.quality(measured | {"num_samples": 360})[0] == ("float accuracy", "not measured")

    def test_metrics_of_a_task_are_named_and_those_of_fidelity_need_no_float_program(self) -> None:
        measured = {"primary_metric": "r2", "delegated_r2": 0.5, "task_metrics.mae": "min", "delegated_mae": 1.25}
        measured |= {"num_samples": 4, "task_metrics.r2": "max share"}
        assert summary.quality(measured)[2] == ("delegated r2", "50.00 % of 4 samples")
        assert summary.further_metrics(measured) == [("mae", "1.25 delegated")]
        assert [name for name, _ in summary.quality({"primary_metric": "cosine"})] == [
            "quantized cosine",
            "delegated cosine",
        ]

    def test_comparisons_show_shares_with_their_interval(self) -> None:
        name = "delegated_agreement_with_quantized"
        measured = {name: 0.5, f"{name}_low": 0.25, f"{name}_high": 0.75, "delegated_against_quantized_sqnr_db": 40.0}
        assert summary.comparisons(measured) == [
            ("delegated against quantized SQNR", "40.0 dB"),
            ("delegated agreement with quantized", "50.00 % (95 %: 25.0 to 75.0)"),
        ]

    def test_classes_are_in_the_order_of_numbers(self) -> None:
        write_table(paths.CONFUSION, ("actual", "predicted"), [(10, 9), (9, 9), (2, 10)])
        confusion = read_confusion(paths.CONFUSION)
        assert confusion is not None
        assert confusion.labels == ("2", "9", "10")
        assert confusion.counts == [[0, 0, 1], [0, 1, 0], [0, 1, 0]]

    def test_the_matrix_is_of_the_most_real_program(self) -> None:
        assert "quantized" in summary.confusion_title({"delegated_accuracy": "not measured"})
        assert "delegated" in summary.confusion_title({"delegated_accuracy": 0.5})
