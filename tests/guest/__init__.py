"""Programs and tests for inside the virtual machine with Bluetooth; pytest alone runs none."""
