"""Examples over the workers of a cluster: chunks, faults, a log.

`engine.py` says what is asked of a cluster, `by_ray.py` answers for Ray, `crew.py` keeps workers alive, `chunked.py`
cuts examples into chunks and has each run until it is done, and `log.py` keeps finished chunks on disk.
"""
