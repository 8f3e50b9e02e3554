"""The operator cases of ONNX's backend suite, compiled by a target and run by the runtime."""
