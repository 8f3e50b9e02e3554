"""From plan, objects and weights to a package on disk: link `model.so`, append the image, write
aside, rename.

Entry points: `write.write_package`, `describe.describe`, `toolchain.find_toolchain`, `cache.Cache`.
"""
