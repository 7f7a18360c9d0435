"""The number representations that cases are measured in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lowerdeck.contracts.quantization import QuantizationScheme

PRECISIONS: Mapping[str, QuantizationScheme] = MappingProxyType(
    {
        "float32": QuantizationScheme(name="float32"),
        "float16": QuantizationScheme(name="float16"),
        "int8": QuantizationScheme(name="int8"),
        "int8_per_tensor": QuantizationScheme(name="int8", weight_granularity="per_tensor"),
        "int8_dynamic": QuantizationScheme(name="int8_dynamic"),
        "int8_dynamic_per_tensor": QuantizationScheme(name="int8_dynamic", weight_granularity="per_tensor"),
        "int8_dynamic_int4": QuantizationScheme(
            name="int8_dynamic_int4_weight", weight_granularity="per_group", group_size=32
        ),
        "int16x8": QuantizationScheme(name="int16x8"),
    }
)
"""`int8` has fixed ranges, and weight scales as the backend's vendor recommends. `int8_dynamic` finds the ranges of
activations at run time; `int8_dynamic_int4` also has 4-bit weights in groups."""
