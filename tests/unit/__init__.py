"""The core, the accumulator and the tools, without Spark."""
