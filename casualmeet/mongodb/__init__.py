"""MongoDB's own Django backend, with unique indexes that MongoDB can also search by; why: base.py."""
