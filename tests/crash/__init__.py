"""Kills, damage and storage that fails."""
