// before fold-constants
module {
  func.func @main(%arg0: tensor<?x4xf32, #ai.dims<["n", "4"]>>) -> tensor<?x3xf32, #ai.dims<["n", "3"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "int8", fingerprint = "b58e76410ab196ba", key = "w1", layout = "", shape = [4, 3]} : () -> tensor<4x3xi8>
    %1 = "ai.cast"(%0) {dtype = "float32"} : (tensor<4x3xi8>) -> tensor<4x3xf32>
    %2 = "ai.full"() {dtype = "float32", shape = [], value = 5.000000e-01 : f64} : () -> tensor<f32>
    %3 = "ai.elemwise_mul"(%1, %2) {broadcast = true, rounding = "rtne"} : (tensor<4x3xf32>, tensor<f32>) -> tensor<4x3xf32>
    %4 = "ai.matmul"(%arg0, %3) {transpose_a = false, transpose_b = false} : (tensor<?x4xf32, #ai.dims<["n", "4"]>>, tensor<4x3xf32>) -> tensor<?x3xf32, #ai.dims<["n", "3"]>>
    return %4 : tensor<?x3xf32, #ai.dims<["n", "3"]>>
  }
}
// after fold-constants
module {
  func.func @main(%arg0: tensor<?x4xf32, #ai.dims<["n", "4"]>>) -> tensor<?x3xf32, #ai.dims<["n", "3"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "be0b897f954413a4", key = "w1.2", layout = "", shape = [4, 3]} : () -> tensor<4x3xf32>
    %1 = "ai.matmul"(%arg0, %0) {transpose_a = false, transpose_b = false} : (tensor<?x4xf32, #ai.dims<["n", "4"]>>, tensor<4x3xf32>) -> tensor<?x3xf32, #ai.dims<["n", "3"]>>
    return %1 : tensor<?x3xf32, #ai.dims<["n", "3"]>>
  }
}
