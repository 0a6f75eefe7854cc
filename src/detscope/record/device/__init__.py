"""The machine while it is recorded: telemetry, the device's clock, NVIDIA's tools."""
