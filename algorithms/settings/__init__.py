"""Settings: fields of configs, their checks and how they are written to files."""
