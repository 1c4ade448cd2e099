"""The management API, as RabbitMQ's tools know it, under /api of the HTTP door. See docs/operate/management.md."""
