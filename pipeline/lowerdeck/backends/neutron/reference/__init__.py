"""Lowerdeck's `reference` flavor: the interface of the eIQ Neutron SDK without NXP's converter.

ITS OUTPUT RUNS ON THE HOST ONLY, NOT ON THE NPU. It packs each partition's LiteRT model unchanged into the payload, so
that ExecuTorch's Neutron backend can partition and lower a program where the SDK is not installed, and a host can
execute the resulting `.pte` with LiteRT's integer kernels. For firmware, choose a flavor of NXP's SDK.

Imports flatbuffers only, and that without NumPy: a converter child process starts for every partition.
"""

from lowerdeck.backends.neutron.reference import neutron_converter, neutron_library_utils
from lowerdeck.backends.neutron.reference.kernel_selection import merge_kernel_selection_files
from lowerdeck.backends.neutron.reference.microcode import FORMAT_VERSION

__version__ = f"reference-{FORMAT_VERSION}"
__all__ = ["__version__", "merge_kernel_selection_files", "neutron_converter", "neutron_library_utils"]
