"""What a machine is compiled to, behind one interface: see `job/plan.py`."""
