"""Arm Ethos-U: EthosUQuantizer -> EthosUPartitioner -> TOSA -> Vela."""
