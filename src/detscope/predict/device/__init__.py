"""What was fitted for a device: the model, its file, its transfer to another device."""
