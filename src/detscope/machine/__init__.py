"""Facts about this machine: versions, processors, memory, devices, and what is missing."""
