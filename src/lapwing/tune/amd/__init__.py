"""Files for AMD's tools: TensileLite, hipblaslt-bench, library logic, the override file.

None of this was run on AMD hardware. TensileLite's own parser (4.33) has read the tuning files.
"""
