// before fold-batch-norm
module {
  func.func @main(%arg0: tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "041631761f25c7f2", key = "w1", layout = "", shape = [4, 3, 3, 3]} : () -> tensor<4x3x3x3xf32>
    %1 = "ai.conv"(%arg0, %0) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [1, 1], pads_end = [1, 1], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1]} : (tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>, tensor<4x3x3x3xf32>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
    %2 = "ai.constant"() {dtype = "float32", fingerprint = "e1506b20ffe517c4", key = "w2", layout = "", shape = [4, 1, 1]} : () -> tensor<4x1x1xf32>
    %3 = "ai.elemwise_mul"(%1, %2) {broadcast = true, rounding = "rtne"} : (tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>, tensor<4x1x1xf32>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
    %4 = "ai.constant"() {dtype = "float32", fingerprint = "041c1ceb847be790", key = "w4", layout = "", shape = [4, 1, 1]} : () -> tensor<4x1x1xf32>
    %5 = "ai.elemwise_add"(%3, %4) {broadcast = true, rounding = "rtne"} : (tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>, tensor<4x1x1xf32>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
    %6 = "ai.relu"(%5) : (tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
    return %6 : tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
  }
}
// after fold-batch-norm
module {
  func.func @main(%arg0: tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>> attributes {input_names = ["x"], output_names = ["y0"], ranges = []} {
    %0 = "ai.constant"() {dtype = "float32", fingerprint = "4f8ffea18071cc3e", key = "w1.2", layout = "", shape = [4, 3, 3, 3]} : () -> tensor<4x3x3x3xf32>
    %1 = "ai.constant"() {dtype = "float32", fingerprint = "c8ca9af59a3f2030", key = "w1.bias", layout = "", shape = [4]} : () -> tensor<4xf32>
    %2 = "ai.conv"(%arg0, %0, %1) {dilations = [1, 1], groups = 1 : i64, out_layout = "", pads_begin = [1, 1], pads_end = [1, 1], stack = 1 : i64, stack_step = 1 : i64, strides = [1, 1]} : (tensor<?x3x?x?xf32, #ai.dims<["n", "3", "h", "w"]>>, tensor<4x3x3x3xf32>, tensor<4xf32>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
    %3 = "ai.relu"(%2) : (tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>) -> tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
    return %3 : tensor<?x4x?x?xf32, #ai.dims<["n", "4", "h", "w"]>>
  }
}
