"""Benchmarks: `python -m bench`, described in docs/contributing/performance.md. Tests assert no speed.

- `cli`: the command line; `registry`: which workloads there are; `runner`: rounds; `results`: the file
- `w1_publish`, `w2_one_outstanding`, `w3_consume`, `w5_catch_up`, `open_loop`, `grpc_publish`,
  `grpc_one_outstanding`, `grpc_consume`: what is measured
- `limits` with the programs in `limit`: what the machine allows; `peers`: other systems
- `nodes`, `clients`, `publishing`, `records`, `ticks`: what the workloads share; `workload`, `measure`: what they give
- `marks`, `report`, `picture`: what is made of it
- `micro_*`: single steps, each a program of its own
"""
