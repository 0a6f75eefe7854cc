"""Single layers, measured on a device."""
