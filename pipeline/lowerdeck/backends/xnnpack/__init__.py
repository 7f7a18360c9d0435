"""XNNPACK on CPUs: XNNPACKQuantizer -> XnnpackPartitioner -> serializer."""
