"""Steps, phases, stages, modules and operators."""
