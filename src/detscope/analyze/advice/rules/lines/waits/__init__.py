"""Rules on lines at which the host waits for the device, or copies to it and waits."""
