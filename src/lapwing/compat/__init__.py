"""Drop-in names of other systems, so that their users move by changing one import."""
