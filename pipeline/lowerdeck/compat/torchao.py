"""Replacements in torchao."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

HISTOGRAM_SEARCH = Replacement(
    target="torchao.quantization.pt2e.observer:HistogramObserver._non_linear_param_search",
    reason="Each request for a scale searches the range again, and so does each bias whose scale derives from it. A "
    "search takes half a second where nearly all values are in few bins.",
    for_speed_only=True,
)
FOLD_TRAINED_BATCH_NORM = Replacement(
    target="torchao.quantization.pt2e.qat_utils:_fold_conv_bn_qat_helper",
    reason="Exports dozens of patterns of layers that prepare_qat_pt2e made, which Lowerdeck never calls, if one batch "
    "norm is left, such as one in front of a convolution.",
    for_speed_only=True,
)
