"""What the logits processor in vLLM is made of: the vectors on the device, and which row of a batch gets which."""
