"""What is known of a program's nodes: names, modules, source lines, MACs, memory formats, and the I/O boundary."""
