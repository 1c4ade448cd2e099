"""What the machine allows: programs that make the same moves as a workload and nothing else, run by `bench.limits`."""
