"""The lossless certificate: outputs and laws compared with plain decoding."""
