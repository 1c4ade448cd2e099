"""The main job on real data: publish, lose a mirror, compare, read back, land. `python -m demo.main_job`."""
