"""What logged completions of one policy say of another: importance weights, their diagnostics, and pooling of rounds."""
