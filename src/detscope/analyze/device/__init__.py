"""How busy the device was, how well it was used, and who made it wait."""
