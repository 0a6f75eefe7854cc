"""Several ranks: who waited for whom."""
