"""Files for AMD's tools: TensileLite, hipblaslt-bench, library logic, the override file.

None of this was run on AMD hardware. The tuning files were read by TensileLite's own parser (4.33).
"""
