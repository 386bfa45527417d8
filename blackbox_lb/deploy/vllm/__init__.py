"""The parts of the logits processor in vLLM: vectors on the device, and the vector of each row of a
batch.
"""
