"""What the commands of mqtool share: options, connections, and how results are written."""
