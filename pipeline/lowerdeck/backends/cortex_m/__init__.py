"""Arm Cortex-M: CortexMQuantizer -> CortexMPassManager -> a program of ExecuTorch's cortex_m operators (CMSIS-NN)."""
