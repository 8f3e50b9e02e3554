// before float-levels
module {
  func.func @main(%arg0: tensor<?x5xf32, #ai.dims<["n", "5"]>>, %arg1: tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> (tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>) attributes {input_names = ["x", "r"], output_names = ["y0", "y1"], ranges = []} {
    %0:2 = "ai.fusion"() ({
      %1 = "ai.full"() {dtype = "float32", shape = [], value = 5.000000e-01 : f64} : () -> tensor<f32>
      %2 = "ai.full"() {dtype = "uint8", shape = [], value = 3 : i64} : () -> tensor<ui8>
      %3 = "ai.quantize_linear"(%arg0, %1, %2) {axis = 1 : i64, block = 0 : i64, precision = "float32", saturate = true} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<f32>, tensor<ui8>) -> tensor<?x5xui8, #ai.dims<["n", "5"]>>
      %4 = "ai.full"() {dtype = "float32", shape = [], value = 2.500000e-01 : f64} : () -> tensor<f32>
      %5 = "ai.dequantize_linear"(%3, %4, %2) {axis = 1 : i64, block = 0 : i64} : (tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<f32>, tensor<ui8>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
      %6 = "ai.elemwise_add"(%5, %arg1) {broadcast = true, rounding = "rtne"} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
      %7 = "ai.full"() {dtype = "float32", shape = [], value = 5.000000e-01 : f64} : () -> tensor<f32>
      %8 = "ai.full"() {dtype = "uint8", shape = [], value = 7 : i64} : () -> tensor<ui8>
      %9 = "ai.quantize_linear"(%6, %7, %8) {axis = 1 : i64, block = 0 : i64, precision = "float32", saturate = true} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<f32>, tensor<ui8>) -> tensor<?x5xui8, #ai.dims<["n", "5"]>>
      %10 = "ai.full"() {dtype = "float32", shape = [], value = 2.500000e-01 : f64} : () -> tensor<f32>
      %11 = "ai.dequantize_linear"(%9, %10, %8) {axis = 1 : i64, block = 0 : i64} : (tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<f32>, tensor<ui8>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
      %12 = "ai.neg"(%11) : (tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
      "ai.yield"(%9, %12) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> ()
    }) {kind = "elementwise", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, rule = "elementwise"} : () -> (tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>)
    return %0#0, %0#1 : tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>
  }
}
// after float-levels
module {
  func.func @main(%arg0: tensor<?x5xf32, #ai.dims<["n", "5"]>>, %arg1: tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> (tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>) attributes {input_names = ["x", "r"], output_names = ["y0", "y1"], ranges = []} {
    %0:2 = "ai.fusion"() ({
      %1 = "ai.full"() {dtype = "float32", shape = [], value = 5.000000e-01 : f64} : () -> tensor<f32>
      %2 = "ai.full"() {dtype = "uint8", shape = [], value = 3 : i64} : () -> tensor<ui8>
      %3 = "ai.full"() {dtype = "float32", shape = [], value = 2.500000e-01 : f64} : () -> tensor<f32>
      %4 = "ai.fake_quantize"(%arg0, %1, %2, %3) : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<f32>, tensor<ui8>, tensor<f32>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
      %5 = "ai.elemwise_add"(%4, %arg1) {broadcast = true, rounding = "rtne"} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
      %6 = "ai.full"() {dtype = "float32", shape = [], value = 5.000000e-01 : f64} : () -> tensor<f32>
      %7 = "ai.full"() {dtype = "uint8", shape = [], value = 7 : i64} : () -> tensor<ui8>
      %8 = "ai.quantize_linear"(%5, %6, %7) {axis = 1 : i64, block = 0 : i64, precision = "float32", saturate = true} : (tensor<?x5xf32, #ai.dims<["n", "5"]>>, tensor<f32>, tensor<ui8>) -> tensor<?x5xui8, #ai.dims<["n", "5"]>>
      %9 = "ai.full"() {dtype = "float32", shape = [], value = 2.500000e-01 : f64} : () -> tensor<f32>
      %10 = "ai.dequantize_linear"(%8, %9, %7) {axis = 1 : i64, block = 0 : i64} : (tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<f32>, tensor<ui8>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
      %11 = "ai.neg"(%10) : (tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> tensor<?x5xf32, #ai.dims<["n", "5"]>>
      "ai.yield"(%8, %11) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>) -> ()
    }) {kind = "elementwise", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, rule = "elementwise"} : () -> (tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>)
    return %0#0, %0#1 : tensor<?x5xui8, #ai.dims<["n", "5"]>>, tensor<?x5xf32, #ai.dims<["n", "5"]>>
  }
}
