"""The management page, under /page of the HTTP door: see docs/management.md and decision 0057."""
