"""Texts in LLVM IR that kernels of tir.py may need: pointers of arguments, prefetches."""

from __future__ import annotations

ARGUMENT = """
define linkonce_odr hidden ptr @cuvil_argument(ptr %arguments, i64 %i)
    alwaysinline nounwind readonly {
  %p = getelementptr ptr, ptr %arguments, i64 %i
  %v = load ptr, ptr %p, align 8, !invariant.load !0
  ret ptr %v
}
!0 = !{}
"""
# TVM adds functions that convert float16 to every module, and a third of a small kernel's compile
# time went to them. These symbols take their place in a kernel that has no float16; being a COMDAT
# they are one in a package of many kernels.
NO_HALF = """
$__truncsfhf2 = comdat any
@__truncsfhf2 = hidden constant i8 0, comdat
$__extendhfsf2 = comdat any
@__extendhfsf2 = hidden constant i8 0, comdat
"""
PREFETCH = """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr hidden i32 @cuvil_prefetch(ptr %p, i64 %i) alwaysinline nounwind {
  %q = getelementptr float, ptr %p, i64 %i
  call void @llvm.prefetch.p0(ptr %q, i32 0, i32 2, i32 1)
  ret i32 0
}
"""
OFFSET = """
define linkonce_odr hidden ptr @cuvil_offset(ptr %base, i64 %bytes) alwaysinline nounwind readnone {
  %p = getelementptr i8, ptr %base, i64 %bytes
  ret ptr %p
}
"""

__all__ = ["ARGUMENT", "NO_HALF", "OFFSET", "PREFETCH"]
