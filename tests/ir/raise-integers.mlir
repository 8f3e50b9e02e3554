// before raise-integers
module {
  func.func @main(%arg0: tensor<?x3x8x8xf32, #ai.dims<["n", "3", "8", "8"]>>) -> tensor<?x4x8x8xi8, #ai.dims<["n", "4", "8", "8"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.full"() {dtype = "float32", shape = [], value = 2.000000e-02 : f64} : () -> tensor<f32>
    %1 = "ai.full"() {dtype = "int8", shape = [], value = 7 : i64} : () -> tensor<i8>
    %2 = "ai.quantize_linear"(%arg0, %0, %1) {axis = 1 : i64, block = 0 : i64, precision = "float32", saturate = true} : (tensor<?x3x8x8xf32, #ai.dims<["n", "3", "8", "8"]>>, tensor<f32>, tensor<i8>) -> tensor<?x3x8x8xi8, #ai.dims<["n", "3", "8", "8"]>>
    %3 = "ai.full"() {dtype = "float32", shape = [], value = 2.000000e-02 : f64} : () -> tensor<f32>
    %4 = "ai.full"() {dtype = "int8", shape = [], value = 7 : i64} : () -> tensor<i8>
    %5 = "ai.dequantize_linear"(%2, %3, %4) {axis = 1 : i64, block = 0 : i64} : (tensor<?x3x8x8xi8, #ai.dims<["n", "3", "8", "8"]>>, tensor<f32>, tensor<i8>) -> tensor<?x3x8x8xf32, #ai.dims<["n", "3", "8", "8"]>>
    %6 = "ai.constant"() {dtype = "int8", fingerprint = "3f5980bf99e0caa1", key = "w3", layout = "", shape = [4, 3, 3, 3]} : () -> tensor<4x3x3x3xi8>
    %7 = "ai.full"() {dtype = "float32", shape = [], value = 1.000000e-02 : f64} : () -> tensor<f32>
    %8 = "ai.full"() {dtype = "int8", shape = [], value = 0 : i64} : () -> tensor<i8>
    %9 = "ai.dequantize_linear"(%6, %7, %8) {axis = 1 : i64, block = 0 : i64} : (tensor<4x3x3x3xi8>, tensor<f32>, tensor<i8>) -> tensor<4x3x3x3xf32>
    %10 = "ai.conv"(%5, %9) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [1, 1], pads_end = [1, 1], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1]} : (tensor<?x3x8x8xf32, #ai.dims<["n", "3", "8", "8"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x8x8xf32, #ai.dims<["n", "4", "8", "8"]>>
    %11 = "ai.relu"(%10) : (tensor<?x4x8x8xf32, #ai.dims<["n", "4", "8", "8"]>>) -> tensor<?x4x8x8xf32, #ai.dims<["n", "4", "8", "8"]>>
    %12 = "ai.full"() {dtype = "float32", shape = [], value = 5.000000e-01 : f64} : () -> tensor<f32>
    %13 = "ai.full"() {dtype = "int8", shape = [], value = -128 : i64} : () -> tensor<i8>
    %14 = "ai.quantize_linear"(%11, %12, %13) {axis = 1 : i64, block = 0 : i64, precision = "float32", saturate = true} : (tensor<?x4x8x8xf32, #ai.dims<["n", "4", "8", "8"]>>, tensor<f32>, tensor<i8>) -> tensor<?x4x8x8xi8, #ai.dims<["n", "4", "8", "8"]>>
    return %14 : tensor<?x4x8x8xi8, #ai.dims<["n", "4", "8", "8"]>>
  }
}
// after raise-integers
module {
  func.func @main(%arg0: tensor<?x3x8x8xf32, #ai.dims<["n", "3", "8", "8"]>>) -> tensor<?x4x8x8xi8, #ai.dims<["n", "4", "8", "8"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.full"() {dtype = "float32", shape = [], value = 2.000000e-02 : f64} : () -> tensor<f32>
    %1 = "ai.full"() {dtype = "uint8", shape = [], value = 135 : i64} : () -> tensor<ui8>
    %2 = "ai.quantize_linear"(%arg0, %0, %1) {axis = 1 : i64, block = 0 : i64, precision = "float32", saturate = true} : (tensor<?x3x8x8xf32, #ai.dims<["n", "3", "8", "8"]>>, tensor<f32>, tensor<ui8>) -> tensor<?x3x8x8xui8, #ai.dims<["n", "3", "8", "8"]>>
    %3 = "ai.full"() {dtype = "float32", shape = [], value = 2.000000e-02 : f64} : () -> tensor<f32>
    %4 = "ai.full"() {dtype = "uint8", shape = [], value = 135 : i64} : () -> tensor<ui8>
    %5 = "ai.constant"() {dtype = "int8", fingerprint = "3f5980bf99e0caa1", key = "w3", layout = "", shape = [4, 3, 3, 3]} : () -> tensor<4x3x3x3xi8>
    %6 = "ai.full"() {dtype = "float32", shape = [], value = 1.000000e-02 : f64} : () -> tensor<f32>
    %7 = "ai.full"() {dtype = "int32", shape = [], value = 135 : i64} : () -> tensor<i32>
    %8 = "ai.conv_integer"(%2, %5, %4) {centred = false, dilations = [1, 1], groups = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0>, out_layout = "", pads_begin = [1, 1], pads_end = [1, 1], strides = [1, 1]} : (tensor<?x3x8x8xui8, #ai.dims<["n", "3", "8", "8"]>>, tensor<4x3x3x3xi8>, tensor<ui8>) -> tensor<?x4x8x8xi32, #ai.dims<["n", "4", "8", "8"]>>
    %9 = "ai.cast"(%5) {dtype = "int32"} : (tensor<4x3x3x3xi8>) -> tensor<4x3x3x3xi32>
    %10 = "ai.reduce_sum"(%9) {axes = [1, 2, 3], keepdims = false} : (tensor<4x3x3x3xi32>) -> tensor<4xi32>
    %11 = "ai.reshape"(%10) {shape = [4, 1, 1]} : (tensor<4xi32>) -> tensor<4x1x1xi32>
    %12 = "ai.elemwise_mul"(%7, %11) {broadcast = true, rounding = "rtne"} : (tensor<i32>, tensor<4x1x1xi32>) -> tensor<4x1x1xi32>
    %13 = "ai.elemwise_sub"(%8, %12) {broadcast = true, rounding = "rtne"} : (tensor<?x4x8x8xi32, #ai.dims<["n", "4", "8", "8"]>>, tensor<4x1x1xi32>) -> tensor<?x4x8x8xi32, #ai.dims<["n", "4", "8", "8"]>>
    %14 = "ai.elemwise_mul"(%3, %6) {broadcast = true, rounding = "rtne"} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %15 = "ai.cast"(%13) {dtype = "float32"} : (tensor<?x4x8x8xi32, #ai.dims<["n", "4", "8", "8"]>>) -> tensor<?x4x8x8xf32, #ai.dims<["n", "4", "8", "8"]>>
    %16 = "ai.full"() {dtype = "float32", shape = [], value = 5.000000e-01 : f64} : () -> tensor<f32>
    %17 = "ai.full"() {dtype = "uint8", shape = [], value = 0 : i64} : () -> tensor<ui8>
    %18 = "ai.elemwise_div"(%14, %16) {broadcast = true, rounding = "rtne"} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %19 = "ai.elemwise_mul"(%15, %18) {broadcast = true, rounding = "rtne"} : (tensor<?x4x8x8xf32, #ai.dims<["n", "4", "8", "8"]>>, tensor<f32>) -> tensor<?x4x8x8xf32, #ai.dims<["n", "4", "8", "8"]>>
    %20 = "ai.full"() {dtype = "float32", shape = [], value = 1.000000e+00 : f64} : () -> tensor<f32>
    %21 = "ai.quantize_linear"(%19, %20, %17) {axis = 0 : i64, block = 0 : i64, precision = "float32", saturate = true} : (tensor<?x4x8x8xf32, #ai.dims<["n", "4", "8", "8"]>>, tensor<f32>, tensor<ui8>) -> tensor<?x4x8x8xui8, #ai.dims<["n", "4", "8", "8"]>>
    %22 = "ai.recode"(%21) : (tensor<?x4x8x8xui8, #ai.dims<["n", "4", "8", "8"]>>) -> tensor<?x4x8x8xi8, #ai.dims<["n", "4", "8", "8"]>>
    return %22 : tensor<?x4x8x8xi8, #ai.dims<["n", "4", "8", "8"]>>
  }
}
