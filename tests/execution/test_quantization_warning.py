"""What quantize says of a program that is far from the float one."""

from __future__ import annotations

from dataclasses import replace

from tests.handmade_build import LOSS


def test_layers_are_listed_each_in_a_line_with_what_may_help() -> None:
    first, *layers = replace(LOSS, layers=LOSS.layers * 2).lines
    assert first == (
        "the quantized program is far from the float one: 3.2 dB on 4 calibration samples "
        "(quantization.warn_below_sqnr_db: 10). It is lost at"
    )
    assert layers == [str(LOSS.layers[0])] * 2


def test_without_a_layer_it_says_so_and_names_ways_out() -> None:
    """It said "It is lost at", and ended."""
    said = str(replace(LOSS, layers=()))
    assert "No tensor that both programs have is that far off." in said
    assert "quantization.keep_float" in said
