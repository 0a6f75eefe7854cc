"""`detscope eval`: accuracy of a model or of a file of detections."""
