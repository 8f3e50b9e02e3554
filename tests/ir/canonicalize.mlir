// before canonicalize
module {
  func.func @main(%arg0: tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.full"() {dtype = "float32", shape = [], value = 2.000000e+00 : f64} : () -> tensor<f32>
    %1 = "ai.pow"(%arg0, %0) : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<f32>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
    %2 = "ai.full"() {dtype = "float32", shape = [], value = 0.000000e+00 : f64} : () -> tensor<f32>
    %3 = "ai.elemwise_add"(%1, %2) {broadcast = true, rounding = "rtne"} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<f32>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
    %4 = "ai.full"() {dtype = "float32", shape = [], value = 0.000000e+00 : f64} : () -> tensor<f32>
    %5 = "ai.maximum"(%3, %4) : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<f32>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
    %6 = "ai.full"() {dtype = "float32", shape = [], value = 4.000000e+00 : f64} : () -> tensor<f32>
    %7 = "ai.elemwise_div"(%5, %6) {broadcast = true, rounding = "rtne"} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<f32>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
    %8 = "ai.transpose"(%7) {perm = [1, 0]} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> tensor<5x?xf32, #ai.dims<["5", "n"]>>
    %9 = "ai.transpose"(%8) {perm = [1, 0]} : (tensor<5x?xf32, #ai.dims<["5", "n"]>>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
    return %9 : tensor<?x5xf32, #ai.dims<["n", "5"]>>
  }
}
// after canonicalize
module {
  func.func @main(%arg0: tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.elemwise_mul"(%arg0, %arg0) {broadcast = true, rounding = "rtne"} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
    %1 = "ai.relu"(%0) : (tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
    %2 = "ai.full"() {dtype = "float32", shape = [], value = 2.500000e-01 : f64} : () -> tensor<f32>
    %3 = "ai.elemwise_mul"(%1, %2) {broadcast = true, rounding = "rtne"} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<f32>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
    return %3 : tensor<?x5xf32, #ai.dims<["n", "5"]>>
  }
}
