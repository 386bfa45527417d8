"""Commands around the main job: settings, providers, stores, the shell, and the paper's tables."""
