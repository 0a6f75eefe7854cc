"""Pure functions, tables in, figures out; torch is never imported here."""
