"""Which condition of a backend's own check refused a node, and with which values."""
