"""The demo: orders and payments made up from a seed, streamed by the job, and counted again in plain SQL."""
