"""The census: in steps of their own, every line where the host waits for the device or launches."""
