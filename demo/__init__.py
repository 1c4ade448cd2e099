"""The main job on real data: publish, lose the master, compare, read back, land. `python -m demo.main_job`."""
