"""`detscope data prepare`: downloads, archives, folders that are whole or not there."""
