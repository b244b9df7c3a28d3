"""What every layer shares: problems, plans, errors, derivative rules. Knows no framework and no vendor."""
