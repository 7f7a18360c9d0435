"""Executes compiled partitions beside the quantized subgraphs that they replace, and finds the operator to blame."""
