"""Others that do the same job, measured on the same output in the same run."""
