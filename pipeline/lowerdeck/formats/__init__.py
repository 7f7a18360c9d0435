"""File formats: .pt2 in stable bytes, .pte, flatbuffers, ETRecord."""
