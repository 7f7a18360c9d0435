"""C and C++ for devices: a runner for Linux boards without Python, and the protocol of boards at a serial port."""
