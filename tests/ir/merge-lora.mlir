// before merge-lora
module {
  func.func @main(%arg0: tensor<?x4xf32, #ai.dims<["n", "4"]>>) -> tensor<?x3xf32, #ai.dims<["n", "3"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "aa308117f8558b65", key = "w1", layout = "", shape = [6, 4]} : () -> tensor<6x4xf32>
    %1 = "ai.constant"() {dtype = "float32", fingerprint = "53f04ad35be8d202", key = "w2", layout = "", shape = [1, 4]} : () -> tensor<1x4xf32>
    %2 = "ai.constant"() {dtype = "float32", fingerprint = "9c30686aeed12a7b", key = "w3", layout = "", shape = [2, 1]} : () -> tensor<2x1xf32>
    %3 = "ai.lora"(%0, %1, %2) {adapter = "sql", apart = false, bits = 0 : i64, module = "q", out_axis = 0 : i64, scale = 2.000000e+00 : f64, start = 0 : i64} : (tensor<6x4xf32>, tensor<1x4xf32>, tensor<2x1xf32>) -> tensor<6x4xf32>
    %4 = "ai.constant"() {dtype = "float32", fingerprint = "fe70f46a7c546f38", key = "w5", layout = "", shape = [1, 4]} : () -> tensor<1x4xf32>
    %5 = "ai.constant"() {dtype = "float32", fingerprint = "85665842c0ba1d90", key = "w6", layout = "", shape = [2, 1]} : () -> tensor<2x1xf32>
    %6 = "ai.lora"(%3, %4, %5) {adapter = "sql", apart = false, bits = 0 : i64, module = "v", out_axis = 0 : i64, scale = 2.000000e+00 : f64, start = 4 : i64} : (tensor<6x4xf32>, tensor<1x4xf32>, tensor<2x1xf32>) -> tensor<6x4xf32>
    %7 = "ai.matmul"(%arg0, %6) {transpose_a = false, transpose_b = true} : (tensor<?x4xf32, #ai.dims<["n", "4"]>>, tensor<6x4xf32>) -> tensor<?x6xf32, #ai.dims<["n", "6"]>>
    %8 = "ai.constant"() {dtype = "int8", fingerprint = "f50d59cc7f850ce7", key = "w9", layout = "", shape = [3, 6]} : () -> tensor<3x6xi8>
    %9 = "ai.constant"() {dtype = "float32", fingerprint = "ed9984bfd211a542", key = "w10", layout = "", shape = [3]} : () -> tensor<3xf32>
    %10 = "ai.dequantize_linear"(%8, %9) {axis = 0 : i64, block = 0 : i64} : (tensor<3x6xi8>, tensor<3xf32>) -> tensor<3x6xf32>
    %11 = "ai.constant"() {dtype = "float32", fingerprint = "c607894bb41e2a2d", key = "w12", layout = "", shape = [1, 6]} : () -> tensor<1x6xf32>
    %12 = "ai.constant"() {dtype = "float32", fingerprint = "078cee5c637d6a40", key = "w13", layout = "", shape = [3, 1]} : () -> tensor<3x1xf32>
    %13 = "ai.lora"(%10, %11, %12) {adapter = "sql", apart = false, bits = 0 : i64, module = "out", out_axis = 0 : i64, scale = 5.000000e-01 : f64, start = 0 : i64} : (tensor<3x6xf32>, tensor<1x6xf32>, tensor<3x1xf32>) -> tensor<3x6xf32>
    %14 = "ai.matmul"(%7, %13) {transpose_a = false, transpose_b = true} : (tensor<?x6xf32, #ai.dims<["n", "6"]>>, tensor<3x6xf32>) -> tensor<?x3xf32, #ai.dims<["n", "3"]>>
    return %14 : tensor<?x3xf32, #ai.dims<["n", "3"]>>
  }
}
// after merge-lora
module {
  func.func @main(%arg0: tensor<?x4xf32, #ai.dims<["n", "4"]>>) -> tensor<?x3xf32, #ai.dims<["n", "3"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "d883ff7b02a38fe3", key = "w1+sql", layout = "", shape = [6, 4]} : () -> tensor<6x4xf32>
    %1 = "ai.matmul"(%arg0, %0) {transpose_a = false, transpose_b = true} : (tensor<?x4xf32, #ai.dims<["n", "4"]>>, tensor<6x4xf32>) -> tensor<?x6xf32, #ai.dims<["n", "6"]>>
    %2 = "ai.constant"() {dtype = "float32", fingerprint = "7bbfc7e851e5e647", key = "w9+sql.scale", layout = "", shape = [3]} : () -> tensor<3xf32>
    %3 = "ai.constant"() {dtype = "int8", fingerprint = "40d52275acaaee84", key = "w9+sql", layout = "", shape = [3, 6]} : () -> tensor<3x6xi8>
    %4 = "ai.dequantize_linear"(%3, %2) {axis = 0 : i64, block = 0 : i64} : (tensor<3x6xi8>, tensor<3xf32>) -> tensor<3x6xf32>
    %5 = "ai.matmul"(%1, %4) {transpose_a = false, transpose_b = true} : (tensor<?x6xf32, #ai.dims<["n", "6"]>>, tensor<3x6xf32>) -> tensor<?x3xf32, #ai.dims<["n", "3"]>>
    return %5 : tensor<?x3xf32, #ai.dims<["n", "3"]>>
  }
}
