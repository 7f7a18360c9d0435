"""What quantize says of a program that is far from the float one."""

from __future__ import annotations

from lowerdeck.contracts.evaluation import LossyLayer, QuantizationLoss
from lowerdeck.execution.quantization_warning import where_lost

LAYER = LossyLayer(
    node="linear", operator="aten.linear.default", module="head", sqnr_db=1.0, inputs_sqnr_db=30.0, ways_out=("a",)
)


def test_layers_are_listed() -> None:
    loss = QuantizationLoss(sqnr_db=1.0, num_samples=4, layers=(LAYER, LAYER))
    assert where_lost(loss) == f"It is lost at\n  {LAYER}\n  {LAYER}"


def test_without_a_layer_it_says_so_and_names_ways_out() -> None:
    """It said "It is lost at", and ended."""
    said = where_lost(QuantizationLoss(sqnr_db=-12.2, num_samples=4, layers=()))
    assert said.startswith("No tensor that both programs have is that far off.")
    assert "quantization.keep_float" in said
