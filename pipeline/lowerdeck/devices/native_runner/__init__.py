"""Source of a runner for Linux boards without Python; `lowerdeck devices runner` compiles it."""
