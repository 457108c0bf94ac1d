"""The demo: orders and payments made up from a seed, streamed by the job, counted once more in plain SQL."""
