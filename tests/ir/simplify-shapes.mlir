// before simplify-shapes
module {
  func.func @main(%arg0: tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.transpose"(%arg0) {perm = [0, 2, 3, 1]} : (tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>) -> tensor<?x?x?x3xf32, #ai.dims<["n", "h", "w", "3"]>>
    %1 = "ai.relu"(%0) : (tensor<?x?x?x3xf32, #ai.dims<["n", "h", "w", "3"]>>) -> tensor<?x?x?x3xf32, #ai.dims<["n", "h", "w", "3"]>>
    %2 = "ai.transpose"(%1) {perm = [0, 3, 1, 2]} : (tensor<?x?x?x3xf32, #ai.dims<["n", "h", "w", "3"]>>) -> tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>
    %3 = "ai.pad"(%2) {after = [0, 0, 1, 1], before = [0, 0, 1, 1], mode = "constant", value = 0.000000e+00 : f64} : (tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>) -> tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h + 2", "w + 2"]>>
    %4 = "ai.constant"() {dtype = "float32", fingerprint = "041631761f25c7f2", key = "w5", layout = "", shape = [4, 3, 3, 3]} : () -> tensor<4x3x3x3xf32>
    %5 = "ai.conv"(%3, %4) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [0, 0], pads_end = [0, 0], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1]} : (tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h + 2", "w + 2"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
    return %5 : tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
  }
}
// after simplify-shapes
module {
  func.func @main(%arg0: tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.relu"(%arg0) : (tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>) -> tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>
    %1 = "ai.constant"() {dtype = "float32", fingerprint = "041631761f25c7f2", key = "w5", layout = "", shape = [4, 3, 3, 3]} : () -> tensor<4x3x3x3xf32>
    %2 = "ai.conv"(%0, %1) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [1, 1], pads_end = [1, 1], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1]} : (tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
    return %2 : tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
  }
}
