// before require-sizes
module {
  func.func @main(%arg0: tensor<?x5xf32, #ai.dims<["n", "5"]>>, %arg1: tensor<?x5xf32, #ai.dims<["k", "5"]>>) -> tensor<?x2xf32, #ai.dims<["select(eq(n, 1), k, n)", "2"]>> attributes {input_names = ["x", "y"], output_names = ["y0"], ranges = ["k:1:8", "n:1:8"]} {
    %0 = "ai.elemwise_add"(%arg0, %arg1) {broadcast = true, rounding = "rtne"} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["k", "5"]>>) -> tensor<?x5xf32, #ai.dims<["select(eq(n, 1), k, n)", "5"]>>
    %1 = "ai.slice"(%0) {sizes = [#ai.dims<["select(eq(n, 1), k, n)"]>, 2], starts = [0, 1], steps = [1, 1]} : (tensor<?x5xf32, #ai.dims<["select(eq(n, 1), k, n)", "5"]>>) -> tensor<?x2xf32, #ai.dims<["select(eq(n, 1), k, n)", "2"]>>
    return %1 : tensor<?x2xf32, #ai.dims<["select(eq(n, 1), k, n)", "2"]>>
  }
}
// after require-sizes
module {
  func.func @main(%arg0: tensor<?x5xf32, #ai.dims<["n", "5"]>>, %arg1: tensor<?x5xf32, #ai.dims<["k", "5"]>>) -> tensor<?x2xf32, #ai.dims<["select(eq(n, 1), k, n)", "2"]>> attributes {input_names = ["x", "y"], output_names = ["y0"], ranges = ["k:1:8", "n:1:8"]} {
    "ai.require"() {condition = #ai.dims<["max(eq(n, k), max(eq(k, 1), eq(n, 1)))"]>, message = "shapes [n,5] and [k,5] do not broadcast"} : () -> ()
    %0 = "ai.elemwise_add"(%arg0, %arg1) {broadcast = true, rounding = "rtne"} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["k", "5"]>>) -> tensor<?x5xf32, #ai.dims<["select(eq(n, 1), k, n)", "5"]>>
    %1 = "ai.slice"(%0) {sizes = [#ai.dims<["select(eq(n, 1), k, n)"]>, 2], starts = [0, 1], steps = [1, 1]} : (tensor<?x5xf32, #ai.dims<["select(eq(n, 1), k, n)", "5"]>>) -> tensor<?x2xf32, #ai.dims<["select(eq(n, 1), k, n)", "2"]>>
    return %1 : tensor<?x2xf32, #ai.dims<["select(eq(n, 1), k, n)", "2"]>>
  }
}
