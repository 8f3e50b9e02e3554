"""Random one-node models of every operator against onnx's reference evaluator and onnxruntime."""
