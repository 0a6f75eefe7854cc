"""What listens: phases, modules, operators, loader workers, telemetry."""
