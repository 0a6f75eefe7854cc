"""Listings of Nsight Compute as CSV."""
