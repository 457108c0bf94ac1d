"""Programs that run the library: the job, its demo, the benchmarks."""
