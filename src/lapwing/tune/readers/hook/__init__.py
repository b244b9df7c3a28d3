"""Files copied next to a recorded program; lapwing itself imports nothing from here."""
