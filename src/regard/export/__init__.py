"""Export: models as ONNX graphs with runners, for use without this package."""
