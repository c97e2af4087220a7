"""The control of the cluster: elections, state machines, topic work. See `barnabas.controller.controller`."""
