"""Agreement: the share of samples on which a program has the same top-1 as the program that it was made from."""

from __future__ import annotations

from pipeline.contracts import Outputs


def compute(outputs: Outputs) -> dict[str, float]:
    """`PROGRAM_agreement_with_float` and `delegated_agreement_with_quantized` as fractions."""
    top1 = {program: logits.argmax(axis=1) for program, logits in outputs.logits.items()}
    figures = {
        f"{program}_agreement_with_float": float((top1[program] == top1["float"]).mean())
        for program in top1
        if program != "float"
    }
    if "delegated" in top1:
        figures["delegated_agreement_with_quantized"] = float((top1["delegated"] == top1["quantized"]).mean())
    return figures
