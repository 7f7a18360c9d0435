"""Facts about a program's nodes: names, modules, source lines, MACs, memory formats, and the I/O boundary."""
