"""The management page, under /page of the HTTP door: see docs/operate/management.md and decision 0057."""
